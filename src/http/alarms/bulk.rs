//! One verb for all alarms of the owner that a selector means.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::read::statuses;
use crate::{
    domain::{alarm::Status, ids::AlarmId, invalid::quoted, labels::Selector},
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, Data},
        openapi::fields,
        problem::Problem,
    },
    store::alarms::{Action, Bulk},
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkAction)]
pub struct BulkBody {
    #[schema(schema_with = fields::action)]
    action: String,
    #[schema(schema_with = fields::selector)]
    selector: String,
    #[schema(schema_with = fields::statuses)]
    status: Option<String>,
    /// Tell what would happen, and do nothing.
    dry_run: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BulkResult)]
pub struct BulkView {
    /// How many alarms the selector and the statuses mean.
    matched: usize,
    /// How many of them were changed, or would be.
    changed: usize,
    /// How many were left as they are: managed by a resource, unfit for the action, so already, or beyond the agent's quota.
    skipped: usize,
    /// Those that were changed, or would be, oldest first.
    #[schema(value_type = Vec<Uuid>)]
    ids: Vec<AlarmId>,
    /// Whether more could be changed than one call handles: call again.
    truncated: bool,
}

/// Act on many alarms at once
///
/// Cancels, pauses, resumes or re-arms every alarm of the agent that the label selector means. Alarms that a resource manages are
/// skipped. With `dry_run` it only tells what it would do; without, repeat the call while `truncated` is true.
#[utoipa::path(
    post, path = "/v1/alarms/bulk", tag = "alarms", operation_id = "bulkAlarms",
    request_body = BulkBody,
    responses((status = 200, description = "What was done, or would be.", body = BulkView)),
)]
pub async fn bulk(
    State(facade): State<Facade>,
    caller: Caller,
    Body(body): Body<BulkBody>,
) -> Result<Data<BulkView>, Problem> {
    let _turn = caller.turn().await;
    let Meant { action, selector, statuses, dry_run } = body.meant()?;
    let done =
        facade.store.bulk_if_owned(&caller.owner, action, &selector, &statuses, dry_run, &facade.may(&caller)).await?;
    let done = done.ok_or_else(Problem::unauthorized)?;
    let Bulk { matched, changed, skipped, ids, truncated } = done;
    Ok(Data(BulkView { matched, changed, skipped, ids, truncated }))
}

/// What is to be done, and to which alarms.
#[derive(Debug)]
pub struct Meant {
    pub action: Action,
    pub selector: Selector,
    pub statuses: Vec<Status>,
    pub dry_run: bool,
}

impl BulkBody {
    pub fn meant(&self) -> Result<Meant, Problem> {
        let action = action(&self.action)?;
        let selector = Selector::parse(&self.selector)
            .map_err(|error| Problem::invalid_field("selector", format!("selector {error}")))?;
        if selector.is_empty() {
            let told = "selector is empty, which would mean every alarm; name labels, such as team=ops";
            return Err(Problem::invalid_field("selector", told));
        }
        let statuses = self.status.as_deref().filter(|text| !text.is_empty()).map(statuses).transpose()?;
        Ok(Meant { action, selector, statuses: statuses.unwrap_or_default(), dry_run: self.dry_run.unwrap_or(false) })
    }
}

fn action(word: &str) -> Result<Action, Problem> {
    let found = Action::ALL.iter().copied().find(|action| action.as_str() == word);
    found.ok_or_else(|| {
        let known: Vec<_> = Action::ALL.iter().map(|action| action.as_str()).collect();
        Problem::invalid_field("action", format!("action is {}; give one of {}", quoted(word), known.join(", ")))
    })
}
