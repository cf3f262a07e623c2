//! `/v1/service-calls` and `/v1/timers`: calls, and the one timer that each may have. The tenant is the caller's own DID.
//!
//! An id that is none is nobody's: it is told as such where it would be registered, and is an unknown one everywhere else.

use axum::{
    extract::{FromRequestParts, Path, RawQuery, State},
    http::{HeaderMap, request::Parts},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Facade,
    alarms::create::correlation_of,
    auth::Caller,
    envelope::{Body, Data, NoBody},
    openapi::{fields, parameters},
    problem::Problem,
    query::Query,
};
use crate::{
    domain::{
        ids::ServiceCallId,
        invalid::{Invalid, check_correlation_id},
        rfc3339_millis,
        timer::{Draft, Timer},
    },
    store::service_calls::{Command, State as Where, Timer as Stored},
};

/// Timers of one request that are shown: a request has a handful.
const MOST_TRACED: i64 = 1000;

/// The id in the path, or why it is none.
pub struct CallPath(Result<ServiceCallId, Problem>);

impl FromRequestParts<Facade> for CallPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let told = |problem: String| {
            let remedy = "give 1 to 128 of A-Z a-z 0-9 _ . : -";
            Problem::from(vec![Invalid::new("service_call_id", problem, remedy)])
        };
        let id = match Path::<String>::from_request_parts(parts, facade).await {
            Ok(Path(id)) => id.parse().map_err(|error: crate::domain::ids::ServiceCallIdError| told(error.to_string())),
            Err(_) => Err(told("is not UTF-8, percent-encoded".to_owned())),
        };
        Ok(Self(id))
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = ServiceCall)]
pub struct CallView {
    /// The caller's DID.
    tenant_id: String,
    service_call_id: String,
}

/// Register a service call
///
/// Only a registered call can have a timer. Registering it again changes nothing.
#[utoipa::path(
    put, path = "/v1/service-calls/{service_call_id}", tag = "service calls", operation_id = "putServiceCall",
    params(parameters::ServiceCallId),
    responses((status = 200, description = "The call is registered.", body = CallView)),
)]
pub async fn register(
    State(facade): State<Facade>,
    caller: Caller,
    CallPath(id): CallPath,
    _: NoBody,
) -> Result<Data<CallView>, Problem> {
    let _turn = caller.turn().await;
    let id = id?;
    facade.store.register_service_call(&caller.owner, &id).await?;
    Ok(Data(CallView { tenant_id: caller.owner.to_string(), service_call_id: id.to_string() }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = ServiceCallDeleted)]
pub struct Deletion {
    /// Whether there was such a call.
    deleted: bool,
    /// Whether its timer was being delivered: the event may still arrive.
    in_flight: bool,
}

/// Delete a service call
///
/// Its timer goes with it, and leaves a trace in the history. Deleting a call that is not there changes nothing.
#[utoipa::path(
    delete, path = "/v1/service-calls/{service_call_id}", tag = "service calls", operation_id = "deleteServiceCall",
    params(parameters::AnyServiceCallId),
    responses((status = 200, description = "There is no such call any more.", body = Deletion)),
)]
pub async fn delete(
    State(facade): State<Facade>,
    caller: Caller,
    CallPath(id): CallPath,
) -> Result<Data<Deletion>, Problem> {
    let _turn = caller.turn().await;
    let Ok(id) = id else { return Ok(Data(Deletion { deleted: false, in_flight: false })) };
    let done = facade.store.delete_service_call(&caller.owner, &id).await?;
    Ok(Data(Deletion { deleted: done.deleted, in_flight: done.in_flight }))
}

/// `PUT /v1/service-calls/{service_call_id}/timer`
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TimerBody {
    #[schema(schema_with = fields::due_at, required)]
    due_at: Option<String>,
    #[schema(schema_with = fields::timer_correlation_id)]
    correlation_id: Option<String>,
    #[schema(schema_with = fields::payload)]
    payload: Option<Box<RawValue>>,
}

impl TimerBody {
    pub fn define(self) -> Result<Timer, Problem> {
        let payload = self.payload.map(|raw| raw.get().to_owned());
        Ok(Draft { due_at: self.due_at, correlation_id: self.correlation_id, payload }.define()?)
    }
}

/// A timer, with the names, words and instants of the timers' own document.
#[derive(Serialize, ToSchema)]
#[schema(as = Timer)]
pub struct TimerView {
    /// The caller's DID.
    tenant_id: String,
    service_call_id: String,
    correlation_id: String,
    /// The instant that was asked for; a retry does not move it.
    #[schema(schema_with = fields::instant_in_millis)]
    due_at: String,
    /// When it was last asked for.
    #[schema(schema_with = fields::instant_in_millis)]
    registered_at: String,
    /// When it was reached, as its event says; `null` until then.
    #[schema(schema_with = fields::instant_in_millis_or_null)]
    reached_at: Option<String>,
    #[schema(schema_with = fields::timer_state)]
    state: &'static str,
}

impl TimerView {
    fn of(timer: Stored) -> Self {
        Self {
            tenant_id: timer.tenant.to_string(),
            service_call_id: timer.call.to_string(),
            correlation_id: timer.correlation_id,
            due_at: rfc3339_millis(timer.due_at),
            registered_at: rfc3339_millis(timer.registered_at),
            // Scheduled again, it is not reached any more.
            reached_at: timer.reached_at.filter(|_| timer.state == Where::Reached).map(rfc3339_millis),
            state: timer.state.as_str(),
        }
    }
}

/// Schedule a service call's timer
///
/// Makes the call's timer, or schedules the one it has anew, also when that was reached: it fires again, under another delivery id. An
/// equal request for a timer that is still scheduled renews `registered_at` and nothing else. An instant that has passed is due at once.
#[utoipa::path(
    put, path = "/v1/service-calls/{service_call_id}/timer", tag = "service calls", operation_id = "putTimer",
    params(parameters::ServiceCallId, parameters::Traceparent),
    request_body = TimerBody,
    responses(
        (status = 200, description = "The timer is scheduled.", body = TimerView),
        (status = 404, description = "The tenant has no such call. The same for an unknown id, a malformed one and somebody else's."),
    ),
)]
pub async fn schedule(
    State(facade): State<Facade>,
    caller: Caller,
    CallPath(id): CallPath,
    headers: HeaderMap,
    Body(body): Body<TimerBody>,
) -> Result<Data<TimerView>, Problem> {
    let _turn = caller.turn().await;
    let timer = body.define()?;
    let id = id.map_err(|_| Problem::no_such_service_call())?;
    let command = Command {
        tenant: &caller.owner,
        call: &id,
        due_at: timer.due_at,
        correlation_id: timer.correlation_id.as_deref(),
        fallback_correlation_id: &correlation_of(&headers),
        payload: &timer.payload,
    };
    let scheduled = facade.store.schedule_timer_if_registered(&command).await?;
    scheduled.map(|timer| Data(TimerView::of(timer))).ok_or_else(Problem::no_such_service_call)
}

/// Get a service call's timer
///
/// Scheduled or reached, until the call is deleted.
#[utoipa::path(
    get, path = "/v1/service-calls/{service_call_id}/timer", tag = "service calls", operation_id = "getTimer",
    params(parameters::ServiceCallId),
    responses(
        (status = 200, description = "The timer.", body = TimerView),
        (status = 404, description = "The tenant has no such call, or it has no timer. The same for somebody else's."),
    ),
)]
pub async fn get(
    State(facade): State<Facade>,
    caller: Caller,
    CallPath(id): CallPath,
) -> Result<Data<TimerView>, Problem> {
    let _turn = caller.turn().await;
    let id = id.map_err(|_| Problem::no_such_timer())?;
    let timer = facade.store.find_timer(&caller.owner, &id).await?;
    timer.map(|timer| Data(TimerView::of(timer))).ok_or_else(Problem::no_such_timer)
}

#[derive(Serialize, ToSchema)]
#[schema(as = TimerList)]
pub struct Traced {
    timers: Vec<TimerView>,
    /// How many there are here.
    count: usize,
}

/// Trace a request's timers
///
/// The tenant's timers with this correlation id, in the order in which they are due: a thousand at most.
#[utoipa::path(
    get, path = "/v1/timers", tag = "service calls", operation_id = "traceTimers",
    params(parameters::Traced),
    responses(
        (status = 200, description = "The timers of one request.", body = Traced),
        (status = 400, description = "The correlation id is missing or cannot be one, or another parameter is there."),
    ),
)]
pub async fn trace(
    State(facade): State<Facade>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Data<Traced>, Problem> {
    let _turn = caller.turn().await;
    let correlation_id = traced(query.as_deref().unwrap_or_default())?;
    let found = facade.store.timers_by_correlation(&caller.owner, &correlation_id, MOST_TRACED).await?;
    let timers: Vec<TimerView> = found.into_iter().map(TimerView::of).collect();
    Ok(Data(Traced { count: timers.len(), timers }))
}

/// Which request's timers are asked for.
pub fn traced(query: &str) -> Result<String, Problem> {
    const NAME: &str = "correlation_id";
    let query = Query::parse(query, &[NAME])?;
    let id = query.get(NAME).unwrap_or_default();
    let mut invalid = Vec::new();
    if id.is_empty() {
        let remedy = "say which request's timers are meant: /v1/timers?correlation_id=…";
        invalid.push(Invalid::new(NAME, "is missing", remedy));
    }
    check_correlation_id(&mut invalid, id);
    if invalid.is_empty() { Ok(id.to_owned()) } else { Err(invalid.into()) }
}
