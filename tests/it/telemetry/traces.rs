//! Spans as a collector gets them: OTLP over HTTP, read with OpenTelemetry's own definitions.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use chronos::{
    domain::{
        ids::{AlarmId, DeliveryId},
        occurrence::Outcome,
        payload::Payload,
        trace::Trace,
        wake::{Addressee, Wake},
    },
    telemetry::traces::{self, Span},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1 as otlp,
};
use prost::Message;
use tokio::{net::TcpListener, task::JoinSet, time::Instant};
use uuid::Uuid;

use crate::support::{
    PATIENCE, Sink, WAKE_TOKEN, World,
    alarms::{ann, create, execute, in_an_hour, read},
    eventually, with_tls,
};

type Received = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// Takes what is sent to `/v1/traces` below a path of its own.
async fn collector() -> (String, Received, JoinSet<()>) {
    async fn take(State(received): State<Received>, headers: HeaderMap, body: Bytes) {
        received.lock().unwrap().push((headers, body));
    }
    let received = Received::default();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/otlp/", listener.local_addr().unwrap());
    let router = Router::new().route("/otlp/v1/traces", post(take)).with_state(Arc::clone(&received));
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, received, server)
}

fn wake(delivery: u128, attempt: u32) -> Wake {
    Wake {
        to: Addressee::Agent,
        alarm_id: AlarmId::from_uuid(Uuid::from_u128(1)),
        delivery_id: DeliveryId::from_uuid(Uuid::from_u128(delivery)),
        scheduled_for: "2026-11-16T09:00:00Z".parse().unwrap(),
        attempt,
        kind: "once".into(),
        label: "a label".into(),
        owner_did: "did:matrix:ann:d75a980182b10ab7".into(),
        user_id: "ann".into(),
        conversation_id: String::new(),
        message: "the tea is ready".into(),
        payload: Payload::parse(r#"{"kettle":"blue"}"#.into()).unwrap(),
        correlation_id: "trace-1".into(),
        missed: 0,
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("neither a text nor a number: {other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), text(&pair.value))).collect()
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The one test that has a collector in this process: there is one per process.
#[tokio::test]
async fn a_delivery_is_a_span_with_the_ids_that_its_wake_carried() {
    with_tls();
    let claimed_at = "2026-11-16T09:00:00.250Z".parse().unwrap();
    let correlated = Wake { correlation_id: "4bf92f3577b34da6a3ce929d0e0e4736".into(), ..wake(0xd1, 1) };
    let trace = |wake: &Wake, span| Trace::of(&wake.correlation_id, wake.delivery_id, span);
    // Before there is a collector nothing is made.
    Span::begin(&trace(&wake(0xd0, 1), 9), &wake(0xd0, 1), claimed_at, Instant::now()).end(Outcome::Delivered, None);

    let (url, received, _server) = collector().await;
    let exporter = traces::start(&url.parse().unwrap()).unwrap();
    let sink = Sink::start().await;
    let router = crate::router::router(&sink.url, PATIENCE);
    let since = Instant::now().checked_sub(Duration::from_millis(500)).unwrap();

    let first = trace(&correlated, 0xa1);
    let span = Span::begin(&first, &correlated, claimed_at, since);
    let answer = router.wake(&correlated, &first).await;
    span.end(Outcome::Delivered, answer.http_status());
    // Two attempts at one occurrence, whose correlation id is no trace id.
    for (attempt, span, outcome) in [(1, 0xb1, Outcome::Retrying), (2, 0xb2, Outcome::Exhausted)] {
        let wake = wake(0xd2, attempt);
        Span::begin(&trace(&wake, span), &wake, claimed_at, since).end(outcome, None);
    }
    // One that is given back is not told.
    drop(Span::begin(&trace(&correlated, 0xc1), &correlated, claimed_at, since));
    exporter.flush(PATIENCE).await;

    let requests = received.lock().unwrap().clone();
    assert_eq!(requests[0].0["content-type"], "application/x-protobuf");
    let decoded = requests.iter().map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap());
    let resources: Vec<otlp::ResourceSpans> = decoded.flat_map(|request| request.resource_spans).collect();
    let service = attributes(&resources[0].resource.as_ref().unwrap().attributes);
    assert_eq!(service["service.name"], "chronos");
    let spans = resources.into_iter().flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
    // Others in this process may dispatch, too.
    let ours = |span: &otlp::Span| {
        let ids = [0xd0, 0xd1, 0xd2].map(|id| Uuid::from_u128(id).to_string());
        ids.contains(&attributes(&span.attributes)["chronos.delivery.id"])
    };
    let mut spans: Vec<otlp::Span> = spans.filter(ours).collect();
    spans.sort_by_key(|span| span.span_id.clone());
    assert_eq!(spans.len(), 3, "{spans:#?}");

    let [delivered, retrying, exhausted] = [&spans[0], &spans[1], &spans[2]];
    let parent = sink.received()[0].headers["traceparent"].to_str().unwrap().to_owned();
    assert_eq!(parent, format!("00-{}-{}-01", hex::encode(&delivered.trace_id), hex::encode(&delivered.span_id)));
    assert_eq!(hex::encode(&delivered.trace_id), correlated.correlation_id);
    assert_eq!(delivered.parent_span_id, Vec::<u8>::new());
    assert_eq!((delivered.name.as_str(), delivered.kind()), ("deliver", otlp::span::SpanKind::Client));
    assert_eq!(delivered.start_time_unix_nano, 1_794_819_600_250_000_000);
    assert!(delivered.end_time_unix_nano - delivered.start_time_unix_nano >= 500_000_000);
    assert_eq!(delivered.status.as_ref().unwrap().code(), otlp::status::StatusCode::Ok);
    assert_eq!(
        attributes(&delivered.attributes),
        expected(&[
            ("chronos.alarm.id", "00000000-0000-0000-0000-000000000001"),
            ("chronos.delivery.id", "00000000-0000-0000-0000-0000000000d1"),
            ("chronos.attempt", "1"),
            ("chronos.outcome", "delivered"),
            ("http.response.status_code", "202"),
        ])
    );
    assert_eq!((&retrying.trace_id, hex::encode(&retrying.trace_id)), (&exhausted.trace_id, format!("{:032x}", 0xd2)));
    assert_ne!(retrying.span_id, exhausted.span_id);
    assert_eq!(exhausted.status.as_ref().unwrap().code(), otlp::status::StatusCode::Error);
    assert_eq!(attributes(&exhausted.attributes)["chronos.outcome"], "exhausted");

    for secret in ["the tea is ready", "kettle", "blue", "a label", "did:matrix", WAKE_TOKEN] {
        let told = |body: &Bytes| body.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!requests.iter().any(|(_, body)| told(body)), "{secret} is nobody's business");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_stops_nobody() {
    let world = World::new().await;
    // A port that was free a moment ago: nobody listens.
    let nobody = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    let url = format!("http://{nobody}");
    let daemon = world.chronosd_with("dispatch", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await;
    assert!(daemon.terminate().await.success());
}

#[tokio::test]
async fn a_dispatcher_tells_the_collector_of_every_delivery_before_it_ends() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), in_an_hour()).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let (url, received, _server) = collector().await;
    let daemon = world.chronosd_with("dispatch", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await;
    let wake = world.sink.wakes(1).await.remove(0);
    eventually("it is fired", || async { (read(&store, &alarm).await.fired_count == 1).then_some(()) }).await;
    assert!(daemon.terminate().await.success());

    let requests = received.lock().unwrap().clone();
    let decoded = requests.iter().map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap());
    let spans: Vec<otlp::Span> = decoded
        .flat_map(|request| request.resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect();
    let [span] = &*spans else { panic!("one delivery, one span: {spans:#?}") };
    let parent = format!("00-{}-{}-01", hex::encode(&span.trace_id), hex::encode(&span.span_id));
    assert_eq!(wake.headers["traceparent"], parent);
    assert_eq!(attributes(&span.attributes)["chronos.outcome"], "delivered");
}
