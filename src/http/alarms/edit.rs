//! An owner changes an alarm: cancel, patch, pause, resume, fire, re-arm.

use axum::{
    extract::State,
    http::{HeaderMap, header::IF_MATCH},
};
use chrono::{DateTime, Utc};
use serde_json::json;

use super::{
    AlarmPath, LATE_REQUEST,
    body::{PatchBody, RearmBody},
    managed, never_fires, passed, unreadable,
    view::{CancelView, View},
};
use crate::{
    domain::alarm::{
        instant_or_delay,
        lifecycle::{NotFired, NotRearmed, Over},
    },
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, BodyIfAny, Data, NoBody},
        openapi::parameters,
        problem::Problem,
    },
    store::alarms::{Cancelled, Edited, NotPatched, Patch},
};

/// Cancel an alarm
///
/// Idempotent: an alarm that is over already stays what it is, and the answer tells.
#[utoipa::path(
    delete, path = "/v1/alarms/{id}", tag = "alarms", operation_id = "cancelAlarm",
    params(parameters::AlarmId),
    responses(
        (status = 200, description = "The alarm, which is over.", body = CancelView),
        (status = 409, description = "A resource manages the alarm; edit or delete that."),
    ),
)]
pub async fn cancel(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
) -> Result<Data<CancelView>, Problem> {
    let _turn = caller.turn().await;
    match facade.store.cancel_if_owned(&caller.owner, id).await? {
        Cancelled::Unknown => Err(Problem::no_such_alarm()),
        Cancelled::Managed(resource) => Err(managed(&resource)),
        Cancelled::Over { alarm, in_flight } => Ok(Data(CancelView { view: View::of(*alarm, caller.now), in_flight })),
    }
}

/// Change an alarm
///
/// A JSON merge patch: what is not there stays, `null` goes back to its default, `labels` are merged one by one, `payload` is replaced whole,
/// `fire_at` and `delay_seconds` replace each other. `kind`, `id`, `idempotency_key` and `correlation_id` do not change.
#[utoipa::path(
    patch, path = "/v1/alarms/{id}", tag = "alarms", operation_id = "patchAlarm",
    params(parameters::AlarmId, parameters::IfMatch),
    request_body(content((PatchBody = "application/json"), (PatchBody = "application/merge-patch+json"))),
    responses(
        (status = 200, description = "The alarm as it is now.", body = View),
        (status = 409, description = "A resource manages the alarm, the alarm is over, or it is not at the revision that `If-Match` names (`details.revision` says which it is at)."),
    ),
)]
pub async fn patch(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    headers: HeaderMap,
    Body(body): Body<PatchBody>,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    let revision = expected_revision(&headers)?;
    let changes = body.changes()?;
    let patch = Patch {
        changes: &changes,
        revision,
        max_failures: facade.max_failures,
        quotas: caller.quotas,
        leniency: LATE_REQUEST,
    };
    told(facade.store.patch_if_owned(&caller.owner, id, &patch).await?, caller.now)
}

/// Pause an alarm
///
/// It does not fire until it is resumed. Repeating it changes nothing. There is no body.
#[utoipa::path(
    post, path = "/v1/alarms/{id}/pause", tag = "alarms", operation_id = "pauseAlarm",
    params(parameters::AlarmId),
    responses(
        (status = 200, description = "The alarm, paused.", body = View),
        (status = 409, description = "A resource manages the alarm, or it is over."),
    ),
)]
pub async fn pause(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    _: NoBody,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    told(facade.store.pause_if_owned(&caller.owner, id).await?, caller.now)
}

/// Resume an alarm
///
/// Lifts the owner's pause and no other. Slots of a series that passed meanwhile do not fire; an alarm that fires once and whose instant
/// passed fires at once, unless its `misfire` is `skip`. Repeating it changes nothing. There is no body.
#[utoipa::path(
    post, path = "/v1/alarms/{id}/resume", tag = "alarms", operation_id = "resumeAlarm",
    params(parameters::AlarmId),
    responses(
        (status = 200, description = "The alarm.", body = View),
        (status = 409, description = "A resource manages the alarm, or it is over."),
    ),
)]
pub async fn resume(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    _: NoBody,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    told(facade.store.resume_if_owned(&caller.owner, id).await?, caller.now)
}

/// Fire an alarm now
///
/// A wake beside its schedule: a series keeps its next slot, an alarm that fires once is spent by it. There is no body.
#[utoipa::path(
    post, path = "/v1/alarms/{id}/fire", tag = "alarms", operation_id = "fireAlarm",
    params(parameters::AlarmId),
    responses(
        (status = 200, description = "The alarm, due.", body = View),
        (status = 409, description = "A resource manages the alarm, it is not active, or a wake of it is due or on its way."),
    ),
)]
pub async fn fire(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    _: NoBody,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    told(facade.store.fire_if_owned(&caller.owner, id).await?, caller.now)
}

/// Arm an alarm again
///
/// For one that has fired, failed or was cancelled. A once alarm whose instant has passed needs a new one, in the body; otherwise
/// the body may be left out.
#[utoipa::path(
    post, path = "/v1/alarms/{id}/rearm", tag = "alarms", operation_id = "rearmAlarm",
    params(parameters::AlarmId),
    request_body = RearmBody,
    responses(
        (status = 200, description = "The alarm, active again.", body = View),
        (status = 409, description = "A resource manages the alarm, or it is not over."),
    ),
)]
pub async fn rearm(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    BodyIfAny(body): BodyIfAny<RearmBody>,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    let instant = instant_or_delay(body.fire_at.as_deref(), body.delay_seconds, caller.now)?;
    let edited = facade.store.rearm_if_owned(&caller.owner, id, instant, LATE_REQUEST, &facade.may(&caller)).await?;
    told(edited, caller.now)
}

/// What came of it, to its owner.
fn told<R: Into<Problem>>(edited: Edited<R>, now: DateTime<Utc>) -> Result<Data<View>, Problem> {
    match edited {
        Edited::Unknown => Err(Problem::no_such_alarm()),
        Edited::Managed(resource) => Err(managed(&resource)),
        Edited::Unreadable(why) => Err(unreadable(&why)),
        Edited::Refused(refused) => Err(refused.into()),
        Edited::OverQuota(exceeded) => Err(exceeded.into()),
        Edited::Barred => Err(Problem::unauthorized()),
        Edited::Unchanged(alarm) | Edited::Done(alarm) => Ok(Data(View::of(*alarm, now))),
    }
}

/// `If-Match: "7"`: only if the alarm is at this revision. `*` asks for nothing: what is not there is 404 anyway.
fn expected_revision(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(header) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = header.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let revision = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(|text| text.parse().ok());
    revision.map(Some).ok_or_else(|| {
        Problem::invalid_field(
            "If-Match",
            "If-Match is no revision in quotes; send that of the alarm as you saw it, such as If-Match: \"7\"",
        )
    })
}

impl From<NotPatched> for Problem {
    fn from(refused: NotPatched) -> Self {
        match refused {
            NotPatched::Over(status) => Self::conflict(format!(
                "the alarm is {}, and only an active or paused one is changed; arm it again (POST …/rearm), or replace it by PUT \
                 /v1/alarms/by-key/…",
                status.as_str()
            )),
            NotPatched::Stale { revision } => Self::conflict(format!(
                "somebody else changed the alarm: its revision is {revision} now; read it again and repeat what is still wanted"
            ))
            .with_details(json!({ "revision": revision })),
            NotPatched::Invalid(invalid) => invalid.into(),
            NotPatched::Past { due, now } => passed("fire_at", due, now),
            NotPatched::NeverFires => never_fires(),
        }
    }
}

impl From<Over> for Problem {
    fn from(over: Over) -> Self {
        Self::conflict(format!(
            "{over}, and only an active or paused one is paused or resumed; POST …/rearm arms it again"
        ))
    }
}

impl From<NotFired> for Problem {
    fn from(refused: NotFired) -> Self {
        let remedy = match refused {
            NotFired::NotActive(_) => "resume it, or arm it again (POST …/rearm)",
            NotFired::InFlight | NotFired::Retrying | NotFired::Due => "wait for that wake; GET …/attempts tells of it",
        };
        Self::conflict(format!("{refused}; {remedy}"))
    }
}

impl From<NotRearmed> for Problem {
    fn from(refused: NotRearmed) -> Self {
        match refused {
            NotRearmed::Living(_) => Self::conflict(format!(
                "{refused}; PATCH changes it as it is, POST …/fire fires it now, POST …/resume ends a pause"
            )),
            NotRearmed::NeedsInstant | NotRearmed::Past => Self::invalid_field("fire_at", refused.to_string()),
            NotRearmed::IsSeries => Self::invalid_field("fire_at", refused.to_string()),
            NotRearmed::NoFutureInstant => Self::invalid_field("cron_expr", refused.to_string()),
        }
    }
}
