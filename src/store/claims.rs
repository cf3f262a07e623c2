//! Table `alarms`, as dispatchers see it: claim, settle, give back.
//!
//! A claim is one short statement that stamps due rows with a fresh token. The wake goes out with no transaction open.
//! The settle writes its result only where that token, the epoch and a living status still stand; otherwise the alarm was
//! cancelled, re-planned or taken over meanwhile, and the result is recorded as such and changes nothing else.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store, alarms::When, unreadable};
use crate::domain::{
    alarm::{Status, Subject, Timing},
    ids::{AlarmId, ClaimToken, DeliveryId, ScheduleEpoch, WorkerId},
    occurrence::{Next, Outcome},
    payload::Payload,
    wake::Wake,
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
    pub failure_count: u32,
    pub max_failures: u32,
    pub subject: Subject,
    pub timing: Timing,
    /// How far its effective instants lie behind the nominal ones.
    pub offset: TimeDelta,
    /// Up to where the slots of its series are told.
    pub series_at: DateTime<Utc>,
    pub wake: Wake,
}

/// A row that was claimed but cannot be read. It is parked by [`Store::park_under_token`], so that it neither stops the
/// others nor comes back with every claim.
#[derive(Debug)]
pub struct Unreadable {
    pub id: AlarmId,
    pub token: ClaimToken,
    pub why: String,
}

#[derive(Debug, Default)]
pub struct Claimed {
    pub claims: Vec<Claim>,
    pub unreadable: Vec<Unreadable>,
}

/// One attempt, as it is written into history.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    pub http_status: Option<u16>,
    pub error: String,
}

/// The columns a result sets.
struct Settlement {
    /// `None`: living on, as active or paused as it is.
    over: Option<Status>,
    scheduled_for: DateTime<Utc>,
    next_fire_at: DateTime<Utc>,
    failure_count: u32,
    last_error: String,
    fired: bool,
}

#[derive(FromRow)]
struct Row {
    id: Uuid,
    claim_token: Uuid,
    schedule_epoch: i64,
    claimed_at: DateTime<Utc>,
    subject: String,
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
    failure_count: i32,
    max_failures: i32,
    occurrence_missed: i64,
}

impl Row {
    fn claim(self) -> Result<Claim, Unreadable> {
        let (id, token) = (AlarmId::from_uuid(self.id), ClaimToken::from_uuid(self.claim_token));
        let epoch = ScheduleEpoch(self.schedule_epoch);
        let unreadable = |why| Unreadable { id, token, why };
        let (timing, offset) = (self.when.timing().map_err(unreadable)?, self.when.offset().map_err(unreadable)?);
        let subject = Subject::try_from(self.subject).map_err(|error| unreadable(error.to_string()))?;
        let payload = Payload::parse(self.payload).map_err(|error| unreadable(format!("payload {error}")))?;
        // The schema keeps both from being negative.
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let failure_count = count(self.failure_count);
        Ok(Claim {
            token,
            epoch,
            claimed_at: self.claimed_at,
            failure_count,
            max_failures: count(self.max_failures),
            subject,
            timing,
            offset,
            series_at: self.series_at.unwrap_or(self.scheduled_for),
            wake: Wake {
                alarm_id: id,
                delivery_id: DeliveryId::of(id, epoch, self.scheduled_for),
                scheduled_for: self.scheduled_for,
                attempt: failure_count + 1,
                kind: self.kind,
                label: self.label,
                owner_did: self.owner_did,
                user_id: self.user_id,
                conversation_id: self.conversation_id,
                message: self.wake_message,
                payload,
                correlation_id: self.correlation_id,
                missed: u64::try_from(self.occurrence_missed).unwrap_or(0),
            },
        })
    }
}

impl Settlement {
    fn of(claim: &Claim, next: &Next) -> Self {
        let stay = |over, failure_count, last_error: &str, fired| Self {
            over: Some(over),
            scheduled_for: claim.wake.scheduled_for,
            next_fire_at: claim.wake.scheduled_for,
            failure_count,
            last_error: last_error.to_owned(),
            fired,
        };
        let go_on = |scheduled_for: DateTime<Utc>, next_fire_at, failure_count, last_error: &str, fired| Self {
            over: None,
            scheduled_for,
            next_fire_at,
            failure_count,
            last_error: last_error.to_owned(),
            fired,
        };
        match next {
            Next::Fired => stay(Status::Fired, 0, "", true),
            Next::Advance { slot } => go_on(slot.scheduled_for, slot.effective_at(), 0, "", true),
            Next::Retry { at, why } => go_on(claim.wake.scheduled_for, *at, claim.wake.attempt, why, false),
            Next::Failed { why } => stay(Status::Failed, claim.wake.attempt, why, false),
            Next::Skip { slot, why } => go_on(slot.scheduled_for, slot.effective_at(), 0, why, false),
            Next::Retired { why } => stay(Status::Fired, 0, why, false),
            // A claim is of the living; the fence in the statement keeps this from being written.
            Next::Stands { status } => stay(*status, claim.failure_count, "", false),
        }
    }
}

/// The claim, as `EXPLAIN` sees it too.
pub const CLAIM_DUE: &str = include_str!("sql/claim_due.sql");
/// Rows already due are not asked for: they were just claimed, or cannot be, and must not shorten the wait.
pub const UNTIL_NEXT_DUE: &str = "SELECT extract(epoch FROM min(next_fire_at) - now())::float8
     FROM alarms WHERE status = 'active' AND next_fire_at > now()";

impl Store {
    /// Claims up to `most` due alarms, oldest first. Rows that another dispatcher is claiming at this moment are passed
    /// over without waiting; rows whose lease has ended are free again. These are leased for `lease`.
    pub async fn claim_due(&self, worker: WorkerId, most: usize, lease: Duration) -> Result<Claimed> {
        let rows: Vec<Row> = self
            .ask("claiming due alarms", async |db| {
                sqlx::query_as(CLAIM_DUE)
                    .bind(worker.as_uuid())
                    .bind(i64::try_from(most).unwrap_or(i64::MAX))
                    .bind(lease.as_secs_f64())
                    .fetch_all(db)
                    .await
            })
            .await?;
        let mut claimed = Claimed::default();
        for row in rows {
            match row.claim() {
                Ok(claim) => claimed.claims.push(claim),
                Err(unreadable) => claimed.unreadable.push(unreadable),
            }
        }
        Ok(claimed)
    }

    /// How long until the earliest alarm that is still ahead, by Postgres' clock; `None`: nothing is.
    pub async fn until_next_due(&self) -> Result<Option<Duration>> {
        let seconds: Option<f64> = self
            .ask("looking for the next due alarm", async |db| sqlx::query_scalar(UNTIL_NEXT_DUE).fetch_one(db).await)
            .await?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)))
    }

    /// Records what became of an attempt, in one statement: the alarm's next state if the claim still stands, and the
    /// attempt in any case. The answer is the outcome as recorded. Repeating it changes nothing and answers the same.
    pub async fn settle_under_token(
        &self,
        claim: &Claim,
        worker: WorkerId,
        next: &Next,
        attempt: &Attempt,
    ) -> Result<Outcome> {
        let settlement = Settlement::of(claim, next);
        let wake = &claim.wake;
        self.ask("settling an attempt", async |db| {
            let recorded: String = sqlx::query_scalar(include_str!("sql/settle_under_token.sql"))
                .bind(wake.alarm_id.as_uuid())
                .bind(claim.token.as_uuid())
                .bind(claim.epoch.0)
                .bind(settlement.over.map(Status::as_str))
                .bind(settlement.scheduled_for)
                .bind(settlement.next_fire_at)
                .bind(i32::try_from(settlement.failure_count).unwrap_or(i32::MAX))
                .bind(&settlement.last_error)
                .bind(settlement.fired)
                .bind(&wake.owner_did)
                .bind(wake.delivery_id.as_uuid())
                .bind(wake.scheduled_for)
                .bind(i32::try_from(wake.attempt).unwrap_or(i32::MAX))
                .bind(attempt.started_at)
                .bind(i64::try_from(attempt.duration.as_millis()).unwrap_or(i64::MAX))
                .bind(next.outcome().as_str())
                .bind(attempt.http_status.map(i32::from))
                .bind(&attempt.error)
                .bind(worker.as_uuid())
                .bind(RESOURCE_CHANGED)
                .fetch_one(db)
                .await?;
            Outcome::try_from(recorded).map_err(unreadable)
        })
        .await
    }

    /// Lets go of a claim whose wake was not sent; the alarm is due as before.
    pub async fn give_back_under_token(&self, claim: &Claim) -> Result<()> {
        self.ask("giving a claim back", async |db| {
            sqlx::query(
                "UPDATE alarms SET claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL,
                        claims = greatest(claims - 1, 0), first_claimed_at = CASE WHEN claims > 1 THEN first_claimed_at END
                 WHERE id = $1 AND claim_token = $2",
            )
            .bind(claim.wake.alarm_id.as_uuid())
            .bind(claim.token.as_uuid())
            .execute(db)
            .await
            .map(|_| ())
        })
        .await
    }

    /// Parks a row that cannot be read, with the reason, where its owner sees it.
    pub async fn park_under_token(&self, row: &Unreadable) -> Result<()> {
        self.ask("parking an unreadable alarm", async |db| {
            sqlx::query(
                "UPDATE alarms SET status = 'failed', paused_by = '{}', last_error = $3, updated_at = now(),
                        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0,
                        first_claimed_at = NULL
                 WHERE id = $1 AND claim_token = $2 AND status IN ('active', 'paused')",
            )
            .bind(row.id.as_uuid())
            .bind(row.token.as_uuid())
            .bind(format!("cannot be read: {}", row.why))
            .execute(db)
            .await
            .map(|_| ())
        })
        .await
    }
}
