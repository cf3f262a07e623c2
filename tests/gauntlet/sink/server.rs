//! The sink's own process.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, DefaultBodyLimit, Path as Matched, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use chrono::Utc;
use futures::stream;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    Mode,
    disk::Disk,
    line::{Door, Line},
    now,
};
use crate::log::{Reaction, WakeLine};

/// How long the answer to a caught wake is held back.
const HELD: Duration = Duration::from_millis(300);
/// How long wakes that are being answered are waited for at the end.
const GRACE: Duration = Duration::from_secs(4);
const HUGE_CHUNKS: usize = 64;
/// One in so many answers: hundreds of them at once, four megabytes each, would be a router that is too slow for all others.
const HUGE_ONE_IN: u64 = 8;
static CHUNK: [u8; 64 * 1024] = [b'.'; 64 * 1024];

struct Sink {
    disk: Arc<Disk>,
    count: AtomicU64,
    mode: Mutex<Mode>,
    /// Who waits for a wake of this incarnation.
    snares: Mutex<HashMap<String, Vec<oneshot::Sender<()>>>>,
    /// Wakes that have arrived and are not reacted to.
    open: watch::Sender<usize>,
}

/// `gauntlet sink DIR`
pub async fn main(directory: &Path) -> anyhow::Result<()> {
    let sink = Arc::new(Sink {
        disk: Disk::create(&directory.join("wakes.jsonl"))?,
        count: AtomicU64::new(0),
        mode: Mutex::new(Mode::Well),
        snares: Mutex::default(),
        open: watch::Sender::new(0),
    });
    let wakes = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen")?;
    let control = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen")?;
    println!("ready http://{}/internal/wake http://{}", wakes.local_addr()?, control.local_addr()?);

    let taking = Router::new()
        .route("/internal/wake", post(take))
        .route("/internal/wake/{incarnation}", post(take))
        .layer(DefaultBodyLimit::max(1 << 20))
        .with_state(Arc::clone(&sink))
        .into_make_service_with_connect_info::<Line>();
    let obeying = Router::new()
        .route("/behave", post(behave))
        .route("/catch/{incarnation}", post(catch))
        .with_state(Arc::clone(&sink));
    let taking = tokio::spawn(async move { axum::serve(Door(wakes), taking).await });
    let obeying = tokio::spawn(async move { axum::serve(control, obeying).await });
    // Whoever started it holds its stdin open.
    let ended = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    let _ended = ended.await;
    taking.abort();
    obeying.abort();
    let mut open = sink.open.subscribe();
    let _over = timeout(GRACE, open.wait_for(|open| *open == 0)).await;
    sink.disk.settled().await;
    Ok(())
}

async fn take(
    State(sink): State<Arc<Sink>>,
    ConnectInfo(line): ConnectInfo<Line>,
    incarnation: Option<Matched<String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let at = now();
    let replica = incarnation.map(|Matched(name)| name).unwrap_or_default();
    // On a task of its own: it is brought to its end also when the caller has hung up.
    let answering = tokio::spawn(async move {
        sink.open.send_modify(|open| *open += 1);
        let response = sink.answer(at, replica, &headers, &body, &line).await;
        sink.open.send_modify(|open| *open -= 1);
        response
    });
    answering.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl Sink {
    async fn answer(
        &self,
        at: chrono::DateTime<Utc>,
        replica: String,
        headers: &HeaderMap,
        body: &[u8],
        line: &Line,
    ) -> Response {
        let header = |name: &str| String::from_utf8_lossy(headers.get(name).map_or(&[], |value| value.as_bytes()));
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mode = *self.mode.lock().expect("no holder panics");
        let place = self.disk.write(&WakeLine::Arrived {
            number,
            at,
            replica: replica.clone(),
            kind: header("ce-type").into_owned(),
            delivery_header: header("idempotency-key").into_owned(),
            body: String::from_utf8_lossy(body).into_owned(),
        });
        self.disk.reached(place).await;
        if self.springs(&replica) {
            sleep(HELD).await;
        }
        if let Mode::Slow(milliseconds) = mode {
            sleep(Duration::from_millis(milliseconds)).await;
        }
        let mode = if mode == Mode::Huge && !number.is_multiple_of(HUGE_ONE_IN) { Mode::Well } else { mode };
        let response = reply(mode, line);
        let reaction = match mode {
            Mode::Resets => Reaction::Reset,
            Mode::Well | Mode::Slow(_) | Mode::Fails(_) | Mode::Huge => Reaction::Status(response.status().as_u16()),
        };
        self.disk.write(&WakeLine::Reacted { number, at: now(), reaction });
        response
    }

    /// Whether somebody waits for a wake of this incarnation. They are told.
    fn springs(&self, replica: &str) -> bool {
        let waiting = self.snares.lock().expect("no holder panics").remove(replica).unwrap_or_default();
        let told = waiting.into_iter().filter_map(|one| one.send(()).ok()).count();
        told > 0
    }
}

fn reply(mode: Mode, line: &Line) -> Response {
    match mode {
        Mode::Well | Mode::Slow(_) => (StatusCode::ACCEPTED, "taken").into_response(),
        Mode::Fails(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, "not now").into_response()
        }
        Mode::Resets => {
            line.tear();
            // Never written: the line breaks at the attempt.
            StatusCode::IM_A_TEAPOT.into_response()
        }
        Mode::Huge => {
            let chunks = stream::iter(0..HUGE_CHUNKS);
            let words = futures::StreamExt::map(chunks, |_| Ok::<_, Infallible>(Bytes::from_static(&CHUNK)));
            (StatusCode::OK, Body::from_stream(words)).into_response()
        }
    }
}

async fn behave(State(sink): State<Arc<Sink>>, body: Bytes) -> (StatusCode, String) {
    match serde_json::from_slice(&body) {
        Ok(mode) => {
            *sink.mode.lock().expect("no holder panics") = mode;
            (StatusCode::OK, format!("{mode:?}"))
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    }
}

async fn catch(State(sink): State<Arc<Sink>>, Matched(incarnation): Matched<String>) -> StatusCode {
    let (snare, caught) = oneshot::channel();
    sink.snares.lock().expect("no holder panics").entry(incarnation).or_default().push(snare);
    match caught.await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::GONE,
    }
}
