//! Table `attempts`: what became of every try, and of every slot that had none. Tries are written by the settle
//! ([`super::claims`]), in the statement that moves their alarm.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::alarms::Alarm;
use crate::domain::{ids::DeliveryId, occurrence::Outcome};

/// Writes down that a slot passed without a try, in the transaction that lets it pass.
pub(super) async fn record_passed(
    db: &mut PgConnection,
    alarm: &Alarm,
    owner_did: &str,
    due: DateTime<Utc>,
    outcome: Outcome,
    reason: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO attempts (alarm_id, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome, error,
                               first_at, last_at, slots, reason)
         VALUES ($1, $2, $3, $4, 0, now(), $5, $6, $4, $4, 1, $7)",
    )
    .bind(alarm.id.as_uuid())
    .bind(owner_did)
    .bind(DeliveryId::of(alarm.id, alarm.schedule_epoch, due).as_uuid())
    .bind(due)
    .bind(outcome.as_str())
    .bind(alarm.last_error.as_str())
    .bind(reason)
    .execute(db)
    .await
    .map(|_| ())
}
