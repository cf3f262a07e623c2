//! A cluster that is gone for good: what its resources asked for goes with them.

use sqlx::Connection;
use uuid::Uuid;

use super::{AtWork, BATCH, is_silent};
use crate::{
    domain::ids::{AlarmId, ClusterId, ResourceUid},
    store::{Result, Store, alarms::cancel},
};

/// What became of a request to forget a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Nothing of it is left that could fire or let anybody in.
    Done(Forgot),
    /// Neither controllers nor rows ever named it.
    Unknown,
    /// A controller of it is at work, and would store everything again. `so_far` is what was done before it came back.
    AtWork { seen_ago: chrono::TimeDelta, so_far: Forgot },
}

/// What went with a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgot {
    /// Alarms of its resources, cancelled.
    pub alarms: u64,
    /// Agents of its resources, removed.
    pub agents: u64,
    /// What else these agents own, which stays paused as after any removal.
    pub held: u64,
}

impl Store {
    /// Cancels what the resources of a cluster asked for and removes its agents and its row. May be called again.
    pub async fn forget_unless_at_work(&self, cluster: ClusterId) -> Result<Forgotten> {
        if !self.knows_cluster(cluster).await? {
            return Ok(Forgotten::Unknown);
        }
        let mut so_far = Forgot::default();
        // Alarms first: else those that are cancelled in a moment would be paused with their agents before.
        loop {
            match self.cancel_one_batch_of_cluster(cluster).await? {
                Ok(0) => break,
                Ok(cancelled) => so_far.alarms += cancelled,
                Err(AtWork { seen_ago }) => return Ok(Forgotten::AtWork { seen_ago, so_far }),
            }
        }
        loop {
            let uid = match self.next_agent_of_cluster(cluster).await? {
                Ok(None) => break,
                Ok(Some(uid)) => uid,
                Err(AtWork { seen_ago }) => return Ok(Forgotten::AtWork { seen_ago, so_far }),
            };
            // `None`: the resource of another cluster took the agent meanwhile. It is not among the next ones.
            if let Some(agent) = self.remove_agent_of_resource(cluster, uid).await? {
                so_far.agents += 1;
                so_far.held += self.living_alarms_of(&agent.did).await?.held.unsigned_abs();
            }
        }
        self.remove_cluster_if_empty(cluster).await?;
        Ok(Forgotten::Done(so_far))
    }

    async fn cancel_one_batch_of_cluster(&self, cluster: ClusterId) -> Result<Result<u64, AtWork>> {
        self.ask("cancelling a cluster's alarms", async |db| {
            let mut transaction = db.begin().await?;
            if let Err(at_work) = is_silent(&mut transaction, cluster).await? {
                return Ok(Err(at_work));
            }
            // What they are is looked at once more under the lock.
            let living: Vec<Uuid> = sqlx::query_scalar(
                "SELECT id FROM alarms
                 WHERE id IN (
                     SELECT id FROM alarms
                     WHERE source = 'kubernetes' AND cluster_id = $1 AND status IN ('active', 'paused') LIMIT $2)
                   AND cluster_id = $1 AND status IN ('active', 'paused')
                 ORDER BY id FOR UPDATE",
            )
            .bind(cluster.as_uuid())
            .bind(BATCH)
            .fetch_all(&mut *transaction)
            .await?;
            for id in &living {
                cancel(&mut transaction, AlarmId::from_uuid(*id), "cluster").await?;
            }
            transaction.commit().await?;
            Ok(Ok(u64::try_from(living.len()).unwrap_or(u64::MAX)))
        })
        .await
    }

    async fn next_agent_of_cluster(&self, cluster: ClusterId) -> Result<Result<Option<ResourceUid>, AtWork>> {
        self.ask("looking for a cluster's agents", async |db| {
            let mut transaction = db.begin().await?;
            if let Err(at_work) = is_silent(&mut transaction, cluster).await? {
                return Ok(Err(at_work));
            }
            let uid: Option<Uuid> = sqlx::query_scalar(
                "SELECT resource_uid FROM agents WHERE source = 'kubernetes' AND cluster_id = $1 ORDER BY did LIMIT 1",
            )
            .bind(cluster.as_uuid())
            .fetch_optional(&mut *transaction)
            .await?;
            Ok(Ok(uid.map(ResourceUid::from_uuid)))
        })
        .await
    }
}
