//! The row becomes what the resource says. One transaction, under the row's lock: the definition, the pause, the wake that is asked for.
//!
//! Order of locks, as everywhere: the owner's count, the agent's row, the resource's name, the alarm.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Applied, Desired, Known, Lock, find, known};
use crate::{
    domain::{
        alarm::{Cause, Plan, Slot, Status, lifecycle::NotFired},
        ids::AlarmId,
        occurrence::{Passed, missed_error},
        quota::{Exceeded, Quotas},
        resource::Comparison,
    },
    store::{
        agents::{self, Agent},
        alarms::{
            Alarm, Edited, Replan, bind_definition, cancel, clock, columns, fired, paused, quota, resumed,
            write_definition,
        },
        attempts, clusters,
        interval::interval,
        unreadable,
    },
};

pub(super) enum Written {
    Done {
        known: Box<Known>,
        not_fired: Option<NotFired>,
    },
    Not(Applied),
    /// The agent was given a limit between two looks at it, and its count is not held: once more.
    Again,
}

/// Inserts or edits. Two controllers that see a new resource at once both try to insert; the second finds the first's row.
/// `quotas` are those the agent had a moment ago; under the lock they are read again.
pub(super) async fn write(
    db: &mut PgConnection,
    desired: &Desired<'_>,
    quotas: &Quotas,
) -> Result<Written, sqlx::Error> {
    quota::hold_count(db, desired.owner, quotas).await?;
    let agent = match agents::share(db, desired.owner).await? {
        Some(agent) if quotas.max_active_alarms.is_none() && agent.quotas.max_active_alarms.is_some() => {
            return Ok(Written::Again);
        }
        Some(agent) if agent.may_own(desired.identity) => agent,
        other => return Ok(Written::Not(Applied::NotOwned(other.map(|agent| agent.holder)))),
    };
    let mut known = find(db, desired.identity, Lock::ForUpdate).await?;
    if known.is_none() {
        // Whoever hands alarms over from another cluster has finished with this name, or not begun.
        let identity = desired.identity;
        clusters::lock_names(db, identity.cluster, [(identity.namespace.as_str(), identity.name.as_str())]).await?;
        known = take_over(db, desired).await?;
    }
    if let Some(known) = known {
        return follow(db, desired, &agent, known).await;
    }
    match insert(db, desired, &agent).await? {
        Inserted::Done(known) => Ok(Written::Done { known, not_fired: None }),
        Inserted::Not(applied) => Ok(Written::Not(applied)),
        Inserted::ByOthers => match find(db, desired.identity, Lock::ForUpdate).await? {
            Some(known) => follow(db, desired, &agent, known).await,
            None => Err(unreadable("the row of a resource vanished while it was applied")),
        },
    }
}

/// The row that was handed over from another cluster under this owner, namespace and name. From now on it is this resource's.
async fn take_over(db: &mut PgConnection, desired: &Desired<'_>) -> Result<Option<Known>, sqlx::Error> {
    let identity = desired.identity;
    sqlx::query_as(concat!(
        "UPDATE alarms SET resource_uid = $5, created_at = $6, fire_requested = coalesce($7, fire_requested), \
         resource_generation = $8, adopted_at = NULL \
         WHERE id = (SELECT id FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_namespace = $2 \
                       AND resource_name = $3 AND owner_did = $4 AND adopted_at IS NOT NULL \
                     ORDER BY adopted_at DESC, id LIMIT 1 FOR UPDATE) \
           AND adopted_at IS NOT NULL \
         RETURNING ",
        known!()
    ))
    .bind(identity.cluster.as_uuid())
    .bind(&identity.namespace)
    .bind(&identity.name)
    .bind(desired.owner.as_str())
    .bind(identity.uid.as_uuid())
    .bind(desired.created_at)
    // As of any resource that is seen for the first time: what it asks for is old, and its generations are counted anew.
    .bind(desired.fire_requested)
    .bind(desired.generation)
    .fetch_optional(db)
    .await
}

/// What a plan makes of a row; `None`: it cannot be, there is no instant ahead.
fn planned(plan: &Plan, now: DateTime<Utc>) -> Option<Replan> {
    match plan {
        Plan::At(slot) => Some(Replan::armed(*slot)),
        Plan::Missed { due } => Some(Replan {
            status: Status::Failed,
            slot: Slot { scheduled_for: *due, offset: TimeDelta::zero() },
            last_error: missed_error(*due, now),
            passed: Vec::new(),
        }),
        Plan::Never => None,
    }
}

enum Inserted {
    Done(Box<Known>),
    Not(Applied),
    /// Somebody else inserted it meanwhile.
    ByOthers,
}

async fn insert(db: &mut PgConnection, desired: &Desired<'_>, agent: &Agent) -> Result<Inserted, sqlx::Error> {
    let Desired { identity, definition, .. } = desired;
    let id = AlarmId::from_uuid(Uuid::now_v7());
    let now = clock(db).await?;
    let plan = definition.timing.plan(id, now, desired.created_at);
    let Some(planned) = planned(&plan, now) else { return Ok(Inserted::Not(Applied::NeverFires)) };
    if !cancel_predecessors(db, desired).await? {
        return Ok(Inserted::Not(Applied::Superseded));
    }
    if planned.status.is_living()
        && let Err(exceeded) = admit(db, desired, agent, now, Adds::One).await?
    {
        return Ok(Inserted::Not(Applied::OverQuota(exceeded)));
    }
    let causes: Vec<&str> = if planned.status.is_living() {
        wanted_causes(desired, agent)
            .into_iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(cause, _)| cause.as_str())
            .collect()
    } else {
        vec![]
    };
    let status = if causes.is_empty() { planned.status } else { Status::Paused };
    let statement = concat!(include_str!("../sql/insert_resource.sql"), known!());
    let inserted: Option<Known> = bind_definition(sqlx::query_as(statement), definition)
        .bind(id.as_uuid())
        .bind(desired.owner.as_str())
        .bind(desired.owner.user_id())
        .bind(status.as_str())
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
        .bind(causes)
        .bind(desired.fire_requested)
        .fetch_optional(&mut *db)
        .await?;
    let Some(known) = inserted else { return Ok(Inserted::ByOthers) };
    record_if_missed(db, &known.alarm, Some(&plan)).await?;
    Ok(Inserted::Done(Box::new(known)))
}

/// The same name under another uid is a resource that was deleted and made anew: the old one must stay silent. `false`: it is ours that is
/// the old one, seen by a controller that slept.
async fn cancel_predecessors(db: &mut PgConnection, desired: &Desired<'_>) -> Result<bool, sqlx::Error> {
    let identity = desired.identity;
    let others: Vec<(Uuid, DateTime<Utc>)> = sqlx::query_as(
        "SELECT id, created_at FROM alarms WHERE source = 'kubernetes' AND cluster_id = $1 AND resource_namespace = $2
         AND resource_name = $3 AND resource_uid <> $4 AND status IN ('active', 'paused') ORDER BY id FOR UPDATE",
    )
    .bind(identity.cluster.as_uuid())
    .bind(&identity.namespace)
    .bind(&identity.name)
    .bind(identity.uid.as_uuid())
    .fetch_all(&mut *db)
    .await?;
    if others.iter().any(|(_, created_at)| *created_at > desired.created_at) {
        return Ok(false);
    }
    for (id, _) in others {
        cancel(db, AlarmId::from_uuid(id), "resource").await?;
    }
    Ok(true)
}

/// A row that is there follows its resource.
async fn follow(
    db: &mut PgConnection,
    desired: &Desired<'_>,
    agent: &Agent,
    mut known: Known,
) -> Result<Written, sqlx::Error> {
    match (known.compare(desired), desired.confirmed) {
        // Somebody else has done it meanwhile.
        (Comparison::Same, _) => return Ok(Written::Done { known: Box::new(known), not_fired: None }),
        (Comparison::Doubtful, None) => return Ok(Written::Not(Applied::Doubtful(known.doubt()))),
        // The row has moved on since: what was confirmed then may be old by now.
        (Comparison::Doubtful, Some(doubt)) if *doubt != known.doubt() => {
            return Ok(Written::Not(Applied::Doubtful(known.doubt())));
        }
        (Comparison::Doubtful, Some(_)) | (Comparison::Differs, _) => {}
    }
    let now = clock(db).await?;
    if known.definition_hash != desired.hash {
        match edit(db, desired, agent, &known, now).await? {
            Ok(alarm) => known.alarm = alarm,
            Err(applied) => return Ok(Written::Not(applied)),
        }
    }
    known.alarm = suspend_or_resume(db, known.alarm, wanted_causes(desired, agent), now).await?;
    let mut not_fired = None;
    // What was asked for and spent before is not asked for again.
    let asked = desired.fire_requested.filter(|_| known.version().is_new_request(&desired.version()));
    if asked.is_some() {
        (known.alarm, not_fired) = fire(db, known.alarm, asked, now).await?;
    }
    note(db, known.alarm.id, desired, asked).await?;
    known.definition_hash = desired.hash.to_vec();
    known.resource_generation = desired.generation;
    known.fire_requested = asked.map(str::to_owned).or(known.fire_requested);
    Ok(Written::Done { known: Box::new(known), not_fired })
}

/// What keeps an alarm from firing, and whether it does.
fn wanted_causes(desired: &Desired<'_>, agent: &Agent) -> [(Cause, bool); 2] {
    [(Cause::Spec, desired.suspended), (Cause::Agent, agent.suspended)]
}

/// Which version the row was made from, from now on.
async fn note(
    db: &mut PgConnection,
    id: AlarmId,
    desired: &Desired<'_>,
    asked: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE alarms
         SET resource_generation = $2, definition_hash = $3,
             fire_requested = coalesce($4, fire_requested),
             fires_spent = CASE WHEN fire_requested IS DISTINCT FROM $4 AND $4 IS NOT NULL AND fire_requested IS NOT NULL
                                THEN (array_prepend(fire_requested, fires_spent))[1:16] ELSE fires_spent END
         WHERE id = $1",
    )
    .bind(id.as_uuid())
    .bind(desired.generation)
    .bind(desired.hash.as_slice())
    .bind(asked)
    .execute(db)
    .await
    .map(|_| ())
}

/// An edit of the schedule re-plans: a new epoch fences whatever is in flight, and the next instant lies ahead. Any other
/// edit leaves the occurrence alone, claim included.
async fn edit(
    db: &mut PgConnection,
    desired: &Desired<'_>,
    agent: &Agent,
    known: &Known,
    now: DateTime<Utc>,
) -> Result<Result<Alarm, Applied>, sqlx::Error> {
    let (definition, stored) = (desired.definition, &known.alarm);
    // A row that cannot be read has no schedule to keep.
    let same = stored.when.timing().is_ok_and(|timing| timing.is_same_schedule(&definition.timing));
    let stays = same || (!stored.status.is_living() && !known.version().may_rearm(&desired.version()));
    let plan = (!stays).then(|| definition.timing.replan(stored.id, stored.status, now)).flatten();
    let replan = match &plan {
        None => None,
        Some(plan) => match planned(plan, now) {
            None => return Ok(Err(Applied::NeverFires)),
            Some(replan) => Some(Replan { passed: stored.forgone(now), ..replan }),
        },
    };
    if replan.as_ref().is_some_and(|replan| replan.status.is_living()) {
        let adds = if stored.status.is_living() { Adds::None } else { Adds::One };
        if let Err(exceeded) = admit(db, desired, agent, now, adds).await? {
            return Ok(Err(Applied::OverQuota(exceeded)));
        }
    }
    let resource = Some((desired.generation, desired.hash));
    let alarm = write_definition(db, stored, definition, replan.as_ref(), resource).await?;
    record_if_missed(db, &alarm, plan.as_ref()).await?;
    Ok(Ok(alarm))
}

/// How many more alarms an owner will have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Adds {
    None,
    One,
}

/// Whether the owner may have it. The caller holds the owner's count.
async fn admit(
    db: &mut PgConnection,
    desired: &Desired<'_>,
    agent: &Agent,
    now: DateTime<Utc>,
    adds: Adds,
) -> Result<Result<(), Exceeded>, sqlx::Error> {
    if let Err(exceeded) = agent.quotas.admit_schedule(&desired.definition.timing.schedule, now) {
        return Ok(Err(exceeded));
    }
    match adds {
        Adds::None => Ok(Ok(())),
        Adds::One => quota::admit_one_more(db, desired.owner, &agent.quotas).await,
    }
}

/// Each cause that is wanted pauses, each that is not lifts itself; what is over is left alone.
async fn suspend_or_resume(
    db: &mut PgConnection,
    mut alarm: Alarm,
    causes: [(Cause, bool); 2],
    now: DateTime<Utc>,
) -> Result<Alarm, sqlx::Error> {
    for (cause, wanted) in causes {
        let edited = if wanted {
            paused(db, alarm.clone(), cause).await?
        } else {
            resumed(db, alarm.clone(), cause, now).await?
        };
        alarm = edited.done().unwrap_or(alarm);
    }
    Ok(alarm)
}

/// A wake now, if there can be one. The request is spent in any case: an alarm that was paused for a week must not fire for it then.
async fn fire(
    db: &mut PgConnection,
    alarm: Alarm,
    request: Option<&str>,
    now: DateTime<Utc>,
) -> Result<(Alarm, Option<NotFired>), sqlx::Error> {
    match fired(db, alarm.clone(), now, request).await? {
        Edited::Done(alarm) => Ok((*alarm, None)),
        Edited::Refused(why) => Ok((alarm, Some(why))),
        Edited::Unknown
        | Edited::Managed(_)
        | Edited::Unreadable(_)
        | Edited::OverQuota(_)
        | Edited::Barred
        | Edited::Unchanged(_) => Ok((alarm, None)),
    }
}

async fn record_if_missed(db: &mut PgConnection, alarm: &Alarm, plan: Option<&Plan>) -> Result<(), sqlx::Error> {
    match plan {
        Some(Plan::Missed { due }) => {
            attempts::record_passed(db, alarm, &Passed::at_birth(*due), &alarm.last_error).await
        }
        Some(Plan::At(_) | Plan::Never) | None => Ok(()),
    }
}
