//! Table `clusters`: the Kubernetes clusters whose controllers write here; and what becomes of the rows of one that is gone.
//!
//! | file | does |
//! |---|---|
//! | here | the row: see, list |
//! | [`forget`] | a cluster that is gone for good: its alarms are cancelled, its agents removed |
//! | [`adopt`] | one that was built anew: everything goes over to its new id |
//!
//! Both go by batches, each a short transaction that first looks whether a controller of the cluster is back at work. So whoever dies
//! on any line leaves what the next call finishes, and a cluster that comes back loses no more than it had lost by then.
//!
//! Order of locks: the rows here, the names of resources, alarms by their ids.

mod adopt;
mod forget;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

pub use adopt::{Adopted, HandedOver, Left};
pub use forget::{Forgot, Forgotten};

use super::{Result, Store};
use crate::domain::{
    cluster::{SILENCE, is_at_work},
    ids::ClusterId,
};

/// The most rows, or names, that one transaction is about, as for bulk edits: a dispatcher that wants one of them passes over it for
/// no longer.
const BATCH: i64 = 200;

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Cluster {
    #[sqlx(rename = "cluster_id", try_from = "Uuid")]
    pub id: ClusterId,
    /// Empty: nobody gave it one.
    pub name: String,
    /// `None`: rows name it, and no controller of it was ever seen, or it was forgotten since.
    pub last_seen: Option<DateTime<Utc>>,
    /// The database's time of this answer.
    pub as_of: DateTime<Utc>,
    /// Alarms of its resources that may still fire.
    pub living: i64,
    /// Those that are over.
    pub ended: i64,
    /// Agents that its resources hold.
    pub agents: i64,
}

impl Cluster {
    pub fn is_at_work(&self) -> bool {
        self.last_seen.is_some_and(|last_seen| is_at_work(last_seen, self.as_of))
    }

    /// How long ago a controller of it was seen.
    pub fn seen_ago(&self) -> Option<TimeDelta> {
        self.last_seen.map(|last_seen| ago(last_seen, self.as_of))
    }
}

/// A controller of the cluster is at work: it was seen this long ago.
struct AtWork {
    seen_ago: TimeDelta,
}

impl Store {
    /// Writes down that a controller of this cluster is at work.
    pub async fn see_cluster(&self, cluster: ClusterId, name: &str) -> Result<()> {
        self.ask("recording the cluster", async |db| {
            sqlx::query(
                "INSERT INTO clusters (cluster_id, name) VALUES ($1, $2)
                 ON CONFLICT (cluster_id) DO UPDATE SET name = excluded.name, last_seen = now()",
            )
            .bind(cluster.as_uuid())
            .bind(name)
            .execute(db)
            .await
            .map(|_| ())
        })
        .await
    }

    /// All clusters, the one seen last first; also those of which nothing is left but rows.
    pub async fn list_clusters(&self) -> Result<Vec<Cluster>> {
        self.ask("listing clusters", async |db| {
            sqlx::query_as(include_str!("../sql/list_clusters.sql")).fetch_all(db).await
        })
        .await
    }

    /// Whether a controller of it was seen, or rows name it.
    async fn knows_cluster(&self, cluster: ClusterId) -> Result<bool> {
        self.ask("looking a cluster up", async |db| {
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM clusters WHERE cluster_id = $1)
                     OR EXISTS (SELECT FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1)
                     OR EXISTS (SELECT FROM agents WHERE source = 'kubernetes' AND cluster_id = $1)",
            )
            .bind(cluster.as_uuid())
            .fetch_one(db)
            .await
        })
        .await
    }

    /// Removes the row of a cluster that is not at work and has nothing left that could fire or let anybody in.
    async fn remove_cluster_if_empty(&self, cluster: ClusterId) -> Result<()> {
        self.ask("removing a cluster", async |db| {
            sqlx::query(
                "DELETE FROM clusters
                 WHERE cluster_id = $1 AND last_seen <= now() - make_interval(secs => $2)
                   AND NOT EXISTS (
                       SELECT FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND status IN ('active', 'paused'))
                   AND NOT EXISTS (SELECT FROM agents WHERE source = 'kubernetes' AND cluster_id = $1)",
            )
            .bind(cluster.as_uuid())
            .bind(SILENCE.as_seconds_f64())
            .execute(db)
            .await
            .map(|_| ())
        })
        .await
    }
}

/// Whether the cluster may be disposed of. To the end of the transaction it stays so: a controller that comes back waits to be seen.
async fn is_silent(db: &mut PgConnection, cluster: ClusterId) -> Result<Result<(), AtWork>, sqlx::Error> {
    let seen: Option<(DateTime<Utc>, DateTime<Utc>)> =
        sqlx::query_as("SELECT last_seen, clock_timestamp() FROM clusters WHERE cluster_id = $1 FOR SHARE")
            .bind(cluster.as_uuid())
            .fetch_optional(db)
            .await?;
    Ok(match seen {
        Some((last_seen, now)) if is_at_work(last_seen, now) => Err(AtWork { seen_ago: ago(last_seen, now) }),
        Some(_) | None => Ok(()),
    })
}

/// From here to the end of the transaction nobody else hands over an alarm of these names, and whoever takes the lock for its own sees
/// what was handed over. A resource that is stored for the first time needs it: else it may be stored and the alarm it should
/// have taken handed over at the same instant, neither seeing the other, and both would fire.
pub(super) async fn lock_names<'a>(
    db: &mut PgConnection,
    cluster: ClusterId,
    names: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), sqlx::Error> {
    let (namespaces, names): (Vec<&str>, Vec<&str>) = names.into_iter().unzip();
    sqlx::query(include_str!("../sql/lock_names.sql"))
        .bind(cluster.as_uuid())
        .bind(namespaces)
        .bind(names)
        .execute(db)
        .await
        .map(|_| ())
}

fn ago(last_seen: DateTime<Utc>, now: DateTime<Utc>) -> TimeDelta {
    (now - last_seen).max(TimeDelta::zero())
}
