//! Of table `effects` the wakes: after a session's timer was promoted the agent is told so, through the router. They are claimed,
//! fenced and retried as alarms are, given up after as many failures, and never cancelled.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::{FromRow, Row as _, postgres::PgRow};
use uuid::Uuid;

use super::{Result, Store, claims::Claim};
use crate::domain::{
    ids::{AlarmId, ClaimToken, DeliveryId, EffectId, WorkerId},
    payload::Payload,
    session::{SessionKey, effect::EffectStatus},
    wake::{Addressee, Wake},
};

/// What a wake says beside its event: kept in the effect, because the timer's row may be planned anew before it goes out. The
/// timer's own payload is not in it: the event has that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    alarm_id: AlarmId,
    delivery_id: DeliveryId,
    scheduled_for: DateTime<Utc>,
    timer_id: String,
    correlation_id: String,
}

impl Told {
    pub(super) fn of(claim: &Claim, timer_id: &str) -> Self {
        Self {
            alarm_id: claim.wake.alarm_id,
            delivery_id: claim.wake.delivery_id,
            scheduled_for: claim.wake.scheduled_for,
            timer_id: timer_id.to_owned(),
            correlation_id: claim.wake.correlation_id.clone(),
        }
    }

    pub(super) fn payload(&self) -> Payload {
        let text = serde_json::to_string(self).expect("texts and instants always serialise");
        Payload::parse(text).expect("ids, an instant and two names of at most 256 bytes are JSON")
    }
}

/// The right to deliver one wake.
#[derive(Clone, Debug)]
pub struct WakeClaim {
    pub id: EffectId,
    pub token: ClaimToken,
    /// Postgres' time of the claim.
    pub claimed_at: DateTime<Utc>,
    pub due_at: DateTime<Utc>,
    /// Earlier tries that failed.
    pub failure_count: u32,
    /// Tries that had no result, this one included.
    pub unanswered: u32,
    pub wake: Wake,
}

/// How much a claim may take.
#[derive(Clone, Debug)]
pub struct WakeRoom {
    pub wakes: usize,
    /// Of one owner, where `owners` does not say otherwise.
    pub of_owner: usize,
    /// Owners with wakes in flight, and the room each has left.
    pub owners: Vec<(String, usize)>,
}

impl WakeRoom {
    /// For so many, whosever they are.
    pub fn of(wakes: usize) -> Self {
        Self { wakes, of_owner: wakes, owners: Vec::new() }
    }
}

/// One that was claimed and cannot be read, and why.
#[derive(Clone, Debug)]
pub struct UnreadableWake {
    pub id: EffectId,
    pub token: ClaimToken,
    pub why: String,
}

#[derive(Debug, Default)]
pub struct FoundWakes {
    pub claims: Vec<WakeClaim>,
    pub unreadable: Vec<UnreadableWake>,
    /// When the next one is due, from the look on; `None`: none is known.
    pub next_in: Option<Duration>,
}

/// What a delivery came to.
#[derive(Clone, Debug)]
pub struct WakeResult {
    pub id: EffectId,
    pub token: ClaimToken,
    pub fate: WakeFate,
}

#[derive(Clone, Debug)]
pub enum WakeFate {
    Completed,
    /// Not sent after all: due as before.
    NotSent,
    /// Again, after this long.
    Retry {
        after: Duration,
        why: String,
    },
    Failed {
        why: String,
    },
}

impl WakeFate {
    const fn status(&self) -> EffectStatus {
        match self {
            Self::Completed => EffectStatus::Completed,
            Self::NotSent | Self::Retry { .. } => EffectStatus::Pending,
            Self::Failed { .. } => EffectStatus::Failed,
        }
    }

    fn why(&self) -> Option<String> {
        match self {
            Self::Completed | Self::NotSent => None,
            Self::Retry { why, .. } | Self::Failed { why } => Some(why.clone()),
        }
    }
}

impl Store {
    /// Claims wakes that are due, no more of one owner than it has room for, and frees what a crash has left behind, sends included.
    pub async fn claim_wakes(&self, worker: WorkerId, lease: Duration, room: &WakeRoom) -> Result<FoundWakes> {
        // Whatever does not fit is more than there can be.
        let int = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        self.ask("looking for wakes of sessions", async |db| {
            let rows = sqlx::query(include_str!("sql/claim_wakes.sql"))
                .bind(worker.as_uuid())
                .bind(lease.as_secs_f64())
                .bind(i64::try_from(room.wakes).unwrap_or(i64::MAX))
                .bind(room.owners.iter().map(|(owner, _)| owner.as_str()).collect::<Vec<_>>())
                .bind(room.owners.iter().map(|(_, room)| int(*room)).collect::<Vec<_>>())
                .bind(int(room.of_owner))
                .fetch_all(db)
                .await?;
            let mut found = FoundWakes::default();
            for row in &rows {
                let wait: Option<f64> = row.try_get("next_in")?;
                found.next_in = wait.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
                let Some(id) = row.try_get::<Option<Uuid>, _>("id")?.map(EffectId::from_uuid) else { break };
                let token = ClaimToken::from_uuid(row.try_get("claim_token")?);
                match read(id, token, row) {
                    Ok(claim) => found.claims.push(claim),
                    Err(why) => found.unreadable.push(UnreadableWake { id, token, why }),
                }
            }
            Ok(found)
        })
        .await
    }

    /// Writes what became of wakes whose claim still stands. The answer is how many there were: a claim that was lost is lost with its
    /// result, and whoever has it now delivers the same wake again.
    pub async fn settle_wakes_under_token(&self, results: &[WakeResult]) -> Result<u64> {
        let mut results: Vec<&WakeResult> = results.iter().collect();
        results.sort_by_key(|result| result.id); // in one order for everybody who locks many
        let wait = |result: &&WakeResult| match &result.fate {
            WakeFate::Retry { after, .. } => Some(after.as_secs_f64()),
            WakeFate::Completed | WakeFate::NotSent | WakeFate::Failed { .. } => None,
        };
        self.ask("settling wakes of sessions", async |db| {
            sqlx::query(include_str!("sql/settle_wakes.sql"))
                .bind(results.iter().map(|result| result.id.as_uuid()).collect::<Vec<_>>())
                .bind(results.iter().map(|result| result.token.as_uuid()).collect::<Vec<_>>())
                .bind(results.iter().map(|result| result.fate.status().as_str()).collect::<Vec<_>>())
                .bind(results.iter().map(|result| result.fate.why()).collect::<Vec<_>>())
                .bind(results.iter().map(wait).collect::<Vec<_>>())
                .execute(db)
                .await
                .map(|done| done.rows_affected())
        })
        .await
    }

    /// Lets go of this worker's wakes but those in `known`: the answer to a claim was lost, or the worker stops.
    pub async fn release_wakes_of(&self, worker: WorkerId, known: &[ClaimToken]) -> Result<u64> {
        self.ask("letting go of wakes of sessions", async |db| {
            sqlx::query(
                "UPDATE effects
                 SET status = 'pending', updated_at = now(),
                     claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
                 WHERE status = 'executing' AND type = 'wake' AND claimed_by = $1 AND claim_token <> ALL ($2)",
            )
            .bind(worker.as_uuid())
            .bind(known.iter().map(|token| token.as_uuid()).collect::<Vec<_>>())
            .execute(db)
            .await
            .map(|done| done.rows_affected())
        })
        .await
    }
}

#[derive(FromRow)]
struct Row {
    claimed_at: DateTime<Utc>,
    not_before: DateTime<Utc>,
    failure_count: i32,
    attempt_count: i32,
    session_key: String,
    event_seq: i64,
    owner_did: String,
    told: String,
    /// The event's payload; `None`: somebody has removed it by hand.
    event: Option<String>,
}

/// What a timer event carries, as far as a wake tells it.
#[derive(Deserialize)]
struct Carried<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

fn read(id: EffectId, token: ClaimToken, row: &PgRow) -> Result<WakeClaim, String> {
    let row = Row::from_row(row).map_err(|error| error.to_string())?;
    let key: SessionKey = row.session_key.parse().map_err(|error| format!("session_key {error}"))?;
    let told: Told = serde_json::from_str(&row.told).map_err(|error| format!("payload {error}"))?;
    let event = row.event.as_deref().unwrap_or("{}");
    let carried: Carried<'_> = serde_json::from_str(event).map_err(|error| format!("the event's payload {error}"))?;
    // Without one it carries nothing, which is how it is left out.
    let payload = carried.payload.map_or(Ok(Payload::default()), |payload| Payload::parse(payload.get().to_owned()));
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let failure_count = count(row.failure_count);
    Ok(WakeClaim {
        id,
        token,
        claimed_at: row.claimed_at,
        due_at: row.not_before,
        failure_count,
        unanswered: count(row.attempt_count).saturating_sub(failure_count),
        wake: Wake {
            alarm_id: told.alarm_id,
            delivery_id: told.delivery_id,
            scheduled_for: told.scheduled_for,
            attempt: failure_count + 1,
            kind: "once".to_owned(),
            label: String::new(),
            owner_did: row.owner_did,
            user_id: key.user_id().to_owned(),
            conversation_id: key.thread_id().to_owned(),
            message: String::new(),
            payload: payload.map_err(|error| format!("the event's payload {error}"))?,
            correlation_id: told.correlation_id,
            missed: 0,
            to: Addressee::Session { key, timer_id: told.timer_id, event_seq: row.event_seq },
        },
    })
}
