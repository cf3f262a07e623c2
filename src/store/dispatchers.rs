//! Table `dispatchers`: heartbeats. A replica watches its peers' counters; one that stays unchanged for long enough, while
//! the watcher's own beats succeed, belongs to a dead process.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::ids::WorkerId;

/// A dispatcher, as its peers and operators see it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Peer {
    #[sqlx(try_from = "Uuid")]
    pub worker: WorkerId,
    /// What is compared, with `started_at`: one that was forgotten and comes back counts from one again.
    pub beats: i64,
    pub beaten_at: DateTime<Utc>,
    pub started_at: DateTime<Utc>,
    pub version: String,
    pub host: String,
}

impl Store {
    /// Says that this worker lives. One that was forgotten as dead comes back with its next beat.
    pub async fn beat(&self, worker: WorkerId, version: &str, host: &str) -> Result<()> {
        self.ask("beating", async |db| {
            sqlx::query(
                "INSERT INTO dispatchers (worker, version, host) VALUES ($1, $2, $3)
                 ON CONFLICT (worker) DO UPDATE SET beats = dispatchers.beats + 1, beaten_at = now()",
            )
            .bind(worker.as_uuid())
            .bind(version)
            .bind(host)
            .execute(db)
            .await
            .map(|_| ())
        })
        .await
    }

    /// All dispatchers but this one.
    pub async fn peers(&self, worker: WorkerId) -> Result<Vec<Peer>> {
        self.ask("looking at the peers", async |db| {
            sqlx::query_as(
                "SELECT worker, beats, beaten_at, started_at, version, host FROM dispatchers
                 WHERE worker <> $1 ORDER BY started_at, worker",
            )
            .bind(worker.as_uuid())
            .fetch_all(db)
            .await
        })
        .await
    }

    /// Removes a dispatcher that was found dead at this count of beats, and says whether it did. One that has beaten since is not
    /// dead, and stays.
    pub async fn forget_if_still_at(&self, worker: WorkerId, beats: i64) -> Result<bool> {
        self.ask("forgetting a dispatcher", async |db| {
            sqlx::query("DELETE FROM dispatchers WHERE worker = $1 AND beats = $2")
                .bind(worker.as_uuid())
                .bind(beats)
                .execute(db)
                .await
                .map(|done| done.rows_affected() > 0)
        })
        .await
    }

    /// Removes this worker, which stops.
    pub async fn sign_off(&self, worker: WorkerId) -> Result<()> {
        self.ask("signing off", async |db| {
            sqlx::query("DELETE FROM dispatchers WHERE worker = $1")
                .bind(worker.as_uuid())
                .execute(db)
                .await
                .map(|_| ())
        })
        .await
    }
}
