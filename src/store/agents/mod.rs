//! Table `agents`: who is enrolled. A row is made by an Agent resource or by the command line, and whoever made it alone
//! changes it.
//!
//! | file | does |
//! |---|---|
//! | here | the row: enrol, find, suspend, resume, remove |
//! | [`alarms`] | what that does to the agent's alarms, and what a purge takes away |
//! | [`rotate`] | everything an agent has goes over to another key's DID |

mod alarms;
mod rotate;

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection, Row as _, postgres::PgRow};
use uuid::Uuid;

pub use alarms::{ASTRAY, Followed, Living, Managed, Purged};
pub use rotate::{Moved, Rotated};

use super::{Result, Store, resources::Identity, unreadable};
use crate::domain::{
    access::Did,
    ids::{ClusterId, ResourceUid},
};

pub use crate::domain::quota::Quotas;

/// An alarm may come in, or somebody may resume the agent, while it is being removed: once more, but not for ever.
const MOST_TURNS: usize = 10;

/// An agent that is enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub did: Did,
    pub public_key: [u8; 32],
    pub suspended: bool,
    pub quotas: Quotas,
    pub holder: Holder,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

impl Agent {
    /// Whether resources of that one's namespace may name it as their owner. One that was enrolled by hand stands in no namespace.
    pub fn may_own(&self, alarm: &Identity) -> bool {
        match &self.holder {
            Holder::Resource(agent) => (agent.cluster, &agent.namespace) == (alarm.cluster, &alarm.namespace),
            Holder::CommandLine => false,
        }
    }
}

/// Who may change an agent's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    CommandLine,
    Resource(Identity),
}

/// Who asks, as every request needs to know it: the agent of a DID, if it is enrolled, and the time by the one clock that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    pub now: DateTime<Utc>,
    pub agent: Option<Agent>,
}

/// An Agent resource, as it is mirrored.
#[derive(Debug)]
pub struct Mirrored<'a> {
    pub did: &'a Did,
    pub public_key: &'a [u8; 32],
    pub suspended: bool,
    pub quotas: Quotas,
    pub identity: &'a Identity,
    /// Of two resources with one DID the older holds it.
    pub created_at: DateTime<Utc>,
}

/// What became of a request to enrol.
#[derive(Debug, PartialEq, Eq)]
pub enum Enrolled {
    Stands(Box<Agent>),
    /// The DID is somebody else's: nothing was changed. To the command line also a DID that stands with another key.
    Held(Holder),
}

/// What became of a request to change an agent by hand.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    /// As the agent is now, or was when it was removed.
    Done(Box<Agent>),
    Unknown,
    /// A resource holds it, and only the resource may.
    Managed(Identity),
}

#[derive(FromRow)]
struct Row {
    did: String,
    public_key: String,
    suspended: bool,
    max_active_alarms: Option<i32>,
    min_interval_seconds: Option<i32>,
    cluster_id: Option<Uuid>,
    resource_uid: Option<Uuid>,
    resource_namespace: Option<String>,
    resource_name: Option<String>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

macro_rules! columns {
    () => {
        "did, public_key, suspended, max_active_alarms, min_interval_seconds, cluster_id, resource_uid, \
         resource_namespace, resource_name, created_at, updated_at"
    };
}

impl Row {
    fn agent(self) -> Result<Agent, sqlx::Error> {
        let mut public_key = [0; 32];
        hex::decode_to_slice(&self.public_key, &mut public_key).map_err(unreadable)?;
        // The schema has all or none of them, and neither quota negative.
        let holder = match (self.cluster_id, self.resource_uid, self.resource_namespace, self.resource_name) {
            (Some(cluster), Some(uid), Some(namespace), Some(name)) => {
                Holder::Resource(Identity { cluster: cluster.into(), uid: uid.into(), namespace, name })
            }
            (_, _, _, _) => Holder::CommandLine,
        };
        let limit = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok());
        Ok(Agent {
            did: self.did.parse().map_err(unreadable)?,
            public_key,
            suspended: self.suspended,
            quotas: Quotas {
                max_active_alarms: limit(self.max_active_alarms),
                min_interval_seconds: limit(self.min_interval_seconds),
            },
            holder,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

impl Store {
    /// Enrols an agent by hand, or gives one that was enrolled by hand with this very key other quotas. A suspension stays.
    pub async fn enrol_by_hand_unless_held(
        &self,
        did: &Did,
        public_key: &[u8; 32],
        quotas: Quotas,
    ) -> Result<Enrolled> {
        self.ask("enrolling an agent", async |db| {
            let written: Option<Row> = sqlx::query_as(concat!(
                "INSERT INTO agents (did, public_key, max_active_alarms, min_interval_seconds, source)
                 VALUES ($1, $2, $3, $4, 'cli')
                 ON CONFLICT (did) DO UPDATE
                 SET max_active_alarms = excluded.max_active_alarms,
                     min_interval_seconds = excluded.min_interval_seconds,
                     updated_at = now()
                 WHERE agents.source = 'cli' AND agents.public_key = excluded.public_key
                 RETURNING ",
                columns!()
            ))
            .bind(did.as_str())
            .bind(hex::encode(public_key))
            .bind(column(quotas.max_active_alarms))
            .bind(column(quotas.min_interval_seconds))
            .fetch_optional(&mut *db)
            .await?;
            match written {
                Some(row) => Ok(Enrolled::Stands(Box::new(row.agent()?))),
                None => Ok(Enrolled::Held(holder(db, did).await?)),
            }
        })
        .await
    }

    /// Mirrors an Agent resource, unless the DID is held by the command line or by an older resource. An equal one writes
    /// nothing.
    pub async fn enrol_resource_unless_held(&self, desired: &Mirrored<'_>) -> Result<Enrolled> {
        let identity = desired.identity;
        self.ask("mirroring an Agent resource", async |db| {
            let mut transaction = db.begin().await?;
            // One at a time: ON CONFLICT arbitrates on the DID, and two that insert the same resource at once would meet at the index
            // of resources first.
            sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(desired.did.as_str())
                .execute(&mut *transaction)
                .await?;
            sqlx::query(include_str!("../sql/enrol_resource.sql"))
                .bind(desired.did.as_str())
                .bind(hex::encode(desired.public_key))
                .bind(desired.suspended)
                .bind(column(desired.quotas.max_active_alarms))
                .bind(column(desired.quotas.min_interval_seconds))
                .bind(identity.cluster.as_uuid())
                .bind(identity.uid.as_uuid())
                .bind(&identity.namespace)
                .bind(&identity.name)
                .bind(desired.created_at)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            // Whoever holds the row now says whether this resource does.
            let stands = find(db, desired.did).await?.ok_or_else(vanished)?;
            match &stands.holder {
                Holder::Resource(holder) if (holder.cluster, holder.uid) == (identity.cluster, identity.uid) => {
                    Ok(Enrolled::Stands(Box::new(stands)))
                }
                Holder::Resource(_) | Holder::CommandLine => Ok(Enrolled::Held(stands.holder)),
            }
        })
        .await
    }

    /// The time, and the agent of this DID if it is enrolled: one statement, because every request asks it.
    pub async fn presence(&self, did: &Did) -> Result<Presence> {
        self.ask("looking up who asks", async |db| {
            let row: PgRow = sqlx::query(concat!(
                "SELECT now() AS now, ",
                columns!(),
                " FROM (SELECT) AS one LEFT JOIN agents ON did = $1"
            ))
            .bind(did.as_str())
            .fetch_one(db)
            .await?;
            let enrolled = row.try_get::<Option<&str>, _>("did")?.is_some();
            let agent = enrolled.then(|| Row::from_row(&row).and_then(Row::agent)).transpose()?;
            Ok(Presence { now: row.try_get("now")?, agent })
        })
        .await
    }

    pub async fn find_agent(&self, did: &Did) -> Result<Option<Agent>> {
        self.ask("looking an agent up", async |db| find(db, did).await).await
    }

    pub async fn list_agents(&self) -> Result<Vec<Agent>> {
        self.ask("listing agents", async |db| {
            let rows: Vec<Row> =
                sqlx::query_as(concat!("SELECT ", columns!(), " FROM agents ORDER BY did")).fetch_all(db).await?;
            rows.into_iter().map(Row::agent).collect()
        })
        .await
    }

    /// Suspends or resumes an agent that no resource holds.
    pub async fn set_suspended_unless_managed(&self, did: &Did, suspended: bool) -> Result<Changed> {
        self.ask("suspending or resuming an agent", async |db| {
            let changed: Option<Row> = sqlx::query_as(concat!(
                "UPDATE agents SET suspended = $2, updated_at = now() WHERE did = $1 AND source = 'cli' RETURNING ",
                columns!()
            ))
            .bind(did.as_str())
            .bind(suspended)
            .fetch_optional(&mut *db)
            .await?;
            done_or_why_not(db, did, changed).await
        })
        .await
    }

    /// Removes an agent that no resource holds. Its alarms stay, paused: enrolled again, it finds them. Suspended first, so that one
    /// who dies half way leaves an agent whom nobody lets in, and whoever removes it again finishes.
    pub async fn remove_agent_unless_managed(&self, did: &Did) -> Result<Changed> {
        for _ in 0..MOST_TURNS {
            match self.set_suspended_unless_managed(did, true).await? {
                Changed::Done(_) => {}
                refused @ (Changed::Unknown | Changed::Managed(_)) => return Ok(refused),
            }
            self.follow_agent(did).await?;
            if let Some(agent) = self.remove_if_quiet(did, None).await? {
                return Ok(Changed::Done(Box::new(agent)));
            }
        }
        self.ask("removing an agent", async |_| Err(restless())).await
    }

    /// Removes the agent of a resource that is gone, if the resource held one; in the same steps.
    pub async fn remove_agent_of_resource(&self, cluster: ClusterId, uid: ResourceUid) -> Result<Option<Agent>> {
        let doing = "removing the agent of a resource";
        for _ in 0..MOST_TURNS {
            let held: Option<String> = self
                .ask(doing, async |db| {
                    sqlx::query_scalar(
                        "UPDATE agents SET suspended = true, updated_at = now()
                         WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2 RETURNING did",
                    )
                    .bind(cluster.as_uuid())
                    .bind(uid.as_uuid())
                    .fetch_optional(db)
                    .await
                })
                .await?;
            let Some(did) = held else { return Ok(None) };
            let did: Did = self.ask(doing, async |_| did.parse().map_err(unreadable)).await?;
            self.follow_agent(&did).await?;
            if let Some(agent) = self.remove_if_quiet(&did, Some((cluster, uid))).await? {
                return Ok(Some(agent));
            }
        }
        self.ask(doing, async |_| Err(restless())).await
    }

    /// Forgets that this agent was removed. For where agents need not be enrolled: what it asks for from now on is delivered.
    pub async fn let_in_unless_enrolled(&self, did: &Did) -> Result<()> {
        self.ask("letting an agent in", async |db| {
            sqlx::query("DELETE FROM shut_out WHERE did = $1 AND NOT EXISTS (SELECT FROM agents WHERE did = $1)")
                .bind(did.as_str())
                .execute(db)
                .await
                .map(|_| ())
        })
        .await
    }

    /// Removes a suspended agent all of whose alarms are paused by it: nothing of it fires any more. `None`: not so, or not this
    /// holder's.
    async fn remove_if_quiet(&self, did: &Did, holder: Option<(ClusterId, ResourceUid)>) -> Result<Option<Agent>> {
        self.ask("removing an agent", async |db| {
            let removed: Option<Row> = sqlx::query_as(concat!(
                "DELETE FROM agents
                 WHERE did = $1 AND suspended
                   AND cluster_id IS NOT DISTINCT FROM $2 AND resource_uid IS NOT DISTINCT FROM $3
                   AND NOT EXISTS (SELECT FROM alarms WHERE owner_did = $1 AND status = 'active' AND subject = 'agent')
                   AND NOT EXISTS (
                       SELECT FROM alarms WHERE owner_did = $1 AND status = 'paused' AND ('agent' = ANY (paused_by)) IS FALSE)
                 RETURNING ",
                columns!()
            ))
            .bind(did.as_str())
            .bind(holder.map(|(cluster, _)| cluster.as_uuid()))
            .bind(holder.map(|(_, uid)| uid.as_uuid()))
            .fetch_optional(db)
            .await?;
            removed.map(Row::agent).transpose()
        })
        .await
    }
}

/// The agent of this DID. Nobody suspends, removes or rotates it until the transaction ends.
pub(super) async fn share(db: &mut PgConnection, did: &Did) -> Result<Option<Agent>, sqlx::Error> {
    let row: Option<Row> = sqlx::query_as(concat!("SELECT ", columns!(), " FROM agents WHERE did = $1 FOR SHARE"))
        .bind(did.as_str())
        .fetch_optional(db)
        .await?;
    row.map(Row::agent).transpose()
}

pub(super) async fn find(db: &mut PgConnection, did: &Did) -> Result<Option<Agent>, sqlx::Error> {
    let row: Option<Row> = sqlx::query_as(concat!("SELECT ", columns!(), " FROM agents WHERE did = $1"))
        .bind(did.as_str())
        .fetch_optional(db)
        .await?;
    row.map(Row::agent).transpose()
}

async fn holder(db: &mut PgConnection, did: &Did) -> Result<Holder, sqlx::Error> {
    Ok(find(db, did).await?.ok_or_else(vanished)?.holder)
}

async fn done_or_why_not(db: &mut PgConnection, did: &Did, row: Option<Row>) -> Result<Changed, sqlx::Error> {
    if let Some(row) = row {
        return Ok(Changed::Done(Box::new(row.agent()?)));
    }
    match find(db, did).await?.map(|agent| agent.holder) {
        Some(Holder::Resource(identity)) => Ok(Changed::Managed(identity)),
        Some(Holder::CommandLine) | None => Ok(Changed::Unknown),
    }
}

/// Quotas beyond what the column holds limit nothing that could ever be reached.
fn column(limit: Option<u32>) -> Option<i32> {
    limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))
}

/// The conflicting row was removed between two statements: the caller tries again, as after any database error.
fn vanished() -> sqlx::Error {
    unreadable("the agent was removed while it was being enrolled")
}

fn restless() -> sqlx::Error {
    unreadable("alarms of the agent keep coming in, or somebody keeps resuming it; it is suspended, so try again")
}
