//! One verb for every alarm that a selector means, in one transaction.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::{
    Alarm, Edited, columns,
    edit::{cancel, clock, paused, rearmed, resumed},
    list::requirements,
};
use crate::{
    domain::{
        access::Did,
        alarm::{Cause, Status},
        ids::AlarmId,
        labels::Selector,
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
    /// How many were left as they are: managed by a resource, unfit for the action, or so already.
    pub skipped: usize,
    /// The changed ones, oldest first.
    pub ids: Vec<AlarmId>,
    /// More could be changed than one call handles: call again.
    pub truncated: bool,
}

/// The most rows that one call locks. Some 0.3 ms each: well within the deadline of a transaction, and a dispatcher that
/// wants one of them passes over it for no longer than that.
pub const BULK_MOST: usize = 500;

/// What the selector means, and the first of those that the action can change.
#[derive(FromRow)]
struct Selected {
    matched: i64,
    fitting: i64,
    ids: Vec<Uuid>,
}

impl Store {
    /// Does `action` to the owner's alarms that `selector` means and that are in one of `statuses` (none given: that the
    /// action fits). `dry_run` decides everything and writes nothing.
    pub async fn bulk_if_owned(
        &self,
        owner: &Did,
        action: Action,
        selector: &Selector,
        statuses: &[Status],
        dry_run: bool,
    ) -> Result<Bulk> {
        let statuses = if statuses.is_empty() { action.fits() } else { statuses };
        let statuses: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
        self.ask("changing alarms in bulk", async |db| {
            let mut transaction = db.begin().await?;
            let selected: Selected = sqlx::query_as(include_str!("../sql/select_for_bulk.sql"))
                .bind(owner.as_str())
                .bind(&statuses)
                .bind(requirements(selector))
                .bind(action.as_str())
                .bind(i32::try_from(BULK_MOST).unwrap_or(i32::MAX))
                .fetch_one(&mut *transaction)
                .await?;
            // In the order of their ids, so that two bulks never wait for each other in a circle.
            let alarms: Vec<Alarm> = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE id = ANY ($1) AND owner_did = $2 AND subject = 'agent' ORDER BY id FOR UPDATE"
            ))
            .bind(&selected.ids)
            .bind(owner.as_str())
            .fetch_all(&mut *transaction)
            .await?;
            let now = clock(&mut transaction).await?;
            let mut ids = Vec::new();
            for alarm in alarms {
                let id = alarm.id;
                if apply(&mut transaction, action, alarm, now).await? {
                    ids.push(id);
                }
            }
            if !dry_run {
                transaction.commit().await?;
            }
            let count = |number: i64| usize::try_from(number).unwrap_or(0);
            let (matched, left) = (count(selected.matched), count(selected.fitting) - selected.ids.len());
            let changed = ids.len();
            Ok(Bulk { matched, changed, skipped: matched - left - changed, ids, truncated: left > 0 })
        })
        .await
    }
}

/// Whether anything was written.
async fn apply(db: &mut PgConnection, action: Action, alarm: Alarm, now: DateTime<Utc>) -> Result<bool, sqlx::Error> {
    match action {
        Action::Cancel if alarm.status.is_living() => cancel(db, alarm.id, "owner").await.map(|_| true),
        Action::Cancel => Ok(false),
        Action::Pause => paused(db, alarm, Cause::Owner).await.map(|edited| is_done(&edited)),
        Action::Resume => resumed(db, alarm, Cause::Owner, now).await.map(|edited| is_done(&edited)),
        Action::Rearm => rearmed(db, alarm, None, now, TimeDelta::zero()).await.map(|edited| is_done(&edited)),
    }
}

const fn is_done<R>(edited: &Edited<R>) -> bool {
    match edited {
        Edited::Done(_) => true,
        Edited::Unknown | Edited::Managed(_) | Edited::Unreadable(_) | Edited::Refused(_) | Edited::Unchanged(_) => {
            false
        }
    }
}
