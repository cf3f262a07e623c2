//! What an owner does to an alarm. Each verb is one transaction: lock the row, let the domain decide, write. A dispatcher
//! that wants the row meanwhile passes over it; one that has it finds out when it settles.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

use super::{Alarm, May, Resource, bind_definition, columns, quota};
use crate::{
    domain::{
        access::Did,
        alarm::{
            Cause, Changes, Defaults, Definition, Plan, Slot, Status,
            lifecycle::{self, NotFired, NotRearmed, Over, Resumed, Standing},
        },
        ids::AlarmId,
        invalid::Invalid,
        occurrence::Passed,
        quota::{Exceeded, Quotas},
        schedule::Schedule,
    },
    mutants::{self, Mutant},
    store::{Result, Store, attempts, interval::interval},
};

/// What became of a request to cancel.
#[derive(Debug)]
pub enum Cancelled {
    /// No such alarm of this owner.
    Unknown,
    /// A resource manages it, and only the resource may.
    Managed(Resource),
    /// It is over now, or was before. `in_flight`: a claim existed, so its wake may still arrive.
    Over { alarm: Box<Alarm>, in_flight: bool },
}

/// What became of a request to change an alarm, which may be refused with an `R`.
#[derive(Debug)]
pub enum Edited<R> {
    /// No such alarm of this owner.
    Unknown,
    /// A resource manages it, and only the resource may.
    Managed(Resource),
    /// The row cannot be read, for this reason.
    Unreadable(String),
    Refused(R),
    /// It is more than the owner may have.
    OverQuota(Exceeded),
    /// The owner is not let in any more.
    Barred,
    /// It was so already; nothing was written.
    Unchanged(Box<Alarm>),
    Done(Box<Alarm>),
}

impl<R> Edited<R> {
    /// The alarm as it is now, if anything was written.
    pub fn done(self) -> Option<Alarm> {
        match self {
            Self::Done(alarm) => Some(*alarm),
            Self::Unknown
            | Self::Managed(_)
            | Self::Unreadable(_)
            | Self::Refused(_)
            | Self::OverQuota(_)
            | Self::Barred
            | Self::Unchanged(_) => None,
        }
    }
}

/// What an owner wants different.
#[derive(Debug)]
pub struct Patch<'a> {
    pub changes: &'a Changes,
    /// Only if the alarm is still at this revision.
    pub revision: Option<i64>,
    /// What `max_failures` goes back to.
    pub max_failures: u32,
    /// What the owner may have.
    pub quotas: Quotas,
    /// How far back a new instant may lie.
    pub leniency: chrono::TimeDelta,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NotPatched {
    Over(Status),
    /// Somebody else was faster; this is the revision now.
    Stale {
        revision: i64,
    },
    Invalid(Vec<Invalid>),
    /// The new instant has passed.
    Past {
        due: DateTime<Utc>,
        now: DateTime<Utc>,
    },
    /// The new schedule has no instant ahead.
    NeverFires,
}

impl Store {
    /// Cancels an alarm that may still fire; leaves one that is over as it is.
    pub async fn cancel_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Cancelled> {
        self.ask("cancelling an alarm", async |db| {
            let mut transaction = db.begin().await?;
            let Some(alarm) = lock(&mut transaction, owner, id).await? else { return Ok(Cancelled::Unknown) };
            if let Some(resource) = alarm.resource() {
                return Ok(Cancelled::Managed(resource));
            }
            if !alarm.status.is_living() {
                return Ok(Cancelled::Over { alarm: Box::new(alarm), in_flight: false });
            }
            let in_flight = alarm.in_flight;
            let alarm = Box::new(cancel(&mut transaction, id, "owner").await?);
            transaction.commit().await?;
            Ok(Cancelled::Over { alarm, in_flight })
        })
        .await
    }

    /// Changes what defines an alarm. Another schedule re-plans it from now; anything else leaves the occurrence alone,
    /// claim included.
    pub async fn patch_if_owned(&self, owner: &Did, id: AlarmId, patch: &Patch<'_>) -> Result<Edited<NotPatched>> {
        self.edit("patching an alarm", owner, id, async |db, alarm, now| patched(db, alarm, patch, now).await).await
    }

    /// Keeps an alarm from firing until it is resumed. What is in flight arrives, and counts.
    pub async fn pause_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Edited<Over>> {
        self.edit("pausing an alarm", owner, id, async |db, alarm, _| paused(db, alarm, Cause::Owner).await).await
    }

    /// Lifts the owner's pause.
    pub async fn resume_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Edited<Over>> {
        self.edit("resuming an alarm", owner, id, async |db, alarm, now| resumed(db, alarm, Cause::Owner, now).await)
            .await
    }

    /// Makes an alarm due now, beside its schedule.
    pub async fn fire_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Edited<NotFired>> {
        self.edit("firing an alarm", owner, id, async |db, alarm, now| fired(db, alarm, now, None).await).await
    }

    /// Arms an alarm that is over, at its own next instant or at the one given.
    pub async fn rearm_if_owned(
        &self,
        owner: &Did,
        id: AlarmId,
        instant: Option<DateTime<Utc>>,
        leniency: chrono::TimeDelta,
        may: &May,
    ) -> Result<Edited<NotRearmed>> {
        let quotas = &may.quotas;
        self.edit_within("re-arming an alarm", owner, id, Some(may), async |db, alarm, now| {
            if !alarm.status.is_living()
                && let Err(exceeded) = quota::admit_one_more(db, owner, quotas).await?
            {
                return Ok(Edited::OverQuota(exceeded));
            }
            if let Some(exceeded) = too_fast(&alarm, quotas, now) {
                return Ok(Edited::OverQuota(exceeded));
            }
            rearmed(db, alarm, instant, now, leniency).await
        })
        .await
    }

    /// One transaction around one verb. It commits what was done, and nothing else was written.
    async fn edit<R>(
        &self,
        doing: &'static str,
        owner: &Did,
        id: AlarmId,
        verb: impl AsyncFnOnce(&mut PgConnection, Alarm, DateTime<Utc>) -> Result<Edited<R>, sqlx::Error>,
    ) -> Result<Edited<R>> {
        self.edit_within(doing, owner, id, None, verb).await
    }

    /// The same for a verb that may add to the owner's living alarms, if the owner may.
    async fn edit_within<R>(
        &self,
        doing: &'static str,
        owner: &Did,
        id: AlarmId,
        may: Option<&May>,
        verb: impl AsyncFnOnce(&mut PgConnection, Alarm, DateTime<Utc>) -> Result<Edited<R>, sqlx::Error>,
    ) -> Result<Edited<R>> {
        self.ask(doing, async |db| {
            let mut transaction = db.begin().await?;
            if let Some(may) = may
                && !quota::admit(&mut transaction, owner, may).await?
            {
                return Ok(Edited::Barred);
            }
            let Some(alarm) = lock(&mut transaction, owner, id).await? else { return Ok(Edited::Unknown) };
            if let Some(resource) = alarm.resource() {
                return Ok(Edited::Managed(resource));
            }
            let now = clock(&mut transaction).await?;
            let edited = verb(&mut transaction, alarm, now).await?;
            if let Edited::Done(alarm) = &edited {
                transaction.commit().await?;
                self.hint(db, alarm).await;
            }
            Ok(edited)
        })
        .await
    }
}

async fn lock(db: &mut PgConnection, owner: &Did, id: AlarmId) -> Result<Option<Alarm>, sqlx::Error> {
    let statement = concat!(
        "SELECT ",
        columns!(),
        " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent' FOR UPDATE"
    );
    sqlx::query_as(mutants::changed(Mutant::OwnerIgnored, statement, &[mutants::ANYBODY]))
        .bind(id.as_uuid())
        .bind(owner.as_str())
        .fetch_optional(db)
        .await
}

/// Whether the alarm's series is faster than its owner may have, and how.
pub(super) fn too_fast(alarm: &Alarm, quotas: &Quotas, now: DateTime<Utc>) -> Option<Exceeded> {
    let timing = alarm.when.timing().ok()?;
    quotas.admit_schedule(&timing.schedule, now).err()
}

/// The time at which the lock was had. `now()` would be when the transaction began, which may have waited for the lock
/// past a slot.
pub(in crate::store) async fn clock(db: &mut PgConnection) -> Result<DateTime<Utc>, sqlx::Error> {
    sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(db).await
}

/// The one way an alarm is cancelled. The caller holds the row's lock and has seen that it is living. The claim goes with
/// it, which fences the answer of a wake in flight.
pub(in crate::store) async fn cancel(
    db: &mut PgConnection,
    id: AlarmId,
    by: &'static str,
) -> Result<Alarm, sqlx::Error> {
    sqlx::query_as(concat!(
        "UPDATE alarms SET status = 'cancelled', cancelled_by = $2, paused_by = '{}', \
         claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, \
         first_claimed_at = NULL, \
         revision = revision + 1, updated_at = now() \
         WHERE id = $1 AND status IN ('active', 'paused') RETURNING ",
        columns!()
    ))
    .bind(id.as_uuid())
    .bind(by)
    .fetch_one(db)
    .await
}

async fn patched(
    db: &mut PgConnection,
    alarm: Alarm,
    patch: &Patch<'_>,
    now: DateTime<Utc>,
) -> Result<Edited<NotPatched>, sqlx::Error> {
    if !alarm.status.is_living() {
        return Ok(Edited::Refused(NotPatched::Over(alarm.status)));
    }
    if patch.revision.is_some_and(|revision| revision != alarm.revision) {
        return Ok(Edited::Refused(NotPatched::Stale { revision: alarm.revision }));
    }
    let before = match alarm.definition() {
        Ok(definition) => definition,
        Err(why) => return Ok(Edited::Unreadable(why)),
    };
    let defaults = Defaults { born_at: alarm.when.created_at, delays_from: now, max_failures: patch.max_failures };
    let definition = match patch.changes.clone().onto(&before).define(defaults) {
        Ok(definition) => definition,
        Err(invalid) => return Ok(Edited::Refused(NotPatched::Invalid(invalid))),
    };
    if definition == before {
        return Ok(Edited::Unchanged(Box::new(alarm)));
    }
    let replan = if definition.timing.is_same_schedule(&before.timing) {
        None
    } else {
        if let Err(exceeded) = patch.quotas.admit_schedule(&definition.timing.schedule, now) {
            return Ok(Edited::OverQuota(exceeded));
        }
        match definition.timing.plan(alarm.id, now, now - patch.leniency) {
            Plan::At(slot) => Some(Replan { passed: alarm.forgone(now), ..Replan::armed(slot) }),
            Plan::Missed { due } => return Ok(Edited::Refused(NotPatched::Past { due, now })),
            Plan::Never => return Ok(Edited::Refused(NotPatched::NeverFires)),
        }
    };
    let alarm = write_definition(db, &alarm, &definition, replan.as_ref(), None).await?;
    Ok(Edited::Done(Box::new(alarm)))
}

/// Where an alarm begins anew after an edit of its schedule.
pub(in crate::store) struct Replan {
    pub status: Status,
    pub slot: Slot,
    pub last_error: String,
    /// What it gives up.
    pub passed: Vec<Passed>,
}

impl Replan {
    pub const fn armed(slot: Slot) -> Self {
        Self { status: Status::Active, slot, last_error: String::new(), passed: Vec::new() }
    }
}

/// Writes another definition over that of an alarm whose lock the caller holds, and what it gives up into its history, under
/// the epoch that ends. `resource`: generation and hash of the resource it comes from.
pub(in crate::store) async fn write_definition(
    db: &mut PgConnection,
    stored: &Alarm,
    definition: &Definition,
    replan: Option<&Replan>,
    resource: Option<(i64, &[u8; 32])>,
) -> Result<Alarm, sqlx::Error> {
    let passed = replan.map_or(&[][..], |replan| &replan.passed);
    for passed in passed {
        attempts::record_passed(db, stored, passed, "").await?;
    }
    let missed = slots(passed.iter().filter(|passed| passed.counts()))
        + replan.map_or(0, |replan| i64::from(replan.status == Status::Failed));
    let statement = concat!(include_str!("../sql/edit_alarm.sql"), columns!());
    bind_definition(sqlx::query_as(statement), definition)
        .bind(stored.id.as_uuid())
        .bind(replan.map(|replan| replan.status.as_str()))
        .bind(replan.map(|replan| replan.slot.scheduled_for))
        .bind(replan.map(|replan| interval(replan.slot.offset)))
        .bind(replan.map(|replan| replan.last_error.as_str()))
        .bind(missed)
        .bind(resource.map(|(generation, _)| generation))
        .bind(resource.map(|(_, hash)| hash.as_slice()))
        .fetch_one(db)
        .await
}

pub(in crate::store) async fn paused(
    db: &mut PgConnection,
    alarm: Alarm,
    cause: Cause,
) -> Result<Edited<Over>, sqlx::Error> {
    match lifecycle::pause(alarm.status, &alarm.paused_by(), cause) {
        Err(over) => Ok(Edited::Refused(over)),
        Ok(None) => Ok(Edited::Unchanged(Box::new(alarm))),
        Ok(Some(causes)) => write_pause(db, alarm.id, &causes).await,
    }
}

async fn write_pause<R>(db: &mut PgConnection, id: AlarmId, causes: &[Cause]) -> Result<Edited<R>, sqlx::Error> {
    let words: Vec<&str> = causes.iter().map(|cause| cause.as_str()).collect();
    let alarm = sqlx::query_as(concat!(
        "UPDATE alarms SET status = 'paused', paused_by = $2, revision = revision + 1, updated_at = now() \
         WHERE id = $1 RETURNING ",
        columns!()
    ))
    .bind(id.as_uuid())
    .bind(words)
    .fetch_one(db)
    .await?;
    Ok(Edited::Done(Box::new(alarm)))
}

/// What a resumption writes. What is not said stays.
struct Resumption {
    status: Status,
    slot: Option<DateTime<Utc>>,
    next_fire_at: Option<DateTime<Utc>>,
    series_at: Option<DateTime<Utc>>,
    error: Option<String>,
    passed: Option<Passed>,
}

fn slots<'a>(passed: impl IntoIterator<Item = &'a Passed>) -> i64 {
    passed.into_iter().map(|passed| i64::try_from(passed.run.slots).unwrap_or(i64::MAX)).sum()
}

pub(in crate::store) async fn resumed(
    db: &mut PgConnection,
    alarm: Alarm,
    cause: Cause,
    now: DateTime<Utc>,
) -> Result<Edited<Over>, sqlx::Error> {
    let timing = match alarm.when.timing() {
        Ok(timing) => timing,
        Err(why) => return Ok(Edited::Unreadable(why)),
    };
    let causes = alarm.paused_by();
    let in_flight = alarm.in_flight && !is_orphaned(db, alarm.id).await?;
    let standing = Standing { in_flight, ..alarm.standing(&timing, &causes) };
    let resumed = match lifecycle::resume(&standing, cause, now) {
        Ok(resumed) => resumed,
        Err(over) => return Ok(Edited::Refused(over)),
    };
    let mut write = Resumption {
        status: Status::Active,
        slot: None,
        next_fire_at: None,
        series_at: None,
        error: None,
        passed: None,
    };
    match resumed {
        Resumed::Unchanged => return Ok(Edited::Unchanged(Box::new(alarm))),
        Resumed::StillPaused(causes) => return write_pause(db, alarm.id, &causes).await,
        Resumed::AsItStands => {}
        Resumed::OnItsLadder { passed } => (write.series_at, write.passed) = (Some(passed.run.last), Some(passed)),
        Resumed::AtOnce => write.next_fire_at = Some(now),
        Resumed::At { slot, passed } => {
            (write.slot, write.next_fire_at) = (Some(slot.scheduled_for), Some(slot.effective_at()));
            write.passed = Some(passed);
        }
        Resumed::Over { status, why, passed } => {
            (write.status, write.error, write.passed) = (status, Some(why), Some(passed));
        }
    }
    let resumed: Alarm = sqlx::query_as(concat!(include_str!("../sql/resume_alarm.sql"), columns!()))
        .bind(alarm.id.as_uuid())
        .bind(write.status.as_str())
        .bind(write.slot)
        .bind(write.next_fire_at)
        .bind(&write.error)
        .bind(slots(&write.passed))
        .bind(write.series_at)
        .bind(in_flight && write.status.is_living())
        .fetch_one(&mut *db)
        .await?;
    if let Some(passed) = write.passed {
        attempts::record_passed(db, &alarm, &passed, write.error.as_deref().unwrap_or_default()).await?;
    }
    Ok(Edited::Done(Box::new(resumed)))
}

/// Whether the dispatcher that has the claim was found dead while the alarm was paused: what is paused keeps its claim then, and nobody would
/// take it over any more.
async fn is_orphaned(db: &mut PgConnection, id: AlarmId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT NOT EXISTS (SELECT FROM dispatchers WHERE worker = claimed_by) FROM alarms WHERE id = $1",
    )
    .bind(id.as_uuid())
    .fetch_one(db)
    .await
}

/// `request`: the token of a resource that asks for it, written by the statement that arms.
pub(in crate::store) async fn fired(
    db: &mut PgConnection,
    alarm: Alarm,
    now: DateTime<Utc>,
    request: Option<&str>,
) -> Result<Edited<NotFired>, sqlx::Error> {
    let timing = match alarm.when.timing() {
        Ok(timing) => timing,
        Err(why) => return Ok(Edited::Unreadable(why)),
    };
    let series_at = match lifecycle::fire(&alarm.standing(&timing, &[]), now) {
        Ok(series_at) => series_at,
        Err(refused) => return Ok(Edited::Refused(refused)),
    };
    let alarm = sqlx::query_as(concat!(
        "UPDATE alarms SET scheduled_for = $2, next_fire_at = $2, series_at = $3, \
         claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, \
         first_claimed_at = NULL, fire_requested = coalesce($4, fire_requested), \
         fires_spent = CASE WHEN $4 IS NULL OR fire_requested IS NULL THEN fires_spent \
                       ELSE (array_prepend(fire_requested, fires_spent))[1:16] END, \
         revision = revision + 1, updated_at = now() \
         WHERE id = $1 RETURNING ",
        columns!()
    ))
    .bind(alarm.id.as_uuid())
    .bind(now)
    .bind(series_at)
    .bind(request)
    .fetch_one(db)
    .await?;
    Ok(Edited::Done(Box::new(alarm)))
}

pub(super) async fn rearmed(
    db: &mut PgConnection,
    alarm: Alarm,
    instant: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    leniency: chrono::TimeDelta,
) -> Result<Edited<NotRearmed>, sqlx::Error> {
    let timing = match alarm.when.timing() {
        Ok(timing) => timing,
        Err(why) => return Ok(Edited::Unreadable(why)),
    };
    let slot = match lifecycle::rearm(&alarm.standing(&timing, &[]), instant, now, now - leniency) {
        Ok(slot) => slot,
        Err(refused) => return Ok(Edited::Refused(refused)),
    };
    let fire_at = match timing.schedule {
        Schedule::Once { .. } => Some(slot.scheduled_for),
        Schedule::Cron(_) => None,
    };
    let alarm = sqlx::query_as(concat!(include_str!("../sql/rearm_alarm.sql"), columns!()))
        .bind(alarm.id.as_uuid())
        .bind(slot.scheduled_for)
        .bind(interval(slot.offset))
        .bind(fire_at)
        .fetch_one(db)
        .await?;
    Ok(Edited::Done(Box::new(alarm)))
}
