//! Table `events`: what happened in a session, from 1 on and without gaps.

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection, Row as _};
use uuid::Uuid;

use super::{Result, Store, page, sessions, streams};
use crate::{
    domain::{
        access::Did,
        ids::EventId,
        payload::Payload,
        session::{SessionKey, autonomy::EventType},
    },
    mutants::{self, Mutant},
};

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Event {
    #[sqlx(try_from = "Uuid")]
    pub id: EventId,
    pub seq: i64,
    #[sqlx(rename = "type", try_from = "String")]
    pub event_type: EventType,
    #[sqlx(try_from = "String")]
    pub payload: Payload,
    pub created_at: DateTime<Utc>,
}

/// What is to be appended.
#[derive(Debug)]
pub struct Happening<'a> {
    /// The client's own id, by which it may ask again without happening twice. `None`: we choose one.
    pub id: Option<EventId>,
    pub event_type: EventType,
    pub payload: &'a Payload,
}

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Appended {
    New(Event),
    /// The session has it already.
    Known(Event),
    /// The session has another one under this id.
    Conflict,
    /// The session is somebody else's.
    NotOwned,
}

macro_rules! columns {
    () => {
        "id, seq, type, payload::text AS payload, created_at"
    };
}

/// Whether a send that was on its way to a client is among what was cancelled.
macro_rules! interrupted {
    () => {
        ", EXISTS (SELECT FROM unsent WHERE was_executing) AS interrupted"
    };
}

impl Store {
    /// Appends an event to the owner's session; the first one makes the session. With a user's message goes, in the same transaction,
    /// whatever the agent still meant to say by itself.
    pub async fn append_event_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        happening: &Happening<'_>,
    ) -> Result<Appended> {
        self.ask("appending an event", async |db| {
            let drawn = mutants::on(Mutant::SeqWithoutLock) && draw_seq(db, key).await?;
            let mut transaction = db.begin().await?;
            let Some(session) = sessions::lock_or_make_if_owned(&mut transaction, owner, key).await? else {
                return Ok(Appended::NotOwned);
            };
            if let Some(id) = happening.id
                && let Some(known) = find(&mut transaction, key, id).await?
            {
                return Ok(same_or_conflict(known, happening));
            }
            let (event, interrupted) =
                append(&mut transaction, key, session.last_seq + i64::from(!drawn), happening).await?;
            if mutants::on(Mutant::CommitForgotten) && mutants::one_in(8) {
                transaction.rollback().await?;
            } else {
                transaction.commit().await?;
            }
            if interrupted {
                streams::tell_changed(db, key, session.stream_id).await;
            }
            Ok(Appended::New(event))
        })
        .await
    }

    /// The session's events behind `after`, in order; fewer than asked for when they are large. `None`: no such session of this owner.
    pub async fn events_after_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        after: i64,
        limit: i64,
    ) -> Result<Option<Vec<Event>>> {
        self.ask("reading a session's events", async |db| {
            if !sessions::is_owned(db, owner, key).await? {
                return Ok(None);
            }
            let events = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM events WHERE session_key = $1 AND seq > $2 ORDER BY seq LIMIT $3"
            ))
            .bind(key.as_str())
            .bind(after)
            .bind(limit)
            .fetch(db);
            page(events, |event: &Event| event.payload.as_str().len()).await.map(Some)
        })
        .await
    }
}

/// The caller holds the session's lock, and `seq` follows its last one. Says besides whether a send on its way was cancelled.
async fn append(
    db: &mut PgConnection,
    key: &SessionKey,
    seq: i64,
    happening: &Happening<'_>,
) -> Result<(Event, bool), sqlx::Error> {
    let statement = match happening.event_type {
        EventType::UserMessage => concat!(include_str!("sql/append_user_message.sql"), columns!(), interrupted!()),
        EventType::Timer | EventType::ToolResult => {
            concat!(include_str!("sql/append_event.sql"), columns!(), ", false AS interrupted")
        }
    };
    let row = sqlx::query(statement)
        .bind(key.as_str())
        .bind(seq)
        .bind(happening.id.map(EventId::as_uuid))
        .bind(happening.event_type.as_str())
        .bind(happening.payload.as_str())
        .fetch_one(db)
        .await?;
    Ok((Event::from_row(&row)?, row.try_get("interrupted")?))
}

/// A mutant's: outside the transaction, and before the lock.
async fn draw_seq(db: &mut PgConnection, key: &SessionKey) -> Result<bool, sqlx::Error> {
    let drawn = sqlx::query("UPDATE sessions SET last_seq = last_seq + 1 WHERE session_key = $1");
    Ok(drawn.bind(key.as_str()).execute(db).await?.rows_affected() > 0)
}

async fn find(db: &mut PgConnection, key: &SessionKey, id: EventId) -> Result<Option<Event>, sqlx::Error> {
    sqlx::query_as(concat!("SELECT ", columns!(), " FROM events WHERE session_key = $1 AND id = $2"))
        .bind(key.as_str())
        .bind(id.as_uuid())
        .fetch_optional(db)
        .await
}

/// A client that repeats itself may spell the payload otherwise.
fn same_or_conflict(known: Event, happening: &Happening<'_>) -> Appended {
    let same = known.event_type == happening.event_type && known.payload.canonical() == happening.payload.canonical();
    if same { Appended::Known(known) } else { Appended::Conflict }
}
