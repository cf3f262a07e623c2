//! Table `sessions`: one conversation each. Its row lock serialises what happens in it; whoever locks a session and an
//! alarm or an effect locks the session first.

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::{Result, Store, unreadable};
use crate::domain::{
    access::Did,
    session::{SessionKey, autonomy::Tally},
};

/// Sessions whose logs are looked at by one transaction, and events of each that go with it: half a second's work at most. Ten times
/// what a session of the document sees in a day goes in a day, by the hour.
const RETENTION_STEP: i64 = 20;
const RETENTION_EVENTS: i64 = 200;

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

    /// Removes, of some sessions behind `after`, the old part of the log: what was processed, is older than so many days, and has no
    /// effect that is still open. What the next send answers is kept, however old. Says how many events went, and where to go on; `None`:
    /// there are no more. A session in which something is going on is left for the next time.
    pub async fn remove_processed_for(
        &self,
        days: u32,
        after: Option<&SessionKey>,
    ) -> Result<(u64, Option<SessionKey>)> {
        self.ask("removing old events of sessions", async |db| {
            let mut transaction = db.begin().await?;
            let keys: Vec<String> = sqlx::query_scalar(
                "SELECT session_key FROM sessions WHERE session_key > $1 ORDER BY session_key LIMIT $2 FOR UPDATE SKIP LOCKED",
            )
            .bind(after.map_or("", SessionKey::as_str))
            .bind(RETENTION_STEP)
            .fetch_all(&mut *transaction)
            .await?;
            // The log is append-only for everybody who does not say so.
            sqlx::query("SET LOCAL chronos.retention = 'on'").execute(&mut *transaction).await?;
            let removed: i64 = sqlx::query_scalar(include_str!("sql/remove_processed.sql"))
                .bind(&keys)
                .bind(i32::try_from(days).unwrap_or(i32::MAX))
                .bind(RETENTION_EVENTS)
                .fetch_one(&mut *transaction)
                .await?;
            transaction.commit().await?;
            let next = keys.last().map(|key| key.parse()).transpose().map_err(unreadable)?;
            Ok((removed.unsigned_abs(), next))
        })
        .await
    }
}

/// What is known of a session whose lock one holds.
#[derive(Clone, Copy, Debug, FromRow)]
pub(super) struct Locked {
    pub last_seq: i64,
    pub event_seq: i64,
    pub consecutive_autonomous_msgs: i32,
    pub last_autonomous_at: Option<DateTime<Utc>>,
    /// The connection over which sends go out.
    pub stream_id: Option<Uuid>,
}

impl Locked {
    /// What the agent has said unasked.
    pub(super) fn tally(&self) -> Tally {
        Tally { consecutive: self.consecutive_autonomous_msgs.unsigned_abs(), last_at: self.last_autonomous_at }
    }
}

/// Locks the owner's session, which is made if there is none yet. `None`: it is somebody else's.
pub(super) async fn lock_or_make_if_owned(
    db: &mut PgConnection,
    owner: &Did,
    key: &SessionKey,
) -> Result<Option<Locked>, sqlx::Error> {
    // Nobody makes a session in another user's name.
    if key.user_id() != owner.user_id() {
        return Ok(None);
    }
    if let Some(session) = lock_if_owned(db, owner, key).await? {
        return Ok(Some(session));
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

/// Whatever is to be read of what others have written in the session is read by a later statement: this one may have waited, and
/// sees nothing else as it is now.
pub(super) async fn lock_if_owned(
    db: &mut PgConnection,
    owner: &Did,
    key: &SessionKey,
) -> Result<Option<Locked>, sqlx::Error> {
    sqlx::query_as(
        "SELECT last_seq, event_seq, consecutive_autonomous_msgs, last_autonomous_at, stream_id
         FROM sessions WHERE session_key = $1 AND owner_did = $2 FOR UPDATE",
    )
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
