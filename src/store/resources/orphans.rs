//! Which rows the controller holds resources against: those of its cluster that may still do something.

use std::time::Duration;

use uuid::Uuid;

use super::Identity;
use crate::{
    domain::ids::{ClusterId, ResourceUid},
    store::{Result, Store},
};

/// Read at a time.
const PAGE: i64 = 1000;

impl Store {
    /// The living alarms of a cluster's resources, by uid, from behind `after` on; fewer than a page: there are no more.
    pub async fn living_resources(
        &self,
        cluster: ClusterId,
        after: Option<ResourceUid>,
    ) -> Result<(Vec<Identity>, Option<ResourceUid>)> {
        self.ask("reading the alarms of resources", async |db| {
            let found: Vec<(Uuid, String, String, bool)> = sqlx::query_as(
                "SELECT resource_uid, resource_namespace, resource_name, status IN ('active', 'paused')
                 FROM alarms
                 WHERE source = 'kubernetes' AND cluster_id = $1 AND ($2::uuid IS NULL OR resource_uid > $2)
                 ORDER BY resource_uid LIMIT $3",
            )
            .bind(cluster.as_uuid())
            .bind(after.map(ResourceUid::as_uuid))
            .bind(PAGE)
            .fetch_all(db)
            .await?;
            let whole = i64::try_from(found.len()).is_ok_and(|count| count == PAGE);
            let next = found.last().filter(|_| whole).map(|(uid, ..)| ResourceUid::from_uuid(*uid));
            let living = found.into_iter().filter(|(.., living)| *living);
            let identity =
                |(uid, namespace, name, _)| Identity { cluster, uid: ResourceUid::from_uuid(uid), namespace, name };
            Ok((living.map(identity).collect(), next))
        })
        .await
    }

    /// Namespace and name of the resources whose rows changed within the last while.
    pub async fn resources_changed_within(&self, cluster: ClusterId, ago: Duration) -> Result<Vec<(String, String)>> {
        self.ask("asking which resources' alarms changed", async |db| {
            sqlx::query_as(
                "SELECT resource_namespace, resource_name FROM alarms
                 WHERE source = 'kubernetes' AND cluster_id = $1 AND updated_at >= now() - make_interval(secs => $2)",
            )
            .bind(cluster.as_uuid())
            .bind(ago.as_secs_f64())
            .fetch_all(db)
            .await
        })
        .await
    }

    /// How many living alarms of a cluster's resources have a living double of the same owner, namespace and name in another cluster.
    pub async fn count_duplicates(&self, cluster: ClusterId) -> Result<u64> {
        self.ask("counting duplicates in other clusters", async |db| {
            let count: i64 = sqlx::query_scalar(
                "SELECT count(DISTINCT ours.id)
                 FROM clusters
                 JOIN alarms AS theirs ON theirs.cluster_id = clusters.cluster_id
                 JOIN alarms AS ours ON ours.cluster_id = $1 AND ours.resource_namespace = theirs.resource_namespace
                      AND ours.resource_name = theirs.resource_name AND ours.owner_did = theirs.owner_did
                 WHERE clusters.cluster_id <> $1 AND theirs.source = 'kubernetes' AND ours.source = 'kubernetes'
                   AND theirs.status IN ('active', 'paused') AND ours.status IN ('active', 'paused')",
            )
            .bind(cluster.as_uuid())
            .fetch_one(db)
            .await?;
            Ok(count.unsigned_abs())
        })
        .await
    }

    /// The agents that a cluster's resources hold.
    pub async fn agents_of_cluster(&self, cluster: ClusterId) -> Result<Vec<Identity>> {
        self.ask("reading the agents of resources", async |db| {
            let found: Vec<(Uuid, String, String)> = sqlx::query_as(
                "SELECT resource_uid, resource_namespace, resource_name FROM agents
                 WHERE source = 'kubernetes' AND cluster_id = $1 ORDER BY resource_uid",
            )
            .bind(cluster.as_uuid())
            .fetch_all(db)
            .await?;
            let identity =
                |(uid, namespace, name)| Identity { cluster, uid: ResourceUid::from_uuid(uid), namespace, name };
            Ok(found.into_iter().map(identity).collect())
        })
        .await
    }
}
