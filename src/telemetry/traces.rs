//! Traces over OTLP, when a collector is configured; without one nothing is made and no task runs.
//!
//! One span per delivery, from its claim to its settle. Its ids are those of the wake's `traceparent`
//! ([`crate::domain::trace`]), so that what the router and the agent record hangs below it. It says which alarm, which
//! delivery, which attempt and what became of it; never a message, a payload or a token.
//!
//! ```text
//! Span::end ──try_send──▶ queue (bounded: a slow collector costs spans, never a wake) ──▶ Exporter ──POST──▶ collector
//! ```
//!
//! The SDK's own way to the collector is a thread that cannot drive our HTTP client: hence a task.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use chrono::{DateTime, Utc};
use opentelemetry::{
    InstrumentationScope, Key, KeyValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanEvents, SpanExporter, SpanLinks},
};
use thiserror::Error;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use url::Url;

use super::chain;
use crate::domain::{occurrence::Outcome, trace::Trace, wake::Wake};

/// Spans that wait for the collector: some seconds of a busy dispatcher, a few megabytes.
const QUEUE: usize = 8192;
/// Most spans of one request.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// A collector that takes longer has lost the batch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where ended spans go; empty until a collector is configured.
static ENDED: OnceLock<mpsc::Sender<SpanData>> = OnceLock::new();
/// Spans that found the queue full.
static DROPPED: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Error)]
pub enum Error {
    #[error("building the client of the trace collector")]
    Client(#[source] reqwest::Error),
    #[error("building the exporter of traces")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
}

/// One delivery under way. One that is dropped without an end is not told.
pub struct Span(Option<Begun>);

struct Begun {
    trace: Trace,
    claimed_at: DateTime<Utc>,
    since: Instant,
    attributes: Vec<KeyValue>,
}

impl Span {
    /// Of a delivery that was claimed at `claimed_at` by the database's clock, which was `since` on our own.
    pub fn begin(trace: &Trace, wake: &Wake, claimed_at: DateTime<Utc>, since: Instant) -> Self {
        Self(ENDED.get().map(|_| Begun {
            trace: *trace,
            claimed_at,
            since,
            attributes: vec![
                KeyValue::new("chronos.alarm.id", wake.alarm_id.to_string()),
                KeyValue::new("chronos.delivery.id", wake.delivery_id.to_string()),
                KeyValue::new("chronos.attempt", i64::from(wake.attempt)),
            ],
        }))
    }

    /// It is settled.
    pub fn end(self, outcome: Outcome, http_status: Option<u16>) {
        let (Some(begun), Some(ended)) = (self.0, ENDED.get()) else { return };
        if ended.try_send(begun.end(outcome, http_status)).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Begun {
    fn end(mut self, outcome: Outcome, http_status: Option<u16>) -> SpanData {
        self.attributes.push(KeyValue::new("chronos.outcome", outcome.as_str()));
        self.attributes.extend(http_status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
        let flags = if self.trace.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let (trace_id, span_id) = (TraceId::from(self.trace.trace_id), SpanId::from(self.trace.span_id));
        let start_time = SystemTime::from(self.claimed_at);
        SpanData {
            span_context: SpanContext::new(trace_id, span_id, flags, false, TraceState::default()),
            // A correlation id names the caller's trace, not the span in it.
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Client,
            name: "deliver".into(),
            start_time,
            end_time: start_time + self.since.elapsed(),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: status(outcome),
            instrumentation_scope: InstrumentationScope::builder("chronos")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }
}

fn status(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Delivered => Status::Ok,
        // The class of the failure is in the attributes; the router's words may quote the wake.
        Outcome::Retrying | Outcome::Exhausted => Status::error(outcome.as_str()),
        Outcome::Cancelled | Outcome::Fenced | Outcome::Missed | Outcome::Skipped => Status::Unset,
    }
}

/// The task that brings spans to the collector. It must outlive those that make them: see [`Exporter::flush`].
pub struct Exporter {
    task: JoinHandle<()>,
    stop: CancellationToken,
    /// Keeps the queue open, though nobody may ever fill it.
    _open: mpsc::Sender<SpanData>,
}

/// From here on spans are made and go to `collector`, OTLP's base address.
pub fn start(collector: &Url) -> Result<Exporter, Error> {
    let client = reqwest::Client::builder().timeout(PATIENCE).build().map_err(Error::Client)?;
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_http_client(client)
        .with_endpoint(traces_of(collector))
        .build()
        .map_err(Error::Exporter)?;
    exporter.set_resource(&resource());
    let (sender, receiver) = mpsc::channel(QUEUE);
    if ENDED.set(sender.clone()).is_err() {
        warn!("this process sends traces already; they go where they went");
    }
    let stop = CancellationToken::new();
    let task = tokio::spawn(export(exporter, receiver, stop.clone()));
    Ok(Exporter { task, stop, _open: sender })
}

/// As the specification builds it: the base, one slash, the signal's path.
fn traces_of(collector: &Url) -> String {
    format!("{}/v1/traces", collector.as_str().trim_end_matches('/'))
}

/// Who we are: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` if they say so.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let found = Resource::builder().with_attribute(version.clone()).build();
    let named = |name: &Value| !name.as_str().starts_with("unknown_service");
    if found.get(&Key::from_static_str("service.name")).as_ref().is_some_and(named) {
        return found;
    }
    Resource::builder().with_attribute(version).with_service_name("chronos").build()
}

impl Exporter {
    /// Waits for the task's end, which only a panic brings about.
    pub async fn ended(&mut self) -> Result<(), tokio::task::JoinError> {
        (&mut self.task).await
    }

    /// Brings what has ended so far to the collector, and stops.
    pub async fn flush(self, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, self.task).await.is_err() {
            warn!("the last traces did not reach the collector in time");
        }
    }
}

async fn export(exporter: impl SpanExporter, mut ended: mpsc::Receiver<SpanData>, stop: CancellationToken) {
    let mut stopping = false;
    while !stopping {
        let mut batch = Vec::new();
        tokio::select! {
            _ = ended.recv_many(&mut batch, BATCH) => {}
            () = stop.cancelled() => stopping = true,
        }
        let gathered = tokio::time::sleep(GATHER);
        tokio::pin!(gathered);
        while !stopping && batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                () = &mut gathered => break,
                () = stop.cancelled() => stopping = true,
                _ = ended.recv_many(&mut batch, room) => {}
            }
        }
        if stopping {
            // No more come: those who make them have ended.
            while let Ok(span) = ended.try_recv() {
                batch.push(span);
            }
        }
        let mut rest = batch.into_iter().peekable();
        while rest.peek().is_some() {
            send(&exporter, rest.by_ref().take(BATCH).collect()).await;
        }
    }
}

async fn send(exporter: &impl SpanExporter, batch: Vec<SpanData>) {
    let spans = batch.len();
    match tokio::time::timeout(PATIENCE, exporter.export(batch)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(spans, error = %chain(&error), "traces cannot be sent and are lost"),
        Err(_elapsed) => warn!(spans, "the trace collector does not answer; what it was to get is lost"),
    }
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        warn!(spans = dropped, "the trace collector is too slow: spans were dropped");
    }
}
