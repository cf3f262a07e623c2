//! What the agent wanted done, and what became of it.

use axum::extract::{RawQuery, State};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{EffectPath, SessionPath, verbatim};
use crate::{
    domain::{ids::EffectId, invalid::quoted, rfc3339, session::effect::EffectStatus},
    http::{
        Facade,
        auth::Caller,
        envelope::{Data, NoBody},
        openapi::{fields, parameters},
        problem::Problem,
        query::Query,
    },
    store::effects::{Acknowledged, Effect},
};

/// Something that was to be done, and what became of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Effect)]
pub struct EffectView {
    #[schema(value_type = Uuid)]
    id: EffectId,
    /// The checkpoint that asked for it; of a `wake` the event whose timer it tells of.
    checkpoint_id: String,
    #[serde(rename = "type")]
    #[schema(schema_with = fields::effect_type)]
    effect_type: &'static str,
    #[schema(schema_with = fields::seen_payload)]
    payload: Box<RawValue>,
    #[schema(schema_with = fields::dedupe_key)]
    dedupe_key: String,
    #[schema(schema_with = fields::effect_status)]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::effect_reason)]
    reason: Option<String>,
    #[schema(minimum = 0)]
    /// Until then it waits: an unasked send for the end of the cooldown, a wake for its next try. Only while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::instant)]
    not_before: Option<String>,
    attempt_count: i32,
    #[schema(schema_with = fields::instant_or_null, required)]
    last_attempt_at: Option<String>,
    #[schema(schema_with = fields::instant)]
    created_at: String,
    #[schema(schema_with = fields::instant)]
    updated_at: String,
}

impl EffectView {
    fn of(effect: Effect) -> Self {
        Self {
            id: effect.id,
            checkpoint_id: effect.checkpoint_id,
            effect_type: effect.effect_type.as_str(),
            payload: verbatim(&effect.payload),
            dedupe_key: effect.dedupe_key,
            status: effect.status.as_str(),
            reason: effect.reason,
            not_before: effect.not_before.map(rfc3339),
            attempt_count: effect.attempt_count,
            last_attempt_at: effect.last_attempt_at.map(rfc3339),
            created_at: rfc3339(effect.created_at),
            updated_at: rfc3339(effect.updated_at),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = EffectList)]
pub struct List {
    effects: Vec<EffectView>,
    /// How many there are in this answer.
    count: usize,
}

/// List a session's effects
///
/// In the order in which they were asked for. A client without a socket polls with `status=pending`,
/// acknowledges, and shows what came back as `completed`.
#[utoipa::path(
    get, path = "/v1/sessions/{key}/effects", tag = "sessions", operation_id = "listSessionEffects",
    params(parameters::SessionKey, parameters::EffectsAsked),
    responses(
        (status = 200, description = "Effects of the session.", body = List),
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
    let query = Query::parse(query.as_deref().unwrap_or_default(), &["status", "limit"])?;
    let status = query.get("status").map(status).transpose()?;
    let found = facade.store.effects_if_owned(&caller.owner, &key, status, query.limit()?).await?;
    let effects: Vec<EffectView> =
        found.ok_or_else(Problem::no_such_session)?.into_iter().map(EffectView::of).collect();
    Ok(Data(List { count: effects.len(), effects }))
}

fn status(word: &str) -> Result<EffectStatus, Problem> {
    EffectStatus::try_from(word.to_owned()).map_err(|_| {
        let known: Vec<_> = EffectStatus::ALL.iter().map(|status| status.as_str()).collect();
        Problem::invalid_field("status", format!("status is {}; give one of {}", quoted(word), known.join(", ")))
    })
}

/// Where an effect stands after an acknowledgement.
#[derive(Serialize, ToSchema)]
#[schema(as = AcknowledgedEffect)]
pub struct AckView {
    #[schema(value_type = Uuid)]
    id: EffectId,
    #[schema(schema_with = fields::effect_status)]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::effect_reason)]
    reason: Option<String>,
}

/// Acknowledge an effect
///
/// The client has a `send_message`, by socket or otherwise: it is `completed`. One that is over stays what it is, so that a late
/// acknowledgement does no harm. Of an autonomous one that nobody has sent yet, cap and cooldown decide first: over the cap it is
/// `suppressed`, and the client should not show it; in the cooldown it stays `pending` (409). There is no body.
#[utoipa::path(
    post, path = "/v1/sessions/{key}/effects/{id}/ack", tag = "sessions", operation_id = "acknowledgeSessionEffect",
    params(parameters::SessionKey, parameters::EffectId),
    responses(
        (status = 200, description = "Where the effect stands now.", body = AckView),
        (status = 409, description = "The agent spoke unasked a moment ago; it may again at `details.not_before`, and the effect stays `pending` until then."),
    ),
)]
pub async fn acknowledge(
    State(facade): State<Facade>,
    caller: Caller,
    EffectPath(key, id): EffectPath,
    _: NoBody,
) -> Result<Data<AckView>, Problem> {
    let _turn = caller.turn().await;
    match facade.store.acknowledge_if_owned(&caller.owner, &key, id, &facade.autonomy.restraint, None).await? {
        Acknowledged::Now { status, reason } => Ok(Data(AckView { id, status: status.as_str(), reason })),
        Acknowledged::TooSoon { not_before } => Err(in_cooldown(&rfc3339(not_before))),
        Acknowledged::NotFound => Err(Problem::no_such_session()),
    }
}

pub fn in_cooldown(not_before: &str) -> Problem {
    let told = format!("the agent spoke unasked a moment ago, and may again at {not_before}; acknowledge it then");
    Problem::too_soon(told, not_before)
}
