//! Table `alarms`, as the controller sees it: rows that stand for Alarm resources, keyed by cluster id and uid.
//!
//! | file | does |
//! |---|---|
//! | here | what a resource asks for, what became of it; cancel, silence |
//! | [`write`] | the row becomes what the resource says: one transaction |
//! | [`facts`] | what a status tells of: the row, its last attempts, its double in another cluster |
//! | [`orphans`] | which rows the controller holds resources against |

mod facts;
mod orphans;
mod write;

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

pub use facts::Facts;
pub use orphans::Living;

use super::{
    Result, Store,
    agents::{self, Holder},
    alarms::{Alarm, cancel, columns, paused},
    claims::RESOURCE_CHANGED,
    unreadable,
};
use crate::{
    domain::{
        access::Did,
        alarm::{Cause, Definition, lifecycle::NotFired},
        ids::{AlarmId, ClusterId, ResourceUid},
        quota::Exceeded,
        resource::{Comparison, Version},
    },
    mutants::{self, Mutant},
};

/// An agent's quota may change while its alarm is applied: once more, but not for ever.
const MOST_TURNS: usize = 3;

/// Which object in which cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub uid: ResourceUid,
    pub namespace: String,
    pub name: String,
}

/// What a resource asks for.
#[derive(Debug)]
pub struct Desired<'a> {
    pub identity: &'a Identity,
    pub generation: i64,
    pub owner: &'a Did,
    pub definition: &'a Definition,
    /// SHA-256 over owner and definition.
    pub hash: &'a [u8; 32],
    pub created_at: DateTime<Utc>,
    pub suspended: bool,
    pub fire_requested: Option<&'a str>,
    /// The API server itself was asked after the row was seen like this, and confirmed all of it.
    pub confirmed: Option<&'a Doubt>,
}

impl Desired<'_> {
    fn version(&self) -> Version<'_> {
        Version {
            generation: self.generation,
            hash: self.hash,
            suspended: self.suspended,
            fire_requested: self.fire_requested,
            spent: &[],
        }
    }
}

/// How a row stood when its resource was doubted. Whoever confirms the resource writes only if the row still stands so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    generation: i64,
    hash: Vec<u8>,
    suspended: bool,
    fire_requested: Option<String>,
}

/// What became of it.
#[derive(Debug)]
pub enum Applied {
    Stored {
        facts: Box<Facts>,
        /// It was asked for a wake now, which cannot be; the request is spent.
        not_fired: Option<NotFired>,
    },
    /// Nothing was written: the resource looks older than its row, or asks for a wake. To be tried again with what the API server says
    /// itself.
    Doubtful(Doubt),
    /// Nothing was written: a younger resource of its name is stored already.
    Superseded,
    /// Nothing was written: its expression has no instant ahead.
    NeverFires,
    /// Nothing was written: its owner may not have so much.
    OverQuota(Exceeded),
    /// Nothing was written: no Agent of its namespace holds the owner's DID. This one does, if anybody does.
    NotOwned(Option<Holder>),
}

/// A resource's row, and which version of the resource it was made from.
#[derive(FromRow)]
struct Known {
    #[sqlx(flatten)]
    alarm: Alarm,
    definition_hash: Vec<u8>,
    resource_generation: i64,
    fire_requested: Option<String>,
    fires_spent: Vec<String>,
}

/// The columns of a [`Known`].
macro_rules! known {
    () => {
        concat!(columns!(), ", definition_hash, resource_generation, fire_requested, fires_spent")
    };
}
use known;

impl Known {
    fn version(&self) -> Version<'_> {
        Version {
            generation: self.resource_generation,
            hash: &self.definition_hash,
            suspended: self.alarm.paused_by().contains(&Cause::Spec),
            fire_requested: self.fire_requested.as_deref(),
            spent: &self.fires_spent,
        }
    }

    fn compare(&self, desired: &Desired<'_>) -> Comparison {
        self.version().compare(&desired.version(), !self.alarm.status.is_living())
    }

    fn doubt(&self) -> Doubt {
        let Version { generation, hash, suspended, .. } = self.version();
        Doubt { generation, hash: hash.to_vec(), suspended, fire_requested: self.fire_requested.clone() }
    }
}

impl Store {
    /// Makes the row of a resource what the resource says, and writes only when it says something new. Idempotent: dying
    /// before the commit leaves nothing, dying after it leaves what the next call finds.
    pub async fn apply_resource(&self, desired: &Desired<'_>) -> Result<Applied> {
        self.ask("applying a resource", async |db| {
            let over = |known: &Known| !known.alarm.status.is_living() && known.compare(desired) == Comparison::Same;
            for _ in 0..MOST_TURNS {
                // Looked at without a lock first: a resync of what has not changed must not keep a dispatcher from its claim.
                let known = find(db, desired.identity, Lock::None).await?;
                let agent = match (agents::find(db, desired.owner).await?, known.as_ref().is_some_and(over)) {
                    (Some(agent), _) if agent.may_own(desired.identity) => Some(agent),
                    // What is over wakes nobody: whose it was does not matter any more.
                    (_, true) => None,
                    (other, false) => return Ok(Applied::NotOwned(other.map(|agent| agent.holder))),
                };
                if let Some(known) = known {
                    match known.compare(desired) {
                        Comparison::Same => return stored(db, known, None).await,
                        Comparison::Doubtful if desired.confirmed.is_none() => {
                            return Ok(Applied::Doubtful(known.doubt()));
                        }
                        Comparison::Doubtful | Comparison::Differs => {}
                    }
                }
                let quotas = agent.map(|agent| agent.quotas).unwrap_or_default();
                let mut transaction = db.begin().await?;
                match write::write(&mut transaction, desired, &quotas).await? {
                    write::Written::Done { known, not_fired } => {
                        transaction.commit().await?;
                        self.hint(db, &known.alarm).await;
                        return stored(db, *known, not_fired).await;
                    }
                    write::Written::Not(applied) => return Ok(applied),
                    write::Written::Again => transaction.rollback().await?,
                }
            }
            Err(unreadable("the agent's quota keeps changing"))
        })
        .await
    }

    /// What is stored for a resource, whatever the resource says now.
    pub async fn find_resource(&self, identity: &Identity) -> Result<Option<Facts>> {
        self.ask("reading a resource's alarm", async |db| match find(db, identity, Lock::None).await? {
            Some(known) => Facts::of(db, known).await.map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Keeps the alarm of a resource from firing that may not speak for its owner any more, as if the resource suspended it. It goes on
    /// when the resource is applied again.
    pub async fn silence_resource(&self, identity: &Identity) -> Result<Option<Facts>> {
        self.ask("silencing a resource's alarm", async |db| {
            let mut transaction = db.begin().await?;
            let Some(mut known) = find(&mut transaction, identity, Lock::ForUpdate).await? else { return Ok(None) };
            if let Some(alarm) = paused(&mut transaction, known.alarm.clone(), Cause::Spec).await?.done() {
                known.alarm = alarm;
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Facts::of(db, known).await.map(Some)
        })
        .await
    }

    /// Cancels the alarm of a resource that is being deleted, or gone. Says whether there was anything to cancel.
    pub async fn cancel_resource(&self, cluster: ClusterId, uid: ResourceUid) -> Result<bool> {
        if mutants::on(Mutant::FinalizerLetsGo) {
            return Ok(false);
        }
        self.ask("cancelling a resource's alarm", async |db| {
            let mut transaction = db.begin().await?;
            let living: Option<Uuid> = sqlx::query_scalar(
                "SELECT id FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2
                 AND status IN ('active', 'paused') FOR UPDATE",
            )
            .bind(cluster.as_uuid())
            .bind(uid.as_uuid())
            .fetch_optional(&mut *transaction)
            .await?;
            if let Some(id) = living {
                cancel(&mut transaction, AlarmId::from_uuid(id), "resource").await?;
            }
            transaction.commit().await?;
            Ok(living.is_some())
        })
        .await
    }
}

async fn stored(db: &mut PgConnection, known: Known, not_fired: Option<NotFired>) -> Result<Applied, sqlx::Error> {
    let facts = Box::new(Facts::of(db, known).await?);
    Ok(Applied::Stored { facts, not_fired })
}

/// Tells the controllers that the rows of these resources have changed. A hint: nothing is lost with it.
pub(super) async fn tell_changed(db: &mut PgConnection, alarms: &[Alarm]) -> Result<(), sqlx::Error> {
    let resources = alarms.iter().filter_map(Alarm::resource);
    let hints: Vec<String> = resources.map(|it| format!("{}/{}/{}", it.cluster, it.namespace, it.name)).collect();
    if hints.is_empty() {
        return Ok(());
    }
    sqlx::query("SELECT pg_notify($1, hint) FROM unnest($2::text[]) AS hint")
        .bind(RESOURCE_CHANGED)
        .bind(hints)
        .execute(db)
        .await
        .map(|_| ())
}

enum Lock {
    None,
    ForUpdate,
}

async fn find(db: &mut PgConnection, identity: &Identity, lock: Lock) -> Result<Option<Known>, sqlx::Error> {
    macro_rules! by_identity {
        ($lock:literal) => {
            concat!(
                "SELECT ",
                known!(),
                " FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2 ",
                $lock
            )
        };
    }
    let statement = match lock {
        Lock::None => by_identity!(""),
        Lock::ForUpdate => by_identity!("FOR UPDATE"),
    };
    sqlx::query_as(statement).bind(identity.cluster.as_uuid()).bind(identity.uid.as_uuid()).fetch_optional(db).await
}
