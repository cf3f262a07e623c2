//! Alarms as the operator sees them: whosever they are. Nothing here has the owner in its WHERE, which makes it no business of the
//! facade's: the command line alone asks, and whoever may run it may read the database anyway. Agents' alarms only; timers have no
//! operator's view.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, FromRow};
use uuid::Uuid;

use super::{
    Alarm, Edited, columns,
    edit::{clock, rearmed},
};
use crate::{
    domain::{
        access::Did,
        alarm::{Kind, Status, lifecycle::NotRearmed},
        ids::AlarmId,
    },
    store::{Result, Store, attempts},
};

/// Which alarms are meant. What is not said does not matter.
#[derive(Clone, Debug, Default)]
pub struct Search {
    pub owner: Option<Did>,
    /// Empty: all.
    pub statuses: Vec<Status>,
    /// Failed now, and at or after this instant: a failed row is not written any more, so `updated_at` is when it failed.
    pub failed_since: Option<DateTime<Utc>>,
}

/// An alarm, and who is at it.
#[derive(Clone, Debug, FromRow)]
pub struct Seen {
    #[sqlx(flatten)]
    pub alarm: Alarm,
    pub claimed_by: Option<Uuid>,
    pub claimed_at: Option<DateTime<Utc>>,
    pub claimed_until: Option<DateTime<Utc>>,
    pub claims: i32,
}

/// When an alarm that is armed again fires, if it is one that fires once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    At(DateTime<Utc>),
    After(TimeDelta),
}

impl Store {
    /// The newest alarms that are meant, newest first. Ids grow with time, so the primary key is the order.
    pub async fn search_all_owners(&self, search: &Search, before: Option<AlarmId>, limit: i64) -> Result<Vec<Alarm>> {
        let statuses: Vec<&str> = search.statuses.iter().map(|status| status.as_str()).collect();
        self.ask("searching alarms", async |db| {
            sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE subject = 'agent' AND ($1::text IS NULL OR owner_did = $1) \
                 AND ($2::text[] IS NULL OR status = ANY ($2)) \
                 AND ($3::timestamptz IS NULL OR status = 'failed' AND updated_at >= $3) \
                 AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5"
            ))
            .bind(search.owner.as_ref().map(Did::as_str))
            .bind((!statuses.is_empty()).then_some(statuses))
            .bind(search.failed_since)
            .bind(before.map(AlarmId::as_uuid))
            .bind(limit)
            .fetch_all(db)
            .await
        })
        .await
    }

    /// One alarm, whosever it is.
    pub async fn see_alarm(&self, id: AlarmId) -> Result<Option<Seen>> {
        self.ask("reading an alarm", async |db| {
            sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                ", claimed_by, claimed_at, claimed_until, claims FROM alarms WHERE id = $1 AND subject = 'agent'"
            ))
            .bind(id.as_uuid())
            .fetch_optional(db)
            .await
        })
        .await
    }

    /// The newest entries of an alarm's history, whosever it is; also of one that is gone, as long as its history is kept.
    pub async fn attempts_of_any(&self, id: AlarmId, limit: i64) -> Result<attempts::Page> {
        self.ask("reading an alarm's attempts", async |db| attempts::page(db, id, None, limit).await).await
    }

    /// Arms an alarm that is over, whosever it is, unless a resource manages it. `again` is for those that fire once; `strict`
    /// refuses it where it does not fit, else a series takes its own next slot. `dry_run` decides everything and writes nothing.
    pub async fn rearm_any(
        &self,
        id: AlarmId,
        again: Option<Again>,
        strict: bool,
        dry_run: bool,
    ) -> Result<Edited<NotRearmed>> {
        self.ask("re-arming an alarm", async |db| {
            let mut transaction = db.begin().await?;
            let found: Option<Alarm> = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE id = $1 AND subject = 'agent' FOR UPDATE"
            ))
            .bind(id.as_uuid())
            .fetch_optional(&mut *transaction)
            .await?;
            let Some(alarm) = found else { return Ok(Edited::Unknown) };
            if let Some(resource) = alarm.resource() {
                return Ok(Edited::Managed(resource));
            }
            let now = clock(&mut transaction).await?;
            let fits = strict || alarm.kind == Kind::Once.as_str();
            let instant = again.filter(|_| fits).map(|again| match again {
                Again::At(instant) => instant,
                Again::After(delay) => now + delay,
            });
            let edited = rearmed(&mut transaction, alarm, instant, now, TimeDelta::zero()).await?;
            if dry_run {
                transaction.rollback().await?;
            } else if let Edited::Done(alarm) = &edited {
                transaction.commit().await?;
                self.hint(db, alarm).await;
            }
            Ok(edited)
        })
        .await
    }
}
