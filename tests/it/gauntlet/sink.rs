//! The router of the tests: logs every wake and misbehaves on command.
//!
//! What it answers to a wake is, in this order: what was set aside for the wake's label, the next of the common replies,
//! the standing behaviour, which is to take it. The log says when each wake came by the machine's own clock, which replica
//! sent it, and what was answered when, even if nobody waited for the answer any more.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Path, State, connect_info::Connected},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
    serve::{IncomingStream, Listener},
};
use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::history::{self, Reaction};
use crate::support::PATIENCE;

/// One request as it came in, and what became of it.
#[derive(Clone, Debug)]
pub struct Received {
    pub headers: HeaderMap,
    /// The very bytes.
    pub bytes: Bytes,
    pub body: Value,
    /// Who sent it; empty: one that was not given a name.
    pub replica: String,
    pub arrived_at: DateTime<Utc>,
    pub reaction: Option<(Reaction, DateTime<Utc>)>,
}

/// What to answer to a request.
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
    /// A success after this long.
    Slow(Duration),
    /// No answer at all.
    Hang,
    /// The connection is torn down, with the request read and not answered.
    Reset,
}

struct Inner {
    received: Mutex<Vec<Received>>,
    count: watch::Sender<usize>,
    replies: Mutex<VecDeque<Reply>>,
    by_label: Mutex<HashMap<String, VecDeque<Reply>>>,
    standing: Mutex<Reply>,
    released: Semaphore,
    /// Whether connections are torn down before anything is read.
    slams: watch::Sender<bool>,
    slammed: watch::Sender<usize>,
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
            by_label: Mutex::default(),
            standing: Mutex::new(Reply::Status(202)),
            released: Semaphore::new(0),
            slams: watch::Sender::new(false),
            slammed: watch::Sender::new(0),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/internal/wake", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/internal/wake", post(take))
            .route("/internal/wake/{replica}", post(take))
            .with_state(Arc::clone(&inner))
            .into_make_service_with_connect_info::<Line>();
        let door = Door { listener, inner: Arc::clone(&inner) };
        let server = tokio::spawn(async move { axum::serve(door, router).await.unwrap() });
        Self { url, inner, server }
    }

    /// Where a replica sends its wakes so that the log has its name.
    pub fn url_of(&self, replica: &str) -> String {
        format!("{}/{replica}", self.url)
    }

    /// Answers to give in this order, before the standing one.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.inner.replies.lock().unwrap().extend(replies);
    }

    /// Answers to give in this order to wakes with this label, before all others.
    pub fn reply_to(&self, label: &str, replies: impl IntoIterator<Item = Reply>) {
        self.inner.by_label.lock().unwrap().entry(label.to_owned()).or_default().extend(replies);
    }

    /// What is answered from now on to every wake for which nothing else was set aside.
    pub fn always(&self, reply: Reply) {
        *self.inner.standing.lock().unwrap() = reply;
    }

    /// Answers every held request, now and from now on.
    pub fn release(&self) {
        self.release_some(Semaphore::MAX_PERMITS / 2);
    }

    /// Answers this many held requests, in the order in which they came.
    pub fn release_some(&self, count: usize) {
        self.inner.released.add_permits(count);
    }

    /// Whether new connections are torn down before anything is read from them.
    pub fn slam(&self, slams: bool) {
        self.inner.slams.send_replace(slams);
    }

    /// Waits until `count` connections were torn down unread.
    pub async fn slammed(&self, count: usize) {
        Self::reaches(&self.inner.slammed, count, "torn connections").await;
    }

    /// Waits until `count` requests have come in, and returns them all.
    pub async fn wakes(&self, count: usize) -> Vec<Received> {
        Self::reaches(&self.inner.count, count, "wakes").await;
        self.received()
    }

    /// What has come in so far.
    pub fn received(&self) -> Vec<Received> {
        self.inner.received.lock().unwrap().clone()
    }

    /// The same, as the checker reads it.
    pub fn log(&self) -> Vec<history::Wake> {
        self.received().iter().map(Received::wake).collect()
    }

    async fn reaches(counter: &watch::Sender<usize>, count: usize, what: &str) {
        let mut seen = counter.subscribe();
        let waited = tokio::time::timeout(PATIENCE, seen.wait_for(|seen| *seen >= count)).await.is_ok();
        assert!(waited, "{} of {count} {what} came within {PATIENCE:?}", *counter.borrow());
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Received {
    fn wake(&self) -> history::Wake {
        let text = |name: &str| self.body[name].as_str().unwrap_or_else(|| panic!("a wake has {name}: {}", self.body));
        history::Wake {
            alarm_id: text("alarm_id").parse().unwrap(),
            delivery_id: text("delivery_id").parse().unwrap(),
            scheduled_for: text("scheduled_for").parse().unwrap(),
            attempt: self.body["attempt"].as_i64().expect("a wake is numbered").try_into().unwrap(),
            replica: self.replica.clone(),
            arrived_at: self.arrived_at,
            reaction: self.reaction,
        }
    }
}

impl Inner {
    fn reply_for(&self, label: &str) -> Reply {
        let own = self.by_label.lock().unwrap().get_mut(label).and_then(VecDeque::pop_front);
        own.or_else(|| self.replies.lock().unwrap().pop_front())
            .unwrap_or_else(|| self.standing.lock().unwrap().clone())
    }

    /// Enters a wake into the log, and says at which place.
    fn enter(&self, wake: Received) -> usize {
        let mut received = self.received.lock().unwrap();
        received.push(wake);
        let place = received.len() - 1;
        drop(received);
        self.count.send_modify(|count| *count += 1);
        place
    }

    async fn answer(&self, reply: Reply, line: &Line) -> Response {
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
                self.released.acquire().await.expect("never closed").forget();
                (status(202), "at last").into_response()
            }
            Reply::HoldThen(code) => {
                self.released.acquire().await.expect("never closed").forget();
                (status(code), "said the sink").into_response()
            }
            Reply::Slow(wait) => {
                tokio::time::sleep(wait).await;
                (status(200), "by and by").into_response()
            }
            Reply::Hang => std::future::pending().await,
            Reply::Reset => {
                line.torn.store(true, Ordering::Relaxed);
                // Never written: the line breaks at the attempt.
                StatusCode::IM_A_TEAPOT.into_response()
            }
        }
    }
}

async fn take(
    State(inner): State<Arc<Inner>>,
    ConnectInfo(line): ConnectInfo<Line>,
    replica: Option<Path<String>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let arrived_at = now();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let reply = inner.reply_for(body["label"].as_str().unwrap_or_default());
    let replica = replica.map(|Path(name)| name).unwrap_or_default();
    let place = inner.enter(Received { headers, bytes, body, replica, arrived_at, reaction: None });
    // On a task of its own: the log tells of an answer, too, that came when its caller had hung up.
    let answering = tokio::spawn(async move {
        let response = inner.answer(reply, &line).await;
        let reset = line.torn.load(Ordering::Relaxed);
        let reaction = if reset { Reaction::Reset } else { Reaction::Status(response.status().as_u16()) };
        inner.received.lock().unwrap()[place].reaction = Some((reaction, now()));
        response
    });
    answering.await.unwrap()
}

/// The true time, whatever clocks the replicas have.
fn now() -> DateTime<Utc> {
    chronos::clock::system().now()
}

/// Lets connections in, or tears them down at once.
struct Door {
    listener: TcpListener,
    inner: Arc<Inner>,
}

/// One connection, as the handler of its requests knows it.
#[derive(Clone, Debug)]
struct Line {
    torn: Arc<AtomicBool>,
}

/// One connection. When its line is torn, the next write resets it.
struct Socket {
    stream: TcpStream,
    line: Line,
}

impl Listener for Door {
    type Io = Socket;
    type Addr = Line;

    async fn accept(&mut self) -> (Socket, Line) {
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            if *self.inner.slams.borrow() {
                stream.set_zero_linger().unwrap(); // closed without reading: a reset
                drop(stream);
                self.inner.slammed.send_modify(|count| *count += 1);
                continue;
            }
            let line = Line { torn: Arc::default() };
            return (Socket { stream, line: line.clone() }, line);
        }
    }

    fn local_addr(&self) -> io::Result<Line> {
        Ok(Line { torn: Arc::default() })
    }
}

impl Connected<IncomingStream<'_, Door>> for Line {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.remote_addr().clone()
    }
}

impl Socket {
    fn tear(&self) -> io::Result<()> {
        if !self.line.torn.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.stream.set_zero_linger()?;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.tear()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
