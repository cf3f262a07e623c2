//! Table `effects`: what agents want done, and what became of it. Effects are written with the checkpoint that asks for
//! them; here they are read.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store, sessions};
use crate::domain::{
    access::Did,
    ids::EffectId,
    payload::Payload,
    session::{
        SessionKey,
        effect::{EffectStatus, EffectType},
    },
};

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Effect {
    #[sqlx(try_from = "Uuid")]
    pub id: EffectId,
    pub checkpoint_id: String,
    #[sqlx(rename = "type", try_from = "String")]
    pub effect_type: EffectType,
    #[sqlx(try_from = "String")]
    pub payload: Payload,
    pub dedupe_key: String,
    #[sqlx(try_from = "String")]
    pub status: EffectStatus,
    /// Why it was suppressed, cancelled or failed.
    pub reason: Option<String>,
    pub attempt_count: i32,
    pub last_attempt_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

impl Store {
    /// The session's effects in the order in which they were asked for, those in `status` if one is given. `None`: no such
    /// session of this owner.
    pub async fn effects_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        status: Option<EffectStatus>,
        limit: i64,
    ) -> Result<Option<Vec<Effect>>> {
        self.ask("reading a session's effects", async |db| {
            if !sessions::is_owned(db, owner, key).await? {
                return Ok(None);
            }
            let effects = sqlx::query_as(
                "SELECT id, checkpoint_id, type, payload::text AS payload, dedupe_key, status, reason, attempt_count,
                        last_attempt_at, created_at, updated_at
                 FROM effects WHERE session_key = $1 AND ($2::text IS NULL OR status = $2)
                 ORDER BY event_seq, position LIMIT $3",
            )
            .bind(key.as_str())
            .bind(status.map(EffectStatus::as_str))
            .bind(limit)
            .fetch_all(db)
            .await?;
            Ok(Some(effects))
        })
        .await
    }
}
