//! Table `alarms`, as its owners see it: create, read, cancel. What dispatchers do with it is in [`super::claims`], what
//! the controller does in [`super::resources`].

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection, Postgres, postgres::PgArguments, query::QueryAs};
use uuid::Uuid;

use super::{Result, Store, unreadable};
use crate::domain::{
    access::Did,
    alarm::{Definition, Status},
    ids::{AlarmId, ScheduleEpoch},
    schedule::Schedule,
};

/// An alarm as it stands in the table.
#[derive(Clone, Debug, FromRow)]
pub struct Alarm {
    #[sqlx(try_from = "Uuid")]
    pub id: AlarmId,
    pub label: String,
    pub kind: String,
    pub fire_at: Option<DateTime<Utc>>,
    pub cron_expr: String,
    pub timezone: String,
    pub conversation_id: String,
    pub wake_message: String,
    /// JSON text, verbatim.
    pub payload: String,
    pub max_failures: i32,
    #[sqlx(try_from = "String")]
    pub status: Status,
    pub cancelled_by: Option<String>,
    pub scheduled_for: DateTime<Utc>,
    pub next_fire_at: DateTime<Utc>,
    #[sqlx(try_from = "i64")]
    pub schedule_epoch: ScheduleEpoch,
    pub revision: i64,
    pub failure_count: i32,
    pub last_error: String,
    pub fired_count: i64,
    pub missed_count: i64,
    /// A claim stands: a wake may be under way.
    pub in_flight: bool,
    pub source: String,
    cluster_id: Option<Uuid>,
    resource_namespace: Option<String>,
    resource_name: Option<String>,
    pub idempotency_key: String,
    pub correlation_id: String,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub last_fired_at: Option<DateTime<Utc>>,
}

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
}

/// The columns of an [`Alarm`], in one place for every statement that returns one.
macro_rules! columns {
    () => {
        "id, label, kind, fire_at, cron_expr, timezone, conversation_id, wake_message, payload::text AS payload, \
         max_failures, status, cancelled_by, scheduled_for, next_fire_at, schedule_epoch, revision, failure_count, \
         last_error, fired_count, missed_count, claim_token IS NOT NULL AS in_flight, source, cluster_id, \
         resource_namespace, resource_name, idempotency_key, correlation_id, created_at, updated_at, last_fired_at"
    };
}
pub(super) use columns;

/// What an owner asks for over HTTP.
#[derive(Debug)]
pub struct Request<'a> {
    pub owner: &'a Did,
    pub definition: &'a Definition,
    pub first_fire_at: DateTime<Utc>,
    /// The instant from which the definition was made: an `@every` keeps counting from it.
    pub born_at: DateTime<Utc>,
    /// Empty: none.
    pub idempotency_key: &'a str,
    pub correlation_id: &'a str,
}

/// What became of a request to create.
#[derive(Debug)]
pub enum Created {
    New(Alarm),
    /// The owner's key stands for this one already.
    Known(Alarm),
}

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

/// A schedule as the table spells it.
pub(super) struct ScheduleColumns<'a> {
    pub kind: &'static str,
    pub fire_at: Option<DateTime<Utc>>,
    pub cron_expr: &'a str,
    pub timezone: &'a str,
}

impl<'a> ScheduleColumns<'a> {
    pub fn of(schedule: &'a Schedule) -> Self {
        match schedule {
            Schedule::Once { fire_at } => {
                Self { kind: "once", fire_at: Some(*fire_at), cron_expr: "", timezone: "UTC" }
            }
            Schedule::Cron(recurrence) => Self {
                kind: "cron",
                fire_at: None,
                cron_expr: recurrence.expression(),
                timezone: recurrence.zone().name(),
            },
        }
    }
}

/// Binds a definition as `$1` to `$9`: label, kind, `fire_at`, `cron_expr`, timezone, `conversation_id`, `wake_message`,
/// payload, `max_failures`. Every statement that writes one begins with these.
pub(super) fn bind_definition<'q, O>(
    query: QueryAs<'q, Postgres, O, PgArguments>,
    definition: &'q Definition,
) -> QueryAs<'q, Postgres, O, PgArguments> {
    let schedule = ScheduleColumns::of(&definition.schedule);
    query
        .bind(&definition.label)
        .bind(schedule.kind)
        .bind(schedule.fire_at)
        .bind(schedule.cron_expr)
        .bind(schedule.timezone)
        .bind(&definition.conversation_id)
        .bind(&definition.wake_message)
        .bind(definition.payload.as_str())
        .bind(i32::try_from(definition.max_failures).unwrap_or(i32::MAX))
}

impl Store {
    /// Creates an alarm, or finds the one that the owner's key already stands for.
    pub async fn create_or_find_by_key(&self, request: &Request<'_>) -> Result<Created> {
        self.ask("creating an alarm", async |db| {
            // A key's conflict does nothing here and reads the winner in a statement of its own: an INSERT does not see a
            // row that was committed after it began. The winner may be gone again by then (retention): once more.
            for _ in 0..3 {
                if let Some(alarm) = insert(db, request).await? {
                    return Ok(Created::New(alarm));
                }
                if let Some(alarm) = by_key(db, request.owner, request.idempotency_key).await? {
                    return Ok(Created::Known(alarm));
                }
            }
            Err(unreadable("the alarm that holds an idempotency key keeps vanishing"))
        })
        .await
    }

    /// The alarm that the owner's key stands for.
    pub async fn find_by_key(&self, owner: &Did, key: &str) -> Result<Option<Alarm>> {
        self.ask("looking an idempotency key up", async |db| by_key(db, owner, key).await).await
    }

    pub async fn get_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Option<Alarm>> {
        self.ask("reading an alarm", async |db| {
            sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent'"
            ))
            .bind(id.as_uuid())
            .bind(owner.as_str())
            .fetch_optional(db)
            .await
        })
        .await
    }

    /// The owner's alarms, newest first.
    pub async fn list_owned(&self, owner: &Did, limit: i64) -> Result<Vec<Alarm>> {
        self.ask("listing alarms", async |db| {
            sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE owner_did = $1 AND subject = 'agent' ORDER BY created_at DESC, id DESC LIMIT $2"
            ))
            .bind(owner.as_str())
            .bind(limit)
            .fetch_all(db)
            .await
        })
        .await
    }

    /// Cancels an alarm that may still fire; leaves one that is over as it is.
    pub async fn cancel_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Cancelled> {
        self.ask("cancelling an alarm", async |db| {
            let mut transaction = db.begin().await?;
            let locked: Option<Alarm> = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent' FOR UPDATE"
            ))
            .bind(id.as_uuid())
            .bind(owner.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
            let Some(alarm) = locked else { return Ok(Cancelled::Unknown) };
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
}

async fn insert(db: &mut PgConnection, request: &Request<'_>) -> Result<Option<Alarm>, sqlx::Error> {
    bind_definition(sqlx::query_as(concat!(include_str!("sql/create_alarm.sql"), columns!())), request.definition)
        .bind(request.owner.as_str())
        .bind(request.owner.user_id())
        .bind(request.correlation_id)
        .bind(request.first_fire_at)
        .bind(request.idempotency_key)
        .bind(request.born_at)
        .fetch_optional(db)
        .await
}

async fn by_key(db: &mut PgConnection, owner: &Did, key: &str) -> Result<Option<Alarm>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        columns!(),
        " FROM alarms WHERE owner_did = $1 AND idempotency_key = $2 AND idempotency_key <> ''"
    ))
    .bind(owner.as_str())
    .bind(key)
    .fetch_optional(db)
    .await
}

/// The one way an alarm is cancelled. The caller holds the row's lock and has seen that it is living. The claim goes with
/// it, which fences the answer of a wake in flight.
pub(super) async fn cancel(db: &mut PgConnection, id: AlarmId, by: &'static str) -> Result<Alarm, sqlx::Error> {
    sqlx::query_as(concat!(
        "UPDATE alarms SET status = 'cancelled', cancelled_by = $2, paused_by = '{}', \
         claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claims = 0, \
         revision = revision + 1, updated_at = now() \
         WHERE id = $1 AND status IN ('active', 'paused') RETURNING ",
        columns!()
    ))
    .bind(id.as_uuid())
    .bind(by)
    .fetch_one(db)
    .await
}
