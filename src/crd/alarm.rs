use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::rule;
use crate::domain::{
    alarm::{LABEL_CAP, MESSAGE_CAP},
    invalid::KEY_CAP,
    payload,
};

/// Whom to wake, when, and with what. Give exactly one of fireAt, delaySeconds and cronExpr. `chronosd explain -f FILE` says what a file
/// would do before it is applied. wakeMessage and payload can be read by everybody who may view the resource: put no secrets there.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "chronos.dev",
    version = "v1alpha1",
    kind = "Alarm",
    doc = "An alarm: wakes its owner's agent once, or again and again, at the instants its schedule names.",
    namespaced,
    shortname = "al",
    category = "chronos",
    status = "AlarmStatus",
    selectable = ".spec.owner",
    selectable = ".status.phase",
    printcolumn = r#"{"name": "SCHEDULE", "type": "string", "jsonPath": ".status.schedule"}"#,
    printcolumn = r#"{"name": "ZONE", "type": "string", "jsonPath": ".spec.timezone"}"#,
    printcolumn = r#"{"name": "NEXT", "type": "string", "jsonPath": ".status.nextFireTime"}"#,
    printcolumn = r#"{"name": "LAST", "type": "date", "jsonPath": ".status.lastFiredTime"}"#,
    printcolumn = r#"{"name": "FAILURES", "type": "integer", "jsonPath": ".status.failureCount"}"#,
    printcolumn = r#"{"name": "STATUS", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "MESSAGE", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].message", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rule::exactly_one_schedule(),
    validation = rule::with_cron_only("timezone", "has(self.timezone)"),
    validation = rule::with_cron_only("startsAt", "has(self.startsAt)"),
    validation = rule::with_cron_only("endsAt", "has(self.endsAt)"),
    validation = rule::with_cron_only("spreadSeconds", "has(self.spreadSeconds) && self.spreadSeconds != 0"),
    validation = rule::ends_after_start(),
    validation = rule::one_payload(),
    validation = rule::at_most_bytes("label", LABEL_CAP),
    validation = rule::at_most_bytes("conversationId", KEY_CAP),
    validation = rule::at_most_bytes("wakeMessage", MESSAGE_CAP),
    validation = rule::at_most_bytes("payloadJson", payload::LONGEST),
    validation = rule::immutable("owner", "Alarm")
)]
pub struct AlarmSpec {
    /// The DID of the agent to wake: did:matrix:<user id>:<first 16 hex digits of its public key>, in lower case. An Agent with this DID
    /// must stand in the same namespace. Immutable.
    #[schemars(length(max = 256))]
    #[x_kube(validation = rule::did())]
    pub owner: String,

    /// A short label for people, such as "daily portfolio summary". The wake carries it. At most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub label: Option<String>,

    /// Fires once, at this instant: RFC 3339 with an offset, such as 2026-11-16T09:00:00Z. An instant before the
    /// resource's creation never fires and is reported as missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rule::instant())]
    pub fire_at: Option<String>,

    /// Fires once, this many seconds after the resource's creation. An edit does not start the count anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_365_200_000_i64))]
    pub delay_seconds: Option<i64>,

    /// Fires again and again: five fields (minute, hour, day of month, month, day of week) such as "0 9 * * MON-FRI", read in timezone;
    /// a descriptor such as @daily; or @every with 1s to 8760h, such as @every 1h30m, counted from startsAt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = rule::not_blank("write five fields such as 0 9 * * MON-FRI, or a descriptor such as @daily"))]
    pub cron_expr: Option<String>,

    /// The IANA time zone in which cronExpr is read, in its own spelling, such as Europe/Berlin. Default: UTC. With cronExpr only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rule::zone())]
    pub timezone: Option<String>,

    /// A series begins at this instant, inclusive: RFC 3339 with an offset. An @every counts from it. Default: the resource's
    /// creation. With cronExpr only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rule::instant())]
    pub starts_at: Option<String>,

    /// A series ends before this instant, exclusive: RFC 3339 with an offset. With cronExpr only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rule::instant())]
    pub ends_at: Option<String>,

    /// Each alarm of a series fires this many seconds late at most, always by the same amount, so that a thousand alarms of one
    /// minute do not wake a thousand agents at once. Default: 0. With cronExpr only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000_i64))]
    pub spread_seconds: Option<i64>,

    /// What becomes of slots that passed while nothing could fire: `fire_once` (one wake for the newest, which counts the others;
    /// the default), `skip` (none that is late), or `fire_all` (the newest hundred, one after another).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["fire_once", "skip", "fire_all"]))]
    pub misfire: Option<String>,

    /// A wake that would be later than this many seconds is recorded as missed and not sent. Default: no limit; with misfire
    /// skip: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_365_200_000_i64))]
    pub max_lateness_seconds: Option<i64>,

    /// While true the alarm does not fire; slots that pass meanwhile are recorded as skipped. A wake that is under way arrives.
    /// Set back to false, a series goes on at its next slot, and a once alarm whose instant has passed fires at once.
    #[serde(default)]
    pub suspend: bool,

    /// The conversation to resume into. Without one the agent opens a fresh conversation. At most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub conversation_id: Option<String>,

    /// What the agent is told when it wakes. At most 32768 bytes.
    #[schemars(length(max = 32768))]
    #[x_kube(validation = rule::not_blank("say what the agent should do when it wakes"))]
    pub wake_message: String,

    /// State handed back with the wake: an object. At most 262144 bytes and 64 levels. The API server may respell its numbers and
    /// reorder its keys; use payloadJson where every byte counts, and for a list, a text or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub payload: Option<RawJson>,

    /// State handed back with the wake, as JSON text that is kept to the byte: any JSON value. At most 262144 bytes. Not beside payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144))]
    pub payload_json: Option<String>,

    /// Retries of a wake that is not taken, before it is given up. Default: the operator's, normally 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_failures: Option<i32>,
}

/// What has become of it. Written by the controller alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlarmStatus {
    /// The generation this status speaks of; -1 until the controller has seen the resource.
    #[serde(default = "unseen")]
    pub observed_generation: i64,
    /// The alarm's id in the database, in the wake and over HTTP. It stays through edits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm_id: Option<String>,
    /// Active: waits for its next wake. Paused: by spec.suspend, its agent or its owner. Fired: nothing is left to fire. Failed: given up,
    /// or too late when it was made. Cancelled: delete it and apply it anew. Invalid: the condition Stalled says what to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The schedule as it is kept: an expression, or an instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// When it fires next: a retry's time too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_fire_time: Option<String>,
    /// When it fires next and after that: five instants at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub upcoming: Vec<String>,
    /// When its last wake was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_fired_time: Option<String>,
    /// When the last attempt to deliver a wake began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_attempt_time: Option<String>,
    /// Failed attempts in a row at the wake now due.
    #[serde(default)]
    pub failure_count: i32,
    /// Why the last attempt failed, in a word or two; empty when it did not. What the router said is for the owner alone, over
    /// HTTP.
    #[serde(default)]
    pub last_error: String,
    /// Wakes delivered.
    #[serde(default)]
    pub fired_count: i64,
    /// Slots that passed without a wake, because nothing could fire or it was too late.
    #[serde(default)]
    pub missed_count: i64,
    /// The last five attempts, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub attempts: Vec<AlarmAttempt>,
    /// The newest value of the annotation chronos.dev/fire-requested-at that was seen: a value that differs from it fires the
    /// alarm once, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fire_requested_at: Option<String>,
    /// Ready always: stored and scheduled as specified. Reconciling (tried again by itself) and Stalled (waits for an edit) only
    /// when true. Delivering: whether the router takes its wakes; from the first attempt on. Duplicate, only when true: another
    /// cluster has an alarm of this owner, namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One try to deliver a wake.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlarmAttempt {
    /// The instant of the schedule that the wake is for.
    #[schemars(extend("format" = "date-time"))]
    pub scheduled_for: String,
    /// Its number, from 1.
    pub attempt: i32,
    /// When it began.
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// Until the router's answer, or until it was waited for no longer.
    pub duration_milliseconds: i64,
    /// delivered, retrying (it failed and will be tried again), exhausted (it failed for the last time), cancelled or fenced (its
    /// answer came too late to count).
    pub outcome: String,
    /// What the router answered; absent when there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<i32>,
}

pub(super) fn unseen() -> i64 {
    -1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    Active,
    Paused,
    Fired,
    Failed,
    Cancelled,
    Invalid,
}

/// JSON as the API server spells it. Reading it descends nowhere: a parser that did would give up on deep nesting.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// Atomic: it is replaced whole, and `metadata.managedFields` does not repeat its nesting.
fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic"
    })
}
