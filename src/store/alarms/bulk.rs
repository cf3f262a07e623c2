//! One verb for every alarm that a selector means, in one transaction.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::{
    Alarm, May, columns,
    edit::{cancel, clock, paused, rearmed, resumed, too_fast},
    list::requirements,
    quota,
};
use crate::{
    domain::{
        access::Did,
        alarm::{
            Cause, Status,
            lifecycle::{self, Resumed},
        },
        ids::AlarmId,
        labels::Selector,
        quota::Quotas,
    },
    store::{Result, Store},
};

/// What is done to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Cancel,
    Pause,
    Resume,
    Rearm,
}

impl Action {
    pub const ALL: &[Self] = &[Self::Cancel, Self::Pause, Self::Resume, Self::Rearm];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Rearm => "rearm",
        }
    }

    /// The statuses it can do something about.
    const fn fits(self) -> &'static [Status] {
        match self {
            Self::Cancel | Self::Pause => &[Status::Active, Status::Paused],
            Self::Resume => &[Status::Paused],
            Self::Rearm => &[Status::Fired, Status::Failed, Status::Cancelled],
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bulk {
    /// How many the selector means.
    pub matched: usize,
    /// How many are different now, or would be.
    pub changed: usize,
    /// How many were left as they are: managed by a resource, unfit for the action, so already, or beyond the owner's quota.
    pub skipped: usize,
    /// The changed ones, oldest first.
    pub ids: Vec<AlarmId>,
    /// More could be changed than one call handles: call again.
    pub truncated: bool,
}

/// The most alarms that one call changes: one or two statements each, well within the deadline of a transaction even where
/// the database is ten milliseconds away. A dispatcher that wants one of them passes over it for no longer than that.
pub const BULK_MOST: usize = 200;
/// How often one call looks for more where what it found could not be changed after all.
const MOST_LOOKS: usize = 10;

/// What the selector means, and the first of those that the action can change.
#[derive(FromRow)]
struct Selected {
    matched: i64,
    fitting: i64,
    ids: Vec<Uuid>,
}

impl Store {
    /// Does `action` to the owner's alarms that `selector` means and that are in one of `statuses` (none given: that the
    /// action fits). `dry_run` decides everything and writes nothing. `None`: the owner is
    /// not let in any more.
    pub async fn bulk_if_owned(
        &self,
        owner: &Did,
        action: Action,
        selector: &Selector,
        statuses: &[Status],
        dry_run: bool,
        may: &May,
    ) -> Result<Option<Bulk>> {
        let quotas = &may.quotas;
        let statuses = if statuses.is_empty() { action.fits() } else { statuses };
        let words: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
        let meant = Meant { owner, action, statuses: &words, requirements: requirements(selector) };
        self.ask("changing alarms in bulk", async |db| {
            let mut transaction = db.begin().await?;
            // Re-arming adds to what may wake the agent: not for one that was suspended or removed meanwhile.
            if action == Action::Rearm && !quota::admit(&mut transaction, owner, may).await? {
                return Ok(None);
            }
            let mut room = meant.room(&mut transaction, quotas).await?;
            let selected = meant.select(&mut transaction, None).await?;
            let (matched, fitting) = (count(selected.matched), count(selected.fitting));
            let (mut ids, mut handled, mut next) = (Vec::new(), 0, selected.ids);
            // Those that cannot be changed after all must not keep a call from reaching the others.
            for _ in 0..MOST_LOOKS {
                next.truncate(BULK_MOST - ids.len());
                let Some(last) = next.last().copied() else { break };
                let alarms = meant.read(&mut transaction, &next, dry_run).await?;
                let now = clock(&mut transaction).await?;
                for alarm in alarms {
                    if room == 0 {
                        break;
                    }
                    if action == Action::Rearm && too_fast(&alarm, quotas, now).is_some() {
                        continue;
                    }
                    let id = alarm.id;
                    let changes = if dry_run {
                        would(action, &alarm, now)
                    } else {
                        apply(&mut transaction, action, alarm, now).await?
                    };
                    if changes {
                        ids.push(id);
                        room -= 1;
                    }
                }
                handled += next.len();
                if ids.len() >= BULK_MOST || room == 0 {
                    break;
                }
                next = meant.select(&mut transaction, Some(last)).await?.ids;
            }
            let now = clock(&mut transaction).await?;
            transaction.commit().await?;
            if !dry_run && !ids.is_empty() {
                self.horizon.hint(db, now, now).await; // any of them may be due at once
            }
            // Where there is no room, calling again will not help.
            let (changed, left) = (ids.len(), if room == 0 { 0 } else { fitting.saturating_sub(handled) });
            let skipped = matched.saturating_sub(left + changed);
            Ok(Some(Bulk { matched, changed, skipped, ids, truncated: left > 0 }))
        })
        .await
    }
}

/// Which alarms, and what is to become of them.
struct Meant<'a> {
    owner: &'a Did,
    action: Action,
    statuses: &'a [&'static str],
    requirements: Option<String>,
}

impl Meant<'_> {
    async fn select(&self, db: &mut PgConnection, after: Option<Uuid>) -> Result<Selected, sqlx::Error> {
        sqlx::query_as(include_str!("../sql/select_for_bulk.sql"))
            .bind(self.owner.as_str())
            .bind(self.statuses)
            .bind(self.requirements.as_deref())
            .bind(self.action.as_str())
            .bind(i32::try_from(BULK_MOST).unwrap_or(i32::MAX))
            .bind(after)
            .persistent(false)
            .fetch_one(db)
            .await
    }

    /// How many may be changed: re-arming adds to the owner's living alarms, the other actions do not.
    async fn room(&self, db: &mut PgConnection, quotas: &Quotas) -> Result<u64, sqlx::Error> {
        match (self.action, quotas.max_active_alarms) {
            (Action::Rearm, Some(limit)) => Ok(u64::from(limit).saturating_sub(quota::living(db, self.owner).await?)),
            (Action::Rearm | Action::Cancel | Action::Pause | Action::Resume, _) => Ok(u64::MAX),
        }
    }

    /// Those of `ids` that are still meant. Locked, unless it is a dry run, in the order of their ids, so that two bulks never
    /// wait for each other in a circle; and what they are is looked at once more, because somebody else may have had the lock.
    async fn read(&self, db: &mut PgConnection, ids: &[Uuid], dry_run: bool) -> Result<Vec<Alarm>, sqlx::Error> {
        macro_rules! still_meant {
            ($lock:literal) => {
                concat!(
                    "SELECT ",
                    columns!(),
                    " FROM alarms WHERE id = ANY ($1) AND owner_did = $2 AND subject = 'agent' AND status = ANY ($3) \
                     AND ($4::text IS NULL OR labels_match(labels, $4::jsonb)) ORDER BY id ",
                    $lock
                )
            };
        }
        let statement = if dry_run { still_meant!("") } else { still_meant!("FOR UPDATE") };
        sqlx::query_as(statement)
            .bind(ids)
            .bind(self.owner.as_str())
            .bind(self.statuses)
            .bind(self.requirements.as_deref())
            .fetch_all(db)
            .await
    }
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Whether anything would be written.
fn would(action: Action, alarm: &Alarm, now: DateTime<Utc>) -> bool {
    let causes = alarm.paused_by();
    match action {
        Action::Cancel => alarm.status.is_living(),
        Action::Pause => matches!(lifecycle::pause(alarm.status, &causes, Cause::Owner), Ok(Some(_))),
        Action::Resume => alarm.when.timing().is_ok_and(|timing| {
            let resumed = lifecycle::resume(&alarm.standing(&timing, &causes), Cause::Owner, now);
            resumed.is_ok_and(|resumed| resumed != Resumed::Unchanged)
        }),
        Action::Rearm => alarm
            .when
            .timing()
            .is_ok_and(|timing| lifecycle::rearm(&alarm.standing(&timing, &[]), None, now, now).is_ok()),
    }
}

/// Whether anything was written.
async fn apply(db: &mut PgConnection, action: Action, alarm: Alarm, now: DateTime<Utc>) -> Result<bool, sqlx::Error> {
    match action {
        Action::Cancel if alarm.status.is_living() => cancel(db, alarm.id, "owner").await.map(|_| true),
        Action::Cancel => Ok(false),
        Action::Pause => paused(db, alarm, Cause::Owner).await.map(|edited| edited.done().is_some()),
        Action::Resume => resumed(db, alarm, Cause::Owner, now).await.map(|edited| edited.done().is_some()),
        Action::Rearm => rearmed(db, alarm, None, now, TimeDelta::zero()).await.map(|edited| edited.done().is_some()),
    }
}
