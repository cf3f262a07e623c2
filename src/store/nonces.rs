//! Table `nonces`: the open challenges.

use std::time::Duration;

use super::{Result, Store, ask};
use crate::domain::access::Did;

impl Store {
    /// Opens a challenge. At most `most_open` are open per DID: one more replaces the oldest. Expired ones of anybody go
    /// on the way, so that the table stays as small as what is open.
    pub async fn open_challenge(&self, did: &Did, nonce: &str, lifetime: Duration, most_open: i64) -> Result<()> {
        let doing = "opening a challenge";
        let query = sqlx::query(include_str!("sql/open_challenge.sql"))
            .bind(did.as_str())
            .bind(nonce)
            .bind(lifetime.as_secs_f64())
            .bind(most_open)
            .execute(&self.pool);
        ask(doing, query).await.map(|_| ())
    }

    /// Whether the challenge was open. It is not any more: of two that try at once, one hears yes.
    pub async fn consume_challenge(&self, did: &Did, nonce: &str) -> Result<bool> {
        let query = sqlx::query_scalar("DELETE FROM nonces WHERE did = $1 AND nonce = $2 RETURNING expires_at > now()")
            .bind(did.as_str())
            .bind(nonce)
            .fetch_optional(&self.pool);
        Ok(ask::<Option<bool>>("consuming a challenge", query).await?.unwrap_or(false))
    }
}
