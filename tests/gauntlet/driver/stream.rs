//! The client who listens to a session: over a socket to any replica, sometimes without one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest},
};
use uuid::Uuid;

use super::{caller::data, dice::Dice, sessions::Session};
use crate::log::{Answer, Asked};

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
/// How long what comes is still acknowledged after the stop.
const LAST_WORDS: Duration = Duration::from_secs(4);

type Socket = WebSocketStream<TcpStream>;

pub async fn listen(session: Arc<Session>, mut dice: Dice) {
    let dice = &mut dice;
    let caller = &session.caller;
    let mut slot = dice.below(caller.slots());
    let mut end = None;
    loop {
        if caller.is_stopping() {
            end.get_or_insert(Instant::now() + LAST_WORDS);
        }
        if end.is_some_and(|end| Instant::now() > end) {
            return;
        }
        if dice.percent(12) {
            without_socket(&session, dice).await;
        }
        let until = end.unwrap_or(Instant::now() + dice.millis(3000..14_000));
        if dice.percent(15) && end.is_none() {
            // Two want the same: the newer connection ends the older.
            let (here, there) = caller.two_slots(dice);
            let (mut one, mut two) = (dice.fork(), dice.fork());
            let later = dice.millis(0..1500);
            tokio::join!(visit(&session, &mut one, here, until), async {
                caller.rest(later).await;
                visit(&session, &mut two, there, until).await;
            });
        } else {
            visit(&session, dice, slot, until).await;
        }
        slot = dice.below(caller.slots());
    }
}

/// One connection.
async fn visit(session: &Session, dice: &mut Dice, slot: usize, until: Instant) {
    if let Ok(Ok(mut socket)) = timeout(Duration::from_secs(3), connect(session, slot)).await {
        follow(session, dice, &mut socket, slot, until).await;
        if dice.percent(70) {
            let _closed = timeout(Duration::from_millis(500), socket.close(None)).await;
        }
    } else {
        session.caller.rest(dice.millis(300..1200)).await;
        sleep(Duration::from_millis(100)).await;
    }
}

async fn connect(session: &Session, slot: usize) -> anyhow::Result<Socket> {
    let (base, bearer) = session.caller.facade(slot);
    let address = base.strip_prefix("http://").context("a facade has no TLS here")?;
    let mut request = format!("ws://{address}/v1/sessions/{}/stream", session.key).into_client_request()?;
    request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse()?);
    request.headers_mut().insert("x-chronos-agent", session.owner.token().parse()?);
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(client_async(request, stream).await?.0)
}

/// Until then, until it breaks, or until a message was left without a word.
async fn follow(session: &Session, dice: &mut Dice, socket: &mut Socket, slot: usize, until: Instant) {
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let caller = &session.caller;
    let in_the_end = caller.is_stopping();
    loop {
        let next = tokio::select! {
            next = timeout_at(until, socket.next()) => next,
            // The end is nearer than it was.
            () = caller.stopped(), if !in_the_end => return,
        };
        let text = match next {
            Ok(Some(Ok(Message::Text(text)))) => text,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_)))) => continue,
            Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return,
        };
        let frame: Value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.to_string()));
        caller.heard(&session.key, connection, frame.clone());
        let Some(effect_id) = frame["effect_id"].as_str().and_then(|id| id.parse().ok()) else { continue };
        let over_stream = match dice.below(100) {
            0..=79 => {
                sleep(dice.millis(5..250)).await;
                true
            }
            // By another door.
            80..=87 => false,
            // Too late, maybe.
            88..=93 => {
                sleep(dice.millis(1700..2600)).await;
                true
            }
            // Never.
            _ => return,
        };
        if over_stream {
            acknowledge(session, socket, slot, effect_id).await;
        } else {
            let asked = Asked::Ack { session: session.key.clone(), effect_id, stream: false };
            caller.ask(&session.owner, dice.below(caller.slots()), asked).await;
        }
    }
}

async fn acknowledge(session: &Session, socket: &mut Socket, slot: usize, effect_id: Uuid) {
    let caller = &session.caller;
    let number = caller.number();
    let asked = Asked::Ack { session: session.key.clone(), effect_id, stream: true };
    caller.write(number, &session.owner, caller.slot_name(slot), asked);
    let said = socket.send(Message::text(json!({ "ack": effect_id }).to_string()));
    let answer = match timeout(Duration::from_secs(3), said).await {
        Ok(Ok(())) => Answer::Done { status: 200, body: Value::Null },
        Ok(Err(error)) => Answer::Unknown { why: error.to_string() },
        Err(_) => Answer::Unknown { why: "it was not written in time".to_owned() },
    };
    caller.answered(number, answer);
}

/// Asks for what is pending, and acknowledges it in order.
async fn without_socket(session: &Session, dice: &mut Dice) {
    let caller = &session.caller;
    for _ in 0..=dice.below(4) {
        if !caller.rest(dice.millis(300..1200)).await {
            return;
        }
        let path = format!("/v1/sessions/{}/effects?status=pending&limit=5", session.key);
        let found = caller.look(&session.owner, dice.below(caller.slots()), &path).await;
        let effects = data(&found).and_then(|data| data["effects"].as_array()).cloned().unwrap_or_default();
        let mut sends = effects.iter().filter(|effect| effect["type"] == "send_message");
        let Some(effect_id) = sends.next().and_then(|send| send["id"].as_str()?.parse().ok()) else { continue };
        let asked = Asked::Ack { session: session.key.clone(), effect_id, stream: false };
        let (here, there) = caller.two_slots(dice);
        if dice.percent(25) {
            tokio::join!(
                caller.ask(&session.owner, here, asked.clone()),
                caller.ask(&session.owner, there, asked.clone())
            );
        } else {
            caller.ask(&session.owner, here, asked).await;
        }
    }
}
