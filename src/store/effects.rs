//! Table `effects`: what agents want done, and what became of it. Effects are written with the checkpoint that asks for
//! them ([`super::checkpoints`]); sends go out by a [stream](super::streams), wakes by a [dispatcher](super::wakes). Here they are
//! read, and acknowledged by the client.

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::{Result, Store, page, sessions, streams::tell_changed};
use crate::domain::{
    access::Did,
    ids::{EffectId, StreamId},
    payload::Payload,
    session::{
        SessionKey,
        autonomy::{Admission, Restraint, Tally},
        effect::{EffectStatus, EffectType, Reason},
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
    /// Of one that waits: for the end of the cooldown, or for its next rung.
    pub not_before: Option<DateTime<Utc>>,
    pub attempt_count: i32,
    pub last_attempt_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// What an acknowledgement came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Where the effect stands now: completed, or what it was before, or suppressed by the cap.
    Now { status: EffectStatus, reason: Option<String> },
    /// It may not go out before then: it stays pending.
    TooSoon { not_before: DateTime<Utc> },
    /// There is no such send in this session, or no such session of this owner.
    NotFound,
}

impl Store {
    /// The client has it, by socket or otherwise. Of a send that nobody has sent yet the cap and the cooldown decide first. One that is
    /// over stays what it is. `stream`: over which it was heard; any other is told that it need not wait for it.
    pub async fn acknowledge_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        effect: EffectId,
        restraint: &Restraint,
        stream: Option<StreamId>,
    ) -> Result<Acknowledged> {
        self.ask("acknowledging a send", async |db| {
            let mut transaction = db.begin().await?;
            let Some(session) = sessions::lock_if_owned(&mut transaction, owner, key).await? else {
                return Ok(Acknowledged::NotFound);
            };
            let Some(send) = find_send(&mut transaction, key, effect).await? else {
                return Ok(Acknowledged::NotFound);
            };
            let restrained = send.status == EffectStatus::Pending && send.is_restrained;
            let admission =
                if restrained { restraint.admit(session.tally(), send.now) } else { Admission::Send(session.tally()) };
            let done = match (send.status, admission) {
                (
                    EffectStatus::Completed | EffectStatus::Failed | EffectStatus::Cancelled | EffectStatus::Suppressed,
                    _,
                ) => return Ok(Acknowledged::Now { status: send.status, reason: send.reason }),
                (EffectStatus::Pending | EffectStatus::Executing, Admission::Send(tally)) => {
                    let tally = restrained.then_some(tally);
                    complete(&mut transaction, key, effect, tally).await?;
                    Acknowledged::Now { status: EffectStatus::Completed, reason: None }
                }
                (EffectStatus::Pending | EffectStatus::Executing, Admission::Suppress) => {
                    suppress(&mut transaction, &[(effect, Reason::Cap)]).await?
                }
                (EffectStatus::Pending | EffectStatus::Executing, Admission::Defer { .. }) if send.has_successor => {
                    suppress(&mut transaction, &[(effect, Reason::Superseded)]).await?
                }
                (EffectStatus::Pending | EffectStatus::Executing, Admission::Defer { until }) => {
                    defer(&mut transaction, effect, until).await?;
                    Acknowledged::TooSoon { not_before: until }
                }
            };
            transaction.commit().await?;
            if session.stream_id != stream.map(StreamId::as_uuid) {
                tell_changed(db, key, session.stream_id).await;
            }
            Ok(done)
        })
        .await
    }

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
                "SELECT id, checkpoint_id, type, payload::text AS payload, dedupe_key, status, reason,
                        CASE WHEN status = 'pending' THEN not_before END AS not_before, attempt_count, last_attempt_at, created_at, updated_at
                 FROM effects WHERE session_key = $1 AND ($2::text IS NULL OR status = $2)
                 ORDER BY event_seq, position, created_at LIMIT $3",
            )
            .bind(key.as_str())
            .bind(status.map(EffectStatus::as_str))
            .bind(limit)
            .fetch(db);
            page(effects, |effect: &Effect| effect.payload.as_str().len()).await.map(Some)
        })
        .await
    }
}

/// A send that somebody acknowledges.
#[derive(FromRow)]
struct Send {
    #[sqlx(try_from = "String")]
    status: EffectStatus,
    reason: Option<String>,
    is_restrained: bool,
    /// Whether a newer one would take its place while it waits.
    has_successor: bool,
    now: DateTime<Utc>,
}

/// The caller holds the session's lock.
async fn find_send(db: &mut PgConnection, key: &SessionKey, effect: EffectId) -> Result<Option<Send>, sqlx::Error> {
    sqlx::query_as(
        "SELECT status, reason, autonomous AND counted_at IS NULL AS is_restrained, clock_timestamp() AS now,
                autonomous AND counted_at IS NULL AND EXISTS (SELECT FROM effects AS newer
                        WHERE newer.session_key = $1 AND newer.status = 'pending' AND newer.autonomous
                          AND newer.counted_at IS NULL
                          AND (newer.event_seq, newer.position) > (effects.event_seq, effects.position)) AS has_successor
         FROM effects WHERE id = $2 AND session_key = $1 AND type = 'send_message'",
    )
    .bind(key.as_str())
    .bind(effect.as_uuid())
    .fetch_optional(db)
    .await
}

/// `tally`: what the session's is afterwards; `None`: this one does not count, or did when it went out. One that was never sent gets its
/// number now.
async fn complete(
    db: &mut PgConnection,
    key: &SessionKey,
    effect: EffectId,
    tally: Option<Tally>,
) -> Result<(), sqlx::Error> {
    sqlx::query(include_str!("sql/complete_send.sql"))
        .bind(key.as_str())
        .bind(effect.as_uuid())
        .bind(tally.is_some())
        .bind(tally.map(|tally| i32::try_from(tally.consecutive).unwrap_or(i32::MAX)))
        .bind(tally.and_then(|tally| tally.last_at))
        .execute(db)
        .await
        .map(|_| ())
}

/// They are never sent.
pub(super) async fn suppress(db: &mut PgConnection, sends: &[(EffectId, Reason)]) -> Result<Acknowledged, sqlx::Error> {
    sqlx::query(
        "UPDATE effects SET status = 'suppressed', reason = suppressed.reason, updated_at = now(),
                claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
         FROM unnest($1::uuid[], $2::text[]) AS suppressed (id, reason) WHERE effects.id = suppressed.id",
    )
    .bind(sends.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(sends.iter().map(|(_, reason)| reason.as_str()).collect::<Vec<_>>())
    .execute(db)
    .await?;
    let reason = sends.last().map(|(_, reason)| reason.as_str().to_owned());
    Ok(Acknowledged::Now { status: EffectStatus::Suppressed, reason })
}

/// It waits for the end of the cooldown.
pub(super) async fn defer(db: &mut PgConnection, effect: EffectId, until: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE effects SET not_before = $2, updated_at = now() WHERE id = $1 AND not_before IS DISTINCT FROM $2",
    )
    .bind(effect.as_uuid())
    .bind(until)
    .execute(db)
    .await
    .map(|_| ())
}
