//! One verb for all alarms of the owner that a selector means.

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::read::statuses;
use crate::{
    domain::{ids::AlarmId, invalid::quoted, labels::Selector},
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, Data},
        problem::Problem,
    },
    store::alarms::{Action, Bulk},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkBody {
    action: String,
    selector: String,
    status: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize)]
pub struct BulkView {
    matched: usize,
    changed: usize,
    skipped: usize,
    ids: Vec<AlarmId>,
    truncated: bool,
}

pub async fn bulk(
    State(facade): State<Facade>,
    caller: Caller,
    Body(body): Body<BulkBody>,
) -> Result<Data<BulkView>, Problem> {
    let action = action(&body.action)?;
    let selector = Selector::parse(&body.selector)
        .map_err(|error| Problem::invalid_field("selector", format!("selector {error}")))?;
    if selector.is_empty() {
        let told = "selector is empty, which would mean every alarm; name labels, such as team=ops";
        return Err(Problem::invalid_field("selector", told));
    }
    let statuses = body.status.as_deref().filter(|text| !text.is_empty()).map(statuses).transpose()?;
    let statuses = statuses.unwrap_or_default();
    let done =
        facade.store.bulk_if_owned(&caller.owner, action, &selector, &statuses, body.dry_run, &caller.quotas).await?;
    let Bulk { matched, changed, skipped, ids, truncated } = done;
    Ok(Data(BulkView { matched, changed, skipped, ids, truncated }))
}

fn action(word: &str) -> Result<Action, Problem> {
    let found = Action::ALL.iter().copied().find(|action| action.as_str() == word);
    found.ok_or_else(|| {
        let known: Vec<_> = Action::ALL.iter().map(|action| action.as_str()).collect();
        Problem::invalid_field("action", format!("action is {}; give one of {}", quoted(word), known.join(", ")))
    })
}
