//! Table `alarms`, as the controller sees it: rows that stand for Alarm resources, keyed by cluster id and uid.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::{
    Result, Store,
    alarms::{Alarm, Replan, bind_definition, cancel, clock, columns, write_definition},
    attempts,
    interval::interval,
    unreadable,
};
use crate::domain::{
    access::Did,
    alarm::{Definition, Plan, Slot, Status},
    ids::{AlarmId, ClusterId, ResourceUid},
    occurrence::{Passed, missed_error},
};

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
}

/// What became of it.
#[derive(Debug)]
pub enum Applied {
    Stored(Box<Alarm>),
    /// Its expression has no instant ahead. Nothing was written.
    NeverFires,
}

/// A resource's row, and which version of the resource it was made from.
#[derive(FromRow)]
struct Known {
    #[sqlx(flatten)]
    alarm: Alarm,
    definition_hash: Vec<u8>,
    resource_generation: i64,
}

impl Known {
    /// Whether the resource has nothing new to say: the row was made from the same definition, or from a later one (another
    /// controller saw that before this one).
    fn is_current(&self, desired: &Desired<'_>) -> bool {
        self.definition_hash == desired.hash || self.resource_generation > desired.generation
    }
}

impl Store {
    /// Makes the row of a resource what the resource says, and writes only when it says something new. Idempotent: dying
    /// before the commit leaves nothing, dying after it leaves what the next call finds.
    pub async fn apply_resource(&self, desired: &Desired<'_>) -> Result<Applied> {
        self.ask("applying a resource", async |db| {
            // Looked at without a lock first: a resync of what has not changed must not keep a dispatcher from its claim.
            if let Some(known) = find(db, desired.identity, Lock::None).await?.filter(|known| known.is_current(desired))
            {
                return Ok(Applied::Stored(Box::new(known.alarm)));
            }
            let mut transaction = db.begin().await?;
            let applied = write(&mut transaction, desired).await?;
            if let Applied::Stored(alarm) = &applied {
                transaction.commit().await?;
                self.hint(db, alarm).await;
            }
            Ok(applied)
        })
        .await
    }

    /// The row of a resource, whatever the resource says now.
    pub async fn find_resource(&self, identity: &Identity) -> Result<Option<Alarm>> {
        let known = self.ask("reading a resource's alarm", async |db| find(db, identity, Lock::None).await).await?;
        Ok(known.map(|known| known.alarm))
    }

    /// Cancels the alarm of a resource that is being deleted. Nothing to cancel is fine.
    pub async fn cancel_resource(&self, cluster: ClusterId, uid: ResourceUid) -> Result<()> {
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
            transaction.commit().await
        })
        .await
    }
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
                columns!(),
                ", definition_hash, resource_generation FROM alarms \
                 WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_uid = $2 ",
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

/// Inserts or edits. Two controllers that see a new resource at once both try to insert; the second finds the first's row.
async fn write(db: &mut PgConnection, desired: &Desired<'_>) -> Result<Applied, sqlx::Error> {
    if let Some(known) = find(db, desired.identity, Lock::ForUpdate).await? {
        return edit_unless_current(db, desired, known).await;
    }
    if let Some(applied) = insert(db, desired).await? {
        return Ok(applied);
    }
    match find(db, desired.identity, Lock::ForUpdate).await? {
        Some(known) => edit_unless_current(db, desired, known).await,
        None => Err(unreadable("the row of a resource vanished while it was applied")),
    }
}

async fn edit_unless_current(
    db: &mut PgConnection,
    desired: &Desired<'_>,
    known: Known,
) -> Result<Applied, sqlx::Error> {
    if known.is_current(desired) {
        return Ok(Applied::Stored(Box::new(known.alarm)));
    }
    edit(db, desired, &known.alarm).await
}

/// What a plan makes of a row; `None`: it cannot be, there is no instant ahead.
fn planned(plan: &Plan, now: DateTime<Utc>) -> Option<Replan> {
    match plan {
        Plan::At(slot) => Some(Replan::armed(*slot)),
        Plan::Missed { due } => Some(Replan {
            status: Status::Failed,
            slot: Slot { scheduled_for: *due, offset: TimeDelta::zero() },
            last_error: missed_error(*due, now),
            passed: None,
        }),
        Plan::Never => None,
    }
}

/// `None`: somebody else inserted it meanwhile.
async fn insert(db: &mut PgConnection, desired: &Desired<'_>) -> Result<Option<Applied>, sqlx::Error> {
    let Desired { identity, definition, .. } = desired;
    let id = AlarmId::from_uuid(Uuid::now_v7());
    let now = clock(db).await?;
    let plan = definition.timing.plan(id, now, desired.created_at);
    let Some(planned) = planned(&plan, now) else { return Ok(Some(Applied::NeverFires)) };
    // The same name under another uid is a resource that was deleted and made anew: the old one must stay silent.
    let predecessors: Vec<Uuid> = sqlx::query_scalar(
        "SELECT id FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_namespace = $2
         AND resource_name = $3 AND resource_uid <> $4 AND status IN ('active', 'paused') FOR UPDATE",
    )
    .bind(identity.cluster.as_uuid())
    .bind(&identity.namespace)
    .bind(&identity.name)
    .bind(identity.uid.as_uuid())
    .fetch_all(&mut *db)
    .await?;
    for id in predecessors {
        cancel(db, AlarmId::from_uuid(id), "resource").await?;
    }
    let statement = concat!(include_str!("sql/insert_resource.sql"), columns!());
    let inserted: Option<Alarm> = bind_definition(sqlx::query_as(statement), definition)
        .bind(id.as_uuid())
        .bind(desired.owner.as_str())
        .bind(desired.owner.user_id())
        .bind(planned.status.as_str())
        .bind(planned.slot.scheduled_for)
        .bind(interval(planned.slot.offset))
        .bind(&planned.last_error)
        .bind(i64::from(planned.status == Status::Failed))
        .bind(identity.cluster.as_uuid())
        .bind(identity.uid.as_uuid())
        .bind(&identity.namespace)
        .bind(&identity.name)
        .bind(desired.generation)
        .bind(desired.hash.as_slice())
        .bind(desired.created_at)
        .fetch_optional(&mut *db)
        .await?;
    let Some(alarm) = inserted else { return Ok(None) };
    record_if_missed(db, &alarm, Some(&plan)).await?;
    Ok(Some(Applied::Stored(Box::new(alarm))))
}

/// An edit of the schedule re-plans: a new epoch fences whatever is in flight, and the next instant lies ahead. Any other
/// edit leaves the occurrence alone, claim included.
async fn edit(db: &mut PgConnection, desired: &Desired<'_>, stored: &Alarm) -> Result<Applied, sqlx::Error> {
    let definition = desired.definition;
    let now = clock(db).await?;
    // A row that cannot be read has no schedule to keep.
    let same = stored.when.timing().is_ok_and(|timing| timing.is_same_schedule(&definition.timing));
    let plan = (!same).then(|| definition.timing.replan(stored.id, stored.status, now)).flatten();
    let replan = match &plan {
        None => None,
        Some(plan) => match planned(plan, now) {
            None => return Ok(Applied::NeverFires),
            Some(replan) => Some(Replan { passed: stored.forgone(now), ..replan }),
        },
    };
    let resource = Some((desired.generation, desired.hash));
    let alarm = write_definition(db, stored, definition, replan.as_ref(), resource).await?;
    record_if_missed(db, &alarm, plan.as_ref()).await?;
    Ok(Applied::Stored(Box::new(alarm)))
}

async fn record_if_missed(db: &mut PgConnection, alarm: &Alarm, plan: Option<&Plan>) -> Result<(), sqlx::Error> {
    match plan {
        Some(Plan::Missed { due }) => {
            attempts::record_passed(db, alarm, &Passed::at_birth(*due), &alarm.last_error).await
        }
        Some(Plan::At(_) | Plan::Never) | None => Ok(()),
    }
}
