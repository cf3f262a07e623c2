//! The facade's accept loop: whoever is slow is cut off, whoever is too many waits, and a stop ends what idles and lets finish
//! what is under way. HTTP/1.1 alone, over TLS when a certificate is given; a request may turn its connection into a WebSocket.
//!
//! ```text
//! accept ── at most `most_connections` ── deadlines on every read and write ── TLS? ── HTTP/1.1 ── the routes
//!                                                                                         └── 101 ── a task with a Tether
//! ```
//!
//! | what a client does | what it gets |
//! |---|---|
//! | takes longer than [`HEAD`] over its handshake and first head, or over a later head from its first byte on | closed |
//! | sends nothing for [`IDLE`] after an answer | closed |
//! | does not read its answer, or a frame, for [`STALL`] | closed |
//! | sends its body more slowly than [`super::envelope`] waits | 408 with the envelope, closed |
//! | sends a head that is too large, has too many fields, or is none | 431, 414 or 400 without a body, closed |
//!
//! The last line is the one place without an envelope: there is no request yet that could be answered, and the parser says so by
//! itself. No `X-Request-Id` either.
//!
//! A connection that was upgraded is still one: whoever speaks on it holds its [`Tether`], and until that is dropped it counts and a stop
//! waits for it.

mod cap;
mod guard;
mod tether;

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::StatusCode, response::Response};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, error, warn};

pub use cap::{most_connections, raise_file_limit};
use guard::{Guarded, Progress};
pub use tether::Tether;

/// For a head, from its first byte on; for a connection's first one from the accept on, TLS handshake included. Honest ones come in
/// one piece.
pub const HEAD: Duration = Duration::from_secs(10);
/// Between an answer and the next request. Longer than the minute for which clients and proxies commonly keep a connection, so that it is
/// they who close it.
pub const IDLE: Duration = Duration::from_secs(75);
/// Without a byte of the answer taken.
pub const STALL: Duration = Duration::from_secs(30);
/// A closed connection hears what is still on its way, so that the answer is not lost to a reset: for this long at most,
const LINGER: Duration = Duration::from_secs(3);
/// and this much: some bodies over the cap.
const LINGER_BYTES: usize = 8 * 1024 * 1024;
/// Request line and fields. Ours are tokens of a few hundred bytes and lists of labels.
const HEAD_BYTES: usize = 16 * 1024;
/// What is read ahead, or written and not yet taken: of each connection, so that all of them fit into memory.
const BUFFER_BYTES: usize = 64 * 1024;
/// When the machine has no file or memory left for another connection, asking again at once does not help.
const BREATH: Duration = Duration::from_secs(1);
/// Between two lines in the log that say the same.
const QUIET: Duration = Duration::from_secs(60);

/// How clients get in.
pub struct Door {
    /// What new connections are met with; `None`: plain HTTP.
    pub tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// At once. More wait in the kernel until one ends.
    pub most_connections: usize,
}

/// Serves until told to stop, and then until the last request that is under way has its answer.
pub async fn serve(listener: TcpListener, app: Router, door: Door, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let mut told: Option<Instant> = None;
    loop {
        let room = connections.len() < door.most_connections;
        if !room && told.is_none_or(|at| at.elapsed() > QUIET) {
            told = Some(Instant::now());
            warn!("{} connections are open, as many as there may be; the next one waits", connections.len());
        }
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => note(ended),
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, _)) => {
                    let tls = door.tls.as_ref().map(|tls| TlsAcceptor::from(Arc::clone(&tls.borrow())));
                    connections.spawn(connection(stream, tls, app.clone(), stop.clone()));
                }
                Err(error) if is_the_clients(&error) => debug!(%error, "a client was gone before it was accepted"),
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = tokio::time::sleep(BREATH) => {}
                    }
                }
            }
        }
    }
    // Refused from here on, not left waiting for somebody who will not come.
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        note(ended);
    }
}

/// Handlers' panics do not come this far: they are answered.
fn note(ended: Result<(), JoinError>) {
    if let Err(panic) = ended {
        error!(error = %panic, "a connection's task panicked");
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, app: Router, stop: CancellationToken) {
    // An answer is one small write: do not wait for more.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "a client was gone before it was heard");
        return;
    }
    let progress = Progress::default();
    // Below TLS: what counts is what the network takes and brings.
    let stream = Guarded::new(stream, progress.clone());
    let ended = match tls {
        None => converse(stream, app, progress, stop).await,
        Some(tls) => {
            let handshake = tokio::select! {
                done = tls.accept(stream) => done,
                () = stop.cancelled() => return,
            };
            match handshake {
                Ok(stream) => converse(stream, app, progress, stop).await,
                Err(error) => return debug!(%error, "a TLS handshake failed"),
            }
        }
    };
    if let Err(error) = ended {
        debug!(error = %crate::telemetry::chain(&error), "a connection broke off");
    }
}

/// Until nobody speaks on it any more, in whichever protocol.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: Router,
    progress: Progress,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let (tether, held) = tether::tie(stop.clone());
    let ended = answer_all(stream, app, progress, tether, stop).await;
    held.until_let_go().await;
    ended
}

/// Request after request, until either end has had enough, or another protocol follows.
async fn answer_all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: Router,
    progress: Progress,
    tether: Tether,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let answer = service_fn(move |mut request: Request<Incoming>| {
        progress.answering();
        request.extensions_mut().insert(tether.clone());
        let (app, progress) = (app.clone(), progress.clone());
        async move {
            let answer: Result<Response, Infallible> = app.oneshot(request.map(Body::new)).await;
            match answer.as_ref().map(Response::status) {
                Ok(StatusCode::SWITCHING_PROTOCOLS) => progress.upgraded(),
                Ok(_) => progress.answered(),
                Err(never) => match *never {},
            }
            answer
        }
    });
    let connection = http1::Builder::new()
        // The guard's deadlines are finer: this one cannot tell a client that idles from one that dawdles, and is as long as both
        // together. But without one hyper would not read after an answer, and the guard would not know that somebody waits.
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE + HEAD)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

#[cfg(test)]
mod tests {
    use axum::{Extension, routing::get};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        task::JoinHandle,
    };

    use super::*;

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    async fn served(most_connections: usize) -> (std::net::SocketAddr, CancellationToken) {
        let (address, stop, _) = running(most_connections).await;
        (address, stop)
    }

    async fn running(most_connections: usize) -> (std::net::SocketAddr, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(serve(listener, app(), Door { tls: None, most_connections }, stop.clone()));
        (address, stop, serving)
    }

    fn app() -> Router {
        Router::new().route("/", get(|| async { "here" })).route("/other", get(other_protocol))
    }

    /// From here on the connection brings back what it is sent, and takes leave when told to, after hearing one more byte.
    async fn other_protocol(Extension(tether): Extension<Tether>, mut request: axum::extract::Request) -> Response {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            loop {
                let byte = tokio::select! {
                    byte = stream.read_u8() => byte,
                    () = tether.stopped() => {
                        stream.write_all(b"bye").await.unwrap();
                        let _last = stream.read_u8().await;
                        return;
                    }
                };
                let Ok(byte) = byte else { return };
                stream.write_all(&[byte]).await.unwrap();
            }
        });
        let upgraded = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        upgraded.header("connection", "upgrade").header("upgrade", "echo").body(Body::empty()).unwrap()
    }

    /// Asks for the other protocol, and has it.
    async fn upgraded<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> S {
        let ask = b"GET /other HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        stream
    }

    async fn asked(address: std::net::SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        stream
    }

    async fn heard(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"here") {
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&text));
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn one_more_than_the_cap_is_served_once_another_has_ended() {
        let (address, _stop) = served(2).await;
        let (mut first, mut second) = (asked(address).await, asked(address).await);
        heard(&mut first).await;
        heard(&mut second).await;
        // Connected, by the kernel alone.
        let mut third = asked(address).await;
        let none = tokio::time::timeout(Duration::from_millis(300), third.readable()).await;
        assert!(none.is_err(), "nobody listens to it yet");
        drop(first);
        heard(&mut third).await;
    }

    #[tokio::test]
    async fn a_stop_closes_what_idles_and_refuses_what_is_new() {
        let (address, stop) = served(2).await;
        let (mut idle, mut fresh) = (asked(address).await, TcpStream::connect(address).await.unwrap());
        heard(&mut idle).await;
        stop.cancel();
        for stream in [&mut idle, &mut fresh] {
            // Sooner than any deadline would.
            let read = tokio::time::timeout(HEAD / 2, stream.read(&mut [0; 16])).await;
            assert_eq!(read.expect("closed at once").unwrap_or(0), 0);
        }
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_between_requests_for_as_long_as_it_may_idle() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let progress = Progress::default();
        tokio::spawn(converse(Guarded::new(ours, progress.clone()), app(), progress, CancellationToken::new()));
        for _ in 0..2 {
            theirs.write_all(ASK).await.unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"here") {
                assert_ne!(theirs.read_buf(&mut text).await.unwrap(), 0);
            }
            tokio::time::sleep(IDLE.saturating_sub(Duration::from_secs(1))).await;
        }
        let rest = tokio::time::timeout(Duration::from_secs(2), theirs.read(&mut [0; 16])).await;
        assert_eq!(rest.expect("it is closed").unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_drips_its_second_head_is_cut_off() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let progress = Progress::default();
        let talk = converse(Guarded::new(ours, progress.clone()), app(), progress, CancellationToken::new());
        let talk = tokio::spawn(talk);
        theirs.write_all(ASK).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"here") {
            assert_ne!(theirs.read_buf(&mut text).await.unwrap(), 0);
        }
        let since = Instant::now();
        for byte in ASK.iter().cycle() {
            if theirs.write_all(&[*byte]).await.is_err() || since.elapsed() > 2 * HEAD {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(since.elapsed() < HEAD + Duration::from_secs(3), "{:?}", since.elapsed());
        assert!(talk.await.unwrap().is_err(), "it broke off");
    }

    #[tokio::test]
    async fn an_upgraded_connection_counts_until_it_ends() {
        let (address, _stop) = served(1).await;
        let mut other = upgraded(TcpStream::connect(address).await.unwrap()).await;
        let mut next = asked(address).await;
        let none = tokio::time::timeout(Duration::from_millis(300), next.readable()).await;
        assert!(none.is_err(), "nobody listens to it yet");
        other.write_all(b"x").await.unwrap();
        assert_eq!(other.read_u8().await.unwrap(), b'x');
        drop(other);
        heard(&mut next).await;
    }

    #[tokio::test]
    async fn a_stop_tells_an_upgraded_connection_and_waits_for_it() {
        let (address, stop, mut serving) = running(2).await;
        let mut other = upgraded(TcpStream::connect(address).await.unwrap()).await;
        stop.cancel();
        let mut told = [0; 3];
        other.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"bye");
        let waits = tokio::time::timeout(Duration::from_millis(300), &mut serving).await;
        assert!(waits.is_err(), "it has not taken leave yet");
        other.write_all(b"x").await.unwrap();
        tokio::time::timeout(HEAD / 2, serving).await.expect("it ends with it").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgraded_connection_has_no_deadlines_of_http() {
        let (ours, theirs) = tokio::io::duplex(1024);
        let progress = Progress::default();
        let talk = converse(Guarded::new(ours, progress.clone()), app(), progress, CancellationToken::new());
        let talk = tokio::spawn(talk);
        let mut theirs = upgraded(theirs).await;
        for _ in 0..2 {
            tokio::time::sleep(2 * (IDLE + HEAD)).await;
            theirs.write_all(b"x").await.unwrap();
            assert_eq!(theirs.read_u8().await.unwrap(), b'x');
        }
        drop(theirs);
        talk.await.unwrap().unwrap();
    }
}
