//! Table `alarms`, as dispatchers see it.
//!
//! | file | does |
//! |---|---|
//! | here | the claim: what it gives the right to, and how a row is read into it |
//! | [`look`] | one statement: beat, see the peers, claim what is due |
//! | [`settle`] | write what became of claims, many at once: folded before the wake goes out, settled after it |
//! | [`promote`] | the same for a session's timer, which becomes an event of its session |
//! | [`release`] | let go of claims without a result: given back, taken from the dead, parked |
//!
//! A claim is one short statement that stamps due rows with a fresh token. The wake goes out with no transaction open.
//! The settle writes its result only where that token, the epoch and a living status still stand; otherwise the alarm was
//! cancelled, re-planned or taken over meanwhile, and the result is recorded as such and changes nothing else.

mod look;
mod promote;
mod release;
mod settle;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{FromRow, postgres::PgRow};
use uuid::Uuid;

pub use look::{Backlog, Beat, CLAIM_OLDEST, CLAIM_PAST_BACKLOGS, Found, Look, Place, Room};
pub use release::Unreadable;
pub use settle::{Attempt, Folded, Settlement};

use super::alarms::When;
use crate::{
    domain::{
        alarm::{Status, Subject, Timing},
        ids::{AlarmId, ClaimToken, DeliveryId, ScheduleEpoch, ServiceCallId},
        occurrence::Occurrence,
        payload::Payload,
        session::{KeyError, SessionKey},
        wake::{Addressee, Wake},
    },
    mutants::{self, Mutant},
};

/// Channel of hints that a resource's row has changed; the payload is `<cluster id>/<namespace>/<name>`.
pub const RESOURCE_CHANGED: &str = "chronos_resource_changed";

/// The right to attempt one occurrence, what its wake says, and what decides about the next.
#[derive(Clone, Debug)]
pub struct Claim {
    pub token: ClaimToken,
    pub epoch: ScheduleEpoch,
    /// Postgres' time of the claim; our own clock is not asked.
    pub claimed_at: DateTime<Utc>,
    /// When the occurrence was first claimed without a result since: it is judged as of then.
    pub first_claimed_at: DateTime<Utc>,
    /// How often it was claimed without a result, this time included.
    pub claims: u32,
    /// When it was due: its effective instant, or its rung.
    pub due_at: DateTime<Utc>,
    pub failure_count: u32,
    pub max_failures: u32,
    pub subject: Subject,
    pub timing: Timing,
    /// How far its effective instants lie behind the nominal ones.
    pub offset: TimeDelta,
    /// Up to where the slots of its series are told.
    pub series_at: DateTime<Utc>,
    /// Of a session's timer, which one: it is promoted to an event of its session, and the wake that follows is that event's.
    pub session: Option<SessionTimer>,
    /// What goes out; of a session's timer nothing does.
    pub wake: Wake,
}

/// Which timer of which session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTimer {
    pub session: SessionKey,
    pub timer_id: String,
}

impl Claim {
    /// The facts that decide about it. As it was when it was claimed: what became of it since is the settle's to find out.
    pub fn occurrence(&self) -> Occurrence<'_> {
        Occurrence {
            subject: self.subject,
            status: Status::Active,
            timing: &self.timing,
            offset: self.offset,
            scheduled_for: self.wake.scheduled_for,
            series_at: self.series_at,
            missed: self.wake.missed,
            failure_count: self.failure_count,
            max_failures: self.max_failures,
        }
    }

    /// Whether it was claimed alone, and others may be waiting behind it.
    pub fn is_suspect(&self) -> bool {
        self.claims > look::SUSPECT_CLAIMS.unsigned_abs()
    }

    /// Where it stood among those that were due.
    pub fn place(&self) -> Place {
        Place { due_at: self.due_at, id: self.wake.alarm_id }
    }

    /// What it weighs in memory, as far as the owner decides it.
    pub fn bytes(&self) -> usize {
        self.wake.payload.as_str().len() + self.wake.message.len()
    }
}

#[derive(FromRow)]
struct Row {
    schedule_epoch: i64,
    claimed_at: DateTime<Utc>,
    first_claimed_at: DateTime<Utc>,
    claims: i32,
    subject: String,
    service_call_id: Option<String>,
    session_key: Option<String>,
    timer_id: Option<String>,
    owner_did: String,
    user_id: String,
    label: String,
    kind: String,
    #[sqlx(flatten)]
    when: When,
    conversation_id: String,
    wake_message: String,
    payload: String,
    correlation_id: String,
    scheduled_for: DateTime<Utc>,
    series_at: Option<DateTime<Utc>>,
    next_fire_at: DateTime<Utc>,
    failure_count: i32,
    max_failures: i32,
    occurrence_missed: i64,
}

/// Reads a claimed row; if that cannot be done, why not.
fn read(id: AlarmId, token: ClaimToken, row: &PgRow) -> Result<Claim, String> {
    let row = Row::from_row(row).map_err(|error| error.to_string())?;
    let epoch = ScheduleEpoch(row.schedule_epoch);
    // The schema keeps them from being negative.
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let failure_count = count(row.failure_count);
    let call = row.service_call_id.map(ServiceCallId::try_from).transpose();
    let to = match call.map_err(|error| format!("service_call_id {error}"))? {
        Some(id) => Addressee::ServiceCall { id, reached_at: row.claimed_at },
        None => Addressee::Agent,
    };
    let session = row.session_key.map(|key| key.parse()).transpose();
    let session = session.map_err(|error: KeyError| format!("session_key {error}"))?;
    let mut payload = row.payload;
    if mutants::on(Mutant::PayloadRewritten) {
        payload = serde_json::from_str::<serde_json::Value>(&payload).map_or(payload, |read| read.to_string());
    }
    let session = session.zip(row.timer_id).map(|(session, timer_id)| SessionTimer { session, timer_id });
    Ok(Claim {
        token,
        epoch,
        claimed_at: row.claimed_at,
        first_claimed_at: row.first_claimed_at,
        claims: count(row.claims),
        due_at: row.next_fire_at,
        failure_count,
        max_failures: count(row.max_failures),
        subject: Subject::try_from(row.subject).map_err(|error| error.to_string())?,
        timing: row.when.timing()?,
        offset: row.when.offset()?,
        series_at: row.series_at.unwrap_or(row.scheduled_for),
        session,
        wake: Wake {
            to,
            alarm_id: id,
            delivery_id: DeliveryId::of(id, epoch, row.scheduled_for),
            scheduled_for: row.scheduled_for,
            attempt: failure_count + 1,
            kind: row.kind,
            label: row.label,
            owner_did: row.owner_did,
            user_id: row.user_id,
            conversation_id: row.conversation_id,
            message: row.wake_message,
            payload: Payload::parse(payload).map_err(|error| format!("payload {error}"))?,
            correlation_id: row.correlation_id,
            missed: u64::try_from(row.occurrence_missed).unwrap_or(0),
        },
    })
}

/// Uuids of a row that was just read from a `uuid` column.
fn token_of(uuid: Uuid) -> ClaimToken {
    ClaimToken::from_uuid(uuid)
}

/// Very many at once: `Uuid::new_v4` would ask the kernel for each.
fn random_uuid() -> Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}
