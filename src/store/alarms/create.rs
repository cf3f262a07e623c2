//! Alarms come in, each at most once per key, and are read back.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

use super::{Alarm, May, bind_definition, columns, quota};
use crate::{
    domain::{
        access::Did,
        alarm::{Definition, Slot},
        ids::AlarmId,
        quota::Exceeded,
    },
    mutants::{self, Mutant},
    store::{Result, Store, interval::interval, unreadable},
};

/// What an owner asks for over HTTP.
#[derive(Debug)]
pub struct Request<'a> {
    /// Chosen by the caller, because the spread is a hash of it.
    pub id: AlarmId,
    pub owner: &'a Did,
    pub definition: &'a Definition,
    pub first: Slot,
    /// The instant from which the definition was made: an `@every` keeps counting from it.
    pub born_at: DateTime<Utc>,
    /// Empty: none.
    pub idempotency_key: &'a str,
    pub correlation_id: &'a str,
    /// What the owner may do.
    pub may: May,
}

/// What became of a request to create.
#[derive(Debug)]
pub enum Created {
    New(Alarm),
    /// The owner's key stands for this one already.
    Known(Alarm),
    /// The owner has as many as it may.
    OverQuota(Exceeded),
    /// The owner is not let in any more.
    Barred,
}

impl Store {
    /// Creates an alarm, or finds the one that the owner's key already stands for.
    pub async fn create_or_find_by_key(&self, request: &Request<'_>) -> Result<Created> {
        if request.may.quotas.max_active_alarms.is_some() {
            return self.create_within_quota(request).await;
        }
        self.ask("creating an alarm", async |db| {
            // A key's conflict does nothing here and reads the winner in a statement of its own: an INSERT does not see a
            // row that was committed after it began. The winner may be gone again by then (retention): once more.
            for _ in 0..3 {
                if let Some(alarm) = insert(db, request).await? {
                    self.hint(db, &alarm).await;
                    return Ok(Created::New(alarm));
                }
                if !quota::is_let_in(db, request.owner, &request.may).await? {
                    return Ok(Created::Barred);
                }
                if let Some(alarm) = by_key(db, request.owner, request.idempotency_key).await? {
                    return Ok(Created::Known(alarm));
                }
            }
            Err(unreadable("the alarm that holds an idempotency key keeps vanishing"))
        })
        .await
    }

    /// The same for an owner who may not have any number of them.
    async fn create_within_quota(&self, request: &Request<'_>) -> Result<Created> {
        self.ask("creating an alarm within a quota", async |db| {
            let mut transaction = db.begin().await?;
            if !quota::admit(&mut transaction, request.owner, &request.may).await? {
                return Ok(Created::Barred);
            }
            // Whoever repeats a request is not asking for one more. Nobody else can insert under this key while we hold the lock.
            if let Some(alarm) = by_key(&mut transaction, request.owner, request.idempotency_key).await? {
                return Ok(Created::Known(alarm));
            }
            if let Err(exceeded) = quota::admit_one_more(&mut transaction, request.owner, &request.may.quotas).await? {
                return Ok(Created::OverQuota(exceeded));
            }
            let Some(alarm) = insert(&mut transaction, request).await? else {
                // It came in before the owner had a limit, and so without the lock.
                let known = by_key(&mut transaction, request.owner, request.idempotency_key).await?;
                return known.map(Created::Known).ok_or_else(|| unreadable("an idempotency key is held by nobody"));
            };
            transaction.commit().await?;
            self.hint(db, &alarm).await;
            Ok(Created::New(alarm))
        })
        .await
    }

    /// The alarm that the owner's key stands for.
    pub async fn find_by_key(&self, owner: &Did, key: &str) -> Result<Option<Alarm>> {
        self.ask("looking an idempotency key up", async |db| by_key(db, owner, key).await).await
    }

    pub async fn get_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Option<Alarm>> {
        self.ask("reading an alarm", async |db| {
            let statement =
                concat!("SELECT ", columns!(), " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent'");
            sqlx::query_as(mutants::changed(Mutant::OwnerIgnored, statement, &[mutants::ANYBODY]))
                .bind(id.as_uuid())
                .bind(owner.as_str())
                .fetch_optional(db)
                .await
        })
        .await
    }
}

pub(super) async fn insert(db: &mut PgConnection, request: &Request<'_>) -> Result<Option<Alarm>, sqlx::Error> {
    let statement = concat!(include_str!("../sql/create_alarm.sql"), columns!("'' AS wake_message, '' AS payload"));
    let forgotten = mutants::on(Mutant::KeyIgnored) && mutants::one_in(3);
    let inserted: Option<Alarm> = bind_definition(sqlx::query_as(statement), request.definition)
        .bind(request.id.as_uuid())
        .bind(request.owner.as_str())
        .bind(request.owner.user_id())
        .bind(request.correlation_id)
        .bind(request.first.scheduled_for)
        .bind(interval(request.first.offset))
        .bind(if forgotten { "" } else { request.idempotency_key })
        .bind(request.born_at)
        .bind(request.may.unenrolled)
        .fetch_optional(db)
        .await?;
    Ok(inserted.map(|alarm| Alarm {
        wake_message: request.definition.wake_message.clone(),
        payload: request.definition.payload.as_str().to_owned(),
        ..alarm
    }))
}

async fn by_key(db: &mut PgConnection, owner: &Did, key: &str) -> Result<Option<Alarm>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        columns!(),
        " FROM alarms WHERE owner_did = $1 AND idempotency_key = $2 AND idempotency_key <> ''"
    ))
    .bind(owner.as_str())
    .bind(key)
    .fetch_optional(db)
    .await
}
