//! Table `alarms`, as its owners see it. What dispatchers do with it is in [`super::claims`], what the controller does in
//! [`super::resources`].
//!
//! | file | does |
//! |---|---|
//! | here | the row, and the way between it and the domain |
//! | [`create`] | create with dedupe, get |
//! | [`list`] | list by filters, page by page |
//! | [`edit`] | cancel, patch, pause, resume, re-arm: lock, decide in the domain, write |
//! | [`put`] | create, or make it what it should be, by the owner's key |
//! | [`quota`] | how many an owner has, under the owner's lock |
//! | [`bulk`] | the same for many at once |
//! | [`operator`] | whosever they are: what the command line shows and re-arms |
//! | [`upkeep`] | removal, recomputation and counts that no owner asks for |

mod bulk;
mod create;
mod edit;
mod list;
mod operator;
mod put;
pub(super) mod quota;
mod upkeep;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{FromRow, PgConnection, Postgres, postgres::PgArguments, postgres::types::PgInterval, query::QueryAs};
use uuid::Uuid;

pub use bulk::{Action, BULK_MOST, Bulk};
pub use create::{Created, Request};
pub use edit::{Cancelled, Edited, NotPatched, Patch};
pub(super) use edit::{Replan, cancel, clock, fired, paused, resumed, write_definition};
pub use list::{Filter, LIST, Page};
pub use operator::{Again, Search, Seen};
pub use put::{NotPlaced, Placed, Placement};
pub use quota::May;
pub use upkeep::{Due, Place, Resting};

use super::{
    Store,
    interval::{duration, interval},
};
use crate::{
    domain::{
        alarm::{
            Cause, Definition, Misfire, Status, Timing,
            lifecycle::{self, Standing},
        },
        ids::{AlarmId, ScheduleEpoch},
        labels::Labels,
        occurrence::Passed,
        payload::Payload,
        schedule::{Recurrence, Schedule, Window, Zone},
    },
    mutants::{self, Mutant},
};

/// An alarm as it stands in the table.
#[derive(Clone, Debug, FromRow)]
pub struct Alarm {
    #[sqlx(try_from = "Uuid")]
    pub id: AlarmId,
    pub owner_did: String,
    pub label: String,
    /// A JSON object of texts.
    labels: String,
    pub kind: String,
    #[sqlx(flatten)]
    pub when: When,
    pub conversation_id: String,
    pub wake_message: String,
    /// JSON text, verbatim.
    pub payload: String,
    pub max_failures: i32,
    #[sqlx(try_from = "String")]
    pub status: Status,
    paused_by: Vec<String>,
    pub cancelled_by: Option<String>,
    pub scheduled_for: DateTime<Utc>,
    series_at: Option<DateTime<Utc>>,
    pub next_fire_at: DateTime<Utc>,
    #[sqlx(try_from = "i64")]
    pub schedule_epoch: ScheduleEpoch,
    pub revision: i64,
    pub failure_count: i32,
    pub last_error: String,
    pub fired_count: i64,
    pub missed_count: i64,
    /// The occurrence was claimed, and nobody has told yet what came of it.
    begun: bool,
    /// A claim stands whose lease has not ended: a wake may be under way.
    pub in_flight: bool,
    pub source: String,
    cluster_id: Option<Uuid>,
    resource_namespace: Option<String>,
    resource_name: Option<String>,
    pub idempotency_key: String,
    pub correlation_id: String,
    pub updated_at: DateTime<Utc>,
    pub last_fired_at: Option<DateTime<Utc>>,
}

/// The columns of an [`Alarm`], in one place for every statement that returns one.
macro_rules! columns {
    () => {
        columns!("wake_message, payload::text AS payload")
    };
    // For who has just written the two long ones, and need not have them sent back.
    ($long:literal) => {
        concat!("id, owner_did, label, labels::text AS labels, kind, fire_at, cron_expr, timezone, starts_at, ends_at, spread, \
         spread_offset, misfire, max_lateness, conversation_id, ", $long, ", max_failures, \
         status, paused_by, cancelled_by, scheduled_for, series_at, next_fire_at, schedule_epoch, revision, failure_count, \
         last_error, fired_count, missed_count, first_claimed_at IS NOT NULL AS begun, \
         coalesce(claimed_until > clock_timestamp(), false) AS in_flight, source, cluster_id, resource_namespace, resource_name, idempotency_key, correlation_id, created_at, updated_at, last_fired_at")
    };
}
pub(super) use columns;

/// The Kubernetes object that manages an alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub cluster: Uuid,
    pub namespace: String,
    pub name: String,
}

impl Alarm {
    pub fn resource(&self) -> Option<Resource> {
        // The schema has all or none of them.
        let (namespace, name) = (self.resource_namespace.clone()?, self.resource_name.clone()?);
        Some(Resource { cluster: self.cluster_id?, namespace, name })
    }

    /// Why it is paused; empty when it is not. The schema knows no other words.
    pub fn paused_by(&self) -> Vec<Cause> {
        self.paused_by.iter().filter_map(|word| Cause::try_from(word.clone()).ok()).collect()
    }

    /// The labels; none where they cannot be read.
    pub fn labels(&self) -> Labels {
        serde_json::from_str(&self.labels).unwrap_or_default()
    }

    /// What defines it, or why the row cannot be read.
    pub fn definition(&self) -> Result<Definition, String> {
        let labels: Labels = serde_json::from_str(&self.labels).map_err(|error| format!("labels {error}"))?;
        Ok(Definition {
            label: self.label.clone(),
            labels,
            timing: self.when.timing()?,
            conversation_id: self.conversation_id.clone(),
            wake_message: self.wake_message.clone(),
            payload: Payload::parse(self.payload.clone()).map_err(|error| format!("payload {error}"))?,
            max_failures: u32::try_from(self.max_failures).unwrap_or(0),
        })
    }

    /// What it gives up if it is planned anew now. A row that cannot be read has no slots to tell of.
    pub(super) fn forgone(&self, now: DateTime<Utc>) -> Vec<Passed> {
        let Ok(timing) = self.when.timing() else { return Vec::new() };
        if mutants::on(Mutant::EditUntold) {
            return Vec::new();
        }
        lifecycle::forgone(&self.standing(&timing, &[]), now)
    }

    fn standing<'a>(&self, timing: &'a Timing, paused_by: &'a [Cause]) -> Standing<'a> {
        Standing {
            status: self.status,
            paused_by,
            timing,
            offset: self.when.offset().unwrap_or_default(),
            scheduled_for: self.scheduled_for,
            series_at: self.series_at.unwrap_or(self.scheduled_for),
            next_fire_at: self.next_fire_at,
            failure_count: u32::try_from(self.failure_count).unwrap_or(0),
            begun: if mutants::on(Mutant::LostUntried) { self.in_flight } else { self.begun },
            in_flight: self.in_flight,
        }
    }
}

impl Store {
    /// Tells the dispatchers of an alarm that was just written, if it is due before they would look.
    pub(super) async fn hint(&self, db: &mut PgConnection, alarm: &Alarm) {
        if alarm.status == Status::Active {
            self.horizon.hint(db, alarm.next_fire_at, alarm.updated_at).await;
        }
    }
}

/// The columns that say when an alarm is due and what becomes of slots that cannot fire then.
#[derive(Clone, Debug, FromRow)]
pub struct When {
    pub fire_at: Option<DateTime<Utc>>,
    pub cron_expr: String,
    pub timezone: String,
    pub starts_at: Option<DateTime<Utc>>,
    pub ends_at: Option<DateTime<Utc>>,
    spread: PgInterval,
    spread_offset: PgInterval,
    pub misfire: String,
    max_lateness: Option<PgInterval>,
    /// An `@every` without a start counts from here.
    pub created_at: DateTime<Utc>,
}

impl When {
    /// What they say, or why they cannot be read.
    pub fn timing(&self) -> Result<Timing, String> {
        let in_column = |name: &'static str| move |error: String| format!("{name} {error}");
        let max_lateness = self.max_lateness.as_ref().map(duration).transpose();
        Ok(Timing {
            schedule: self.schedule()?,
            spread: duration(&self.spread).map_err(in_column("spread"))?,
            misfire: Misfire::try_from(self.misfire.clone()).map_err(|error| format!("misfire {error}"))?,
            max_lateness: max_lateness.map_err(in_column("max_lateness"))?,
        })
    }

    /// How far the effective instants lie behind the nominal ones.
    pub fn offset(&self) -> Result<TimeDelta, String> {
        duration(&self.spread_offset).map_err(|error| format!("spread_offset {error}"))
    }

    fn schedule(&self) -> Result<Schedule, String> {
        if let Some(fire_at) = self.fire_at {
            return Ok(Schedule::Once { fire_at });
        }
        let zone = Zone::parse(&self.timezone).map_err(|error| format!("timezone {error}"))?;
        let window = Window::new(self.created_at, self.starts_at, self.ends_at);
        let recurrence =
            Recurrence::parse(&self.cron_expr, zone, window).map_err(|error| format!("cron_expr {error}"))?;
        Ok(Schedule::Cron(recurrence))
    }
}

/// Binds a definition as `$1` to `$15`: label, labels, kind, `fire_at`, `cron_expr`, timezone, `starts_at`, `ends_at`, spread,
/// misfire, `max_lateness`, `conversation_id`, `wake_message`, payload, `max_failures`. Every statement that writes one begins
/// with these.
pub(super) fn bind_definition<'q, O>(
    query: QueryAs<'q, Postgres, O, PgArguments>,
    definition: &'q Definition,
) -> QueryAs<'q, Postgres, O, PgArguments> {
    let timing = &definition.timing;
    let (fire_at, recurrence) = match &timing.schedule {
        Schedule::Once { fire_at } => (Some(*fire_at), None),
        Schedule::Cron(recurrence) => (None, Some(recurrence)),
    };
    let window = recurrence.map(Recurrence::window);
    query
        .bind(&definition.label)
        .bind(serde_json::to_string(&definition.labels).expect("a map of texts is JSON"))
        .bind(timing.schedule.kind().as_str())
        .bind(fire_at)
        .bind(recurrence.map_or("", |recurrence| recurrence.expression()))
        .bind(recurrence.map_or("UTC", |recurrence| recurrence.zone().name()))
        .bind(window.and_then(Window::starts_at))
        .bind(window.and_then(Window::ends_at))
        .bind(interval(timing.spread))
        .bind(timing.misfire.as_str())
        .bind(timing.max_lateness.map(interval))
        .bind(&definition.conversation_id)
        .bind(&definition.wake_message)
        .bind(definition.payload.as_str())
        .bind(i32::try_from(definition.max_failures).unwrap_or(i32::MAX))
}
