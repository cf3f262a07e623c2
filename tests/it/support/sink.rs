//! The router of the tests: records what it gets and misbehaves on command.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::stream::{self, StreamExt};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use super::PATIENCE;

/// One request as it came in.
#[derive(Clone, Debug)]
pub struct Received {
    pub headers: HeaderMap,
    /// The very bytes.
    pub bytes: Bytes,
    pub body: Value,
}

/// What to answer to the next request.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    /// A status with a `Retry-After` in seconds.
    RetryAfter(u16, u64),
    /// A 503 with a `Retry-After` and a `Date` as they are.
    RetryAt {
        retry_after: &'static str,
        date: &'static str,
    },
    /// A success whose body begins and never ends.
    Unfinished,
    /// No answer until [`Sink::release`].
    Hold,
    /// The same, and then this status.
    HoldThen(u16),
    /// Taken after so many milliseconds.
    Slow(u64),
}

struct Inner {
    received: Mutex<Vec<Received>>,
    count: watch::Sender<usize>,
    replies: Mutex<VecDeque<Reply>>,
    released: watch::Sender<bool>,
    /// Requests without an answer: now, and at most.
    open: Mutex<(usize, usize)>,
}

impl Inner {
    async fn wait_for_release(&self) {
        let mut released = self.released.subscribe();
        let _ = tokio::time::timeout(PATIENCE + Duration::from_secs(60), released.wait_for(|released| *released)).await;
    }
}

/// One request without an answer.
struct Open(Arc<Inner>);

impl Open {
    fn new(inner: &Arc<Inner>) -> Self {
        let mut open = inner.open.lock().unwrap();
        open.0 += 1;
        open.1 = open.1.max(open.0);
        drop(open);
        Self(Arc::clone(inner))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.lock().unwrap().0 -= 1;
    }
}

pub struct Sink {
    pub url: String,
    inner: Arc<Inner>,
    server: JoinHandle<()>,
}

impl Sink {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            received: Mutex::default(),
            count: watch::Sender::new(0),
            replies: Mutex::default(),
            released: watch::Sender::new(false),
            open: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/internal/wake", listener.local_addr().unwrap());
        let router = Router::new().route("/internal/wake", post(take)).with_state(Arc::clone(&inner));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, server }
    }

    /// Answers to give in this order; afterwards, and without any, every wake is taken.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.inner.replies.lock().unwrap().extend(replies);
    }

    /// Answers every held request, now and from now on.
    pub fn release(&self) {
        self.inner.released.send_replace(true);
    }

    /// Waits until `count` requests have come in, and returns them all.
    pub async fn wakes(&self, count: usize) -> Vec<Received> {
        let mut seen = self.inner.count.subscribe();
        let arrived = seen.wait_for(|seen| *seen >= count);
        let waited = tokio::time::timeout(PATIENCE, arrived).await;
        assert!(waited.is_ok(), "{} of {count} wakes came within {PATIENCE:?}", self.received().len());
        self.received()
    }

    /// The most requests that were open at one time.
    pub fn most_at_once(&self) -> usize {
        self.inner.open.lock().unwrap().1
    }

    /// What has come in so far.
    pub fn received(&self) -> Vec<Received> {
        self.inner.received.lock().unwrap().clone()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn take(State(inner): State<Arc<Inner>>, headers: HeaderMap, bytes: Bytes) -> Response {
    let _open = Open::new(&inner);
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let reply = inner.replies.lock().unwrap().pop_front().unwrap_or(Reply::Status(202));
    inner.received.lock().unwrap().push(Received { headers, bytes, body });
    inner.count.send_modify(|count| *count += 1);
    let status = |code| StatusCode::from_u16(code).unwrap();
    match reply {
        Reply::Status(code) => (status(code), "said the sink").into_response(),
        Reply::RetryAfter(code, seconds) => {
            (status(code), [("retry-after", seconds.to_string())], "said the sink").into_response()
        }
        Reply::RetryAt { retry_after, date } => {
            (status(503), [("retry-after", retry_after), ("date", date)], "said the sink").into_response()
        }
        Reply::Unfinished => {
            let endless = stream::once(async { Ok::<_, Infallible>("taken, and") }).chain(stream::pending());
            (status(200), Body::from_stream(endless)).into_response()
        }
        Reply::Hold => {
            inner.wait_for_release().await;
            (status(202), "at last").into_response()
        }
        Reply::HoldThen(code) => {
            inner.wait_for_release().await;
            (status(code), "said the sink").into_response()
        }
        Reply::Slow(milliseconds) => {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            (status(202), "in time").into_response()
        }
    }
}
