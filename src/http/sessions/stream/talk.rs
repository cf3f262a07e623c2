//! What is said over one stream, from the upgrade to the end.
//!
//! ```text
//! open ── look ──┬─ something to send: write it, await its acknowledgement ─┐
//!          ▲     └─ nothing: await a hint, or the end of a cooldown ────────┤
//!          └────────────────────────────────────────────────────────────────┘
//! ```
//! While the database is asked the socket is not read: a client is heard in its order, and one that hurries waits.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Bytes,
    extract::ws::{Message, WebSocket},
};
use futures::stream::FusedStream;
use serde_json::json;
use tokio::{
    runtime::Handle,
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout},
};
use tracing::{debug, error, warn};

use super::{
    ending::Ending,
    frame::{self, Budget},
    hub::Ear,
    seats::Seat,
};
use crate::{
    domain::{
        ids::{ClaimToken, EffectId, StreamId},
        rfc3339,
        session::{SessionKey, autonomy::Restraint, effect::EffectStatus},
    },
    http::{auth::Caller, problem::Problem, server::Tether},
    store::{
        self, Store,
        effects::Acknowledged,
        streams::{NextSend, Outgoing},
    },
    telemetry::{
        chain,
        metrics::{self, SendOutcome},
    },
};

/// Between two pings: proxies commonly close what is silent for a minute.
const PING: Duration = Duration::from_secs(20);
/// Three pings without an answer: nobody is there.
const SILENCE: Duration = Duration::from_secs(60);
/// Between two questions to a database that is away.
const AGAIN: Duration = Duration::from_secs(1);
/// For the last question. It only spares the next connection a wait: the session's stream is whoever opened it last.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// For the client to take leave, too.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// What holds from the upgrade to the end.
pub struct Terms {
    pub store: Store,
    pub key: SessionKey,
    pub caller: Caller,
    pub restraint: Restraint,
    /// How long the client has to acknowledge a send.
    pub ack_within: Duration,
    /// Between two looks without a hint.
    pub look: Duration,
    /// Made before the stream is opened: a newer one is heard of, however soon it comes.
    pub ear: Ear,
    pub tether: Tether,
    #[expect(dead_code, reason = "held, not looked at")]
    pub seat: Seat,
}

pub async fn run(terms: Terms, mut socket: WebSocket) {
    let since = Instant::now();
    let ending = match Held::open(&terms).await {
        Err(ending) => ending,
        Ok(held) => {
            let mut talk = Talk::new(&terms, &mut socket, held.stream);
            let Err(ending) = talk.go_on().await;
            if let (Ending::Unacknowledged { .. }, Some(send)) = (ending, talk.outstanding.take()) {
                send.came_to(SendOutcome::Unacknowledged);
            }
            // Before the client hears of it: one that connects again at once has its send at once.
            held.close().await;
            ending
        }
    };
    debug!(session = %terms.key, ?ending, open_ms = since.elapsed().as_millis(), "the stream of {} ends", terms.key);
    take_leave(&mut socket, ending).await;
}

/// Until the client has said the same: were the connection dropped while something of it is on its way, the close would be lost to a
/// reset.
async fn take_leave(socket: &mut WebSocket, ending: Ending) {
    let leave = async {
        if let Some(frame) = ending.farewell() {
            if socket.send(Message::Close(Some(frame))).await.is_err() {
                return;
            }
            if socket.is_terminated() {
                // What cannot be read any more cannot be heard out either: time for the client to read.
                sleep(LEAVE_WITHIN).await;
            }
        }
        if ending != Ending::Silent {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    let _late = timeout(LEAVE_WITHIN, leave).await;
}

/// The session's stream, while it is this connection.
struct Held {
    store: Store,
    key: SessionKey,
    stream: StreamId,
    tether: Tether,
    is_closed: bool,
}

impl Held {
    async fn open(terms: &Terms) -> Result<Self, Ending> {
        let Terms { store, key, caller, tether, .. } = terms;
        let opened = terms.ask(|| store.open_stream_if_owned(&caller.owner, key)).await?;
        // It was there a moment ago.
        let stream = opened.ok_or(Ending::Barred)?;
        debug!(session = %key, "the stream of {key} is open");
        Ok(Self { store: store.clone(), key: key.clone(), stream, tether: tether.clone(), is_closed: false })
    }

    /// What was sent and not acknowledged is pending again.
    async fn close(mut self) {
        self.is_closed = true;
        close(&self.store, &self.key, self.stream).await;
    }
}

impl Drop for Held {
    /// Also by a panic, or when the task is dropped.
    fn drop(&mut self) {
        let Some(runtime) = (!self.is_closed).then(Handle::try_current).and_then(Result::ok) else { return };
        let (store, key, stream, tether) = (self.store.clone(), self.key.clone(), self.stream, self.tether.clone());
        runtime.spawn(async move {
            close(&store, &key, stream).await;
            // A stop waits for it, as for the connection itself.
            drop(tether);
        });
    }
}

async fn close(store: &Store, key: &SessionKey, stream: StreamId) {
    match timeout(CLOSE_WITHIN, store.close_stream(key, stream)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(session = %key, error = %chain(&error), "the stream of {key} is not given back"),
        Err(_elapsed) => debug!(session = %key, "the stream of {key} is not given back: no answer"),
    }
}

impl Terms {
    /// Waits for what ends it from outside.
    async fn called_off(&self) -> Ending {
        tokio::select! {
            () = self.tether.stopped() => Ending::Stopping,
            () = sleep_until(self.caller.token_until) => Ending::Expired,
        }
    }

    /// Asks the database, and again while it is away, for as long as we would wait for the client.
    async fn ask<T, F>(&self, question: impl Fn() -> F) -> Result<T, Ending>
    where
        F: Future<Output = store::Result<T>>,
    {
        let since = Instant::now();
        loop {
            // Of many streams of one owner some wait here while the database hangs; what is asked is heard out, it has its own deadline.
            let turn = tokio::select! {
                turn = self.caller.turn() => turn,
                ending = self.called_off() => return Err(ending),
            };
            let answer = question().await;
            drop(turn);
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) if !error.is_away() => {
                    error!(session = %self.key, error = %chain(&error), "the stream of {} failed on the database", self.key);
                    return Err(Ending::Broken);
                }
                Err(error) if since.elapsed() >= self.ack_within => {
                    warn!(session = %self.key, error = %chain(&error), "the stream of {} is given up: no database", self.key);
                    return Err(Ending::Away);
                }
                Err(error) => debug!(session = %self.key, error = %chain(&error), "the stream of {} waits", self.key),
            }
            tokio::select! {
                () = sleep(AGAIN) => {}
                ending = self.called_off() => return Err(ending),
            }
        }
    }
}

/// A send that the client has not acknowledged. Counted whichever way it ends.
struct Outstanding {
    id: EffectId,
    token: ClaimToken,
    until: Instant,
    outcome: SendOutcome,
}

impl Outstanding {
    fn came_to(mut self, outcome: SendOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        metrics::stream_send(self.outcome);
    }
}

struct Talk<'a> {
    terms: &'a Terms,
    socket: &'a mut WebSocket,
    stream: StreamId,
    outstanding: Option<Outstanding>,
    budget: Budget,
    heard_at: Instant,
    look_at: Instant,
}

impl<'a> Talk<'a> {
    fn new(terms: &'a Terms, socket: &'a mut WebSocket, stream: StreamId) -> Self {
        let now = Instant::now();
        Self { terms, socket, stream, outstanding: None, budget: Budget::new(now), heard_at: now, look_at: now }
    }

    async fn go_on(&mut self) -> Result<Infallible, Ending> {
        self.look().await?;
        let mut pings = interval_at(Instant::now() + PING, PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.outstanding.as_ref().map(|send| send.until);
            tokio::select! {
                // What the client has said in time counts, also when we were late to hear it.
                biased;
                ending = self.terms.called_off() => return Err(ending),
                frame = self.socket.recv() => self.hear(frame).await?,
                () = sleep_until(due.unwrap_or(self.look_at)), if due.is_some() => {
                    // Somebody may have acknowledged it otherwise, or cancelled it, and the hint was lost.
                    self.look().await?;
                    if self.outstanding.as_ref().is_some_and(|send| Some(send.until) == due) {
                        return Err(Ending::Unacknowledged { within: self.terms.ack_within });
                    }
                }
                () = sleep_until(self.heard_at + SILENCE) => return Err(Ending::Silent),
                () = self.terms.ear.hinted() => self.look().await?,
                () = sleep_until(self.look_at) => self.look().await?,
                _ = pings.tick() => self.write(Message::Ping(Bytes::new())).await?,
            }
        }
    }

    /// Asks what goes out next, and sends it.
    async fn look(&mut self) -> Result<(), Ending> {
        let Terms { store, key, restraint, ack_within, look, .. } = self.terms;
        let stream = self.stream;
        let awaited = self.outstanding.as_ref().map(|send| send.token);
        let next = self.terms.ask(|| store.next_send(key, stream, awaited, restraint, *ack_within)).await?;
        let now = Instant::now();
        self.look_at = now + *look;
        match next {
            NextSend::Send(outgoing) => {
                self.withdraw();
                let (id, token, until) = (outgoing.id, outgoing.token, now + *ack_within);
                self.outstanding = Some(Outstanding { id, token, until, outcome: SendOutcome::Lost });
                self.send(&outgoing).await
            }
            NextSend::Wait { again_in } => {
                self.withdraw();
                if let Some(again_in) = again_in {
                    self.look_at = self.look_at.min(now + again_in);
                }
                Ok(())
            }
            NextSend::Unanswered => Ok(()),
            NextSend::TakenOver => Err(Ending::TakenOver),
            NextSend::Barred => Err(Ending::Barred),
        }
    }

    /// What is not awaited any more: somebody cancelled it, or it was acknowledged over HTTP.
    fn withdraw(&mut self) {
        if let Some(send) = self.outstanding.take() {
            send.came_to(SendOutcome::Withdrawn);
        }
    }

    async fn hear(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<(), Ending> {
        let frame = frame.ok_or(Ending::Gone)?.map_err(Ending::of)?;
        self.heard_at = Instant::now();
        match frame {
            Message::Close(_) => Err(Ending::Gone),
            Message::Ping(_) | Message::Pong(_) => self.spend(),
            Message::Binary(bytes) if bytes.len() > frame::LARGEST => Err(Ending::TooLarge),
            Message::Binary(_) => {
                self.spend()?;
                self.refuse(&frame::binary()).await
            }
            Message::Text(text) if text.len() > frame::LARGEST => Err(Ending::TooLarge),
            Message::Text(text) => match frame::acknowledges(&text) {
                Ok(effect) => self.acknowledged(effect).await,
                Err(problem) => {
                    self.spend()?;
                    self.refuse(&problem).await
                }
            },
        }
    }

    /// Whichever effect it is: an acknowledgement that is late, or of what another connection sent, counts as well.
    async fn acknowledged(&mut self, effect: EffectId) -> Result<(), Ending> {
        let is_awaited = |send: &Outstanding| send.id == effect;
        if !self.outstanding.as_ref().is_some_and(is_awaited) {
            self.spend()?;
        }
        let Terms { store, key, caller, restraint, .. } = self.terms;
        let stream = Some(self.stream);
        let acknowledge = || store.acknowledge_if_owned(&caller.owner, key, effect, restraint, stream);
        match self.terms.ask(acknowledge).await? {
            Acknowledged::Now { status, .. } => {
                if let Some(send) = self.outstanding.take_if(|send| is_awaited(send)) {
                    let completed = status == EffectStatus::Completed;
                    send.came_to(if completed { SendOutcome::Acknowledged } else { SendOutcome::Withdrawn });
                }
            }
            Acknowledged::TooSoon { not_before } => self.refuse(&too_soon(&rfc3339(not_before))).await?,
            Acknowledged::NotFound => self.refuse(&Problem::no_such_effect()).await?,
        }
        self.look().await
    }

    /// Every frame that nobody asked for costs.
    fn spend(&mut self) -> Result<(), Ending> {
        if self.budget.spend(self.heard_at) { Ok(()) } else { Err(Ending::Flood) }
    }

    async fn send(&mut self, outgoing: &Outgoing) -> Result<(), Ending> {
        self.write(Message::Text(frame::of(outgoing).into())).await
    }

    async fn refuse(&mut self, problem: &Problem) -> Result<(), Ending> {
        self.write(Message::Text(json!({ "error": problem.error() }).to_string().into())).await
    }

    /// Until the network has taken it. A client that does not read is cut off by the connection's own deadline.
    async fn write(&mut self, message: Message) -> Result<(), Ending> {
        let terms = self.terms;
        tokio::select! {
            biased;
            written = self.socket.send(message) => written.map_err(|_| Ending::Gone),
            ending = terms.called_off() => Err(ending),
        }
    }
}

fn too_soon(not_before: &str) -> Problem {
    Problem::conflict(format!("nobody has sent this yet, and it may not go out before {not_before}; wait for it"))
        .with_details(json!({ "not_before": not_before }))
}
