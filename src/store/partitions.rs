//! The daily partitions of `attempts`, by UTC days. Making and dropping is done by functions of the schema, because the
//! partitions' names are computed there; which days is decided here.
//!
//! A partition that is missing harms nothing: DEFAULT takes its rows. A day of which DEFAULT has rows already stays with
//! DEFAULT. Neither waits for long: when somebody reads the whole table, these fail, and are called again later.

use chrono::{Days, NaiveDate};

use super::{Result, Store};

/// Rows of DEFAULT that one statement deletes: well within a statement's deadline.
const ROWS_AT_ONCE: i64 = 10_000;

impl Store {
    /// Makes the partitions of today and of so many days ahead, where they are missing. The answer are the days that DEFAULT
    /// keeps.
    pub async fn make_attempt_partitions(&self, days_ahead: u32) -> Result<Vec<NaiveDate>> {
        let today = self.today().await?;
        let mut kept = Vec::new();
        for day in today.iter_days().take(days_ahead as usize + 1) {
            // A transaction each: its locks are held for one partition, not for all.
            let made: bool = self
                .ask("making a partition of attempts", async |db| {
                    sqlx::query_scalar("SELECT attempts_make_partition($1)").bind(day).fetch_one(db).await
                })
                .await?;
            if !made {
                kept.push(day);
            }
        }
        Ok(kept)
    }

    /// Drops every partition whose whole day lies more than so many days back, and what DEFAULT has of such days.
    pub async fn drop_attempts_older_than(&self, days: u32) -> Result<()> {
        // Before the calendar begins there are no attempts.
        let Some(before) = self.today().await?.checked_sub_days(Days::new(days.into())) else { return Ok(()) };
        loop {
            let dropped: Option<String> = self
                .ask("dropping a partition of attempts", async |db| {
                    sqlx::query_scalar("SELECT attempts_drop_oldest_partition($1)").bind(before).fetch_one(db).await
                })
                .await?;
            if dropped.is_none() {
                break;
            }
        }
        loop {
            let deleted = self
                .ask("deleting old attempts", async |db| {
                    sqlx::query(
                        "DELETE FROM attempts_default WHERE ctid = ANY (ARRAY(
                             SELECT ctid FROM attempts_default
                             WHERE started_at < $1::timestamp AT TIME ZONE 'UTC' LIMIT $2))",
                    )
                    .bind(before)
                    .bind(ROWS_AT_ONCE)
                    .execute(db)
                    .await
                })
                .await?;
            if deleted.rows_affected() < ROWS_AT_ONCE.unsigned_abs() {
                return Ok(());
            }
        }
    }

    async fn today(&self) -> Result<NaiveDate> {
        Ok(self.now().await?.date_naive())
    }
}
