//! What happened, from every side: what was asked for, what the router saw, what went wrong on purpose, what the tables say.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{FromRow, PgPool};
use uuid::Uuid;

/// Everything the checker looks at. At rest: no dispatcher runs any more.
#[derive(Clone, Debug)]
pub struct History {
    pub operations: Vec<Operation>,
    pub wakes: Vec<Wake>,
    pub faults: Vec<Fault>,
    pub alarms: Vec<Alarm>,
    pub attempts: Vec<Attempt>,
    /// When the tables were read.
    pub read_at: DateTime<Utc>,
}

/// What the test did, and was told that it was done.
#[derive(Clone, Debug)]
pub enum Operation {
    Created {
        alarm_id: Uuid,
        kind: Kind,
    },
    Cancelled {
        alarm_id: Uuid,
        /// The commit lies before this.
        answered_at: DateTime<Utc>,
        /// The answer said that a wake may still come.
        in_flight: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Once,
    /// `@every`, anchored to the alarm's creation.
    Every(Duration),
}

/// One wake as it came to the router.
#[derive(Clone, Debug)]
pub struct Wake {
    pub alarm_id: Uuid,
    pub delivery_id: Uuid,
    pub scheduled_for: DateTime<Utc>,
    pub attempt: i32,
    pub replica: String,
    pub arrived_at: DateTime<Utc>,
    /// What the router did about it, and when; `None`: nothing.
    pub reaction: Option<(Reaction, DateTime<Utc>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    Status(u16),
    Reset,
}

impl Wake {
    pub fn answered(&self, status: u16) -> bool {
        self.reaction.is_some_and(|(reaction, _)| reaction == Reaction::Status(status))
    }

    pub fn was_taken(&self) -> bool {
        self.reaction.is_some_and(|(reaction, _)| matches!(reaction, Reaction::Status(200..=299)))
    }
}

/// One thing that went wrong on purpose.
#[derive(Clone, Debug)]
pub struct Fault {
    pub what: What,
    /// Whom it hit; `None`: everybody.
    pub replica: Option<String>,
    pub began_at: DateTime<Utc>,
    /// `None`: not over yet.
    pub ended_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `kill -9`.
    Killed,
    /// `SIGSTOP`, and `SIGCONT` at its end.
    Frozen,
    /// Told to stop, and gone with wakes in flight when its grace period had ended.
    CutShort,
    /// Postgres is stopped.
    DatabaseAway,
    /// Postgres is stopped for longer than a claim holds.
    LeaseOutlasted,
    /// `pg_terminate_backend`.
    ConnectionsCut,
    /// The router answers no wake, or something else than success, and does nothing about it.
    RouterFails,
    /// The router takes wakes and its answers do not arrive, or not in time.
    AnswersLost,
}

/// What a fault may have to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// One attempt at one occurrence reached the router twice.
    Repeated,
    /// The router took one occurrence under two numbers.
    TakenTwice,
    /// An attempt was made of which no row tells.
    Unrecorded,
    /// An attempt failed without an answer.
    Unanswered,
}

impl What {
    /// A database that is away or cuts connections explains nothing, unless it is away until a lease ends: until then a settle
    /// is tried again, and a repeated one changes nothing.
    pub fn explains(self, symptom: Symptom) -> bool {
        match (self, symptom) {
            (Self::Killed, Symptom::Repeated | Symptom::TakenTwice | Symptom::Unrecorded) => true,
            (Self::Killed, Symptom::Unanswered) => false, // the dead record nothing
            // It records its attempt when it goes on, and may find that its deadline has passed.
            (Self::Frozen, Symptom::Repeated | Symptom::TakenTwice | Symptom::Unanswered) => true,
            (Self::Frozen, Symptom::Unrecorded) => false,
            // The wake goes out again under the next number.
            (Self::AnswersLost, Symptom::TakenTwice | Symptom::Unanswered) => true,
            (Self::AnswersLost, Symptom::Repeated | Symptom::Unrecorded) => false,
            (Self::RouterFails, Symptom::Unanswered) => true,
            (Self::RouterFails, Symptom::Repeated | Symptom::TakenTwice | Symptom::Unrecorded) => false,
            // The answer was there, and nobody could write it down in time, or waited for it.
            (Self::CutShort | Self::LeaseOutlasted, Symptom::Repeated) => true,
            (Self::CutShort | Self::LeaseOutlasted, _) => false,
            (Self::DatabaseAway | Self::ConnectionsCut, _) => false,
        }
    }
}

/// A row of `alarms`, as far as it matters here.
#[derive(Clone, Debug, FromRow)]
pub struct Alarm {
    pub id: Uuid,
    pub status: String,
    pub scheduled_for: DateTime<Utc>,
    pub next_fire_at: DateTime<Utc>,
    pub spread_offset_micros: i64,
    pub schedule_epoch: i64,
    pub fired_count: i64,
    pub last_error: String,
    pub claim_token: Option<Uuid>,
    pub created_at: DateTime<Utc>,
}

impl Alarm {
    pub fn offset(&self) -> TimeDelta {
        TimeDelta::microseconds(self.spread_offset_micros)
    }
}

/// A row of `attempts`.
#[derive(Clone, Debug, FromRow)]
pub struct Attempt {
    pub alarm_id: Uuid,
    pub delivery_id: Option<Uuid>,
    pub scheduled_for: DateTime<Utc>,
    /// 0: a run of slots.
    pub attempt: i32,
    pub started_at: DateTime<Utc>,
    pub duration_ms: i64,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub first_at: Option<DateTime<Utc>>,
    pub last_at: Option<DateTime<Utc>>,
    pub slots: Option<i64>,
}

impl Attempt {
    pub fn ended_at(&self) -> DateTime<Utc> {
        self.started_at + TimeDelta::milliseconds(self.duration_ms)
    }
}

pub async fn alarms(database: &PgPool) -> Vec<Alarm> {
    sqlx::query_as(
        "SELECT id, status, scheduled_for, next_fire_at, schedule_epoch, fired_count, last_error, claim_token, created_at,
                (extract(epoch FROM spread_offset) * 1000000)::bigint AS spread_offset_micros
         FROM alarms ORDER BY created_at, id",
    )
    .fetch_all(database)
    .await
    .unwrap()
}

pub async fn attempts(database: &PgPool) -> Vec<Attempt> {
    sqlx::query_as(
        "SELECT alarm_id, delivery_id, scheduled_for, attempt, started_at, duration_ms, outcome, http_status, first_at, last_at, slots
         FROM attempts ORDER BY started_at, id",
    )
    .fetch_all(database)
    .await
    .unwrap()
}
