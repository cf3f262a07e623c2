//! A router written out by hand, byte for byte, for what a proper server cannot be made to do.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What to do with the next request.
#[derive(Clone, Debug)]
pub enum Act {
    /// These bytes; the connection stays open for the next request.
    Say(String),
    /// These bytes, then the connection is closed properly.
    SayAndClose(String),
    /// These bytes, then nothing more, and the connection stays open.
    SayAndHang(String),
    /// These bytes, then the connection is torn down (RST).
    SayAndReset(String),
}

impl Act {
    /// A whole answer.
    pub fn answer(status: &str, headers: &str, body: &str) -> Self {
        Self::Say(format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()))
    }
}

pub struct RawSink {
    pub url: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    _server: JoinSet<()>,
}

impl RawSink {
    /// Acts in this order, one per request; what comes after them is taken.
    pub async fn start(acts: impl IntoIterator<Item = Act>) -> Self {
        let acts: Arc<Mutex<VecDeque<Act>>> = Arc::new(Mutex::new(acts.into_iter().collect()));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/internal/wake", listener.local_addr().unwrap());
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (accepted, heard) = (Arc::clone(&connections), Arc::clone(&requests));
        let mut server = JoinSet::new();
        server.spawn(async move {
            // Ends with the sink, and every connection with it.
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(stream, Arc::clone(&acts), Arc::clone(&heard)));
            }
        });
        Self { url, connections, requests, _server: server }
    }

    /// How many TCP connections were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many whole requests came in.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn serve(stream: TcpStream, acts: Arc<Mutex<VecDeque<Act>>>, heard: Arc<AtomicUsize>) {
    let mut stream = BufReader::new(stream);
    while read_request(&mut stream).await.is_some() {
        heard.fetch_add(1, Ordering::SeqCst);
        let act = acts.lock().unwrap().pop_front().unwrap_or_else(|| Act::answer("202 Accepted", "", "taken"));
        let (Act::Say(text) | Act::SayAndClose(text) | Act::SayAndHang(text) | Act::SayAndReset(text)) = &act;
        // The other end may have had enough in the middle of it.
        let said = stream.write_all(text.as_bytes()).await;
        match act {
            Act::Say(_) if said.is_ok() => {}
            Act::Say(_) | Act::SayAndClose(_) => return,
            Act::SayAndHang(_) => std::future::pending().await,
            Act::SayAndReset(_) => return stream.get_ref().set_zero_linger().unwrap(),
        }
    }
}

/// Head and body of one request; `None` at the end of the connection.
async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let mut body = vec![0; length.trim().parse().ok()?];
    stream.read_exact(&mut body).await.ok().map(|_| ())
}
