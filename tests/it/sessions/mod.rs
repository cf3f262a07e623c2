//! Sessions that follow up by themselves: the invariants of their document, one sentence each, on the real Postgres.

mod checkpoints;
mod events;
mod faults;
mod model;
mod promotion;
mod sends;
mod stream;

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        access::Did,
        ids::{EffectId, StreamId, WorkerId},
        payload::Payload,
        session::{
            SessionKey,
            autonomy::{EventType, Restraint},
            effect::EffectStatus,
        },
    },
    store::{
        Store,
        checkpoints::{Asked, Checkpointed, Receipt, Request, What},
        claims::{Beat, Look, Room},
        effects::{Acknowledged, Effect},
        events::{Appended, Event, Happening},
        sessions::Session,
        streams::{NextSend, Outgoing},
    },
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{AgentKey, Database};

/// The document's: three in a row, fifteen seconds apart.
pub const RESTRAINT: Restraint = Restraint { max_consecutive: 3, cooldown: TimeDelta::seconds(15) };
/// Three in a row, as fast as they come.
pub const HASTE: Restraint = Restraint { max_consecutive: 3, cooldown: TimeDelta::zero() };
pub const ACK: std::time::Duration = std::time::Duration::from_secs(30);

/// One session and what goes on in it.
pub struct Talk {
    pub store: Store,
    pub owner: Did,
    pub key: SessionKey,
}

impl Talk {
    pub async fn new(database: &Database) -> Self {
        Self::with(database.store().await, "ann", "thread")
    }

    pub fn with(store: Store, user: &str, thread: &str) -> Self {
        let owner = AgentKey::of(user).did.parse().unwrap();
        Self { store, owner, key: format!("{user}:agent:{thread}").parse().unwrap() }
    }

    /// The same session, by another replica.
    pub async fn elsewhere(&self, database: &Database) -> Self {
        Self { store: database.store().await, owner: self.owner.clone(), key: self.key.clone() }
    }

    pub async fn happens(&self, event_type: EventType, text: &str) -> Event {
        let payload = Payload::parse(serde_json::json!({ "text": text }).to_string()).unwrap();
        let happening = Happening { id: None, event_type, payload: &payload };
        let appended = self.store.append_event_if_owned(&self.owner, &self.key, &happening).await.unwrap();
        let Appended::New(event) = appended else { panic!("{appended:?}") };
        event
    }

    pub async fn user_says(&self, text: &str) -> Event {
        self.happens(EventType::UserMessage, text).await
    }

    pub async fn checkpoint(&self, id: &str, event_seq: i64, effects: &[Asked]) -> Checkpointed {
        let request = Request { checkpoint_id: id, event_seq, effects };
        self.store.checkpoint_if_owned(&self.owner, &self.key, &request).await.unwrap()
    }

    /// A checkpoint of the next event.
    pub async fn processed(&self, effects: &[Asked]) -> Receipt {
        let event_seq = self.session().await.event_seq + 1;
        let stored = self.checkpoint(&format!("c{event_seq}"), event_seq, effects).await;
        let Checkpointed::Done(receipt) = stored else { panic!("{stored:?}") };
        receipt
    }

    /// A timer comes due: the newest event is something that the agent was not asked.
    pub async fn timer_fires(&self) {
        let found = self.store.find_session_if_owned(&self.owner, &self.key).await.unwrap();
        if found.is_none_or(|session| session.event_seq == session.last_seq) {
            self.happens(EventType::ToolResult, "a tool").await;
        }
        self.processed(&[timer("t", 0)]).await;
        assert_eq!(promote_due(&self.store).await, ["delivered"]);
    }

    pub async fn session(&self) -> Session {
        self.store.find_session_if_owned(&self.owner, &self.key).await.unwrap().expect("the session is there")
    }

    pub async fn events(&self) -> Vec<Event> {
        self.store.events_after_if_owned(&self.owner, &self.key, 0, 1000).await.unwrap().unwrap()
    }

    pub async fn effects(&self) -> Vec<Effect> {
        self.store.effects_if_owned(&self.owner, &self.key, None, 1000).await.unwrap().unwrap()
    }

    /// Where each effect stands, and why.
    pub async fn fates(&self) -> Vec<(&'static str, Option<String>)> {
        self.effects().await.into_iter().map(|effect| (effect.status.as_str(), effect.reason)).collect()
    }

    pub async fn status_of(&self, id: EffectId) -> EffectStatus {
        self.effects().await.into_iter().find(|effect| effect.id == id).expect("it is there").status
    }

    pub async fn open_stream(&self) -> StreamId {
        self.store.open_stream_if_owned(&self.owner, &self.key).await.unwrap().expect("the session is there")
    }

    /// For a stream that awaits nothing.
    pub async fn next_send(&self, stream: StreamId, restraint: &Restraint) -> NextSend {
        self.store.next_send(&self.key, stream, None, restraint, ACK).await.unwrap()
    }

    /// For one that awaits the answer to this.
    pub async fn next_after(&self, stream: StreamId, sent: &Outgoing, restraint: &Restraint) -> NextSend {
        self.store.next_send(&self.key, stream, Some(sent.token), restraint, ACK).await.unwrap()
    }

    pub async fn sent(&self, stream: StreamId, restraint: &Restraint) -> Outgoing {
        let next = self.next_send(stream, restraint).await;
        let NextSend::Send(outgoing) = next else { panic!("{next:?}") };
        outgoing
    }

    pub async fn acknowledge(&self, id: EffectId, restraint: &Restraint) -> Acknowledged {
        self.store.acknowledge_if_owned(&self.owner, &self.key, id, restraint, None).await.unwrap()
    }

    /// Sends what is next, to a client that takes it.
    pub async fn delivered(&self, stream: StreamId, restraint: &Restraint) -> Outgoing {
        let outgoing = self.sent(stream, restraint).await;
        let done = Acknowledged::Now { status: EffectStatus::Completed, reason: None };
        assert_eq!(self.acknowledge(outgoing.id, restraint).await, done);
        outgoing
    }
}

pub fn send(content: &str) -> Asked {
    let payload = Payload::parse(serde_json::json!({ "content": content }).to_string()).unwrap();
    Asked { payload, what: What::SendMessage }
}

/// A timer so many seconds after 2020 began: long due, or not for a while.
pub fn timer(timer_id: &str, seconds: i64) -> Asked {
    timer_at(timer_id, DateTime::from_timestamp(1_577_836_800 + seconds, 0).unwrap(), Some("{\"n\": 1e1}"))
}

pub fn timer_in_an_hour(timer_id: &str) -> Asked {
    timer_at(timer_id, DateTime::from_timestamp(4_000_000_000, 0).unwrap(), None)
}

pub fn timer_at(timer_id: &str, fire_at: DateTime<Utc>, payload: Option<&str>) -> Asked {
    let text = serde_json::json!({ "timer_id": timer_id, "fire_at": chronos::domain::rfc3339(fire_at) }).to_string();
    Asked {
        payload: Payload::parse(text).unwrap(),
        what: What::ScheduleTimer {
            timer_id: timer_id.to_owned(),
            fire_at,
            payload: payload.map(|text| Payload::parse(text.to_owned()).unwrap()),
        },
    }
}

pub fn beat() -> Beat {
    Beat { version: "0.1.0", host: "here".to_owned() }
}

/// A look that takes timers of sessions, by a worker of its own.
pub fn look(beat: &Beat) -> Look<'_> {
    Look {
        worker: WorkerId::from_uuid(Uuid::new_v4()),
        beat: Some(beat),
        lease: std::time::Duration::from_secs(120),
        room: Room { rows: 100, bytes: usize::MAX, of_owner: 100, owners: Vec::new() },
        suspects: true,
        sessions: true,
        after: None,
        backlog: None,
    }
}

/// Claims and promotes all that is due; the outcomes.
pub async fn promote_due(store: &Store) -> Vec<&'static str> {
    let beat = beat();
    let look = look(&beat);
    let found = store.look(&look).await.unwrap();
    promotion::promote(store, look.worker, &found.claims).await
}

pub async fn count(db: &mut PgConnection, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement).fetch_one(db).await.unwrap()
}
