//! What stands in paths, behind question marks and in headers, as the document tells it. Only described here: the handlers read
//! them by hand, to refuse them in their own words.

#![expect(dead_code, reason = "described, never filled")]

use utoipa::IntoParams;
use uuid::Uuid;

use super::fields;

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AlarmId {
    /// The alarm's id. A malformed one is an unknown one.
    id: Uuid,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct Key {
    /// The caller's own name of the alarm, percent-encoded UTF-8, at most 256 bytes.
    #[param(schema_with = fields::key_in_path)]
    idempotency_key: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ServiceCallId {
    /// The caller's own name of the call.
    #[param(schema_with = fields::service_call_id)]
    service_call_id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AnyServiceCallId {
    /// The caller's own name of the call. What cannot be one is nobody's.
    #[param(schema_with = fields::any_service_call_id)]
    service_call_id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Traced {
    /// Only timers with this correlation id.
    #[param(schema_with = fields::correlation_asked)]
    correlation_id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// How many at most. Above 500 counts as 500.
    #[param(schema_with = fields::limit)]
    limit: Option<i64>,
    /// `next_cursor` of the page before, unchanged.
    #[param(schema_with = fields::cursor)]
    cursor: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Filter {
    /// Only alarms in one of these states: a comma-separated list.
    #[param(schema_with = fields::statuses_asked)]
    status: Option<String>,
    /// Only `once` or only `cron`.
    #[param(schema_with = fields::seen_kind)]
    kind: Option<String>,
    /// Only alarms whose label begins so. At most 256 bytes.
    #[param(schema_with = fields::text_asked)]
    label_prefix: Option<String>,
    /// Only alarms that this label selector means, in Kubernetes' syntax with at most 32 requirements.
    #[param(schema_with = fields::selector_asked)]
    labels: Option<String>,
    /// Only alarms with this correlation id. At most 256 bytes.
    #[param(schema_with = fields::text_asked)]
    correlation_id: Option<String>,
    /// Only alarms whose next instant is this or later.
    #[param(schema_with = fields::instant)]
    due_after: Option<String>,
    /// Only alarms whose next instant is before this.
    #[param(schema_with = fields::instant)]
    due_before: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SessionKey {
    /// The session's key, `userId:agentId:threadId`, at most 256 bytes. The user is the agent's own.
    #[param(schema_with = fields::session_key)]
    key: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct EffectId {
    /// The effect's id. A malformed one is an unknown one.
    id: Uuid,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TimerId {
    /// The agent's own name of the timer, percent-encoded UTF-8, at most 256 bytes.
    #[param(schema_with = fields::timer_id_in_path)]
    timer_id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Limit {
    /// How many at most. Above 500 counts as 500.
    #[param(schema_with = fields::limit)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventsAsked {
    /// Only events behind this `seq`.
    #[param(schema_with = fields::after)]
    after: Option<i64>,
    /// How many at most. Above 500 counts as 500.
    #[param(schema_with = fields::limit)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EffectsAsked {
    /// Only effects that stand so.
    #[param(schema_with = fields::effect_status_asked)]
    status: Option<String>,
    /// How many at most. Above 500 counts as 500.
    #[param(schema_with = fields::limit)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IdempotencyKey {
    /// Counts as the field `idempotency_key`; given both, they must be equal.
    #[param(rename = "Idempotency-Key", schema_with = fields::key_in_header)]
    idempotency_key: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IfMatch {
    /// Only if the alarm is at this revision, in quotes; `*` for any.
    #[param(rename = "If-Match", schema_with = fields::revision_in_header)]
    if_match: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct Traceparent {
    /// W3C Trace Context. Its trace id becomes the correlation id of an alarm or timer that gives none; one that cannot be read is ignored.
    #[param(schema_with = fields::traceparent)]
    traceparent: Option<String>,
}
