//! The stream of a session: the one connection over which its sends go out, on whichever replica. The session's row says which
//! one; a newer one takes over. Whatever goes out is decided under the session's lock: in order, one at a time, capped.
//!
//! ```text
//! pending ──next_send──▶ executing ──acknowledged──▶ completed
//!    ▲                       │
//!    └── stream closed, taken over, or its lease ended
//! ```

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use sqlx::{Connection, FromRow, PgConnection};
use tracing::debug;
use uuid::Uuid;

use super::{
    Result, Store,
    effects::{defer, suppress},
    sessions::{self, Locked},
    unreadable,
};
use crate::{
    domain::{
        access::Did,
        ids::{ClaimToken, EffectId, StreamId},
        session::{
            SessionKey,
            autonomy::{Restraint, Tally, Then, Waiting},
            effect::Reason,
        },
    },
    mutants::{self, Mutant},
};

/// Channel of hints that something is to be looked at in a session; the payload is the session's key.
pub const SESSION_CHANGED: &str = "chronos_session_changed";

/// A lease outlives the wait for an acknowledgement by this much: the stream itself gives up first.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
/// So many sends are looked at together. More than one is passed over only while a cooldown or the cap suppresses them.
const LOOKED_AT: i64 = 1000;

/// A send on its way to the client: `executing`, under this token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub id: EffectId,
    pub token: ClaimToken,
    pub dedupe_key: String,
    /// The session's sends from 1 on; the same however often it is sent.
    pub seq: i64,
    pub content: String,
    pub created_at: DateTime<Utc>,
}

/// What a stream has to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextSend {
    /// Write it to the socket. Whatever this stream sent before and is still unanswered is not awaited any more (it was cancelled).
    Send(Outgoing),
    /// Nothing, until a hint comes or, if there is one, this much time has passed: a cooldown ends then.
    Wait { again_in: Option<Duration> },
    /// The send that went out last still stands unanswered.
    Unanswered,
    /// Another connection has the stream.
    TakenOver,
    /// The agent is suspended or removed, or its session is gone.
    Barred,
}

/// An open send of the session.
#[derive(Debug, FromRow)]
struct Open {
    #[sqlx(try_from = "Uuid")]
    id: EffectId,
    /// Of a claim that holds.
    claim_token: Option<Uuid>,
    is_restrained: bool,
}

/// A send as it goes out.
#[derive(FromRow)]
struct Begun {
    claim_token: Uuid,
    send_seq: i64,
    dedupe_key: String,
    payload: String,
    created_at: DateTime<Utc>,
}

#[derive(Deserialize)]
struct Content {
    content: String,
}

impl Store {
    /// Makes this connection the session's stream; the one before it, wherever it is, has lost it, and what that has sent without an
    /// answer is pending again. `None`: no such session of this owner.
    pub async fn open_stream_if_owned(&self, owner: &Did, key: &SessionKey) -> Result<Option<StreamId>> {
        let stream = StreamId::from_uuid(Uuid::new_v4());
        self.ask("opening a session's stream", async |db| {
            let mut transaction = db.begin().await?;
            let Some(session) = sessions::lock_if_owned(&mut transaction, owner, key).await? else { return Ok(None) };
            set_stream(&mut transaction, key, Some(stream)).await?;
            transaction.commit().await?;
            tell_changed(db, key, session.stream_id).await;
            Ok(Some(stream))
        })
        .await
    }

    /// What goes out next, if anything. `outstanding`: what this stream has sent and awaits; one that was begun for it and that it does
    /// not know of, because the answer was lost, is sent again. `ack_within`: how long the client has to acknowledge it.
    pub async fn next_send(
        &self,
        key: &SessionKey,
        stream: StreamId,
        outstanding: Option<ClaimToken>,
        restraint: &Restraint,
        ack_within: Duration,
    ) -> Result<NextSend> {
        self.ask("looking for a session's next send", async |db| {
            let mut transaction = db.begin().await?;
            let Some(session) = lock_if_let_in(&mut transaction, key).await? else { return Ok(NextSend::Barred) };
            let unleased = mutants::on(Mutant::EffectWithoutLease);
            if session.stream_id != Some(stream.as_uuid()) && !unleased {
                return Ok(NextSend::TakenOver);
            }
            let now: DateTime<Utc> =
                sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut *transaction).await?;
            let mut open = open_sends(&mut transaction, key).await?;
            let awaited = outstanding.map(ClaimToken::as_uuid);
            if open.iter().any(|send| awaited.is_some() && send.claim_token == awaited) && !unleased {
                return Ok(NextSend::Unanswered);
            }
            let waiting: Vec<Waiting> = open.iter().map(|send| Waiting { is_restrained: send.is_restrained }).collect();
            let outlook = restraint.outlook(&waiting, session.tally(), now);
            let suppressed: Vec<(EffectId, Reason)> =
                outlook.suppressed.iter().map(|(place, reason)| (open[*place].id, *reason)).collect();
            if !suppressed.is_empty() {
                suppress(&mut transaction, &suppressed).await?;
            }
            if outlook.then == Then::Rest && suppressed.is_empty() {
                // Nothing was written: there is no commit to wait for.
                return Ok(NextSend::Wait { again_in: None });
            }
            let next = match outlook.then {
                // There may be more than were looked at.
                Then::Rest if open.len() >= usize::try_from(LOOKED_AT).unwrap_or(usize::MAX) => {
                    NextSend::Wait { again_in: Some(Duration::ZERO) }
                }
                Then::Rest => NextSend::Wait { again_in: None },
                Then::Defer { place, until } => {
                    defer(&mut transaction, open[place].id, until).await?;
                    NextSend::Wait { again_in: Some((until - now).to_std().unwrap_or_default()) }
                }
                Then::Send { place, tally } => {
                    let send = open.swap_remove(place);
                    let lease = ack_within + LEASE_MARGIN;
                    NextSend::Send(begin(&mut transaction, key, stream, send, tally, lease).await?)
                }
            };
            transaction.commit().await?;
            Ok(next)
        })
        .await
    }

    /// The connection ends: the session has no stream, and what it sent without an answer is pending again. Changes nothing once
    /// another connection has it.
    pub async fn close_stream(&self, key: &SessionKey, stream: StreamId) -> Result<()> {
        self.ask("closing a session's stream", async |db| {
            let mut transaction = db.begin().await?;
            let held = sqlx::query("SELECT FROM sessions WHERE session_key = $1 AND stream_id = $2 FOR UPDATE")
                .bind(key.as_str())
                .bind(stream.as_uuid())
                .fetch_optional(&mut *transaction)
                .await?;
            if held.is_some() {
                set_stream(&mut transaction, key, None).await?;
            }
            transaction.commit().await
        })
        .await
    }
}

/// Tells whoever holds the session's stream to look. After the commit, and not again if it fails: a hint carries no truth. A session
/// without a stream has nobody to tell, and costs nothing.
pub(super) async fn tell_changed(db: &mut PgConnection, key: &SessionKey, stream: Option<Uuid>) {
    if stream.is_none() {
        return;
    }
    let told = sqlx::query("SELECT pg_notify($1, $2)").bind(SESSION_CHANGED).bind(key.as_str()).execute(db).await;
    if let Err(error) = told {
        debug!(%error, "a hint was not sent; the stream looks by itself after a while");
    }
}

/// The caller holds the session's lock.
async fn set_stream(db: &mut PgConnection, key: &SessionKey, stream: Option<StreamId>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "WITH session AS (UPDATE sessions SET stream_id = $2 WHERE session_key = $1)
         UPDATE effects
         SET status = 'pending', updated_at = now(),
             claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
         WHERE session_key = $1 AND status = 'executing' AND type = 'send_message'",
    )
    .bind(key.as_str())
    .bind(stream.map(StreamId::as_uuid))
    .execute(db)
    .await
    .map(|_| ())
}

/// `None`: there is no such session, or its agent is suspended or removed.
async fn lock_if_let_in(db: &mut PgConnection, key: &SessionKey) -> Result<Option<Locked>, sqlx::Error> {
    sqlx::query_as(
        "SELECT last_seq, event_seq, consecutive_autonomous_msgs, last_autonomous_at, stream_id
         FROM sessions
         WHERE session_key = $1 AND NOT EXISTS (SELECT FROM shut_out WHERE did = owner_did) FOR UPDATE",
    )
    .bind(key.as_str())
    .fetch_optional(db)
    .await
}

/// The oldest of those that have not reached the client. The caller holds the session's lock.
async fn open_sends(db: &mut PgConnection, key: &SessionKey) -> Result<Vec<Open>, sqlx::Error> {
    sqlx::query_as(
        "SELECT id, CASE WHEN claimed_until > clock_timestamp() THEN claim_token END AS claim_token,
                autonomous AND counted_at IS NULL AS is_restrained
         FROM effects
         WHERE session_key = $1 AND status IN ('pending', 'executing') AND type = 'send_message'
         ORDER BY event_seq, position LIMIT $2",
    )
    .bind(key.as_str())
    .bind(LOOKED_AT)
    .fetch_all(db)
    .await
}

/// It goes out: counted, numbered, claimed. The caller holds the session's lock.
async fn begin(
    db: &mut PgConnection,
    key: &SessionKey,
    stream: StreamId,
    send: Open,
    tally: Option<Tally>,
    lease: Duration,
) -> Result<Outgoing, sqlx::Error> {
    let begun: Begun = sqlx::query_as(include_str!("sql/begin_send.sql"))
        .bind(key.as_str())
        .bind(send.id.as_uuid())
        .bind(tally.is_some())
        .bind(tally.map(|tally| i32::try_from(tally.consecutive).unwrap_or(i32::MAX)))
        .bind(tally.and_then(|tally| tally.last_at))
        .bind(stream.as_uuid())
        .bind(lease.as_secs_f64())
        .fetch_one(db)
        .await?;
    let Content { content } = serde_json::from_str(&begun.payload).map_err(unreadable)?;
    Ok(Outgoing {
        id: send.id,
        token: ClaimToken::from_uuid(begun.claim_token),
        dedupe_key: begun.dedupe_key,
        seq: begun.send_seq,
        content,
        created_at: begun.created_at,
    })
}
