//! Table `checkpoints`: what the agent made of each event, one after another.

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::{Result, Store, sessions};
use crate::domain::{access::Did, session::SessionKey};

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Checkpoint {
    pub checkpoint_id: String,
    /// The event it processed.
    pub event_seq: i64,
    /// Of what was asked for, by which a repetition is told from another request.
    pub request_hash: Vec<u8>,
    /// Timers that a later one of the same checkpoint replaced.
    pub replaced_timers: Vec<String>,
    pub created_at: DateTime<Utc>,
}

impl Store {
    /// A checkpoint that the session has already; `None`: it has not, or there is no such session of this owner.
    pub async fn find_checkpoint_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        checkpoint_id: &str,
    ) -> Result<Option<Checkpoint>> {
        self.ask("reading a checkpoint", async |db| {
            if !sessions::is_owned(db, owner, key).await? {
                return Ok(None);
            }
            sqlx::query_as(
                "SELECT checkpoint_id, event_seq, request_hash, replaced_timers, created_at
                 FROM checkpoints WHERE session_key = $1 AND checkpoint_id = $2",
            )
            .bind(key.as_str())
            .bind(checkpoint_id)
            .fetch_optional(db)
            .await
        })
        .await
    }
}
