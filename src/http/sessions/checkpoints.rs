//! What the agent made of an event, and what it wants done: stored together, once.

use axum::extract::State;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{SessionPath, body::CheckpointBody};
use crate::{
    domain::ids::EffectId,
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, Data},
        openapi::{fields, parameters},
        problem::Problem,
    },
    store::checkpoints::{Born, Checkpointed, Receipt, Request},
};

/// The answer to a checkpoint, the same however often it is sent.
#[derive(Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct View {
    checkpoint_id: String,
    #[schema(minimum = 1)]
    event_seq: i64,
    /// The effects in the order in which they were given, as they were stored.
    effects: Vec<BornView>,
    /// Timers that a later one of the same checkpoint replaced.
    replaced_timers: Vec<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CheckpointEffect)]
pub struct BornView {
    #[schema(value_type = Uuid)]
    id: EffectId,
    #[serde(rename = "type")]
    #[schema(schema_with = fields::effect_type)]
    effect_type: &'static str,
    #[schema(schema_with = fields::effect_status)]
    status: &'static str,
    #[schema(schema_with = fields::dedupe_key)]
    dedupe_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = fields::effect_reason)]
    reason: Option<String>,
}

impl View {
    fn of(checkpoint_id: String, receipt: Receipt) -> Self {
        let effect = |Born { id, effect_type, status, dedupe_key, reason }| BornView {
            id,
            effect_type: effect_type.as_str(),
            status: status.as_str(),
            dedupe_key,
            reason,
        };
        Self {
            checkpoint_id,
            event_seq: receipt.event_seq,
            effects: receipt.effects.into_iter().map(effect).collect(),
            replaced_timers: receipt.replaced_timers,
        }
    }
}

/// Store a checkpoint
///
/// The agent has processed the event `event_seq` and wants these effects: stored with them, all or nothing. Events are processed one after
/// another, from 1 on. The same `checkpoint_id` with an equal body has the same answer again. A timer is scheduled at once, and replaces a
/// pending one of the same `timer_id`; one whose `fire_at` has passed comes due at once. If the user has spoken since that event, what the
/// agent wants by itself is stored as `cancelled`.
#[utoipa::path(
    post, path = "/v1/sessions/{key}/checkpoints", tag = "sessions", operation_id = "storeCheckpoint",
    params(parameters::SessionKey),
    request_body = CheckpointBody,
    responses(
        (status = 200, description = "The checkpoint is stored, now or before.", body = View),
        (status = 409, description = "`event_seq` is not the event that is next, or that one has not happened yet (`details` has the newest that was processed, `event_seq`, and the newest there is, `last_seq`); or the `checkpoint_id` stands for a checkpoint with another body."),
    ),
)]
pub async fn store(
    State(facade): State<Facade>,
    caller: Caller,
    SessionPath(key): SessionPath,
    Body(body): Body<CheckpointBody>,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    let checkpoint = body.checkpoint()?;
    let request = Request {
        checkpoint_id: &checkpoint.checkpoint_id,
        event_seq: checkpoint.event_seq,
        effects: &checkpoint.effects,
    };
    match facade.store.checkpoint_if_owned(&caller.owner, &key, &request).await? {
        Checkpointed::Done(receipt) => Ok(Data(View::of(checkpoint.checkpoint_id, receipt))),
        Checkpointed::Conflict => Err(Problem::conflict(
            "checkpoint_id stands for a checkpoint of this session with another body; give another id, or the very body that was \
             sent before",
        )),
        Checkpointed::OutOfTurn { event_seq, last_seq } => Err(out_of_turn(checkpoint.event_seq, event_seq, last_seq)),
        Checkpointed::NotOwned => Err(Problem::no_such_session()),
    }
}

/// `asked` is not next: `processed` is the newest that was, `newest` the newest there is.
pub fn out_of_turn(asked: i64, processed: i64, newest: i64) -> Problem {
    let next = processed.saturating_add(1);
    let known = if asked <= processed { "that event has been processed; " } else { "" };
    let told = if next > newest {
        format!("event_seq is {asked}, but {known}event {next}, which would be next, does not exist yet")
    } else {
        format!("event_seq is {asked}, but {known}event {next} is next")
    };
    Problem::conflict(told).with_details(json!({ "event_seq": processed, "last_seq": newest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_out_of_turn_is_told_which_event_is_next_or_that_there_is_none() {
        let told = |asked, processed, newest| out_of_turn(asked, processed, newest).body()["error"].clone();
        for (asked, processed, newest, message) in [
            (1, 0, 0, "event_seq is 1, but event 1, which would be next, does not exist yet"),
            (9, 3, 3, "event_seq is 9, but event 4, which would be next, does not exist yet"),
            (
                3,
                3,
                3,
                "event_seq is 3, but that event has been processed; event 4, which would be next, does not exist yet",
            ),
            (3, 3, 5, "event_seq is 3, but that event has been processed; event 4 is next"),
            (5, 3, 5, "event_seq is 5, but event 4 is next"),
        ] {
            let error = told(asked, processed, newest);
            assert_eq!(error["message"], message);
            assert_eq!(error["details"], json!({ "event_seq": processed, "last_seq": newest }));
        }
    }
}
