//! A cluster that was built anew: its alarms and agents go over to the id it has now, found again by namespace and name.
//!
//! An alarm keeps its id, and with it history, counters, pause, place on the ladder and a claim in flight: nothing is edited and nothing
//! re-planned, so neither revision nor epoch grows. What the resource says differently by now the controller applies when it
//! looks next, by the rules of an edit.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use tracing::debug;
use uuid::Uuid;

use super::{AtWork, BATCH, is_silent, lock_names};
use crate::{
    domain::{
        cluster::{Handing, Stays, Stored, hand_over},
        ids::{AlarmId, ClusterId},
    },
    store::{Result, Store, alarms::Resource, claims::RESOURCE_CHANGED},
};

/// Of many resources a sentence can name a few.
const NAMED: usize = 3;

/// What became of a request to adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adopted {
    Done(HandedOver),
    /// Neither controllers nor rows ever named the old cluster.
    Unknown,
    /// No controller of the new one was ever seen: whatever goes there would be nobody's.
    NeverSeen,
    /// A controller of the old one is at work: it is not gone. `so_far` is what went over before it came back.
    AtWork {
        seen_ago: chrono::TimeDelta,
        so_far: HandedOver,
    },
}

/// What went over, and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    pub alarms: u64,
    pub agents: u64,
    /// The alarm of the same name in the new cluster is somebody else's.
    pub another_owner: Left,
    /// One of the same name was handed over before, from elsewhere, and waits for its resource.
    pub another_waits: Left,
}

/// Alarms that stay with the old cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The first few.
    pub first: Vec<Resource>,
    pub all: i64,
}

impl Left {
    fn count(&mut self, cluster: ClusterId, Name(namespace, name): &Name) {
        self.all += 1;
        if self.first.len() < NAMED {
            let (namespace, name) = (namespace.clone(), name.clone());
            self.first.push(Resource { cluster: cluster.as_uuid(), namespace, name });
        }
    }
}

/// Why a batch was not carried out.
enum Refused {
    AtWork(AtWork),
    NeverSeen,
}

/// A resource's namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromRow)]
struct Name(String, String);

#[derive(FromRow)]
struct Row {
    id: Uuid,
    cluster_id: Uuid,
    resource_namespace: String,
    resource_name: String,
    owner_did: String,
    living: bool,
    created_at: DateTime<Utc>,
    waits: bool,
}

/// All alarms of one name.
#[derive(Default)]
struct Namesakes {
    of_old: Vec<Stored>,
    of_new: Vec<Stored>,
}

impl Store {
    /// Hands everything that `old` has over to `new`. May be called again: what went over is not touched twice.
    pub async fn adopt_unless_at_work(&self, old: ClusterId, new: ClusterId) -> Result<Adopted> {
        if !self.knows_cluster(old).await? {
            return Ok(Adopted::Unknown);
        }
        let mut so_far = HandedOver::default();
        // Agents first. Without their agent no resource may have an alarm in the new cluster, and what waits for its resource in vain
        // is cancelled as an orphan: whoever dies in between leaves alarms that go on firing where they are.
        match self.hand_agents_over(old, new).await? {
            Ok(agents) => so_far.agents = agents,
            Err(refused) => return Ok(refused.after(so_far)),
        }
        let mut after = Name::default();
        loop {
            match self.hand_over_one_batch(old, new, &after, &mut so_far).await? {
                Ok(Some(last)) => after = last,
                Ok(None) => break,
                Err(refused) => return Ok(refused.after(so_far)),
            }
        }
        self.remove_cluster_if_empty(old).await?;
        Ok(Adopted::Done(so_far))
    }

    async fn hand_agents_over(&self, old: ClusterId, new: ClusterId) -> Result<Result<u64, Refused>> {
        self.ask("handing agents over", async |db| {
            let mut transaction = db.begin().await?;
            if let Err(refused) = is_possible(&mut transaction, old, new).await? {
                return Ok(Err(refused));
            }
            // The Agent of the same namespace and name takes it over, whatever its uid.
            let done = sqlx::query(
                "UPDATE agents SET cluster_id = $2, updated_at = now() WHERE source = 'kubernetes' AND cluster_id = $1",
            )
            .bind(old.as_uuid())
            .bind(new.as_uuid())
            .execute(&mut *transaction)
            .await?;
            transaction.commit().await?;
            Ok(Ok(done.rows_affected()))
        })
        .await
    }

    /// All alarms of the next few names behind this one. The last of these names; `None`: there was none left.
    async fn hand_over_one_batch(
        &self,
        old: ClusterId,
        new: ClusterId,
        after: &Name,
        so_far: &mut HandedOver,
    ) -> Result<Result<Option<Name>, Refused>> {
        self.ask("handing alarms over", async |db| {
            let mut transaction = db.begin().await?;
            if let Err(refused) = is_possible(&mut transaction, old, new).await? {
                return Ok(Err(refused));
            }
            let names = names_after(&mut transaction, old, after).await?;
            let Some(last) = names.last().cloned() else { return Ok(Ok(None)) };
            let pairs = names.iter().map(|Name(namespace, name)| (namespace.as_str(), name.as_str()));
            lock_names(&mut transaction, new, pairs).await?;
            let mut handed = so_far.clone();
            let mut changed = Vec::new();
            for (name, namesakes) in lock(&mut transaction, old, new, &names).await? {
                match hand_over(&namesakes.of_old, &namesakes.of_new) {
                    None => {}
                    Some(Handing::Stays(Stays::AnotherOwner)) => handed.another_owner.count(old, &name),
                    Some(Handing::Stays(Stays::AnotherWaits)) => handed.another_waits.count(old, &name),
                    Some(Handing::Waits(front)) => {
                        handed.alarms += go_over(&mut transaction, new, &namesakes.of_old, front).await?;
                        changed.push(name);
                    }
                    Some(Handing::Replaces { old: front, new: twin }) => {
                        handed.alarms += go_over(&mut transaction, new, &namesakes.of_old, front).await?;
                        replace(&mut transaction, front, twin).await?;
                        changed.push(name);
                    }
                }
            }
            transaction.commit().await?;
            *so_far = handed;
            tell(db, new, &changed).await;
            Ok(Ok(Some(last)))
        })
        .await
    }
}

impl Refused {
    fn after(self, so_far: HandedOver) -> Adopted {
        match self {
            Self::AtWork(AtWork { seen_ago }) => Adopted::AtWork { seen_ago, so_far },
            Self::NeverSeen => Adopted::NeverSeen,
        }
    }
}

/// Whether the old cluster is silent and the new one known. Both stay so to the end of the transaction.
async fn is_possible(
    db: &mut PgConnection,
    old: ClusterId,
    new: ClusterId,
) -> Result<Result<(), Refused>, sqlx::Error> {
    if let Err(at_work) = is_silent(db, old).await? {
        return Ok(Err(Refused::AtWork(at_work)));
    }
    let known = sqlx::query("SELECT FROM clusters WHERE cluster_id = $1 FOR SHARE").bind(new.as_uuid());
    let known = known.fetch_optional(db).await?;
    Ok(known.map(|_| ()).ok_or(Refused::NeverSeen))
}

async fn names_after(db: &mut PgConnection, old: ClusterId, after: &Name) -> Result<Vec<Name>, sqlx::Error> {
    let Name(namespace, name) = after;
    sqlx::query_as(
        "SELECT DISTINCT resource_namespace, resource_name FROM alarms
         WHERE source = 'kubernetes' AND cluster_id = $1 AND coalesce(cancelled_by NOT IN ('resource', 'cluster'), true)
           AND (resource_namespace, resource_name) > ($2, $3)
         ORDER BY resource_namespace, resource_name LIMIT $4",
    )
    .bind(old.as_uuid())
    .bind(namespace)
    .bind(name)
    .bind(BATCH)
    .fetch_all(db)
    .await
}

/// The alarms of these names in both clusters, locked.
async fn lock(
    db: &mut PgConnection,
    old: ClusterId,
    new: ClusterId,
    names: &[Name],
) -> Result<BTreeMap<Name, Namesakes>, sqlx::Error> {
    let rows: Vec<Row> = sqlx::query_as(include_str!("../sql/lock_to_adopt.sql"))
        .bind(old.as_uuid())
        .bind(new.as_uuid())
        .bind(names.iter().map(|Name(namespace, _)| namespace.as_str()).collect::<Vec<_>>())
        .bind(names.iter().map(|Name(_, name)| name.as_str()).collect::<Vec<_>>())
        .fetch_all(db)
        .await?;
    let mut found = BTreeMap::<Name, Namesakes>::new();
    for row in rows {
        let namesakes = found.entry(Name(row.resource_namespace, row.resource_name)).or_default();
        let side = if row.cluster_id == old.as_uuid() { &mut namesakes.of_old } else { &mut namesakes.of_new };
        side.push(Stored {
            id: AlarmId::from_uuid(row.id),
            owner: row.owner_did,
            living: row.living,
            created_at: row.created_at,
            waits: row.waits,
        });
    }
    Ok(found)
}

/// All alarms of a name go over, `front` to wait for its resource. The others are of resources that are gone, and over: left behind
/// they would be taken for the resource's own by whoever adopts once more. When one that is over was last written is when it ended, and
/// stays; of the others it tells whoever missed the hint that something changed.
async fn go_over(db: &mut PgConnection, new: ClusterId, of_old: &[Stored], front: AlarmId) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE alarms SET cluster_id = $2, adopted_at = CASE WHEN id = $3 THEN now() END,
                updated_at = CASE WHEN status IN ('active', 'paused') THEN now() ELSE updated_at END
         WHERE id = ANY ($1)",
    )
    .bind(of_old.iter().map(|stored| stored.id.as_uuid()).collect::<Vec<_>>())
    .bind(new.as_uuid())
    .bind(front.as_uuid())
    .execute(db)
    .await?;
    Ok(done.rows_affected())
}

/// `front` becomes the alarm of the resource that `twin` was stored for, and `twin` goes, which frees the uid for it. Also one that has
/// fired already goes: the alarm that the resource asked for is `front`, and while there were two each slot fired twice. A wake of
/// `twin` in flight is fenced by its having gone; what it still owed leaves a trace by the table's trigger.
///
/// Definition and hash stay those of `front`: another hash than the resource's is what makes the controller apply the resource. What the
/// resource was last asked to fire by is the twin's, or it would be fired once more for the same request; and the resource was created
/// when the twin's was, from which an `@every` counts.
async fn replace(db: &mut PgConnection, front: AlarmId, twin: AlarmId) -> Result<(), sqlx::Error> {
    let (uid, generation, fire_requested, created_at): (Uuid, i64, Option<String>, DateTime<Utc>) = sqlx::query_as(
        "DELETE FROM alarms WHERE id = $1 RETURNING resource_uid, resource_generation, fire_requested, created_at",
    )
    .bind(twin.as_uuid())
    .fetch_one(&mut *db)
    .await?;
    sqlx::query(
        "UPDATE alarms SET resource_uid = $2, resource_generation = $3, fire_requested = $4, created_at = $5, adopted_at = NULL
         WHERE id = $1",
    )
    .bind(front.as_uuid())
    .bind(uid)
    .bind(generation)
    .bind(fire_requested)
    .bind(created_at)
    .execute(db)
    .await
    .map(|_| ())
}

/// Hints to the new cluster's controller. One that is lost is made up for by its resync.
async fn tell(db: &mut PgConnection, new: ClusterId, changed: &[Name]) {
    let told = sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
        .bind(RESOURCE_CHANGED)
        .bind(changed.iter().map(|Name(namespace, name)| format!("{new}/{namespace}/{name}")).collect::<Vec<_>>())
        .execute(db)
        .await;
    if let Err(error) = told {
        debug!(%error, "hints were not sent; the controller's resync finds the alarms");
    }
}
