//! A client of a session's stream.

use std::time::Duration;

use chronos::domain::{
    access::{Did, Keyring},
    session::SessionKey,
};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        http::{HeaderName, HeaderValue, Request},
        protocol::CloseFrame,
    },
};

use super::{AGENT_AUTH_SECRET, Daemon, PATIENCE, api::Api};

/// What a socket goes over.
pub trait Line: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Line for T {}

pub struct Socket {
    inner: WebSocketStream<Box<dyn Line>>,
}

/// What the other end did.
#[derive(Debug)]
pub enum Heard {
    Text(Value),
    Ping,
    /// Closed, with this code and reason; 1005 without one, 1006 without a word.
    Closed(u16, String),
}

fn upgrade(daemon: &Daemon, api: &Api, key: &SessionKey) -> Request<()> {
    let address = daemon.api.expect("role api runs");
    let url = format!("ws://{address}/v1/sessions/{key}/stream");
    let mut request = url.into_client_request().expect("a URL");
    for (name, value) in api.credentials() {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
        request.headers_mut().insert(name, HeaderValue::from_str(&value).expect("visible ASCII"));
    }
    request
}

impl Socket {
    pub async fn connect(daemon: &Daemon, api: &Api, key: &SessionKey) -> Self {
        Self::try_connect(daemon, api, key).await.unwrap_or_else(|(status, text)| panic!("{status}: {text}"))
    }

    /// Or status and body of what was answered instead.
    pub async fn try_connect(daemon: &Daemon, api: &Api, key: &SessionKey) -> Result<Self, (u16, String)> {
        let stream = TcpStream::connect(daemon.api.expect("role api runs")).await.expect("it listens");
        Self::try_connect_over(Box::new(stream), daemon, api, key).await
    }

    pub async fn try_connect_over(
        stream: Box<dyn Line>,
        daemon: &Daemon,
        api: &Api,
        key: &SessionKey,
    ) -> Result<Self, (u16, String)> {
        match client_async(upgrade(daemon, api, key), stream).await {
            Ok((inner, _)) => Ok(Self { inner }),
            Err(Error::Http(answer)) => {
                let body = answer.body().clone().unwrap_or_default();
                Err((answer.status().as_u16(), String::from_utf8(body).expect("the answer is text")))
            }
            Err(error) => panic!("no answer: {error}"),
        }
    }

    pub async fn say(&mut self, message: impl Into<Message>) {
        self.inner.send(message.into()).await.expect("the stream is open");
    }

    /// As far as it goes.
    pub async fn try_say(&mut self, message: impl Into<Message>) -> bool {
        self.inner.send(message.into()).await.is_ok()
    }

    pub async fn ack(&mut self, effect_id: &Value) {
        self.say(json!({ "ack": effect_id }).to_string()).await;
    }

    pub async fn heard(&mut self) -> Heard {
        self.heard_within(PATIENCE).await.expect("something is heard in time")
    }

    /// `None`: nothing, for so long. Pings are answered by the library.
    pub async fn heard_within(&mut self, patience: Duration) -> Option<Heard> {
        let until = Instant::now() + patience;
        loop {
            let heard = timeout_at(until, self.inner.next()).await.ok()?;
            return Some(match heard {
                Some(Ok(Message::Text(text))) => Heard::Text(serde_json::from_str(&text).expect("a frame is JSON")),
                Some(Ok(Message::Ping(_))) => Heard::Ping,
                Some(Ok(Message::Close(Some(CloseFrame { code, reason })))) => {
                    // The answer goes out with the next question.
                    let _end = timeout_at(until, self.inner.next()).await;
                    Heard::Closed(code.into(), reason.to_string())
                }
                Some(Ok(Message::Close(None))) => Heard::Closed(1005, String::new()),
                Some(Ok(Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => continue,
                Some(Err(_)) | None => Heard::Closed(1006, String::new()),
            });
        }
    }

    /// The next text frame.
    pub async fn next(&mut self) -> Value {
        loop {
            match self.heard().await {
                Heard::Text(value) => return value,
                Heard::Ping => {}
                Heard::Closed(code, reason) => panic!("closed with {code}: {reason}"),
            }
        }
    }

    /// Whether nothing but pings comes for a moment.
    pub async fn is_silent(&mut self) -> bool {
        let until = Instant::now() + Duration::from_millis(300);
        loop {
            match self.heard_within(until.saturating_duration_since(Instant::now())).await {
                None => return true,
                Some(Heard::Ping) => {}
                Some(Heard::Text(_) | Heard::Closed(..)) => return false,
            }
        }
    }

    /// How it is closed; what comes before that does not matter.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            match self.heard().await {
                Heard::Text(_) | Heard::Ping => {}
                Heard::Closed(code, reason) => return (code, reason),
            }
        }
    }

    pub async fn close(mut self) {
        let _closed = self.inner.close(None).await;
        while let Some(Ok(_)) = self.inner.next().await {}
    }
}

/// An agent's token that ends so long from now, to the second.
pub fn token_for(did: &Did, lifetime: chrono::TimeDelta) -> String {
    let now = chronos::clock::system().now();
    let ring = Keyring::new([AGENT_AUTH_SECRET]).expect("one secret");
    ring.sign(did, now + lifetime - chronos::domain::access::TOKEN_LIFETIME)
}
