//! `PUT`: the owner's key stands for an alarm that is defined like this, from now on. One transaction: find and lock, let the
//! domain decide, write.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, PgConnection};

use super::{
    Alarm, May, Request, Resource, columns,
    create::insert,
    edit::{Replan, clock, resumed, write_definition},
    quota,
};
use crate::{
    domain::{
        access::Did,
        alarm::{Cause, Defaults, Definition, Draft, Plan, Slot, Status},
        ids::AlarmId,
        invalid::Invalid,
        quota::Exceeded,
    },
    store::{Result, Store, unreadable},
};

/// What an owner wants the key to stand for.
#[derive(Debug)]
pub struct Placement<'a> {
    /// The alarm's, if there is none under the key yet.
    pub id: AlarmId,
    pub owner: &'a Did,
    pub idempotency_key: &'a str,
    pub draft: &'a Draft,
    /// `None`: that of the alarm which is there, or the next one here for a new alarm.
    pub correlation_id: Option<&'a str>,
    pub new_correlation_id: &'a str,
    /// What a draft that says nothing gets.
    pub max_failures: u32,
    pub may: May,
    /// How far back an instant may lie.
    pub leniency: TimeDelta,
}

/// What became of it.
#[derive(Debug)]
pub enum Placed {
    Created(Box<Alarm>),
    Changed(Box<Alarm>),
    /// It stood so already, and is active.
    Unchanged(Box<Alarm>),
    /// A resource manages it, and only the resource may.
    Managed(Resource),
    Refused(NotPlaced),
    /// The owner is not let in any more.
    Barred,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NotPlaced {
    Invalid(Vec<Invalid>),
    /// The instant has passed.
    Past {
        due: DateTime<Utc>,
        now: DateTime<Utc>,
    },
    /// The schedule has no instant ahead.
    NeverFires,
    OverQuota(Exceeded),
}

impl From<Vec<Invalid>> for NotPlaced {
    fn from(invalid: Vec<Invalid>) -> Self {
        Self::Invalid(invalid)
    }
}

impl Store {
    /// Creates the alarm, or makes the one that the owner's key stands for what it should be.
    pub async fn put_by_key(&self, placement: &Placement<'_>) -> Result<Placed> {
        self.ask("putting an alarm by its key", async |db| {
            // Somebody else may create it between our look and our insert: then it is there when we look again.
            for _ in 0..3 {
                let mut transaction = db.begin().await?;
                if !quota::admit(&mut transaction, placement.owner, &placement.may).await? {
                    return Ok(Placed::Barred);
                }
                let stored = lock_by_key(&mut transaction, placement.owner, placement.idempotency_key).await?;
                let now = clock(&mut transaction).await?;
                let placed = match stored {
                    None => created(&mut transaction, placement, now).await?,
                    Some(alarm) => Some(replaced(&mut transaction, placement, alarm, now).await?),
                };
                let Some(placed) = placed else { continue };
                if let Placed::Created(alarm) | Placed::Changed(alarm) = &placed {
                    transaction.commit().await?;
                    self.hint(db, alarm).await;
                }
                return Ok(placed);
            }
            Err(unreadable("the alarm that holds an idempotency key keeps vanishing"))
        })
        .await
    }
}

async fn lock_by_key(db: &mut PgConnection, owner: &Did, key: &str) -> Result<Option<Alarm>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        columns!(),
        " FROM alarms WHERE owner_did = $1 AND idempotency_key = $2 AND idempotency_key <> '' FOR UPDATE"
    ))
    .bind(owner.as_str())
    .bind(key)
    .fetch_optional(db)
    .await
}

/// `None`: somebody else was faster.
async fn created(
    db: &mut PgConnection,
    placement: &Placement<'_>,
    now: DateTime<Utc>,
) -> Result<Option<Placed>, sqlx::Error> {
    let defined = define(placement, now, now).and_then(|definition| {
        placement.may.quotas.admit_schedule(&definition.timing.schedule, now).map_err(NotPlaced::OverQuota)?;
        let first = slot(&definition, placement.id, now, now - placement.leniency)?;
        Ok((definition, first))
    });
    let (definition, first) = match defined {
        Ok(defined) => defined,
        Err(refused) => return Ok(Some(Placed::Refused(refused))),
    };
    if let Err(exceeded) = quota::admit_one_more(db, placement.owner, &placement.may.quotas).await? {
        return Ok(Some(Placed::Refused(NotPlaced::OverQuota(exceeded))));
    }
    let request = Request {
        id: placement.id,
        owner: placement.owner,
        definition: &definition,
        first,
        born_at: now,
        idempotency_key: placement.idempotency_key,
        correlation_id: placement.correlation_id.unwrap_or(placement.new_correlation_id),
        may: placement.may,
    };
    let inserted = insert(db, &request).await?;
    Ok(inserted.map(|alarm| Placed::Created(Box::new(alarm))))
}

/// An equal definition on an active alarm changes nothing. With the same schedule a living alarm keeps its occurrence, a wake under way and
/// its place on the ladder; if its owner had paused it, it goes on as after a resume. Everything else begins anew from now.
async fn replaced(
    db: &mut PgConnection,
    placement: &Placement<'_>,
    alarm: Alarm,
    now: DateTime<Utc>,
) -> Result<Placed, sqlx::Error> {
    if let Some(resource) = alarm.resource() {
        return Ok(Placed::Managed(resource));
    }
    // An `@every` goes on counting from the alarm's birth.
    let definition = match define(placement, alarm.when.created_at, now) {
        Ok(definition) => definition,
        Err(refused) => return Ok(Placed::Refused(refused)),
    };
    // A row that cannot be read is like no other: it is replaced.
    let before = alarm.definition().ok();
    let is_equal = before.as_ref() == Some(&definition);
    let other_correlation = placement.correlation_id.is_some_and(|id| id != alarm.correlation_id);
    if is_equal && alarm.status == Status::Active && !other_correlation {
        return Ok(Placed::Unchanged(Box::new(alarm)));
    }
    let same_schedule = before.is_some_and(|before| definition.timing.is_same_schedule(&before.timing));
    let replan = if same_schedule && alarm.status.is_living() {
        None
    } else {
        // What is over for this very instant must not fire for it again.
        let accepted_from = if same_schedule { now } else { now - placement.leniency };
        let admitted =
            placement.may.quotas.admit_schedule(&definition.timing.schedule, now).map_err(NotPlaced::OverQuota);
        match admitted.and_then(|()| slot(&definition, alarm.id, now, accepted_from)) {
            Ok(slot) => Some(Replan { passed: alarm.forgone(now), ..Replan::armed(slot) }),
            Err(refused) => return Ok(Placed::Refused(refused)),
        }
    };
    if !alarm.status.is_living()
        && let Err(exceeded) = quota::admit_one_more(db, placement.owner, &placement.may.quotas).await?
    {
        return Ok(Placed::Refused(NotPlaced::OverQuota(exceeded)));
    }
    correlate(db, alarm.id, placement.correlation_id).await?;
    let alarm = if replan.is_some() {
        rouse(db, alarm.id).await?;
        alarm
    } else {
        // Decided by the schedule as it is, which stays.
        resumed(db, alarm.clone(), Cause::Owner, now).await?.done().unwrap_or(alarm)
    };
    let alarm = write_definition(db, &alarm, &definition, replan.as_ref(), None).await?;
    Ok(Placed::Changed(Box::new(alarm)))
}

async fn correlate(db: &mut PgConnection, id: AlarmId, correlation_id: Option<&str>) -> Result<(), sqlx::Error> {
    let Some(correlation_id) = correlation_id else { return Ok(()) };
    sqlx::query("UPDATE alarms SET correlation_id = $2 WHERE id = $1")
        .bind(id.as_uuid())
        .bind(correlation_id)
        .execute(db)
        .await
        .map(|_| ())
}

/// Over or paused by its owner no more. A pause that others have ordered stays.
async fn rouse(db: &mut PgConnection, id: AlarmId) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE alarms
         SET cancelled_by = NULL,
             paused_by = array_remove(paused_by, 'owner'),
             status = CASE WHEN array_remove(paused_by, 'owner') = '{}' THEN 'active' ELSE 'paused' END
         WHERE id = $1",
    )
    .bind(id.as_uuid())
    .execute(db)
    .await
    .map(|_| ())
}

fn define(
    placement: &Placement<'_>,
    born_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> std::result::Result<Definition, NotPlaced> {
    let defaults = Defaults { born_at, delays_from: now, max_failures: placement.max_failures };
    Ok(placement.draft.clone().define(defaults)?)
}

fn slot(
    definition: &Definition,
    id: AlarmId,
    now: DateTime<Utc>,
    accepted_from: DateTime<Utc>,
) -> std::result::Result<Slot, NotPlaced> {
    match definition.timing.plan(id, now, accepted_from) {
        Plan::At(slot) => Ok(slot),
        Plan::Missed { due } => Err(NotPlaced::Past { due, now }),
        Plan::Never => Err(NotPlaced::NeverFires),
    }
}
