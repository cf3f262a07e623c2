//! Table `attempts`: what became of every try, and of every slot that had none. Tries are written by the settle
//! ([`super::claims`]), in the statement that moves their alarm.

use sqlx::PgConnection;

use super::alarms::Alarm;
use crate::domain::{ids::DeliveryId, occurrence::Passed, schedule::Run};

/// Writes down that slots passed without a try, in the transaction that lets them pass. Under the epoch the alarm has now.
pub(super) async fn record_passed(db: &mut PgConnection, alarm: &Alarm, passed: &Passed) -> Result<(), sqlx::Error> {
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
    .bind(alarm.last_error.as_str())
    .bind(first)
    .bind(i64::try_from(slots).unwrap_or(i64::MAX))
    .bind(passed.reason.as_str())
    .execute(db)
    .await
    .map(|_| ())
}
