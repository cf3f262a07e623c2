//! What a status tells of.

use sqlx::PgConnection;
use uuid::Uuid;

use super::Known;
use crate::{
    domain::ids::ClusterId,
    store::{
        alarms::Alarm,
        attempts::{self, Entry},
    },
};

/// Of many attempts a status shows the newest.
const ATTEMPTS: i64 = 5;

/// A resource's row and what hangs on it.
#[derive(Clone, Debug)]
pub struct Facts {
    pub alarm: Alarm,
    /// The newest request to fire it that was seen.
    pub fire_requested: Option<String>,
    /// The last tries, newest first.
    pub attempts: Vec<Entry>,
    /// A cluster that has a living alarm of the same owner, namespace and name.
    pub elsewhere: Option<ClusterId>,
}

impl Facts {
    pub(super) async fn of(db: &mut PgConnection, known: Known) -> Result<Self, sqlx::Error> {
        let Known { alarm, fire_requested, .. } = known;
        // Most resources are looked at long before anything has happened to them.
        let untried = alarm.last_fired_at.is_none()
            && alarm.last_error.is_empty()
            && alarm.missed_count == 0
            && alarm.schedule_epoch.0 == 0;
        let attempts = if untried { vec![] } else { attempts::last_tries(db, alarm.id, ATTEMPTS).await? };
        let elsewhere = elsewhere(db, &alarm).await?;
        Ok(Self { alarm, fire_requested, attempts, elsewhere })
    }
}

/// By cluster, of which there are few: the index of names begins with it.
async fn elsewhere(db: &mut PgConnection, alarm: &Alarm) -> Result<Option<ClusterId>, sqlx::Error> {
    let Some(resource) = alarm.resource() else { return Ok(None) };
    if !alarm.status.is_living() {
        return Ok(None);
    }
    let found: Option<Uuid> = sqlx::query_scalar(
        "SELECT alarms.cluster_id
         FROM clusters JOIN alarms ON alarms.cluster_id = clusters.cluster_id
         WHERE clusters.cluster_id <> $1 AND source = 'kubernetes' AND resource_namespace = $2 AND resource_name = $3
           AND owner_did = $4 AND status IN ('active', 'paused')
         ORDER BY alarms.cluster_id LIMIT 1",
    )
    .bind(resource.cluster)
    .bind(&resource.namespace)
    .bind(&resource.name)
    .bind(&alarm.owner_did)
    .fetch_optional(db)
    .await?;
    Ok(found.map(ClusterId::from_uuid))
}
