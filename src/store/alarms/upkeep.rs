//! What happens to alarms behind their owners' backs: old ones that are over are removed, slots are computed anew when zone rules
//! change, and somebody counts. All of it in small steps along the primary key, so that no statement is long and no lock is
//! held.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use super::When;
use crate::{
    domain::{
        alarm::Status,
        ids::{AlarmId, ScheduleEpoch},
    },
    store::{Result, Store},
};

/// Rows one step reads: a few milliseconds.
const STEP: i64 = 2_000;
/// From so many rows on, Postgres' statistics are good enough, and counting is not worth its cost.
const COUNTED_UP_TO: f32 = 100_000.0;
/// More due alarms than this are not counted one by one.
pub const MOST_DUE_COUNTED: i64 = 100_000;

/// How far a walk along the table has come; `None`: its end.
pub type Place = Option<AlarmId>;

/// A cron alarm at rest, whose next slot may be another under other zone rules.
#[derive(Clone, Debug, FromRow)]
pub struct Resting {
    #[sqlx(try_from = "Uuid")]
    pub id: AlarmId,
    #[sqlx(flatten)]
    pub when: When,
    pub scheduled_for: DateTime<Utc>,
    #[sqlx(try_from = "i64")]
    schedule_epoch: ScheduleEpoch,
}

/// What is due and not settled.
#[derive(Clone, Copy, Debug, PartialEq, FromRow)]
pub struct Due {
    /// Up to [`MOST_DUE_COUNTED`].
    pub alarms: i64,
    /// Age of the oldest; 0 without any.
    pub oldest_seconds: f64,
}

impl Store {
    /// One step of removing agents' alarms that have been over for so many days. An alarm of a resource that still stands stays:
    /// the controller would arm it anew. Says how many were removed, and where to go on.
    pub async fn remove_over_for(&self, days: u32, after: Place) -> Result<(u64, Place)> {
        self.ask("removing alarms that are over", async |db| {
            let (last, removed): (Option<Uuid>, i64) = sqlx::query_as(
                "WITH step AS (SELECT id FROM alarms WHERE id > $1 ORDER BY id LIMIT $2), gone AS (
                     DELETE FROM alarms USING step
                     WHERE alarms.id = step.id AND subject = 'agent' AND status IN ('fired', 'failed', 'cancelled')
                       AND updated_at < now() - make_interval(days => $3)
                       AND (source <> 'kubernetes' OR cancelled_by IN ('resource', 'cluster'))
                     RETURNING alarms.id
                 )
                 SELECT (SELECT id FROM step ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)",
            )
            .bind(after.map_or(Uuid::nil(), AlarmId::as_uuid))
            .bind(STEP)
            .bind(i32::try_from(days).unwrap_or(i32::MAX))
            .fetch_one(db)
            .await?;
            Ok((removed.unsigned_abs(), last.map(AlarmId::from_uuid)))
        })
        .await
    }

    /// One step along the cron alarms at rest: not due, not claimed, without failures.
    pub async fn resting_series(&self, after: Place) -> Result<(Vec<Resting>, Place)> {
        self.ask("reading cron alarms", async |db| {
            let after = after.map_or(Uuid::nil(), AlarmId::as_uuid);
            let last: Option<Uuid> = sqlx::query_scalar(
                "SELECT id FROM (SELECT id FROM alarms WHERE id > $1 ORDER BY id LIMIT $2) AS step ORDER BY id DESC LIMIT 1",
            )
            .bind(after)
            .bind(STEP)
            .fetch_optional(&mut *db)
            .await?;
            let found = sqlx::query_as(
                "SELECT id, fire_at, cron_expr, timezone, starts_at, ends_at, spread, spread_offset, misfire, max_lateness, created_at,
                        scheduled_for, schedule_epoch
                 FROM alarms
                 WHERE id > $1 AND id <= $2 AND kind = 'cron' AND status IN ('active', 'paused')
                   AND next_fire_at > now() AND claim_token IS NULL AND first_claimed_at IS NULL AND failure_count = 0",
            )
            .bind(after)
            .bind(last)
            .fetch_all(db)
            .await?;
            Ok((found, last.map(AlarmId::from_uuid)))
        })
        .await
    }

    /// Moves a series at rest to another slot, unless something happened to it since it was read. Says whether it did.
    pub async fn move_if_resting(&self, series: &Resting, slot: DateTime<Utc>) -> Result<bool> {
        self.ask("moving an alarm to another slot", async |db| {
            sqlx::query(
                "UPDATE alarms SET scheduled_for = $2, next_fire_at = $2 + spread_offset, updated_at = now()
                 WHERE id = $1 AND scheduled_for = $3 AND schedule_epoch = $4 AND status IN ('active', 'paused')
                   AND next_fire_at > now() AND claim_token IS NULL AND first_claimed_at IS NULL AND failure_count = 0",
            )
            .bind(series.id.as_uuid())
            .bind(slot)
            .bind(series.scheduled_for)
            .bind(series.schedule_epoch.0)
            .execute(db)
            .await
            .map(|done| done.rows_affected() > 0)
        })
        .await
    }

    /// How many agents' alarms are in which status; an estimate where there are many.
    pub async fn alarms_by_status(&self) -> Result<Vec<(Status, i64)>> {
        let found: Vec<(String, i64)> = self
            .ask("counting alarms", async |db| {
                let rows: f32 = sqlx::query_scalar("SELECT reltuples FROM pg_class WHERE oid = 'alarms'::regclass")
                    .fetch_one(&mut *db)
                    .await?;
                if rows > COUNTED_UP_TO {
                    return sqlx::query_as(
                        "SELECT status, (share * $1)::bigint
                         FROM pg_stats, unnest(most_common_vals::text::text[], most_common_freqs) AS common (status, share)
                         WHERE schemaname = current_schema() AND tablename = 'alarms' AND attname = 'status'",
                    )
                    .bind(rows)
                    .fetch_all(db)
                    .await;
                }
                sqlx::query_as("SELECT status, count(*) FROM alarms GROUP BY status").fetch_all(db).await
            })
            .await?;
        let count = |status: Status| {
            found.iter().find(|(word, _)| word == status.as_str()).map_or((status, 0), |(_, count)| (status, *count))
        };
        Ok(Status::ALL.iter().copied().map(count).collect())
    }

    /// What is due now. What an agent is owed that is suspended or gone is not: nobody is late who must wait.
    pub async fn due(&self) -> Result<Due> {
        self.ask("counting due alarms", async |db| {
            sqlx::query_as(
                "WITH due AS (
                     SELECT next_fire_at FROM alarms
                     WHERE status = 'active' AND next_fire_at <= now()
                       AND NOT EXISTS (SELECT FROM shut_out WHERE did = owner_did)
                     ORDER BY next_fire_at LIMIT $1
                 )
                 SELECT count(*) AS alarms, coalesce(extract(epoch FROM now() - min(next_fire_at))::float8, 0) AS oldest_seconds
                 FROM due",
            )
            .bind(MOST_DUE_COUNTED)
            .fetch_one(db)
            .await
        })
        .await
    }
}
