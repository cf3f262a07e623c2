//! What callers see of an alarm.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    domain::{
        alarm::{Cause, Status, Timing},
        ids::{AlarmId, DeliveryId},
        labels::Labels,
        rfc3339,
    },
    store::{
        alarms::{Alarm, Resource},
        attempts::Entry,
    },
};

/// How many instants ahead a view shows.
const UPCOMING: usize = 5;

/// What creation answers.
#[derive(Serialize)]
pub struct Receipt {
    id: AlarmId,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_fire_at: Option<String>,
    scheduled_for: String,
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
#[derive(Serialize)]
pub struct View {
    id: AlarmId,
    label: String,
    labels: Labels,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cron_expr: String,
    timezone: String,
    starts_at: Option<String>,
    ends_at: Option<String>,
    spread_seconds: i64,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_fire_at: Option<String>,
    scheduled_for: String,
    upcoming: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    conversation_id: String,
    wake_message: String,
    payload: Box<RawValue>,
    status: &'static str,
    paused_by: Vec<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    idempotency_key: String,
    correlation_id: String,
    misfire: String,
    max_lateness_seconds: Option<i64>,
    max_failures: i32,
    failure_count: i32,
    last_error: String,
    fired_count: i64,
    missed_count: i64,
    cancelled_by: Option<String>,
    source: String,
    resource: Option<ResourceView>,
    revision: i64,
    created_at: String,
    updated_at: String,
    last_fired_at: Option<String>,
}

#[derive(Serialize)]
struct ResourceView {
    cluster: Uuid,
    namespace: String,
    name: String,
}

/// The answer to a cancellation.
#[derive(Serialize)]
pub struct CancelView {
    #[serde(flatten)]
    pub view: View,
    pub in_flight: bool,
}

/// The answer to a `PUT`.
#[derive(Serialize)]
pub struct PutView {
    #[serde(flatten)]
    pub view: View,
    pub created: bool,
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
#[derive(Serialize)]
pub struct AttemptView {
    delivery_id: Option<DeliveryId>,
    scheduled_for: String,
    attempt: i32,
    started_at: String,
    duration_ms: i64,
    outcome: &'static str,
    http_status: Option<i32>,
    error: String,
    worker: Option<Uuid>,
    #[serde(flatten)]
    run: Option<RunView>,
}

#[derive(Serialize)]
struct RunView {
    first_at: String,
    last_at: String,
    slots: u64,
    reason: String,
}

impl AttemptView {
    pub fn of(entry: Entry) -> Self {
        let run = entry.run().map(|run| RunView {
            first_at: rfc3339(run.first),
            last_at: rfc3339(run.last),
            slots: run.slots,
            reason: entry.reason.clone().unwrap_or_default(),
        });
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
            run,
        }
    }
}
