//! Table `clusters`: the Kubernetes clusters whose controllers write here.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::ids::ClusterId;

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Cluster {
    #[sqlx(rename = "cluster_id", try_from = "Uuid")]
    pub id: ClusterId,
    /// Empty: nobody gave it one.
    pub name: String,
    pub last_seen: DateTime<Utc>,
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

    /// All clusters, the one seen last first.
    pub async fn list_clusters(&self) -> Result<Vec<Cluster>> {
        self.ask("listing clusters", async |db| {
            sqlx::query_as("SELECT cluster_id, name, last_seen FROM clusters ORDER BY last_seen DESC, cluster_id")
                .fetch_all(db)
                .await
        })
        .await
    }
}
