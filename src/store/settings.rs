//! Table `settings`: what all replicas must agree on. The schema's own entries are read in `schema.rs`.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};

use super::{Result, Store};

/// Dispatch is held for maintenance: nothing is claimed.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Hold {
    #[sqlx(rename = "held_by")]
    pub by: String,
    #[sqlx(rename = "held_at")]
    pub since: DateTime<Utc>,
}

impl Store {
    /// Holds dispatch. If it is held already, that hold stays; the answer is the one that stands.
    pub async fn hold_dispatch(&self, by: &str) -> Result<Hold> {
        self.ask("holding dispatch", async |db| {
            sqlx::query_as(
                "UPDATE settings SET held_by = coalesce(held_by, $1), held_at = coalesce(held_at, now())
                 RETURNING held_by, held_at",
            )
            .bind(by)
            .fetch_one(db)
            .await
        })
        .await
    }

    /// Lets dispatch go on; the answer is the hold that was lifted.
    pub async fn release_dispatch(&self) -> Result<Option<Hold>> {
        self.ask("releasing dispatch", async |db| {
            sqlx::query_as(
                // The row as it was is read under its lock, so that of two that release one hears of the hold.
                "WITH held AS (SELECT held_by, held_at FROM settings WHERE held_by IS NOT NULL FOR UPDATE)
                 UPDATE settings SET held_by = NULL, held_at = NULL FROM held RETURNING held.held_by, held.held_at",
            )
            .fetch_optional(db)
            .await
        })
        .await
    }

    /// Whether dispatch is held, by whom and since when.
    pub async fn dispatch_hold(&self) -> Result<Option<Hold>> {
        self.ask("asking whether dispatch is held", async |db| {
            sqlx::query_as("SELECT held_by, held_at FROM settings WHERE held_by IS NOT NULL").fetch_optional(db).await
        })
        .await
    }

    /// The newest zone rules by which instants were computed.
    pub async fn zone_database(&self) -> Result<Option<String>> {
        self.ask("reading the zone database's version", async |db| zone_database(db).await).await
    }

    /// Records newer zone rules, such as `2026b`. Older ones change nothing: during a rolling update replicas with both are at
    /// work. The answer is what stands.
    pub async fn advance_zone_database(&self, version: &str) -> Result<Option<String>> {
        self.ask("recording the zone database's version", async |db| {
            sqlx::query(
                r#"UPDATE settings SET zone_database = $1
                   WHERE zone_database IS NULL OR zone_database < $1 COLLATE "C""#,
            )
            .bind(version)
            .execute(&mut *db)
            .await?;
            zone_database(db).await
        })
        .await
    }
}

async fn zone_database(db: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT zone_database FROM settings").fetch_one(db).await
}
