//! Table `dispatchers`: heartbeats. A dispatcher beats with its looks ([`super::claims`]) and sees its peers' counters there; one
//! that stands still for long enough, while the watcher's own beats succeed, belongs to a dead process
//! (`domain::peers`), and is forgotten together with its claims ([`Store::release_if_still_at`]).

use super::{Result, Store};
use crate::domain::ids::WorkerId;

impl Store {
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
