//! What the agent wants to be reminded of. Timers are scheduled by checkpoints; here they are seen and cancelled.

use axum::extract::{RawQuery, State};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{SessionPath, TimerPath, verbatim};
use crate::{
    domain::rfc3339,
    http::{
        Facade,
        auth::Caller,
        envelope::Data,
        openapi::{fields, parameters},
        problem::Problem,
        query::Query,
    },
    store::session_timers::Timer,
};

/// A timer of a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionTimer)]
pub struct TimerView {
    timer_id: String,
    #[schema(schema_with = fields::instant)]
    fire_at: String,
    #[schema(schema_with = fields::timer_payload_seen)]
    payload: Box<RawValue>,
    #[schema(schema_with = fields::timer_status)]
    status: &'static str,
    #[schema(schema_with = fields::instant)]
    created_at: String,
    #[schema(schema_with = fields::instant)]
    updated_at: String,
}

impl TimerView {
    fn of(timer: Timer) -> Self {
        Self {
            timer_id: timer.timer_id,
            fire_at: rfc3339(timer.fire_at),
            payload: verbatim(&timer.payload),
            status: timer.status.as_str(),
            created_at: rfc3339(timer.created_at),
            updated_at: rfc3339(timer.updated_at),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = SessionTimerList)]
pub struct List {
    timers: Vec<TimerView>,
    /// How many there are in this answer.
    count: usize,
}

/// List a session's timers
///
/// In the order in which they are due, also those that are over.
#[utoipa::path(
    get, path = "/v1/sessions/{key}/timers", tag = "sessions", operation_id = "listSessionTimers",
    params(parameters::SessionKey, parameters::Limit),
    responses(
        (status = 200, description = "Timers of the session.", body = List),
        (status = 400, description = "A parameter is unknown, given twice or not what it should be."),
    ),
)]
pub async fn list(
    State(facade): State<Facade>,
    caller: Caller,
    SessionPath(key): SessionPath,
    RawQuery(query): RawQuery,
) -> Result<Data<List>, Problem> {
    let _turn = caller.turn().await;
    let limit = Query::parse(query.as_deref().unwrap_or_default(), &["limit"])?.limit()?;
    let found = facade.store.session_timers_if_owned(&caller.owner, &key, limit).await?;
    let timers: Vec<TimerView> = found.ok_or_else(Problem::no_such_session)?.into_iter().map(TimerView::of).collect();
    Ok(Data(List { count: timers.len(), timers }))
}

/// Get a timer
///
/// Also one that is over: `promoted`, when it came due and its event was appended, or `cancelled`.
#[utoipa::path(
    get, path = "/v1/sessions/{key}/timers/{timer_id}", tag = "sessions", operation_id = "getSessionTimer",
    params(parameters::SessionKey, parameters::TimerId),
    responses((status = 200, description = "The timer.", body = TimerView)),
)]
pub async fn get(
    State(facade): State<Facade>,
    caller: Caller,
    TimerPath(key, timer_id): TimerPath,
) -> Result<Data<TimerView>, Problem> {
    let _turn = caller.turn().await;
    told(facade.store.find_session_timer_if_owned(&caller.owner, &key, &timer_id).await?)
}

/// Cancel a timer
///
/// Idempotent: a timer that is over already stays what it is, and the answer tells.
#[utoipa::path(
    delete, path = "/v1/sessions/{key}/timers/{timer_id}", tag = "sessions", operation_id = "cancelSessionTimer",
    params(parameters::SessionKey, parameters::TimerId),
    responses((status = 200, description = "The timer, which is over.", body = TimerView)),
)]
pub async fn cancel(
    State(facade): State<Facade>,
    caller: Caller,
    TimerPath(key, timer_id): TimerPath,
) -> Result<Data<TimerView>, Problem> {
    let _turn = caller.turn().await;
    told(facade.store.cancel_session_timer_if_owned(&caller.owner, &key, &timer_id).await?)
}

fn told(timer: Option<Timer>) -> Result<Data<TimerView>, Problem> {
    timer.map(|timer| Data(TimerView::of(timer))).ok_or_else(Problem::no_such_session)
}
