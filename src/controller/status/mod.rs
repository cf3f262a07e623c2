//! What the rows say, mirrored to `.status`. The controller is its only writer: server-side apply, skipped when nothing would change, at
//! most one write per object and [`QUIET`](ledger::QUIET) unless the phase changes, and all of them under one rate.
//!
//! | file | what it is |
//! |---|---|
//! | [`alarm`], [`agent`] | the whole status from what was found. Pure |
//! | [`conditions`] | conditions as Kubernetes has them. Pure |
//! | [`ledger`] | what was written a moment ago |
//! | [`counts`] | how often an Agent's count is told |
//! | here | the writing |

mod agent;
mod alarm;
mod conditions;
mod counts;
mod ledger;

use std::{num::NonZeroU32, time::Duration};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::Serialize;
use serde_json::json;
use tracing::warn;

pub use agent::{AgentReport, agent_status, stands_otherwise};
pub use counts::Counts;
pub use ledger::Ledger;

use super::{Context, Error, events, validate::Refused};
use crate::{
    crd::{Agent, AgentStatus, Alarm, AlarmStatus, Guarded},
    domain::alarm::{Status, lifecycle::NotFired},
    mutants::{self, Mutant},
    store::{self, resources::Facts},
    telemetry::metrics,
};

pub const FIELD_MANAGER: &str = "chronos-controller";
/// Statuses a second, over all objects, and as many events. An API server takes several times that; others want it, too.
const RATE: NonZeroU32 = NonZeroU32::new(200).expect("more than none");

/// What a reconcile of an Alarm found.
pub enum Report {
    Stored {
        facts: Box<Facts>,
        /// It was asked for a wake now, which cannot be.
        not_fired: Option<NotFired>,
    },
    /// `stored` is what an earlier version of the resource asked for.
    Refused {
        refused: Refused,
        stored: Option<Box<Facts>>,
    },
    Failed(store::Error),
}

/// Writes of statuses, or of events, all together.
pub struct Pace(DefaultDirectRateLimiter);

impl Default for Pace {
    fn default() -> Self {
        Self(RateLimiter::direct(Quota::per_second(RATE)))
    }
}

impl Pace {
    pub async fn turn(&self) {
        self.0.until_ready().await;
    }
}

/// Writes the status that `report` makes, if it says anything new. What must wait for its turn is left, and the caller told when to
/// come again.
pub async fn mirror(context: &Context, seen: &Guarded<Alarm>, report: &Report) -> Result<Option<Duration>, Error> {
    if let Report::Stored { facts, .. } = report
        && facts.alarm.status == Status::Fired
        && mutants::on(Mutant::StatusNotMirrored)
    {
        return Ok(None);
    }
    let now = context.clock.now();
    let key = kube::runtime::reflector::ObjectRef::from_obj(seen);
    let cached: Option<AlarmStatus> = seen.status();
    let written = context.ledger.recent(&key);
    let before = written.as_ref().map(|(_, status)| status).or(cached.as_ref());
    let next = alarm::status(seen.meta(), before, report, now);
    if let Report::Stored { not_fired: Some(why), .. } = report {
        events::publish(context, seen, &[events::refused(*why)]).await;
    }
    if let Some((rests, status)) = &written {
        // Equal to what was written a moment ago, or not worth another write yet. Looked at again: what the cache shows by then counts.
        if (*status == next && cached.as_ref() != Some(&next)) || (*status != next && status.phase == next.phase) {
            return Ok(Some(*rests));
        }
    }
    if before == Some(&next) {
        return Ok(None);
    }
    write(context, seen, &next).await?;
    if let Some(lag) = alarm::lag(report, now) {
        metrics::status_lag(lag.to_std().unwrap_or_default());
    }
    let told = events::of(before, &next);
    context.ledger.note(key, next);
    events::publish(context, seen, &told).await;
    Ok(None)
}

/// The same for an Agent, which changes seldom.
pub async fn mirror_agent(
    context: &Context,
    seen: &Guarded<Agent>,
    before: Option<&AgentStatus>,
    next: AgentStatus,
) -> Result<(), Error> {
    if before == Some(&next) {
        return Ok(());
    }
    write(context, seen, &next).await
}

async fn write<K>(context: &Context, seen: &Guarded<K>, status: &impl Serialize) -> Result<(), Error>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned,
{
    let (name, namespace) = (seen.name_any(), seen.namespace().unwrap_or_default());
    let api: Api<Guarded<K>> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        // Not for another one that was made under the same name meanwhile.
        "metadata": { "name": name, "uid": seen.uid() },
        "status": status,
    });
    context.pace.turn().await;
    metrics::status_written();
    // Server-side apply needs to understand the whole object, which of one that cannot be read it does not either.
    let (parameters, patch) = match seen.read {
        Ok(_) => (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(patch)),
        Err(_) => (
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() },
            Patch::Merge(patch),
        ),
    };
    match api.patch_status(&name, &parameters, &patch).await {
        Ok(_) => Ok(()),
        // Deleted meanwhile, or made anew: there is nobody left to tell.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        // It would not be let in today as it stands, and so nothing of it may change, not even its status. Events and the log tell.
        Err(kube::Error::Api(status)) if status.is_invalid() => {
            warn!(
                namespace,
                name,
                error = status.message,
                "the API server does not take the status of {namespace}/{name}"
            );
            Ok(())
        }
        Err(source) => Err(Error::Status { name, source }),
    }
}
