//! Table `alarms`, as its owners see it: create, read, cancel. What dispatchers do with it is in [`super::claims`], what
//! the controller does in [`super::resources`].

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection, Postgres, postgres::PgArguments, query::QueryAs};
use uuid::Uuid;

use super::{Error, Result, Store, ask};
use crate::domain::{
    access::Did,
    alarm::{Definition, Status},
    ids::{AlarmId, ScheduleEpoch},
    schedule::Schedule,
};

/// An alarm as it stands in the table.
#[derive(Clone, Debug)]
pub struct Alarm {
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
    pub status: Status,
    pub cancelled_by: Option<String>,
    pub scheduled_for: DateTime<Utc>,
    pub next_fire_at: DateTime<Utc>,
    pub schedule_epoch: ScheduleEpoch,
    pub revision: i64,
    pub failure_count: i32,
    pub last_error: String,
    pub fired_count: i64,
    pub missed_count: i64,
    pub in_flight: bool,
    pub source: String,
    pub resource: Option<Resource>,
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

/// The columns of [`Row`], in one place for every statement that returns one.
macro_rules! columns {
    () => {
        "id, label, kind, fire_at, cron_expr, timezone, conversation_id, wake_message, payload::text AS payload, \
         max_failures, status, cancelled_by, scheduled_for, next_fire_at, schedule_epoch, revision, failure_count, \
         last_error, fired_count, missed_count, claim_token IS NOT NULL AS in_flight, source, cluster_id, \
         resource_namespace, resource_name, idempotency_key, correlation_id, created_at, updated_at, last_fired_at"
    };
}
pub(super) use columns;

#[derive(FromRow)]
pub(super) struct Row {
    id: Uuid,
    label: String,
    kind: String,
    fire_at: Option<DateTime<Utc>>,
    cron_expr: String,
    timezone: String,
    conversation_id: String,
    wake_message: String,
    payload: String,
    max_failures: i32,
    status: String,
    cancelled_by: Option<String>,
    scheduled_for: DateTime<Utc>,
    next_fire_at: DateTime<Utc>,
    schedule_epoch: i64,
    revision: i64,
    failure_count: i32,
    last_error: String,
    fired_count: i64,
    missed_count: i64,
    in_flight: bool,
    source: String,
    cluster_id: Option<Uuid>,
    resource_namespace: Option<String>,
    resource_name: Option<String>,
    idempotency_key: String,
    correlation_id: String,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    last_fired_at: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for Alarm {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let status = row.status.parse();
        let unreadable = |why| Error::Unreadable { doing: "reading an alarm", what: "status", why };
        let resource = match (row.cluster_id, row.resource_namespace, row.resource_name) {
            (Some(cluster), Some(namespace), Some(name)) => Some(Resource { cluster, namespace, name }),
            // The schema has all or none of them.
            (_, _, _) => None,
        };
        Ok(Self {
            id: AlarmId::from_uuid(row.id),
            label: row.label,
            kind: row.kind,
            fire_at: row.fire_at,
            cron_expr: row.cron_expr,
            timezone: row.timezone,
            conversation_id: row.conversation_id,
            wake_message: row.wake_message,
            payload: row.payload,
            max_failures: row.max_failures,
            status: status.map_err(unreadable)?,
            cancelled_by: row.cancelled_by,
            scheduled_for: row.scheduled_for,
            next_fire_at: row.next_fire_at,
            schedule_epoch: ScheduleEpoch(row.schedule_epoch),
            revision: row.revision,
            failure_count: row.failure_count,
            last_error: row.last_error,
            fired_count: row.fired_count,
            missed_count: row.missed_count,
            in_flight: row.in_flight,
            source: row.source,
            resource,
            idempotency_key: row.idempotency_key,
            correlation_id: row.correlation_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
            last_fired_at: row.last_fired_at,
        })
    }
}

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
        let doing = "creating an alarm";
        // A key's conflict does nothing here and reads the winner in a statement of its own: an INSERT does not see a
        // row that was committed after it began. The winner may be gone again by then (retention): once more.
        for _ in 0..3 {
            let insert = bind_definition(
                sqlx::query_as(concat!(include_str!("sql/create_alarm.sql"), columns!())),
                request.definition,
            )
            .bind(request.owner.as_str())
            .bind(request.owner.user_id())
            .bind(request.correlation_id)
            .bind(request.first_fire_at)
            .bind(request.idempotency_key)
            .bind(request.born_at)
            .fetch_optional(&self.pool);
            if let Some(row) = ask::<Option<Row>>(doing, insert).await? {
                return Ok(Created::New(row.try_into()?));
            }
            let winner = sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE owner_did = $1 AND idempotency_key = $2 AND idempotency_key <> ''"
            ))
            .bind(request.owner.as_str())
            .bind(request.idempotency_key)
            .fetch_optional(&self.pool);
            if let Some(row) = ask::<Option<Row>>(doing, winner).await? {
                return Ok(Created::Known(row.try_into()?));
            }
        }
        Err(Error::Unreadable { doing, what: "winner of an idempotency key", why: "it keeps vanishing".to_owned() })
    }

    pub async fn get_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Option<Alarm>> {
        let query = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent'"
        ))
        .bind(id.as_uuid())
        .bind(owner.as_str())
        .fetch_optional(&self.pool);
        ask::<Option<Row>>("reading an alarm", query).await?.map(Alarm::try_from).transpose()
    }

    /// The owner's alarms, newest first.
    pub async fn list_owned(&self, owner: &Did, limit: i64) -> Result<Vec<Alarm>> {
        let query = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM alarms WHERE owner_did = $1 AND subject = 'agent' ORDER BY created_at DESC, id DESC LIMIT $2"
        ))
        .bind(owner.as_str())
        .bind(limit)
        .fetch_all(&self.pool);
        ask::<Vec<Row>>("listing alarms", query).await?.into_iter().map(Alarm::try_from).collect()
    }

    /// Cancels an alarm that may still fire; leaves one that is over as it is.
    pub async fn cancel_if_owned(&self, owner: &Did, id: AlarmId) -> Result<Cancelled> {
        let doing = "cancelling an alarm";
        let mut transaction = ask(doing, self.pool.begin()).await?;
        let lock = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM alarms WHERE id = $1 AND owner_did = $2 AND subject = 'agent' FOR UPDATE"
        ))
        .bind(id.as_uuid())
        .bind(owner.as_str())
        .fetch_optional(&mut *transaction);
        let Some(row) = ask::<Option<Row>>(doing, lock).await? else { return Ok(Cancelled::Unknown) };
        let alarm = Alarm::try_from(row)?;
        if let Some(resource) = alarm.resource {
            return Ok(Cancelled::Managed(resource));
        }
        if !alarm.status.is_living() {
            return Ok(Cancelled::Over { alarm: Box::new(alarm), in_flight: false });
        }
        let in_flight = alarm.in_flight;
        let alarm = Box::new(cancel(&mut transaction, doing, id, "owner").await?);
        ask(doing, transaction.commit()).await?;
        Ok(Cancelled::Over { alarm, in_flight })
    }
}

/// The one way an alarm is cancelled. The caller holds the row's lock and has seen that it is living. The claim goes with
/// it, which fences the answer of a wake in flight.
pub(super) async fn cancel(
    connection: &mut PgConnection,
    doing: &'static str,
    id: AlarmId,
    by: &'static str,
) -> Result<Alarm> {
    let query = sqlx::query_as(concat!(
        "UPDATE alarms SET status = 'cancelled', cancelled_by = $2, paused_by = '{}', \
         claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claims = 0, \
         revision = revision + 1, updated_at = now() \
         WHERE id = $1 AND status IN ('active', 'paused') RETURNING ",
        columns!()
    ))
    .bind(id.as_uuid())
    .bind(by)
    .fetch_one(connection);
    ask::<Row>(doing, query).await?.try_into()
}
