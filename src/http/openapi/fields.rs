//! What a field of a request or an answer may hold, once for all bodies that have it. The caps are the domain's own.
//!
//! Where a field is nullable, `null` means that it is left out. Texts are capped in bytes; `maxLength` counts characters, so it
//! is the most that can fit, and the description says the rest.

use serde_json::{Value, json};
use utoipa::openapi::{Object, RefOr, Schema, schema::SchemaType};

use crate::{
    domain::{
        alarm::{
            Cause, Kind, LABEL_CAP, LONGEST_DELAY_SECONDS, LONGEST_SPREAD_SECONDS, MAX_FAILURES_CAP, MESSAGE_CAP,
            Misfire, Status,
        },
        invalid::KEY_CAP,
        labels::SELECTOR_CAP,
        occurrence::{Outcome, Reason},
        schedule::{MAX_EXPRESSION_BYTES, MAX_ZONE_BYTES},
        session::{
            autonomy::EventType,
            effect::{EffectStatus, EffectType},
        },
    },
    http::query::DEFAULT_PAGE,
    store::alarms::Action,
};

/// Postgres keeps no NUL.
const NO_NUL: &str = r"^[^\u0000]*$";
/// Three digits of a second, always.
const MILLIS: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$";
const DID: &str = "^did:matrix:[A-Za-z0-9_-]+:[0-9A-Fa-f]{16}$";
/// Kubernetes' syntax of a label: a value, and a key with its optional prefix.
const LABEL_VALUE: &str = "^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$";
const LABEL_KEY: &str = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$";

/// One function per field, to be named in `schema_with`.
macro_rules! fields {
    ($($name:ident $schema:tt)+) => {
        $(pub fn $name() -> RefOr<Schema> {
            schema(json!($schema))
        })+
    };
}

// What callers write.
fields! {
    kind {
        "type": "string",
        "enum": words(Kind::ALL, Kind::as_str),
        "description": "`once` with `fire_at` or `delay_seconds`, `cron` with `cron_expr`."
    }
    label {
        "type": ["string", "null"], "maxLength": LABEL_CAP, "pattern": NO_NUL, "default": "",
        "description": "A name for people. At most 256 bytes."
    }
    labels {
        "type": ["object", "null"],
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "propertyNames": { "type": "string", "maxLength": 317, "pattern": LABEL_KEY },
        "description": "Labels in Kubernetes' syntax, to find alarms by and to act on many at once."
    }
    label_changes {
        "type": ["object", "null"],
        "additionalProperties": { "type": ["string", "null"], "maxLength": 63, "pattern": LABEL_VALUE },
        "propertyNames": { "type": "string", "maxLength": 317, "pattern": LABEL_KEY },
        "description": "Merged label by label: `null` removes one. `null` for the whole removes all."
    }
    fire_at {
        "type": ["string", "null"], "format": "date-time",
        "description": "The instant, RFC 3339 with an offset, ahead and before the year 2101. Rounded up to the microsecond."
    }
    delay_seconds {
        "type": ["integer", "null"], "minimum": 1, "maximum": LONGEST_DELAY_SECONDS,
        "description": "So many seconds from now, ending before the year 2101. Stands in place of `fire_at`."
    }
    cron_expr {
        "type": ["string", "null"], "maxLength": MAX_EXPRESSION_BYTES,
        "description": "Minute, hour, day of month, month, day of week; or `@daily` and its like; or `@every 90m`. It must have an instant ahead."
    }
    timezone {
        "type": ["string", "null"], "maxLength": MAX_ZONE_BYTES, "pattern": "^[A-Za-z0-9_+/-]*$", "default": "UTC",
        "description": "The IANA zone in which `cron_expr` is read, such as America/New_York. Empty counts as UTC."
    }
    starts_at {
        "type": ["string", "null"], "format": "date-time",
        "description": "The first instant at which a series may fire. With `cron_expr` only."
    }
    ends_at {
        "type": ["string", "null"], "format": "date-time",
        "description": "The first instant at which a series fires no more, after `starts_at`. With `cron_expr` only."
    }
    spread_seconds {
        "type": ["integer", "null"], "minimum": 0, "maximum": LONGEST_SPREAD_SECONDS, "default": 0,
        "description": "Each alarm fires this many seconds or fewer after its nominal instant, always by the same offset, so that not all come at once. With `cron_expr` only."
    }
    misfire {
        "type": ["string", "null"], "enum": words_or_null(Misfire::ALL, Misfire::as_str), "default": "fire_once",
        "description": "What becomes of slots that passed while nothing could fire: one wake that counts the others, none, or the newest hundred in turn."
    }
    max_lateness_seconds {
        "type": ["integer", "null"], "minimum": 1, "maximum": LONGEST_DELAY_SECONDS,
        "description": "An occurrence that is later than this does not fire; it is recorded as missed."
    }
    conversation_id {
        "type": ["string", "null"], "maxLength": KEY_CAP, "pattern": NO_NUL,
        "description": "Where the wake belongs, as the router knows it. At most 256 bytes."
    }
    wake_message {
        "type": "string", "minLength": 1, "maxLength": MESSAGE_CAP, "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$",
        "description": "What the agent is told when it wakes. Not blank, at most 32 KiB."
    }
    idempotency_key {
        "type": ["string", "null"], "maxLength": KEY_CAP, "pattern": NO_NUL,
        "description": "The caller's own name of the alarm: a repeated request finds the alarm instead of making another. At most 256 bytes. The header `Idempotency-Key` counts as this field."
    }
    max_failures {
        "type": ["integer", "null"], "minimum": 0, "maximum": MAX_FAILURES_CAP,
        "description": "How often a failed attempt at one occurrence is repeated before it is given up: attempts are one more. The service's own number where it is left out."
    }
    correlation_id {
        "type": ["string", "null"], "maxLength": KEY_CAP, "pattern": "^[ -~]*$",
        "description": "Goes with every wake, in printable ASCII. Left out, it is the trace id of the request's `traceparent`, else a new one."
    }
    due_at {
        "type": "string", "format": "date-time",
        "description": "The instant, RFC 3339 with an offset, before the year 2101. Rounded up to the millisecond. One that has passed is due at once."
    }
    timer_correlation_id {
        "type": ["string", "null"], "maxLength": KEY_CAP, "pattern": "^[ -~]*$",
        "description": "The request's trace, in printable ASCII: goes with the event. Left out, a timer keeps the one it has; a new one has the trace id of the request's `traceparent`, else a new one."
    }
    action {
        "type": "string", "enum": words(Action::ALL, Action::as_str),
        "description": "What to do with each alarm."
    }
    selector {
        "type": "string", "minLength": 1, "maxLength": SELECTOR_CAP,
        "description": "Which alarms: a label selector in Kubernetes' syntax with at most 32 requirements, such as `team=ops,tier notin (1,2)`. An empty one, which would mean all, is refused."
    }
    statuses {
        "type": ["string", "null"], "pattern": statuses_pattern("?"),
        "description": "Only alarms in one of these states: a comma-separated list. Empty counts as left out."
    }
    did {
        "type": "string", "maxLength": 256, "pattern": DID,
        "description": "`did:matrix:<user id>:<fingerprint>`, the fingerprint being the first 16 hex digits of the public key."
    }
    public_key {
        "type": "string", "pattern": "^[0-9A-Fa-f]{64}$", "minLength": 64, "maxLength": 64,
        "description": "The 32 bytes of the ed25519 public key, in hex."
    }
    signature {
        "type": "string", "pattern": "^[0-9A-Fa-f]{128}$", "minLength": 128, "maxLength": 128,
        "description": "The 64 bytes of the ed25519 signature of the challenge's `message`, in hex."
    }
    preview_alarm {
        "type": ["string", "null"],
        "description": "An alarm of the caller's: its own schedule if none is given, and the exact instants of its spread."
    }
    preview_from {
        "type": ["string", "null"], "format": "date-time", "description": "Only slots after this instant; now if left out."
    }
    preview_count {
        "type": ["integer", "null"], "minimum": 1, "maximum": 100, "default": 5, "description": "How many slots."
    }
}

// What callers write of sessions. Which payload goes with which type, [`super::bodies`] tells.
fields! {
    event_id {
        "type": ["string", "null"], "format": "uuid",
        "description": "The client's own id of the event, a UUID: a repeated request finds the event instead of appending another."
    }
    posted_event_type {
        "type": "string", "enum": ["user_message", "tool_result"], "description": "What happened."
    }
    event_payload {
        "type": "object",
        "description": "Of a `user_message` its `text`, of a `tool_result` its `tool_id` and `payload`; further keys are kept. Up to 64 levels deep and without NUL characters; it comes back to the byte."
    }
    checkpoint_id {
        "type": "string", "minLength": 1, "maxLength": KEY_CAP, "pattern": NO_NUL,
        "description": "The agent's own id of the checkpoint: a repeated request has the same answer and does nothing. At most 256 bytes."
    }
    checkpoint_event_seq {
        "type": "integer", "minimum": 1, "description": "The event that was processed: the one behind the session's `event_seq`."
    }
    asked_effect_type {
        "type": "string", "enum": ["send_message", "schedule_timer"], "description": "What is to be done."
    }
    asked_effect_payload {
        "type": "object",
        "description": "Of a `send_message` its `content`; of a `schedule_timer` its `timer_id`, its `fire_at` (RFC 3339 with an offset, from 1970 to 2100, rounded up to the microsecond; one that has passed comes due at once) and, if the timer's event is to carry something, its `payload`. Nothing else."
    }
}

// What callers write beside the body.
fields! {
    session_key {
        "type": "string", "maxLength": KEY_CAP, "pattern": "^[A-Za-z0-9_-]+:[A-Za-z0-9_-]+:[A-Za-z0-9_-]+$",
        "example": "11111111-2222-3333-4444-555555555555:portfolio-agent:thread-7"
    }
    timer_id_in_path { "type": "string", "minLength": 1, "maxLength": KEY_CAP, "pattern": NO_NUL, "example": "follow-up" }
    after { "type": "integer", "minimum": 0, "default": 0 }
    effect_status_asked { "type": "string", "enum": words(EffectStatus::ALL, EffectStatus::as_str) }
    key_in_path { "type": "string", "minLength": 1, "maxLength": KEY_CAP, "pattern": NO_NUL, "example": "daily-summary-v1" }
    key_in_header { "type": "string", "maxLength": KEY_CAP, "pattern": "^[ -~]*$" }
    revision_in_header { "type": "string", "pattern": r#"^([*]|"[0-9]{1,18}")$"#, "example": "\"7\"" }
    traceparent { "type": "string", "example": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }
    limit { "type": "integer", "minimum": 1, "default": DEFAULT_PAGE }
    cursor { "type": "string", "minLength": 1 }
    statuses_asked { "type": "string", "pattern": statuses_pattern("") }
    selector_asked { "type": "string", "maxLength": SELECTOR_CAP, "example": "team=ops,tier notin (1,2)" }
    service_call_id { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:-]+$", "example": "call-7" }
    any_service_call_id { "type": "string", "minLength": 1, "example": "call-7" }
    correlation_asked { "type": "string", "minLength": 1, "maxLength": KEY_CAP, "pattern": "^[ -~]+$", "example": "0af7651916cd43dd8448eb211c80319c" }
    text_asked { "type": "string", "maxLength": KEY_CAP, "pattern": NO_NUL }
}

// What callers see.
fields! {
    instant { "type": "string", "format": "date-time" }
    instant_or_null { "type": ["string", "null"], "format": "date-time" }
    instant_in_millis { "type": "string", "format": "date-time", "pattern": MILLIS }
    instant_in_millis_or_null { "type": ["string", "null"], "format": "date-time", "pattern": MILLIS }
    timer_state {
        "type": "string", "enum": ["Scheduled", "Reached"], "description": "Whether its event has been delivered."
    }
    instants { "type": "array", "items": { "type": "string", "format": "date-time" } }
    seen_kind { "type": "string", "enum": words(Kind::ALL, Kind::as_str) }
    seen_misfire { "type": "string", "enum": words(Misfire::ALL, Misfire::as_str) }
    status { "type": "string", "enum": words(Status::ALL, Status::as_str), "description": "Where the alarm stands." }
    paused_by {
        "type": "array", "items": { "type": "string", "enum": words(Cause::ALL, Cause::as_str) },
        "description": "Why it is paused. Each cause lifts only itself."
    }
    source { "type": "string", "enum": ["api", "kubernetes"], "description": "Through which door it came." }
    cancelled_by {
        "type": ["string", "null"], "enum": ["owner", "resource", "cluster", "agent", null],
        "description": "Who cancelled it; `null` unless it is cancelled."
    }
    outcome {
        "type": "string", "enum": words(Outcome::ALL, Outcome::as_str),
        "description": "What became of the attempt, or of the run of slots."
    }
    reason {
        "type": "string", "enum": words(Reason::ALL, Reason::as_str), "description": "Of a run: why these slots had no attempt."
    }
}

// What callers see of sessions.
fields! {
    event_type { "type": "string", "enum": words(EventType::ALL, EventType::as_str), "description": "What happened." }
    effect_type {
        "type": "string", "enum": words(EffectType::ALL, EffectType::as_str),
        "description": "What is to be done: tell the client something; remind the agent; or, of chronos' own making, tell the router that a timer came due."
    }
    effect_status {
        "type": "string", "enum": words(EffectStatus::ALL, EffectStatus::as_str), "description": "Where the effect stands."
    }
    effect_reason { "type": "string", "description": "Why it was suppressed, cancelled or given up." }
    dedupe_key {
        "type": "string", "pattern": "^[0-9a-f]{64}$",
        "description": "The same however often it is sent: what a client dedupes on."
    }
    timer_status {
        "type": "string", "enum": ["pending", "promoted", "cancelled"],
        "description": "Where the timer stands; `promoted`: it came due, and its event is in the session's log."
    }
}

pub fn timer_payload_seen() -> Schema {
    any("What the timer's event carries, to the byte; `null` if nothing.")
}

pub fn payload() -> Schema {
    any(
        "Any JSON value, up to 64 levels deep and without NUL characters; it comes back to the byte. `null` counts as `{}`.",
    )
}

pub fn seen_payload() -> Schema {
    any("The payload as it was written, to the byte.")
}

fn any(description: &str) -> Schema {
    Object::builder().schema_type(SchemaType::AnyValue).description(Some(description)).into()
}

/// A comma-separated list of states. White space around a word does no harm.
fn statuses_pattern(repeat: &str) -> String {
    let words: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    let word = format!(r"\s*({})\s*", words.join("|"));
    format!("^({word}(,{word})*){repeat}$")
}

fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Vec<Value> {
    all.iter().map(|one| json!(word(*one))).collect()
}

fn words_or_null<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Vec<Value> {
    words(all, word).into_iter().chain([Value::Null]).collect()
}

fn schema(value: Value) -> RefOr<Schema> {
    RefOr::T(serde_json::from_value(value).expect("a schema in this file is one"))
}
