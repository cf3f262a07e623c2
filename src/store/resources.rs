//! Table `alarms`, as the controller sees it: rows that stand for Alarm resources, keyed by cluster id and uid.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Result, Store,
    alarms::{Alarm, Row, ScheduleColumns, bind_definition, cancel, columns},
    ask, attempts,
};
use crate::domain::{
    access::Did,
    alarm::{Definition, Plan, Status},
    ids::{AlarmId, ClusterId, ResourceUid},
    occurrence::Outcome,
    rfc3339,
};

/// Which object in which cluster.
#[derive(Clone, Debug)]
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
}

/// What became of it.
#[derive(Debug)]
pub enum Applied {
    Stored(Box<Alarm>),
    /// Its expression has no instant ahead. Nothing was written.
    NeverFires,
}

impl Store {
    /// Makes the row of a resource what the resource says, and writes only when it says something new. Idempotent: dying
    /// before the commit leaves nothing, dying after it leaves what the next call finds.
    pub async fn apply_resource(&self, desired: &Desired<'_>) -> Result<Applied> {
        let doing = "applying a resource";
        let mut transaction = ask(doing, self.pool.begin()).await?;
        let now: DateTime<Utc> = ask(doing, sqlx::query_scalar("SELECT now()").fetch_one(&mut *transaction)).await?;
        let known = find_locked(&mut transaction, desired.identity).await?;
        let applied = match known {
            Some(known) if known.hash == desired.hash => return Ok(Applied::Stored(Box::new(known.alarm))),
            Some(known) => edit(&mut transaction, desired, &known.alarm, now).await?,
            None => insert(&mut transaction, desired, now).await?,
        };
        if let Applied::Stored(_) = &applied {
            ask(doing, transaction.commit()).await?;
        }
        Ok(applied)
    }

    /// Cancels the alarm of a resource that is being deleted. Nothing to cancel is fine.
    pub async fn cancel_resource(&self, cluster: ClusterId, uid: ResourceUid) -> Result<()> {
        let doing = "cancelling a resource's alarm";
        let mut transaction = ask(doing, self.pool.begin()).await?;
        let lock = sqlx::query_scalar(
            "SELECT id FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2
             AND status IN ('active', 'paused') FOR UPDATE",
        )
        .bind(cluster.as_uuid())
        .bind(uid.as_uuid())
        .fetch_optional(&mut *transaction);
        if let Some(id) = ask::<Option<Uuid>>(doing, lock).await? {
            cancel(&mut transaction, doing, AlarmId::from_uuid(id), "resource").await?;
        }
        ask(doing, transaction.commit()).await
    }
}

struct Known {
    alarm: Alarm,
    hash: Vec<u8>,
}

async fn find_locked(connection: &mut PgConnection, identity: &Identity) -> Result<Option<Known>> {
    #[derive(sqlx::FromRow)]
    struct WithHash {
        #[sqlx(flatten)]
        row: Row,
        definition_hash: Vec<u8>,
    }
    let query = sqlx::query_as(concat!(
        "SELECT ",
        columns!(),
        ", definition_hash FROM alarms \
         WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2 FOR UPDATE"
    ))
    .bind(identity.cluster.as_uuid())
    .bind(identity.uid.as_uuid())
    .fetch_optional(connection);
    let found: Option<WithHash> = ask("reading a resource's alarm", query).await?;
    found.map(|found| Ok(Known { alarm: found.row.try_into()?, hash: found.definition_hash })).transpose()
}

/// The status and instant a plan gives a row.
fn planned(plan: &Plan, now: DateTime<Utc>) -> Option<(Status, DateTime<Utc>, String)> {
    match plan {
        Plan::At(at) => Some((Status::Active, *at, String::new())),
        Plan::Missed { due } => {
            Some((Status::Failed, *due, format!("missed: due {}, seen {}", rfc3339(*due), rfc3339(now))))
        }
        Plan::Never => None,
    }
}

async fn insert(connection: &mut PgConnection, desired: &Desired<'_>, now: DateTime<Utc>) -> Result<Applied> {
    let doing = "storing a resource's alarm";
    let Desired { identity, definition, .. } = desired;
    let plan = definition.schedule.plan(now, desired.created_at);
    let Some((status, fires_at, last_error)) = planned(&plan, now) else { return Ok(Applied::NeverFires) };
    // The same name under another uid is a resource that was deleted and made anew: the old one must stay silent.
    let predecessors = sqlx::query_scalar(
        "SELECT id FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_namespace = $2
         AND resource_name = $3 AND resource_uid <> $4 AND status IN ('active', 'paused') FOR UPDATE",
    )
    .bind(identity.cluster.as_uuid())
    .bind(&identity.namespace)
    .bind(&identity.name)
    .bind(identity.uid.as_uuid())
    .fetch_all(&mut *connection);
    for id in ask::<Vec<Uuid>>(doing, predecessors).await? {
        cancel(connection, doing, AlarmId::from_uuid(id), "resource").await?;
    }
    let query =
        bind_definition(sqlx::query_as(concat!(include_str!("sql/insert_resource.sql"), columns!())), definition)
            .bind(desired.owner.as_str())
            .bind(desired.owner.user_id())
            .bind(status.as_str())
            .bind(fires_at)
            .bind(last_error)
            .bind(i64::from(status == Status::Failed))
            .bind(identity.cluster.as_uuid())
            .bind(identity.uid.as_uuid())
            .bind(&identity.namespace)
            .bind(&identity.name)
            .bind(desired.generation)
            .bind(desired.hash.as_slice())
            .bind(desired.created_at)
            .fetch_one(&mut *connection);
    let alarm = Alarm::try_from(ask::<Row>(doing, query).await?)?;
    record_if_missed(connection, desired, &alarm, &plan).await?;
    Ok(Applied::Stored(Box::new(alarm)))
}

/// An edit of the schedule re-plans: a new epoch fences whatever is in flight, and the next instant lies ahead. Any other
/// edit leaves the occurrence alone, claim included.
async fn edit(
    connection: &mut PgConnection,
    desired: &Desired<'_>,
    stored: &Alarm,
    now: DateTime<Utc>,
) -> Result<Applied> {
    let doing = "editing a resource's alarm";
    let definition = desired.definition;
    let schedule = ScheduleColumns::of(&definition.schedule);
    let same_schedule = (schedule.kind, schedule.fire_at, schedule.cron_expr, schedule.timezone)
        == (stored.kind.as_str(), stored.fire_at, stored.cron_expr.as_str(), stored.timezone.as_str());
    let plan = (!same_schedule).then(|| definition.schedule.replan(stored.status, now)).flatten();
    let replanned = match &plan {
        None => None,
        Some(plan) => match planned(plan, now) {
            None => return Ok(Applied::NeverFires),
            Some(replanned) => Some(replanned),
        },
    };
    let (status, fires_at, last_error) = match replanned {
        Some((status, at, error)) => (Some(status), Some(at), Some(error)),
        None => (None, None, None),
    };
    let query = bind_definition(sqlx::query_as(concat!(include_str!("sql/edit_resource.sql"), columns!())), definition)
        .bind(stored.id.as_uuid())
        .bind(status.map(Status::as_str))
        .bind(fires_at)
        .bind(last_error)
        .bind(desired.generation)
        .bind(desired.hash.as_slice())
        .fetch_one(&mut *connection);
    let alarm = Alarm::try_from(ask::<Row>(doing, query).await?)?;
    if let Some(plan) = &plan {
        record_if_missed(connection, desired, &alarm, plan).await?;
    }
    Ok(Applied::Stored(Box::new(alarm)))
}

async fn record_if_missed(
    connection: &mut PgConnection,
    desired: &Desired<'_>,
    alarm: &Alarm,
    plan: &Plan,
) -> Result<()> {
    match plan {
        Plan::Missed { due } => {
            attempts::record_passed(connection, alarm, desired.owner.as_str(), *due, Outcome::Missed, "past").await
        }
        Plan::At(_) | Plan::Never => Ok(()),
    }
}
