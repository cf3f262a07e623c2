//! Calls, each written down before it goes out and when it is answered.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::{Client, Method, RequestBuilder, redirect, retry};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    cluster::Cluster,
    dice::Dice,
    now,
    owners::Owner,
    requests::{self, Request},
};
use crate::{
    log::{Answer, Asked, CallLine, Frame, Journal},
    world::Entry,
};

/// At most so many calls at once.
pub const MOST_CALLS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long calls go on being repeated after the stop.
const LAST_TRIES: TimeDelta = TimeDelta::seconds(6);
/// So many ids are remembered for others to peek at.
const MOST_SEEN: usize = 200;

pub struct Caller {
    entry: Entry,
    client: Client,
    pub cluster: Cluster,
    journal: Arc<Journal>,
    numbers: AtomicU64,
    names: AtomicU64,
    turns: Semaphore,
    stop: CancellationToken,
    /// Owner and alarm.
    seen: Mutex<VecDeque<(String, Uuid)>>,
}

impl Caller {
    pub fn new(entry: Entry, journal: Arc<Journal>, stop: CancellationToken) -> anyhow::Result<Self> {
        let client = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .pool_max_idle_per_host(4)
            .pool_idle_timeout(Duration::from_secs(5))
            .connect_timeout(TIMEOUT / 2)
            .timeout(TIMEOUT)
            .build()
            .context("no client")?;
        Ok(Self {
            cluster: Cluster::new(&entry)?,
            entry,
            client,
            journal,
            numbers: AtomicU64::new(1),
            names: AtomicU64::new(1),
            turns: Semaphore::new(MOST_CALLS),
            stop,
            seen: Mutex::default(),
        })
    }

    pub fn slots(&self) -> usize {
        self.entry.facades.len()
    }

    /// Base URL of a slot's facade, and the transport's token.
    pub fn facade(&self, slot: usize) -> (&str, &str) {
        (&self.entry.facades[slot].1, &self.entry.token)
    }

    /// Two different ones, if there are two.
    pub fn two_slots(&self, dice: &mut Dice) -> (usize, usize) {
        let here = dice.below(self.slots());
        let on = if self.slots() > 1 { dice.below(self.slots() - 1) + 1 } else { 0 };
        (here, (here + on) % self.slots())
    }

    /// Whether there is room for something new.
    pub fn is_calm(&self) -> bool {
        self.turns.available_permits() > MOST_CALLS / 4
    }

    /// The number of a call to come.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// For keys, resources, service calls, checkpoints.
    pub fn name(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Sleeps, and says whether to go on.
    pub async fn rest(&self, duration: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = sleep(duration) => true,
        }
    }

    pub async fn rest_until(&self, instant: DateTime<Utc>) -> bool {
        self.rest((instant - now()).to_std().unwrap_or_default()).await
    }

    pub async fn ask(&self, owner: &Owner, slot: usize, asked: Asked) -> Answer {
        self.ask_as(owner, slot, self.number(), asked, None).await
    }

    /// With a number that is known already, or with another body.
    pub async fn ask_as(&self, owner: &Owner, slot: usize, number: u64, asked: Asked, body: Option<String>) -> Answer {
        let mut request = requests::of(owner, &asked);
        request.body = body.or(request.body);
        let signing_in = matches!(asked, Asked::Verify { .. });
        let _turn = self.turns.acquire().await.expect("never closed");
        self.write(number, owner, &self.entry.facades[slot].0, asked);
        let answer = answer(self.request(owner, slot, request)).await;
        if !signing_in && matches!(answer, Answer::Refused { status: 401, .. }) {
            owner.doubts_token();
        }
        self.journal.write(&CallLine::Answered { number, at: now(), answer: answer.clone() });
        answer
    }

    /// Again and again, here and there, until there is an answer or no use in it any more.
    pub async fn insist(
        &self,
        owner: &Owner,
        dice: &mut Dice,
        asked: Asked,
        useful_until: Option<DateTime<Utc>>,
    ) -> Answer {
        let (mut slot, _) = self.two_slots(dice);
        let mut answer = self.ask(owner, slot, asked.clone()).await;
        let mut wait = 200;
        let mut last = None;
        while is_open(&answer) {
            sleep(dice.millis(wait / 2..wait)).await;
            wait = (wait * 2).min(3000);
            let now = now();
            if self.is_stopping() {
                last.get_or_insert(now + LAST_TRIES);
            }
            if last.is_some_and(|last| now > last) || useful_until.is_some_and(|until| now > until) {
                break;
            }
            slot = (slot + 1 + dice.below(self.slots().max(2) - 1)) % self.slots();
            answer = self.ask(owner, slot, asked.clone()).await;
        }
        answer
    }

    /// For those that ask by another way than this.
    pub fn write(&self, number: u64, owner: &Owner, via: &str, asked: Asked) {
        let (owner, via) = (owner.did.clone(), via.to_owned());
        self.journal.write(&CallLine::Asked { number, at: now(), owner, via, asked });
    }

    pub fn answered(&self, number: u64, answer: Answer) {
        self.journal.write(&CallLine::Answered { number, at: now(), answer });
    }

    pub fn slot_name(&self, slot: usize) -> &str {
        &self.entry.facades[slot].0
    }

    pub fn heard(&self, session: &str, connection: u64, frame: Value) {
        let session = session.to_owned();
        self.journal.write(&CallLine::Heard(Frame { at: now(), session, connection, frame }));
    }

    /// A look at something of one's own, which is not written down.
    pub async fn look(&self, owner: &Owner, slot: usize, path: &str) -> Answer {
        let _turn = self.turns.acquire().await.expect("never closed");
        let request = Request { method: Method::GET, path: path.to_owned(), body: None };
        answer(self.request(owner, slot, request)).await
    }

    /// A nonce.
    pub async fn challenge(&self, owner: &Owner, slot: usize) -> Option<String> {
        let _turn = self.turns.acquire().await.expect("never closed");
        let body = Some(json!({ "did": owner.did }).to_string());
        let request = Request { method: Method::POST, path: "/v1/agent/auth/challenge".to_owned(), body };
        let answer = answer(self.request(owner, slot, request)).await;
        data(&answer)?["nonce"].as_str().map(str::to_owned)
    }

    /// As well as can be.
    pub async fn enrol(&self, owner: &Owner) -> bool {
        let applied = self.cluster.apply("agents", owner.name, &owner.resource()).await;
        matches!(applied, Answer::Done { .. })
    }

    pub fn saw(&self, owner: &Owner, id: Uuid) {
        let mut seen = self.seen.lock().expect("no holder panics");
        seen.push_back((owner.did.clone(), id));
        if seen.len() > MOST_SEEN {
            seen.pop_front();
        }
    }

    /// An alarm of somebody else.
    pub fn not_of(&self, owner: &Owner, dice: &mut Dice) -> Option<Uuid> {
        let seen = self.seen.lock().expect("no holder panics");
        let others: Vec<Uuid> = seen.iter().filter(|(did, _)| *did != owner.did).map(|(_, id)| *id).collect();
        (!others.is_empty()).then(|| others[dice.below(others.len())])
    }

    fn request(&self, owner: &Owner, slot: usize, request: Request) -> RequestBuilder {
        let (base, bearer) = self.facade(slot);
        let mut sent = self.client.request(request.method, format!("{base}{}", request.path)).bearer_auth(bearer);
        let token = owner.token();
        if !token.is_empty() {
            sent = sent.header("x-chronos-agent", token);
        }
        match request.body {
            Some(body) => sent.header("content-type", "application/json").body(body),
            None => sent,
        }
    }
}

/// Nothing is decided yet.
pub fn is_open(answer: &Answer) -> bool {
    matches!(answer, Answer::Unknown { .. } | Answer::Refused { status: 401 | 429, .. })
}

/// What was answered, if it is done.
pub fn data(answer: &Answer) -> Option<&Value> {
    match answer {
        Answer::Done { body, .. } => Some(body),
        Answer::Refused { .. } | Answer::Unknown { .. } => None,
    }
}

/// Of the facade.
async fn answer(request: RequestBuilder) -> Answer {
    let (status, mut body) = match sent(request).await {
        Ok(answer) => answer,
        Err(why) => return Answer::Unknown { why },
    };
    match status {
        200..=299 if body["ok"] == true => Answer::Done { status, body: body["data"].take() },
        400..=499 => Answer::Refused { status, body },
        _ => Answer::Unknown { why: format!("{status} {}", body["error"]["message"]) },
    }
}

/// Status and body, or why there are none.
pub async fn sent(request: RequestBuilder) -> Result<(u16, Value), String> {
    let told = |error: reqwest::Error| format!("{:#}", anyhow::Error::new(error.without_url()));
    let response = request.send().await.map_err(told)?;
    let status = response.status().as_u16();
    let text = response.text().await.map_err(told)?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}
