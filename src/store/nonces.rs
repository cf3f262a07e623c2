//! Table `nonces`: the open challenges.

use std::time::Duration;

use sqlx::Connection;

use super::{Result, Store};
use crate::{
    domain::access::Did,
    mutants::{self, Mutant},
};

impl Store {
    /// Opens a challenge. At most `most_open` are open per DID: one more replaces the oldest. Expired ones of anybody go
    /// on the way, so that the table stays as small as what is open.
    pub async fn open_challenge(&self, did: &Did, nonce: &str, lifetime: Duration, most_open: i64) -> Result<()> {
        self.ask("opening a challenge", async |db| {
            let mut transaction = db.begin().await?;
            // One at a time per DID, or many at once would each see room for one more.
            sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(did.as_str())
                .execute(&mut *transaction)
                .await?;
            sqlx::query(include_str!("sql/open_challenge.sql"))
                .bind(did.as_str())
                .bind(nonce)
                .bind(lifetime.as_secs_f64())
                .bind(most_open)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await
        })
        .await
    }

    /// Whether the challenge was open. It is not any more: of two that try at once, one hears yes.
    pub async fn consume_challenge(&self, did: &Did, nonce: &str) -> Result<bool> {
        let mut statement = "DELETE FROM nonces WHERE did = $1 AND nonce = $2 RETURNING expires_at > now()";
        if mutants::on(Mutant::NonceReuse) {
            statement = "SELECT expires_at > now() FROM nonces WHERE did = $1 AND nonce = $2";
        }
        let open: Option<bool> = self
            .ask("consuming a challenge", async |db| {
                sqlx::query_scalar(statement).bind(did.as_str()).bind(nonce).fetch_optional(db).await
            })
            .await?;
        Ok(open.unwrap_or(false))
    }
}
