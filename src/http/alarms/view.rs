//! What callers see of an alarm.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    domain::{
        alarm::{Cause, Status, Timing},
        ids::{AlarmId, DeliveryId},
        labels::Labels,
        rfc3339,
    },
    http::openapi::fields,
    store::{
        alarms::{Alarm, Resource},
        attempts::Entry,
    },
};

/// How many instants ahead a view shows.
const UPCOMING: usize = 5;

/// What creation answers.
#[derive(Serialize, ToSchema)]
pub struct Receipt {
    #[schema(value_type = Uuid)]
    id: AlarmId,
    #[schema(schema_with = fields::status)]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    next_fire_at: Option<String>,
    #[schema(schema_with = fields::instant)]
    scheduled_for: String,
    /// Whether the key stood for this alarm already.
    deduped: bool,
}

impl Receipt {
    pub fn of(alarm: &Alarm, deduped: bool) -> Self {
        Self {
            id: alarm.id,
            status: alarm.status.as_str(),
            next_fire_at: next_fire_at(alarm),
            scheduled_for: rfc3339(alarm.scheduled_for),
            deduped,
        }
    }
}

/// An alarm as its owner sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Alarm)]
pub struct View {
    #[schema(value_type = Uuid)]
    id: AlarmId,
    label: String,
    #[schema(inline)]
    labels: Labels,
    #[schema(schema_with = fields::seen_kind)]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    fire_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cron_expr: String,
    timezone: String,
    #[schema(schema_with = fields::instant_or_null, required)]
    starts_at: Option<String>,
    #[schema(schema_with = fields::instant_or_null, required)]
    ends_at: Option<String>,
    #[schema(minimum = 0)]
    spread_seconds: i64,
    /// The schedule in words.
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    next_fire_at: Option<String>,
    #[schema(schema_with = fields::instant)]
    scheduled_for: String,
    #[schema(schema_with = fields::instants)]
    upcoming: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    conversation_id: String,
    wake_message: String,
    #[schema(schema_with = fields::seen_payload)]
    payload: Box<RawValue>,
    #[schema(schema_with = fields::status)]
    status: &'static str,
    #[schema(schema_with = fields::paused_by)]
    paused_by: Vec<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    idempotency_key: String,
    /// Goes with every wake.
    correlation_id: String,
    #[schema(schema_with = fields::seen_misfire)]
    misfire: String,
    #[schema(required, minimum = 1)]
    max_lateness_seconds: Option<i64>,
    #[schema(minimum = 0)]
    max_failures: i32,
    /// Failed attempts at the occurrence it stands at.
    #[schema(minimum = 0)]
    failure_count: i32,
    /// What the last failed attempt met; empty if the last one went well.
    last_error: String,
    /// Wakes that the router took.
    #[schema(minimum = 0)]
    fired_count: i64,
    /// Slots that passed without a wake of their own: too late, folded into a later one, paused or planned anew.
    #[schema(minimum = 0)]
    missed_count: i64,
    #[schema(schema_with = fields::cancelled_by, required)]
    cancelled_by: Option<String>,
    #[schema(schema_with = fields::source)]
    source: String,
    /// The resource that manages it, if one does: then it is edited there and not here.
    #[schema(required)]
    resource: Option<ResourceView>,
    /// Grows with every change; for `If-Match`.
    revision: i64,
    #[schema(schema_with = fields::instant)]
    created_at: String,
    #[schema(schema_with = fields::instant)]
    updated_at: String,
    #[schema(schema_with = fields::instant_or_null, required)]
    last_fired_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Resource)]
struct ResourceView {
    cluster: Uuid,
    namespace: String,
    name: String,
}

/// The answer to a cancellation.
#[derive(Serialize, ToSchema)]
#[schema(as = CancelledAlarm)]
pub struct CancelView {
    #[serde(flatten)]
    pub view: View,
    /// Whether a wake was on its way when it was cancelled: that one may still arrive.
    pub in_flight: bool,
}

/// The answer to a `PUT`.
#[derive(Serialize, ToSchema)]
#[schema(as = PlacedAlarm)]
pub struct PutView {
    #[serde(flatten)]
    pub view: View,
    /// Whether the key was new.
    pub created: bool,
    /// Whether anything is different now.
    pub changed: bool,
}

impl View {
    pub fn of(alarm: Alarm, now: DateTime<Utc>) -> Self {
        let resource = alarm.resource();
        let resource = resource.map(|Resource { cluster, namespace, name }| ResourceView { cluster, namespace, name });
        let timing = alarm.when.timing();
        Self {
            id: alarm.id,
            next_fire_at: next_fire_at(&alarm),
            labels: alarm.labels(),
            paused_by: alarm.paused_by().into_iter().map(Cause::as_str).collect(),
            starts_at: alarm.when.starts_at.map(rfc3339),
            ends_at: alarm.when.ends_at.map(rfc3339),
            // A row that cannot be read is shown all the same, and says so.
            spread_seconds: timing.as_ref().map_or(0, |timing| timing.spread.num_seconds()),
            description: match &timing {
                Ok(timing) => timing.schedule.describe(),
                Err(why) => format!("cannot be read: {why}"),
            },
            upcoming: timing.as_ref().map_or_else(|_| Vec::new(), |timing| upcoming(&alarm, timing, now)),
            max_lateness_seconds: timing
                .as_ref()
                .ok()
                .and_then(Timing::lateness_limit)
                .map(|lateness| lateness.num_seconds()),
            misfire: alarm.when.misfire,
            label: alarm.label,
            kind: alarm.kind,
            fire_at: alarm.when.fire_at.map(rfc3339),
            cron_expr: alarm.when.cron_expr,
            timezone: alarm.when.timezone,
            scheduled_for: rfc3339(alarm.scheduled_for),
            conversation_id: alarm.conversation_id,
            wake_message: alarm.wake_message,
            payload: RawValue::from_string(alarm.payload).expect("column payload holds JSON"),
            status: alarm.status.as_str(),
            idempotency_key: alarm.idempotency_key,
            correlation_id: alarm.correlation_id,
            max_failures: alarm.max_failures,
            failure_count: alarm.failure_count,
            last_error: alarm.last_error,
            fired_count: alarm.fired_count,
            missed_count: alarm.missed_count,
            cancelled_by: alarm.cancelled_by,
            source: alarm.source,
            resource,
            revision: alarm.revision,
            created_at: rfc3339(alarm.when.created_at),
            updated_at: rfc3339(alarm.updated_at),
            last_fired_at: alarm.last_fired_at.map(rfc3339),
        }
    }
}

/// Only an active alarm has a next time.
fn next_fire_at(alarm: &Alarm) -> Option<String> {
    (alarm.status == Status::Active).then(|| rfc3339(alarm.next_fire_at))
}

/// The instants ahead at which an active alarm's slots fire: the effective ones, as `next_fire_at` is.
fn upcoming(alarm: &Alarm, timing: &Timing, now: DateTime<Utc>) -> Vec<String> {
    if alarm.status != Status::Active {
        return Vec::new();
    }
    let offset = alarm.when.offset().unwrap_or_else(|_| TimeDelta::zero());
    timing.schedule.upcoming(now - offset, UPCOMING).into_iter().map(|slot| rfc3339(slot + offset)).collect()
}

/// One line of an alarm's history: a try, or (`attempt: 0`) a run of slots that had none.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptView {
    /// The same over all attempts at one occurrence; what a receiver dedupes on.
    #[schema(value_type = Option<Uuid>, required)]
    delivery_id: Option<DeliveryId>,
    #[schema(schema_with = fields::instant)]
    scheduled_for: String,
    /// Counts from 1; 0 for a run of slots.
    #[schema(minimum = 0)]
    attempt: i32,
    #[schema(schema_with = fields::instant)]
    started_at: String,
    #[schema(minimum = 0)]
    duration_ms: i64,
    #[schema(schema_with = fields::outcome)]
    outcome: &'static str,
    /// What the router answered, if it did.
    #[schema(required)]
    http_status: Option<i32>,
    error: String,
    /// The dispatcher that tried.
    #[schema(required)]
    worker: Option<Uuid>,
    /// Of a run: its first slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    first_at: Option<String>,
    /// Of a run: its last slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    last_at: Option<String>,
    /// Of a run: how many slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    slots: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::reason)]
    reason: Option<String>,
}

impl AttemptView {
    pub fn of(entry: Entry) -> Self {
        let run = entry.run();
        Self {
            delivery_id: entry.delivery_id(),
            scheduled_for: rfc3339(entry.scheduled_for),
            attempt: entry.attempt,
            started_at: rfc3339(entry.started_at),
            duration_ms: entry.duration_ms,
            outcome: entry.outcome.as_str(),
            http_status: entry.http_status,
            error: entry.error,
            worker: entry.worker,
            first_at: run.as_ref().map(|run| rfc3339(run.first)),
            last_at: run.as_ref().map(|run| rfc3339(run.last)),
            slots: run.as_ref().map(|run| run.slots),
            reason: run.and(entry.reason),
        }
    }
}
