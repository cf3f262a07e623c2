//! What an agent's standing does to its alarms: of a suspended agent they are paused by cause `agent`, of one that is not they are
//! not. The row in `agents` comes first and is the truth; alarms follow it in batches, each a short transaction that looks at the
//! row again. So whoever changes the row may die on any line, or leave the alarms to others altogether: the upkeep asks for
//! [`agents astray`](Store::agents_astray) all the time, and an alarm that came in by a request let in a moment before the
//! suspension is found by it too.
//!
//! Timers of service calls and sessions know no pause and are left as they are.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use crate::{
    domain::{access::Did, alarm::Cause, ids::AlarmId},
    store::{
        Result, Store,
        alarms::{Alarm, Edited, Resource, cancel, clock, columns, paused, quota, resumed},
        resources::tell_changed,
        unreadable,
    },
};

/// The most alarms that one transaction changes, as for bulk edits: one or two statements each, and a dispatcher that wants one of
/// them passes over it for no longer.
const BATCH: i64 = 200;
/// Sessions that one transaction deletes, each with its whole log: ten thousand events take a third of a second.
const SESSIONS: i64 = 2;
/// Of many resources a sentence can name a few.
const NAMED: i64 = 3;

/// Which agents' alarms do not follow them, as `EXPLAIN` sees it too.
pub const ASTRAY: &str = include_str!("../sql/agents_astray.sql");

/// What following came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    pub paused: u64,
    pub resumed: u64,
}

/// An agent's alarms that may still fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Living {
    pub alarms: i64,
    /// Those that are paused because the agent is suspended or gone.
    pub held: i64,
}

/// Alarms that only their resources may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// The first few.
    pub first: Vec<Resource>,
    pub all: i64,
}

/// What a purge took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub alarms: u64,
    pub service_calls: u64,
    pub sessions: u64,
}

/// Which alarms of an agent are meant.
#[derive(Clone, Copy)]
enum Meant {
    /// Those that are not paused by it yet.
    Unpaused,
    /// Those that are. Of resources only those that the agent may own: the others wait for an Agent of their own namespace.
    Held,
    /// All that may still fire and that no resource manages.
    Cancellable,
}

impl Store {
    /// The agents whose alarms do not follow them yet.
    pub async fn agents_astray(&self) -> Result<Vec<Did>> {
        self.ask("looking for agents whose alarms do not follow them", async |db| {
            let found: Vec<String> = sqlx::query_scalar(ASTRAY).fetch_all(db).await?;
            found.into_iter().map(|did| did.parse().map_err(unreadable)).collect()
        })
        .await
    }

    /// Pauses the alarms of a suspended agent; lifts that pause from those of one that is not. Those of a DID that is not enrolled
    /// stay as they are. Done when no batch finds more to do.
    pub async fn follow_agent(&self, did: &Did) -> Result<Followed> {
        let mut followed = Followed::default();
        loop {
            let (suspended, changed) = self.follow_one_batch(did).await?;
            if changed == 0 {
                return Ok(followed);
            }
            if suspended {
                followed.paused += changed;
            } else {
                followed.resumed += changed;
            }
        }
    }

    async fn follow_one_batch(&self, did: &Did) -> Result<(bool, u64)> {
        self.ask("letting alarms follow their agent", async |db| {
            let mut transaction = db.begin().await?;
            // Whoever suspends or resumes meanwhile waits for this batch, and the next one sees it.
            let standing: Option<bool> = sqlx::query_scalar("SELECT suspended FROM agents WHERE did = $1 FOR SHARE")
                .bind(did.as_str())
                .fetch_optional(&mut *transaction)
                .await?;
            let Some(suspended) = standing else { return Ok((false, 0)) };
            let meant = if suspended { Meant::Unpaused } else { Meant::Held };
            let alarms = lock(&mut transaction, did, meant).await?;
            let now = clock(&mut transaction).await?;
            let changed = u64::try_from(alarms.len()).unwrap_or(u64::MAX);
            for alarm in &alarms {
                if suspended {
                    paused(&mut transaction, alarm.clone(), Cause::Agent).await?;
                } else {
                    lift(&mut transaction, alarm.clone(), now).await?;
                }
            }
            tell_changed(&mut transaction, &alarms).await?;
            transaction.commit().await?;
            if !suspended && changed > 0 {
                self.horizon.hint(db, now, now).await; // any of them may be due at once
            }
            Ok((suspended, changed))
        })
        .await
    }

    /// How many alarms of an agent may still fire, as quotas count them.
    pub async fn count_living_alarms_of(&self, did: &Did) -> Result<u64> {
        self.ask("counting an agent's alarms", async |db| quota::living(db, did).await).await
    }

    /// How many alarms of an agent may still fire, and how many of them wait for the agent.
    pub async fn living_alarms_of(&self, did: &Did) -> Result<Living> {
        self.ask("counting an agent's alarms", async |db| {
            sqlx::query_as(
                "SELECT count(*) AS alarms, count(*) FILTER (WHERE 'agent' = ANY (paused_by)) AS held
                 FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND status IN ('active', 'paused')",
            )
            .bind(did.as_str())
            .fetch_one(db)
            .await
        })
        .await
    }

    /// The same for every owner of such alarms.
    pub async fn living_alarms_by_owner(&self) -> Result<HashMap<String, Living>> {
        self.ask("counting agents' alarms", async |db| {
            let found: Vec<(String, i64, i64)> = sqlx::query_as(
                "SELECT owner_did, count(*), count(*) FILTER (WHERE 'agent' = ANY (paused_by))
                 FROM alarms WHERE subject = 'agent' AND status IN ('active', 'paused') GROUP BY owner_did",
            )
            .fetch_all(db)
            .await?;
            Ok(found.into_iter().map(|(owner, alarms, held)| (owner, Living { alarms, held })).collect())
        })
        .await
    }

    /// The agent's living alarms that resources manage, if there are any.
    pub async fn managed_living_alarms_of(&self, did: &Did) -> Result<Option<Managed>> {
        self.ask("looking for alarms that resources manage", async |db| managed(db, did, true).await).await
    }

    /// Cancels what may still fire of this DID's alarms and deletes its service calls and sessions, with whatever hangs on them. What
    /// a resource manages stays. To be called when nobody comes in under this DID any more; may be called again.
    pub async fn purge_what_is_owned_by(&self, did: &Did) -> Result<Purged> {
        let mut purged = Purged::default();
        loop {
            let cancelled = self.cancel_one_batch(did).await?;
            if cancelled == 0 {
                break;
            }
            purged.alarms += cancelled;
        }
        purged.service_calls = self
            .delete_in_batches(
                "deleting an agent's service calls",
                "DELETE FROM service_calls WHERE (tenant_id, service_call_id) IN (
                     SELECT tenant_id, service_call_id FROM service_calls WHERE tenant_id = $1 LIMIT $2)",
                did,
                BATCH,
            )
            .await?;
        purged.sessions = self
            .delete_in_batches(
                "deleting an agent's sessions",
                "DELETE FROM sessions WHERE session_key IN (SELECT session_key FROM sessions WHERE owner_did = $1 LIMIT $2)",
                did,
                SESSIONS,
            )
            .await?;
        Ok(purged)
    }

    async fn cancel_one_batch(&self, did: &Did) -> Result<u64> {
        self.ask("cancelling an agent's alarms", async |db| {
            let mut transaction = db.begin().await?;
            let alarms = lock(&mut transaction, did, Meant::Cancellable).await?;
            let cancelled = u64::try_from(alarms.len()).unwrap_or(u64::MAX);
            for alarm in alarms {
                cancel(&mut transaction, alarm.id, "agent").await?;
            }
            transaction.commit().await?;
            Ok(cancelled)
        })
        .await
    }

    async fn delete_in_batches(
        &self,
        doing: &'static str,
        statement: &'static str,
        did: &Did,
        batch: i64,
    ) -> Result<u64> {
        let mut all = 0;
        loop {
            let deleted = self
                .ask(doing, async |db| {
                    let done = sqlx::query(statement).bind(did.as_str()).bind(batch).execute(db).await?;
                    Ok(done.rows_affected())
                })
                .await?;
            if deleted == 0 {
                return Ok(all);
            }
            all += deleted;
        }
    }
}

/// A batch of the alarms that are meant, locked in the order of their ids, so that two never wait for each other in a circle. What
/// they are is looked at once more under the lock.
async fn lock(db: &mut PgConnection, did: &Did, meant: Meant) -> Result<Vec<Alarm>, sqlx::Error> {
    macro_rules! batch {
        ($ids:literal, $still:literal) => {
            concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE id IN (",
                $ids,
                ") AND owner_did = $1 AND ",
                $still,
                " ORDER BY id FOR UPDATE"
            )
        };
    }
    let statement = match meant {
        Meant::Unpaused => batch!(
            "(SELECT id FROM alarms WHERE owner_did = $1 AND status = 'active' AND subject = 'agent' LIMIT $2) \
             UNION ALL \
             (SELECT id FROM alarms WHERE owner_did = $1 AND status = 'paused' AND ('agent' = ANY (paused_by)) IS FALSE LIMIT $2) \
             LIMIT $2",
            "status IN ('active', 'paused') AND ('agent' = ANY (paused_by)) IS FALSE"
        ),
        Meant::Held => batch!(
            "SELECT alarms.id FROM alarms JOIN agents ON did = owner_did \
             WHERE owner_did = $1 AND status = 'paused' AND ('agent' = ANY (paused_by)) \
               AND (alarms.source <> 'kubernetes' \
                    OR (alarms.cluster_id, alarms.resource_namespace) = (agents.cluster_id, agents.resource_namespace)) \
             LIMIT $2",
            "status = 'paused' AND 'agent' = ANY (paused_by)"
        ),
        Meant::Cancellable => batch!(
            "SELECT id FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND source <> 'kubernetes' \
             AND status IN ('active', 'paused') LIMIT $2",
            "status IN ('active', 'paused')"
        ),
    };
    sqlx::query_as(statement).bind(did.as_str()).bind(BATCH).fetch_all(db).await
}

/// The alarms of this DID that only their resources may change: the living ones, or also those that are over and whose resources may
/// still stand. What went with its resource or its cluster is nobody's any more.
pub(super) async fn managed(db: &mut PgConnection, did: &Did, living: bool) -> Result<Option<Managed>, sqlx::Error> {
    let found: Vec<(Uuid, String, String, i64)> = sqlx::query_as(
        "SELECT cluster_id, resource_namespace, resource_name, count(*) OVER ()
         FROM alarms
         WHERE owner_did = $1 AND source = 'kubernetes'
           AND CASE WHEN $2 THEN status IN ('active', 'paused') ELSE coalesce(cancelled_by NOT IN ('resource', 'cluster'), true) END
         ORDER BY resource_namespace, resource_name LIMIT $3",
    )
    .bind(did.as_str())
    .bind(living)
    .bind(NAMED)
    .fetch_all(db)
    .await?;
    let Some((_, _, _, all)) = found.first() else { return Ok(None) };
    let all = *all;
    let first = found.into_iter().map(|(cluster, namespace, name, _)| Resource { cluster, namespace, name }).collect();
    Ok(Some(Managed { first, all }))
}

/// Lifts the agent's pause, as an owner's is lifted. A row that cannot be read has no slot to go on at: it goes on as it stands, and
/// whoever claims it parks it with what is wrong. Left paused it would be looked at for ever.
async fn lift(db: &mut PgConnection, alarm: Alarm, now: DateTime<Utc>) -> Result<(), sqlx::Error> {
    let id = alarm.id;
    match resumed(db, alarm, Cause::Agent, now).await? {
        Edited::Done(_)
        | Edited::Unchanged(_)
        | Edited::Refused(_)
        | Edited::OverQuota(_)
        | Edited::Barred
        | Edited::Unknown
        | Edited::Managed(_) => Ok(()),
        Edited::Unreadable(_) => lift_blindly(db, id).await,
    }
}

async fn lift_blindly(db: &mut PgConnection, id: AlarmId) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE alarms SET status = CASE WHEN paused_by = '{agent}' THEN 'active' ELSE 'paused' END,
                paused_by = array_remove(paused_by, 'agent'), revision = revision + 1, updated_at = now()
         WHERE id = $1",
    )
    .bind(id.as_uuid())
    .execute(db)
    .await
    .map(|_| ())
}
