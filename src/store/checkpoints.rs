//! Table `checkpoints`: what the agent made of each event, one after another. A checkpoint and its effects are stored together, its
//! timers are set with it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{
    Result, Store,
    session_timers::{self, Planned},
    sessions, streams, unreadable,
};
use crate::domain::{
    access::Did,
    ids::EffectId,
    payload::Payload,
    session::{
        SessionKey,
        autonomy::{EventType, is_autonomous},
        checkpoint::{Facts, Fate, Wish, fates, replaced_timers, request_hash},
        effect::{EffectStatus, EffectType, Reason, dedupe_key},
    },
};

/// A checkpoint as the agent asks for it.
#[derive(Debug)]
pub struct Request<'a> {
    pub checkpoint_id: &'a str,
    pub event_seq: i64,
    pub effects: &'a [Asked],
}

/// One effect of it, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// As it was given, to the byte.
    pub payload: Payload,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    SendMessage,
    ScheduleTimer {
        timer_id: String,
        /// Rounded up to the microsecond.
        fire_at: DateTime<Utc>,
        /// What the timer event carries; `None`: nothing.
        payload: Option<Payload>,
    },
}

impl Asked {
    const fn effect_type(&self) -> EffectType {
        match self.what {
            What::SendMessage => EffectType::SendMessage,
            What::ScheduleTimer { .. } => EffectType::ScheduleTimer,
        }
    }

    fn wish(&self) -> Wish<'_> {
        match &self.what {
            What::SendMessage => Wish::Send,
            What::ScheduleTimer { timer_id, .. } => Wish::Timer { timer_id },
        }
    }
}

/// What the agent is told, and told again when it repeats itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub event_seq: i64,
    pub effects: Vec<Born>,
    /// Timers that a later one of the same checkpoint replaced.
    pub replaced_timers: Vec<String>,
}

/// An effect as it was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Born {
    pub id: EffectId,
    #[serde(rename = "type", with = "word")]
    pub effect_type: EffectType,
    #[serde(with = "word")]
    pub status: EffectStatus,
    pub dedupe_key: String,
    pub reason: Option<String>,
}

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Checkpointed {
    /// Stored, now or before: a repetition has the same answer.
    Done(Receipt),
    /// The session has another one under this id.
    Conflict,
    /// Not the event that is next. `event_seq`: the newest that was processed. `last_seq`: the newest there is.
    OutOfTurn { event_seq: i64, last_seq: i64 },
    /// There is no such session of this owner.
    NotOwned,
}

impl Store {
    /// Stores a checkpoint and its effects, all or nothing.
    pub async fn checkpoint_if_owned(
        &self,
        owner: &Did,
        key: &SessionKey,
        request: &Request<'_>,
    ) -> Result<Checkpointed> {
        let effects = request.effects.iter().map(|asked| (asked.effect_type(), &asked.payload));
        let hash = request_hash(request.event_seq, effects);
        self.ask("storing a checkpoint", async |db| {
            let mut transaction = db.begin().await?;
            let Some(session) = sessions::lock_if_owned(&mut transaction, owner, key).await? else {
                return Ok(Checkpointed::NotOwned);
            };
            if let Some((known, answer)) = find(&mut transaction, key, request.checkpoint_id).await? {
                let answered = || serde_json::from_str(&answer).map(Checkpointed::Done).map_err(unreadable);
                return if known == hash { answered() } else { Ok(Checkpointed::Conflict) };
            }
            let (event_seq, last_seq) = (session.event_seq, session.last_seq);
            if request.event_seq != event_seq + 1 || request.event_seq > last_seq {
                return Ok(Checkpointed::OutOfTurn { event_seq, last_seq });
            }
            let facts = facts(&mut transaction, key, request.event_seq).await?;
            let wishes: Vec<Wish<'_>> = request.effects.iter().map(Asked::wish).collect();
            let fates = fates(&wishes, facts);
            let timers = planned(request.effects, &fates);
            let planned_at = session_timers::plan(&mut transaction, owner, key, &timers).await?;
            let receipt = Receipt {
                event_seq: request.event_seq,
                effects: born(key, request, &fates),
                replaced_timers: replaced_timers(&wishes),
            };
            insert(&mut transaction, key, request, &hash, facts, &receipt).await?;
            transaction.commit().await?;
            if receipt.effects.iter().any(|born| born.status == EffectStatus::Pending) {
                streams::tell_changed(db, key, session.stream_id).await;
            }
            if let (Some(now), Some(first)) = (planned_at, timers.iter().map(|timer| timer.fire_at).min()) {
                self.horizon.hint(db, first, now).await;
            }
            Ok(Checkpointed::Done(receipt))
        })
        .await
    }
}

async fn find(
    db: &mut PgConnection,
    key: &SessionKey,
    checkpoint_id: &str,
) -> Result<Option<(Vec<u8>, String)>, sqlx::Error> {
    sqlx::query_as("SELECT request_hash, answer::text FROM checkpoints WHERE session_key = $1 AND checkpoint_id = $2")
        .bind(key.as_str())
        .bind(checkpoint_id)
        .fetch_optional(db)
        .await
}

/// What the log says about the event.
async fn facts(db: &mut PgConnection, key: &SessionKey, event_seq: i64) -> Result<Facts, sqlx::Error> {
    let (answers, user_spoke_since): (Option<String>, bool) = sqlx::query_as(
        "SELECT (SELECT type FROM events WHERE session_key = $1 AND seq <= $2 AND type <> 'tool_result' ORDER BY seq DESC LIMIT 1),
                EXISTS (SELECT FROM events WHERE session_key = $1 AND seq > $2 AND type = 'user_message')",
    )
    .bind(key.as_str())
    .bind(event_seq)
    .fetch_one(db)
    .await?;
    let answers = answers.map(EventType::try_from).transpose().map_err(unreadable)?;
    Ok(Facts { autonomous: is_autonomous(answers), user_spoke_since })
}

/// The timers that are set.
fn planned<'a>(effects: &'a [Asked], fates: &[Fate]) -> Vec<Planned<'a>> {
    let set = effects.iter().zip(fates).filter(|(_, fate)| fate.status == EffectStatus::Completed);
    set.filter_map(|(asked, _)| match &asked.what {
        What::SendMessage => None,
        What::ScheduleTimer { timer_id, fire_at, payload } => {
            Some(Planned { timer_id, fire_at: *fire_at, payload: payload.as_ref() })
        }
    })
    .collect()
}

fn born(key: &SessionKey, request: &Request<'_>, fates: &[Fate]) -> Vec<Born> {
    let effects = request.effects.iter().zip(fates).zip(0_u32..);
    effects
        .map(|((asked, fate), position)| Born {
            // In the order of their making, which is how the table's indexes like them.
            id: EffectId::from_uuid(Uuid::now_v7()),
            effect_type: asked.effect_type(),
            status: fate.status,
            dedupe_key: dedupe_key(key, request.checkpoint_id, asked.effect_type(), position, &asked.payload),
            reason: fate.reason.map(|reason: Reason| reason.as_str().to_owned()),
        })
        .collect()
}

async fn insert(
    db: &mut PgConnection,
    key: &SessionKey,
    request: &Request<'_>,
    hash: &[u8; 32],
    facts: Facts,
    receipt: &Receipt,
) -> Result<(), sqlx::Error> {
    let answer = serde_json::to_string(receipt).expect("texts and numbers always serialise");
    let born = &receipt.effects;
    sqlx::query(include_str!("sql/insert_checkpoint.sql"))
        .bind(key.as_str())
        .bind(request.checkpoint_id)
        .bind(request.event_seq)
        .bind(hash.as_slice())
        .bind(answer)
        .bind(facts.autonomous)
        .bind(born.iter().map(|born| born.id.as_uuid()).collect::<Vec<_>>())
        .bind(born.iter().map(|born| born.effect_type.as_str()).collect::<Vec<_>>())
        .bind(request.effects.iter().map(|asked| asked.payload.as_str()).collect::<Vec<_>>())
        .bind(born.iter().map(|born| born.dedupe_key.as_str()).collect::<Vec<_>>())
        .bind(born.iter().map(|born| born.status.as_str()).collect::<Vec<_>>())
        .bind(born.iter().map(|born| born.reason.as_deref()).collect::<Vec<_>>())
        .execute(db)
        .await
        .map(|_| ())
}

/// Enums of words, inside JSON of our own.
mod word {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    use super::{EffectStatus, EffectType};

    pub trait Word: Copy + TryFrom<String, Error: std::fmt::Display> {
        fn word(self) -> &'static str;
    }

    impl Word for EffectType {
        fn word(self) -> &'static str {
            self.as_str()
        }
    }

    impl Word for EffectStatus {
        fn word(self) -> &'static str {
            self.as_str()
        }
    }

    pub fn serialize<W: Word, S: Serializer>(word: &W, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(word.word())
    }

    pub fn deserialize<'de, W: Word, D: Deserializer<'de>>(deserializer: D) -> Result<W, D::Error> {
        W::try_from(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
