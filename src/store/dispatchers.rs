//! Table `dispatchers`: heartbeats. A dispatcher beats with its looks ([`super::claims`]) and sees its peers' counters there; one
//! that stands still for long enough, while the watcher's own beats succeed, belongs to a dead process
//! (`domain::peers`), and is forgotten together with its claims ([`Store::release_if_still_at`]).

use super::{Result, Store};
use crate::domain::ids::WorkerId;

impl Store {
    /// Whether this worker is the eldest of those at work: the one that does what one of them has to.
    pub async fn is_eldest(&self, worker: WorkerId) -> Result<bool> {
        self.ask("asking who is the eldest dispatcher", async |db| {
            let eldest: Option<uuid::Uuid> =
                sqlx::query_scalar("SELECT worker FROM dispatchers ORDER BY started_at, worker LIMIT 1")
                    .fetch_optional(db)
                    .await?;
            Ok(eldest == Some(worker.as_uuid()))
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
