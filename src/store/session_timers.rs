//! Timers of sessions: rows of `alarms` with subject `session`, one per key. They are planned by a checkpoint, promoted by a
//! dispatcher, cancelled by their owner or by a user's message.

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};

use super::{Result, Store, page, sessions};
use crate::domain::{access::Did, alarm::Status, payload::Payload, session::SessionKey};

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Timer {
    pub timer_id: String,
    /// The nominal instant.
    pub fire_at: DateTime<Utc>,
    #[sqlx(try_from = "String")]
    pub payload: Payload,
    #[sqlx(try_from = "String")]
    pub status: State,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Promoted,
    Cancelled,
}

impl State {
    /// As the timers' document spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Promoted => "promoted",
            Self::Cancelled => "cancelled",
        }
    }
}

impl TryFrom<String> for State {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        match Status::try_from(word)? {
            Status::Active => Ok(Self::Pending),
            Status::Fired => Ok(Self::Promoted),
            Status::Cancelled => Ok(Self::Cancelled),
            status @ (Status::Paused | Status::Failed) => {
                Err(format!("a timer of a session is never {}", status.as_str()).into())
            }
        }
    }
}

/// A timer that is to be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned<'a> {
    pub timer_id: &'a str,
    pub fire_at: DateTime<Utc>,
    pub payload: Option<&'a Payload>,
}

macro_rules! columns {
    () => {
        "timer_id, scheduled_for AS fire_at, payload::text AS payload, status, created_at, updated_at"
    };
}

impl Store {
    /// The session's timers in the order in which they are due, also those that are over. `None`: no such session of this owner.
    pub async fn session_timers_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        limit: i64,
    ) -> Result<Option<Vec<Timer>>> {
        self.ask("reading a session's timers", async |db| {
            if !sessions::is_owned(db, owner, key).await? {
                return Ok(None);
            }
            let timers = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE session_key = $1 AND owner_did = $2 ORDER BY scheduled_for, timer_id LIMIT $3"
            ))
            .bind(key.as_str())
            .bind(owner.as_str())
            .bind(limit)
            .fetch(db);
            page(timers, |timer: &Timer| timer.payload.as_str().len()).await.map(Some)
        })
        .await
    }

    pub async fn find_session_timer_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        timer_id: &str,
    ) -> Result<Option<Timer>> {
        self.ask("reading a session's timer", async |db| find(db, owner, key, timer_id).await).await
    }

    /// Cancels a timer that is pending; one that is over stays as it is. The answer is the timer afterwards; `None`: there is none.
    pub async fn cancel_session_timer_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        timer_id: &str,
    ) -> Result<Option<Timer>> {
        self.ask("cancelling a session's timer", async |db| {
            let mut transaction = db.begin().await?;
            if sessions::lock_if_owned(&mut transaction, owner, key).await?.is_none() {
                return Ok(None);
            }
            let cancelled = sqlx::query_as(concat!(
                "UPDATE alarms SET status = 'cancelled', cancelled_by = 'owner', updated_at = now(), claimed_at = NULL,
                        claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
                 WHERE session_key = $1 AND timer_id = $2 AND status = 'active' RETURNING ",
                columns!()
            ))
            .bind(key.as_str())
            .bind(timer_id)
            .fetch_optional(&mut *transaction)
            .await?;
            let timer = match cancelled {
                Some(timer) => Some(timer),
                None => find(&mut transaction, owner, key, timer_id).await?,
            };
            transaction.commit().await?;
            Ok(timer)
        })
        .await
    }
}

async fn find(
    db: &mut PgConnection,
    owner: &Did,
    key: &SessionKey,
    timer_id: &str,
) -> Result<Option<Timer>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        columns!(),
        " FROM alarms WHERE session_key = $1 AND timer_id = $2 AND owner_did = $3"
    ))
    .bind(key.as_str())
    .bind(timer_id)
    .bind(owner.as_str())
    .fetch_optional(db)
    .await
}

/// Sets timers: those that exist are planned anew, reached or not, cancelled or not, and what is in flight of them is fenced. The caller
/// holds the session's lock. The answer is when; `None`: there was nothing to set.
pub(super) async fn plan(
    db: &mut PgConnection,
    owner: &Did,
    key: &SessionKey,
    timers: &[Planned<'_>],
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    if timers.is_empty() {
        return Ok(None);
    }
    let ids: Vec<&str> = timers.iter().map(|timer| timer.timer_id).collect();
    if timers.len() > 1 {
        // In one order for everybody who locks many.
        sqlx::query("SELECT FROM alarms WHERE session_key = $1 AND timer_id = ANY ($2) ORDER BY id FOR UPDATE")
            .bind(key.as_str())
            .bind(&ids)
            .execute(&mut *db)
            .await?;
    }
    sqlx::query_scalar(include_str!("sql/plan_session_timers.sql"))
        .bind(owner.as_str())
        .bind(owner.user_id())
        .bind(key.as_str())
        .bind(key.thread_id())
        .bind(&ids)
        .bind(timers.iter().map(|timer| timer.fire_at).collect::<Vec<_>>())
        .bind(timers.iter().map(|timer| timer.payload.map_or("null", Payload::as_str)).collect::<Vec<_>>())
        .fetch_one(db)
        .await
        .map(Some)
}
