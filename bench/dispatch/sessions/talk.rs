//! Who talks to a session: its user and its agent over HTTP, and the client that hears what the agent sends.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use chronos::{
    clock,
    domain::{
        access::{Did, Keyring},
        rfc3339,
    },
};
use futures::{SinkExt, StreamExt};
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};
use tokio_util::sync::CancellationToken;

use crate::world::Daemon;

pub const TOKEN: &str = "bench-transport-token-0123456789";
pub const SECRET: &str = "bench-agent-auth-secret-01234567";

/// The facade, and whose word it takes.
pub struct Door {
    client: reqwest::Client,
    address: String,
    keyring: Keyring,
}

impl Door {
    pub fn of(daemon: &Daemon) -> anyhow::Result<Arc<Self>> {
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
        let address = daemon.api.clone().context("role api runs")?;
        Ok(Arc::new(Self { client, address, keyring: Keyring::new([SECRET]).context("a secret")? }))
    }

    /// A session of a user of its own, who has signed in.
    pub fn talk(self: &Arc<Self>, user: &str) -> Talk {
        let did: Did = format!("did:matrix:{user}:0123456789abcdef").parse().expect("a DID");
        let token = self.keyring.sign(&did, clock::system().now());
        Talk { door: Arc::clone(self), key: format!("{user}:agent:thread"), token }
    }
}

#[derive(Clone)]
pub struct Talk {
    door: Arc<Door>,
    pub key: String,
    token: String,
}

impl Talk {
    /// The number of the event.
    pub async fn user_says(&self, text: &str) -> anyhow::Result<i64> {
        let body = json!({ "type": "user_message", "payload": { "text": text } });
        let event = self.post("events", &body).await?;
        event["seq"].as_i64().context("an event has a number")
    }

    /// The agent has processed this event, and wants these effects.
    pub async fn checkpoint(&self, event_seq: i64, effects: &[Value]) -> anyhow::Result<()> {
        let body = json!({ "checkpoint_id": format!("c{event_seq}"), "event_seq": event_seq, "effects": effects });
        self.post("checkpoints", &body).await.map(|_| ())
    }

    /// Whether there is an event of this number.
    pub async fn has_happened(&self, event_seq: i64) -> anyhow::Result<bool> {
        let path = format!("events?after={}&limit=1", event_seq - 1);
        let found = self.answered(self.request(Method::GET, &path)).await?;
        Ok(found["count"] == 1)
    }

    async fn post(&self, what: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.request(Method::POST, what).header("content-type", "application/json");
        self.answered(request.body(body.to_string())).await
    }

    fn request(&self, method: Method, what: &str) -> RequestBuilder {
        let url = format!("http://{}/v1/sessions/{}/{what}", self.door.address, self.key);
        let request = self.door.client.request(method, url);
        request.header("authorization", format!("Bearer {TOKEN}")).header("x-chronos-agent", &self.token)
    }

    async fn answered(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let answer = request.send().await?;
        let (status, body) = (answer.status(), answer.bytes().await?);
        ensure!(status == 200, "{}: {status}: {}", self.key, String::from_utf8_lossy(&body));
        let mut body: Value = serde_json::from_slice(&body)?;
        Ok(body["data"].take())
    }

    /// The session must be there.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        let address = &self.door.address;
        let mut request = format!("ws://{address}/v1/sessions/{}/stream", self.key).into_client_request()?;
        request.headers_mut().insert("authorization", HeaderValue::from_str(&format!("Bearer {TOKEN}"))?);
        request.headers_mut().insert("x-chronos-agent", HeaderValue::from_str(&self.token)?);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (socket, _) = client_async(request, stream).await?;
        Ok(Client { key: self.key.clone(), socket, heard: Vec::new() })
    }
}

pub fn send(content: &str) -> Value {
    json!({ "type": "send_message", "payload": { "content": content } })
}

pub fn timer(timer_id: &str, fire_at: DateTime<Utc>) -> Value {
    let payload = json!({ "timer_id": timer_id, "fire_at": rfc3339(fire_at), "payload": { "about": "what was said" } });
    json!({ "type": "schedule_timer", "payload": payload })
}

/// What a client was sent.
#[derive(Debug, Deserialize)]
pub struct Heard {
    pub effect_id: uuid::Uuid,
    pub seq: i64,
    pub content: String,
}

/// Acknowledges at once whatever it hears.
pub struct Client {
    pub key: String,
    socket: WebSocketStream<TcpStream>,
    pub heard: Vec<Heard>,
}

impl Client {
    /// Until it has heard so many in all.
    pub async fn hear(&mut self, sends: usize) -> anyhow::Result<()> {
        while self.heard.len() < sends {
            self.hear_one().await?;
        }
        Ok(())
    }

    /// Until told to stop.
    pub async fn listen(mut self, stop: CancellationToken) -> anyhow::Result<Self> {
        while let Some(heard) = stop.run_until_cancelled(self.hear_one()).await {
            heard?;
        }
        Ok(self)
    }

    async fn hear_one(&mut self) -> anyhow::Result<()> {
        match self.socket.next().await.with_context(|| format!("{}: the stream ended", self.key))?? {
            Message::Text(text) => {
                let heard: Heard = serde_json::from_str(&text).with_context(|| format!("{}: {text}", self.key))?;
                self.socket.send(json!({ "ack": heard.effect_id }).to_string().into()).await?;
                self.heard.push(heard);
            }
            Message::Close(frame) => bail!("{}: closed: {frame:?}", self.key),
            Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_) => {}
        }
        Ok(())
    }
}
