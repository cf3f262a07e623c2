//! Alarms come in: `POST /v1/alarms`, each at most once per key, and `PUT /v1/alarms/by-key/{idempotency_key}`, which makes the key
//! stand for what the body says.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    LATE_REQUEST,
    body::{CreateBody, check, idempotency_key},
    managed, never_fires, passed,
    view::{PutView, Receipt, View},
};
use crate::{
    domain::{
        alarm::{Defaults, Definition, Plan, Slot},
        ids::AlarmId,
        trace,
    },
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, Data},
        openapi::parameters,
        problem::Problem,
    },
    store::alarms::{Alarm, Created, NotPlaced, Placed, Placement, Request},
};

/// Create an alarm
///
/// With an idempotency key, in the body or the header, a repeated request finds the alarm that the first one made (`deduped: true`),
/// whatever has become of that since; it never makes a second one and never re-arms the first.
#[utoipa::path(
    post, path = "/v1/alarms", tag = "alarms", operation_id = "createAlarm",
    params(parameters::IdempotencyKey, parameters::Traceparent),
    request_body = CreateBody,
    responses(
        (status = 200, description = "The alarm is stored and will fire.", body = Receipt),
        (status = 409, description = "The key stands for an alarm of another kind, or for one that a resource manages."),
    ),
)]
pub async fn create(
    State(facade): State<Facade>,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<CreateBody>,
) -> Result<Data<Receipt>, Problem> {
    let _turn = caller.turn().await;
    let now = caller.now;
    let key = idempotency_key(&headers, body.idempotency_key.as_deref())?;
    let correlation_id = body.correlation_id().map_or_else(|| correlation_of(&headers), str::to_owned);
    let kind = body.kind.clone().unwrap_or_default();
    let defaults = Defaults { born_at: now, delays_from: now, max_failures: facade.max_failures };
    let definition = body.define(&key, defaults)?;
    let id = new_id();
    let first = match first_slot(&caller, &definition, id, now) {
        Ok(slot) => slot,
        // A request repeated because its answer was lost may come after its instant: the key still finds its alarm.
        Err(refused) => match facade.store.find_by_key(&caller.owner, &key).await? {
            Some(alarm) => return known(&alarm, &kind),
            None => return Err(refused),
        },
    };
    let request = Request {
        id,
        owner: &caller.owner,
        definition: &definition,
        first,
        born_at: now,
        idempotency_key: &key,
        correlation_id: &correlation_id,
        may: facade.may(&caller),
    };
    match facade.store.create_or_find_by_key(&request).await? {
        Created::New(alarm) => Ok(Data(Receipt::of(&alarm, false))),
        Created::Known(alarm) => known(&alarm, &kind),
        Created::OverQuota(exceeded) => Err(exceeded.into()),
        Created::Barred => Err(Problem::unauthorized()),
    }
}

/// A key that stands for an alarm already finds it, whatever has become of that.
fn known(alarm: &Alarm, kind: &str) -> Result<Data<Receipt>, Problem> {
    match (alarm.resource(), alarm.kind == kind) {
        (None, true) => Ok(Data(Receipt::of(alarm, true))),
        (None, false) => Err(Problem::conflict(format!(
            "idempotency_key stands for alarm {}, which is of kind {}; use another key, or replace that one by PUT \
             /v1/alarms/by-key/…",
            alarm.id, alarm.kind
        ))),
        (Some(resource), _) => Err(managed(&resource)),
    }
}

fn first_slot(caller: &Caller, definition: &Definition, id: AlarmId, now: DateTime<Utc>) -> Result<Slot, Problem> {
    caller.quotas.admit_schedule(&definition.timing.schedule, now)?;
    match definition.timing.plan(id, now, now - LATE_REQUEST) {
        Plan::At(slot) => Ok(slot),
        Plan::Missed { due } => Err(passed("fire_at", due, now)),
        Plan::Never => Err(never_fires()),
    }
}

/// Who gives no correlation id is found by the trace that the request belongs to, or by one of our own.
pub fn correlation_of(headers: &HeaderMap) -> String {
    let header = headers.get("traceparent").and_then(|value| value.to_str().ok());
    header.and_then(trace::of_request).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// In the order of their making, which is how the table's indexes like them.
fn new_id() -> AlarmId {
    AlarmId::from_uuid(Uuid::now_v7())
}

/// Create or replace an alarm by its key
///
/// Makes the key stand for what the body says. An equal definition of an active alarm changes nothing, so that it can be sent on
/// every start of an agent; anything else re-arms it, also when it is over. `delay_seconds` counts anew from each request. It lifts
/// the owner's pause and no other.
#[utoipa::path(
    put, path = "/v1/alarms/by-key/{idempotency_key}", tag = "alarms", operation_id = "putAlarmByKey",
    params(parameters::Key, parameters::IdempotencyKey, parameters::Traceparent),
    request_body = CreateBody,
    responses(
        (status = 200, description = "The key stands for this alarm.", body = PutView),
        (status = 409, description = "The key stands for an alarm that a resource manages."),
    ),
)]
pub async fn put(
    State(facade): State<Facade>,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    Body(body): Body<CreateBody>,
) -> Result<Data<PutView>, Problem> {
    let _turn = caller.turn().await;
    let Ok(Path(key)) = key else {
        return Err(Problem::invalid_field("idempotency_key", "the key in the path is not UTF-8, percent-encoded"));
    };
    for other in [body.idempotency_key.as_deref(), Some(&idempotency_key(&headers, None)?)].into_iter().flatten() {
        if !other.is_empty() && other != key {
            let told = "idempotency_key differs from the one in the path; leave it out, or give the same";
            return Err(Problem::invalid_field("idempotency_key", told));
        }
    }
    let given = body.correlation_id().map(str::to_owned);
    let (draft, invalid) = body.draft(&key);
    // Everything that is wrong is told at once, before anything is locked.
    let defaults = Defaults { born_at: caller.now, delays_from: caller.now, max_failures: facade.max_failures };
    check(draft.clone(), invalid, defaults)?;
    let placement = Placement {
        id: new_id(),
        owner: &caller.owner,
        idempotency_key: &key,
        draft: &draft,
        correlation_id: given.as_deref(),
        new_correlation_id: &correlation_of(&headers),
        max_failures: facade.max_failures,
        may: facade.may(&caller),
        leniency: LATE_REQUEST,
    };
    let (alarm, created, changed) = match facade.store.put_by_key(&placement).await? {
        Placed::Created(alarm) => (alarm, true, true),
        Placed::Changed(alarm) => (alarm, false, true),
        Placed::Unchanged(alarm) => (alarm, false, false),
        Placed::Managed(resource) => return Err(managed(&resource)),
        Placed::Barred => return Err(Problem::unauthorized()),
        Placed::Refused(NotPlaced::Invalid(invalid)) => return Err(invalid.into()),
        Placed::Refused(NotPlaced::Past { due, now }) => return Err(passed("fire_at", due, now)),
        Placed::Refused(NotPlaced::NeverFires) => return Err(never_fires()),
        Placed::Refused(NotPlaced::OverQuota(exceeded)) => return Err(exceeded.into()),
    };
    Ok(Data(PutView { view: View::of(*alarm, caller.now), created, changed }))
}
