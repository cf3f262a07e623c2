//! Table `attempts`: what became of every try, and of every slot that had none. Tries are written by the settle
//! ([`super::claims`]), in the statement that moves their alarm.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Result, Store, alarms::Alarm};
use crate::domain::{
    access::Did,
    cursor::{self, Cursor},
    ids::{AlarmId, DeliveryId},
    occurrence::{Outcome, Passed},
    schedule::Run,
};

/// One row of an alarm's history: a try, or a run of slots that had none.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Entry {
    id: Uuid,
    delivery_id: Option<Uuid>,
    /// Of a run, its last slot.
    pub scheduled_for: DateTime<Utc>,
    /// 0 for a run.
    pub attempt: i32,
    pub started_at: DateTime<Utc>,
    pub duration_ms: i64,
    #[sqlx(try_from = "String")]
    pub outcome: Outcome,
    pub http_status: Option<i32>,
    pub error: String,
    pub worker: Option<Uuid>,
    first_at: Option<DateTime<Utc>>,
    last_at: Option<DateTime<Utc>>,
    slots: Option<i64>,
    pub reason: Option<String>,
}

impl Entry {
    /// What a receiver dedupes on. None where the database itself wrote the row.
    pub fn delivery_id(&self) -> Option<DeliveryId> {
        self.delivery_id.map(DeliveryId::from_uuid)
    }

    /// The slots of a run; `None` for a try.
    pub fn run(&self) -> Option<Run> {
        // The schema has all or none of them, and at least one slot.
        let slots = u64::try_from(self.slots?).ok()?;
        Some(Run { first: self.first_at?, last: self.last_at?, slots })
    }
}

#[derive(Debug)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// Where the next one begins; `None` on the last.
    pub next: Option<Cursor>,
}

impl Store {
    /// The history of an alarm, newest first; `None`: no such alarm of this owner.
    pub async fn attempts_if_owned(
        &self,
        owner: &Did,
        id: AlarmId,
        after: Option<Cursor>,
        limit: i64,
    ) -> Result<Option<Page>> {
        self.ask("reading an alarm's attempts", async |db| {
            let alarm = sqlx::query("SELECT FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent'")
                .bind(id.as_uuid())
                .bind(owner.as_str())
                .fetch_optional(&mut *db)
                .await?;
            if alarm.is_none() {
                return Ok(None);
            }
            page(db, id, after, limit).await.map(Some)
        })
        .await
    }
}

/// The history of an alarm, newest first, whoever is its owner: the caller has seen to that. Not by the owner of each entry: one that
/// was in flight while its alarm went over to another key's DID was written under the old one.
pub(super) async fn page(
    db: &mut PgConnection,
    id: AlarmId,
    after: Option<Cursor>,
    limit: i64,
) -> Result<Page, sqlx::Error> {
    let found: Vec<Entry> = sqlx::query_as(
        "SELECT id, delivery_id, scheduled_for, attempt, started_at, duration_ms, outcome, http_status, error, worker,
                first_at, last_at, slots, reason
         FROM attempts WHERE alarm_id = $1 AND ($2::timestamptz IS NULL OR (started_at, id) < ($2, $3))
         ORDER BY started_at DESC, id DESC LIMIT $4",
    )
    .bind(id.as_uuid())
    .bind(after.map(|cursor| cursor.at))
    .bind(after.map(|cursor| cursor.id))
    .bind(limit.saturating_add(1))
    .persistent(false)
    .fetch_all(db)
    .await?;
    let place = |entry: &Entry| Cursor { at: entry.started_at, id: entry.id };
    let (entries, next) = cursor::page(found, limit, place);
    Ok(Page { entries, next })
}

/// The newest tries of an alarm, newest first; runs of slots that had none are left out.
pub(super) async fn last_tries(db: &mut PgConnection, id: AlarmId, most: i64) -> Result<Vec<Entry>, sqlx::Error> {
    sqlx::query_as(
        "SELECT id, delivery_id, scheduled_for, attempt, started_at, duration_ms, outcome, http_status, error, worker,
                first_at, last_at, slots, reason
         FROM attempts WHERE alarm_id = $1 AND attempt > 0 ORDER BY started_at DESC, id DESC LIMIT $2",
    )
    .bind(id.as_uuid())
    .bind(most)
    .fetch_all(db)
    .await
}

/// Writes down that slots passed without a try, in the transaction that lets them pass. Under the alarm's epoch as it is given:
/// the one that the slots belong to.
pub(super) async fn record_passed(
    db: &mut PgConnection,
    alarm: &Alarm,
    passed: &Passed,
    error: &str,
) -> Result<(), sqlx::Error> {
    let Run { first, last, slots } = passed.run;
    sqlx::query(
        "INSERT INTO attempts (alarm_id, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome, error,
                               first_at, last_at, slots, reason)
         VALUES ($1, $2, $3, $4, 0, clock_timestamp(), $5, $6, $7, $4, $8, $9)",
    )
    .bind(alarm.id.as_uuid())
    .bind(&alarm.owner_did)
    .bind(DeliveryId::of(alarm.id, alarm.schedule_epoch, last).as_uuid())
    .bind(last)
    .bind(passed.outcome.as_str())
    .bind(error)
    .bind(first)
    .bind(i64::try_from(slots).unwrap_or(i64::MAX))
    .bind(passed.reason.as_str())
    .execute(db)
    .await
    .map(|_| ())
}
