//! Table `sessions`: one conversation each. Its row lock serialises what happens in it; whoever locks a session and an
//! alarm or an effect locks the session first.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection};

use super::{Result, Store};
use crate::domain::{access::Did, session::SessionKey};

/// A session as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Session {
    /// The newest event.
    pub last_seq: i64,
    /// The newest event that a checkpoint has processed.
    pub event_seq: i64,
    pub consecutive_autonomous_msgs: i32,
    pub last_autonomous_at: Option<DateTime<Utc>>,
    pub pending_timers: i64,
    pub pending_effects: i64,
    pub created_at: DateTime<Utc>,
}

impl Store {
    pub async fn find_session_if_owned(&self, owner: &Did, key: &SessionKey) -> Result<Option<Session>> {
        self.ask("reading a session", async |db| {
            sqlx::query_as(include_str!("sql/find_session.sql"))
                .bind(key.as_str())
                .bind(owner.as_str())
                .fetch_optional(db)
                .await
        })
        .await
    }
}

/// Locks the owner's session, which is made if there is none yet; the answer is its `last_seq`. `None`: it is somebody else's.
pub(super) async fn lock_or_make_if_owned(
    db: &mut PgConnection,
    owner: &Did,
    key: &SessionKey,
) -> Result<Option<i64>, sqlx::Error> {
    // Nobody makes a session in another user's name.
    if key.user_id() != owner.user_id() {
        return Ok(None);
    }
    if let Some(last_seq) = lock_if_owned(db, owner, key).await? {
        return Ok(Some(last_seq));
    }
    // Of several that make it at once one does; the others wait here until it has.
    sqlx::query("INSERT INTO sessions (session_key, owner_did, user_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(key.as_str())
        .bind(owner.as_str())
        .bind(key.user_id())
        .execute(&mut *db)
        .await?;
    lock_if_owned(db, owner, key).await
}

async fn lock_if_owned(db: &mut PgConnection, owner: &Did, key: &SessionKey) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT last_seq FROM sessions WHERE session_key = $1 AND owner_did = $2 FOR UPDATE")
        .bind(key.as_str())
        .bind(owner.as_str())
        .fetch_optional(db)
        .await
}

/// Whether the session is this owner's.
pub(super) async fn is_owned(db: &mut PgConnection, owner: &Did, key: &SessionKey) -> Result<bool, sqlx::Error> {
    let found = sqlx::query("SELECT FROM sessions WHERE session_key = $1 AND owner_did = $2")
        .bind(key.as_str())
        .bind(owner.as_str())
        .fetch_optional(db)
        .await?;
    Ok(found.is_some())
}
