//! An agent gets another key, and with it another DID: everything it has goes over in one transaction. Whoever looks sees it all
//! under the old name or all under the new one.
//!
//! A wake in flight keeps its claim, which goes by the alarm's id and a token: its result counts. Its attempt is written under the
//! name that the claim read; history is found by the alarm, so the new owner sees it.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{Agent, Holder, Managed, alarms::managed, find};
use crate::{
    domain::access::Did,
    store::{Result, Store, resources::Identity},
};

/// How long a rotation may take. It rewrites every alarm and every attempt of one agent and reads the history of all, which has no
/// index by owner: tens of millions of rows at a million a second and more.
const DEADLINE: Duration = Duration::from_secs(600);
/// The server's side of it.
const ON_BEGIN: &str = "SET LOCAL statement_timeout = '600s'";

/// What became of a request to rotate. But for `Done` nothing was changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Rotated {
    /// The agent under its new name.
    Done(Box<Agent>, Moved),
    /// Nobody is enrolled under the old name.
    Unknown,
    /// A resource holds the old name, and only the resource may change it.
    Held(Identity),
    /// Resources name the old one as the owner of their alarms.
    Manages(Managed),
    /// The new name is enrolled already.
    Enrolled(Holder),
    /// The new name is not enrolled, and owns something all the same.
    Owns,
    /// The names are of two users.
    AnotherUser,
    /// The new name is not of this key.
    AnotherKey,
}

/// What went over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Timers are not counted here, but with what they belong to.
    pub alarms: u64,
    pub service_calls: u64,
    pub sessions: u64,
    pub attempts: u64,
}

impl Store {
    /// Moves everything that `old` has to `new`, the name of `public_key`: enrolment with quotas and suspension, alarms, history,
    /// service calls, sessions. Challenges that `old` has open are void.
    pub async fn rotate_unless_refused(&self, old: &Did, new: &Did, public_key: &[u8; 32]) -> Result<Rotated> {
        if old.user_id() != new.user_id() {
            return Ok(Rotated::AnotherUser);
        }
        if !new.names_key(public_key) {
            return Ok(Rotated::AnotherKey);
        }
        self.ask_within(DEADLINE, "rotating an agent's key", async |db| {
            let mut transaction = db.begin().await?;
            sqlx::query(ON_BEGIN).execute(&mut *transaction).await?;
            if let Some(refused) = refusal(&mut transaction, old, new).await? {
                return Ok(refused);
            }
            lock(&mut transaction, old).await?;
            let moved = go_over(&mut transaction, old, new, public_key).await?;
            let agent = find(&mut transaction, new).await?.ok_or(sqlx::Error::RowNotFound)?;
            transaction.commit().await?;
            Ok(Rotated::Done(Box::new(agent), moved))
        })
        .await
    }
}

/// Why it cannot be; `None`: nothing stands against it, and both names are locked.
async fn refusal(db: &mut PgConnection, old: &Did, new: &Did) -> Result<Option<Rotated>, sqlx::Error> {
    // The lock of each owner's name, under which others come in by it; in one order for everybody.
    let mut names = [old.as_str(), new.as_str()];
    names.sort_unstable();
    for name in names {
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))").bind(name).execute(&mut *db).await?;
    }
    let known = sqlx::query("SELECT FROM agents WHERE did = $1 FOR UPDATE").bind(old.as_str());
    if known.fetch_optional(&mut *db).await?.is_none() {
        return Ok(Some(Rotated::Unknown));
    }
    match find(db, old).await?.map(|agent| agent.holder) {
        Some(Holder::Resource(identity)) => return Ok(Some(Rotated::Held(identity))),
        Some(Holder::CommandLine) => {}
        None => return Ok(Some(Rotated::Unknown)),
    }
    if let Some(managed) = managed(db, old, false).await? {
        return Ok(Some(Rotated::Manages(managed)));
    }
    if let Some(agent) = find(db, new).await? {
        return Ok(Some(Rotated::Enrolled(agent.holder)));
    }
    let owns: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM alarms WHERE owner_did = $1)
             OR EXISTS (SELECT FROM service_calls WHERE tenant_id = $1)
             OR EXISTS (SELECT FROM sessions WHERE owner_did = $1)",
    )
    .bind(new.as_str())
    .fetch_one(db)
    .await?;
    Ok(owns.then_some(Rotated::Owns))
}

/// Everything that is to be moved, in the order in which everybody locks: sessions and calls, then alarms by their ids. Dispatchers
/// pass over what is locked; results that come in meanwhile are sent again until their lease ends.
async fn lock(db: &mut PgConnection, old: &Did) -> Result<(), sqlx::Error> {
    for statement in [
        "SELECT FROM sessions WHERE owner_did = $1 ORDER BY session_key FOR UPDATE",
        "SELECT FROM service_calls WHERE tenant_id = $1 ORDER BY service_call_id FOR UPDATE",
        "SELECT FROM alarms WHERE owner_did = $1 ORDER BY id FOR UPDATE",
    ] {
        sqlx::query(statement).bind(old.as_str()).execute(&mut *db).await?;
    }
    Ok(())
}

async fn go_over(db: &mut PgConnection, old: &Did, new: &Did, public_key: &[u8; 32]) -> Result<Moved, sqlx::Error> {
    sqlx::query("UPDATE agents SET did = $2, public_key = $3, updated_at = now() WHERE did = $1")
        .bind(old.as_str())
        .bind(new.as_str())
        .bind(hex::encode(public_key))
        .execute(&mut *db)
        .await?;
    // Alarms are neither edited nor re-planned: revision, epoch and claim stay, and with them whatever is in flight. The calls come
    // first and go last, so that no timer is ever without its call: nothing cascades, and nothing leaves the trace of a deletion.
    // Sessions take their timers along, by the foreign key.
    let mut moved = Moved {
        service_calls: over(
            db,
            "INSERT INTO service_calls (tenant_id, service_call_id, created_at)
             SELECT $2, service_call_id, created_at FROM service_calls WHERE tenant_id = $1",
            old,
            new,
        )
        .await?,
        // The old key's connections are the sessions' no more: a key is rotated because somebody else may have it.
        sessions: over(db, "UPDATE sessions SET owner_did = $2, stream_id = NULL WHERE owner_did = $1", old, new)
            .await?,
        ..Moved::default()
    };
    moved.alarms =
        over(db, "UPDATE alarms SET owner_did = $2 WHERE owner_did = $1 AND subject = 'agent'", old, new).await?;
    over(db, "UPDATE alarms SET owner_did = $2 WHERE owner_did = $1", old, new).await?;
    over(db, "DELETE FROM service_calls WHERE tenant_id = $1 AND $2 <> tenant_id", old, new).await?;
    // By the alarms, which the table has an index for: the history of everybody else is not read, and who is in a hurry not kept waiting.
    // What an alarm left behind that is gone itself stays under the old name.
    moved.attempts = over(
        db,
        "UPDATE attempts SET owner_did = $2 WHERE owner_did = $1 AND alarm_id IN (SELECT id FROM alarms WHERE owner_did = $2)",
        old,
        new,
    )
    .await?;
    over(db, "DELETE FROM nonces WHERE did = $1 AND $2 <> did", old, new).await?;
    Ok(moved)
}

/// One statement, whose `$1` is the old name and `$2` the new one; says how many rows it touched.
async fn over(db: &mut PgConnection, statement: &'static str, old: &Did, new: &Did) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(statement).bind(old.as_str()).bind(new.as_str()).execute(db).await?;
    Ok(done.rows_affected())
}
