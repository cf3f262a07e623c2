//! Agents, mirrored into Postgres: who may sign in, who may own Alarms, and how much of it. One reconcile, as a list of steps:
//!
//! 1. [`enrol`]: the row in `agents` becomes what the resource says, unless an older resource or the command line holds the DID.
//! 2. its alarms follow: of a suspended agent none fires.
//! 3. whoever hangs on it is looked at again: the Alarms of its DID in its namespace, and its rivals for the DID.
//! 4. [`status`]: what came of it.
//!
//! A deleted Agent is held by a finalizer until its row is gone: when `kubectl delete` returns, the agent is not let in any more and
//! none of its alarms fires.

use std::sync::Arc;

use futures::TryFutureExt;
use kube::{
    Api, Resource, ResourceExt,
    core::PartialObjectMetaExt,
    runtime::{
        controller::Action,
        finalizer::{self, Event, finalizer},
        reflector::ObjectRef,
    },
};
use tracing::info;

use super::{
    AGENT_FINALIZER, AGENT_RESYNC, Context, Error, RIVAL_RESYNC,
    scope::AgentRef,
    status::{self, AgentReport},
    validate::Refused,
};
use crate::{
    crd::{Agent, AgentStatus, Guarded, condition::reason},
    domain::access::Did,
    store::{
        self,
        agents::{Enrolled, Holder, Mirrored},
        resources::Identity,
    },
};

pub async fn reconcile(seen: Arc<Guarded<Agent>>, context: Arc<Context>) -> Result<Action, Error> {
    let api = Api::namespaced(context.client.clone(), &seen.namespace().unwrap_or_default());
    let reference: AgentRef = ObjectRef::from_obj(&*seen);
    if seen.read.is_err() && seen.meta().deletion_timestamp.is_none() {
        let told = Box::pin(bring_about(&seen, &reference, &context)).map_err(finalizer::Error::ApplyFailed);
        return super::in_time(&seen.name_any(), told).await;
    }
    let meta = Arc::new(seen.meta().clone().into_response_partial::<Agent>());
    let (agent, itself, with) = (&seen, &reference, &context);
    let done = finalizer(&api, AGENT_FINALIZER, meta, |event| async move {
        match event {
            Event::Apply(_) => bring_about(agent, itself, with).await,
            Event::Cleanup(_) => let_go(agent, itself, with).await,
        }
    });
    let done = super::in_time(&seen.name_any(), Box::pin(done)).await?;
    context.agent_backoff.forget(&reference);
    Ok(done)
}

/// The steps.
async fn bring_about(seen: &Guarded<Agent>, reference: &AgentRef, context: &Context) -> Result<Action, Error> {
    let report = match &seen.read {
        Err(unreadable) => AgentReport::Refused(Refused::unreadable(&unreadable.why)),
        Ok(agent) => match enrol(context, agent).await {
            // Postgres
            Ok(Ok(Enrolled::Stands(stands))) => followed(context, &stands.did, stands.suspended).await, // Postgres
            Ok(Ok(Enrolled::Held(holder))) => AgentReport::Refused(duplicate(context, agent, &holder)),
            Ok(Err(refused)) => AgentReport::Refused(refused),
            Err(error) => AgentReport::Failed(error),
        },
    };
    let before: Option<AgentStatus> = seen.status();
    let next = status::agent_status(seen.meta(), before.as_ref(), &report, context.clock.now()); // pure
    if let Ok(agent) = &seen.read
        && status::stands_otherwise(before.as_ref(), &next)
        && let Ok(did) = agent.spec.did.parse::<Did>()
    {
        ring(context, reference, &did).await; // whoever hangs on it
    }
    status::mirror_agent(context, seen, before.as_ref(), next).await?; // cluster
    match report {
        AgentReport::Refused(refused) if refused.reason == reason::DUPLICATE_DID => Ok(Action::requeue(RIVAL_RESYNC)),
        AgentReport::Stands { .. } | AgentReport::Refused(_) => Ok(Action::requeue(AGENT_RESYNC)),
        AgentReport::Failed(source) => Err(Error::Store { name: seen.name_any(), source }),
    }
}

/// Removed, and then let go: its alarms are paused when this returns.
async fn let_go(seen: &Guarded<Agent>, reference: &AgentRef, context: &Context) -> Result<Action, Error> {
    let name = seen.name_any();
    let uid = seen.uid().and_then(|uid| uid.parse().ok()).ok_or_else(|| Error::NoIdentity(name.clone()))?;
    let removed = match context.store.remove_agent_of_resource(context.cluster, uid).await {
        Ok(removed) => removed,
        Err(source) => {
            let before = seen.status();
            let failed = AgentReport::Failed(source);
            let next = status::agent_status(seen.meta(), before.as_ref(), &failed, context.clock.now());
            status::mirror_agent(context, seen, before.as_ref(), next).await?;
            let AgentReport::Failed(source) = failed else { unreachable!("it was made three lines ago") };
            return Err(Error::Store { name, source });
        }
    };
    if let Some(agent) = removed {
        info!(owner_did = %agent.did, "agent {} is not enrolled any more: its resource is deleted", agent.did);
        ring(context, reference, &agent.did).await;
    }
    Ok(Action::await_change())
}

async fn ring(context: &Context, agent: &AgentRef, did: &Did) {
    context.scopes.ring_alarms_of(did, agent.namespace.as_deref().unwrap_or_default()).await;
    context.scopes.ring_rivals_of(agent, did).await;
}

/// The row becomes what the resource says, unless somebody else holds the DID.
pub async fn enrol(context: &Context, agent: &Agent) -> store::Result<Result<Enrolled, Refused>> {
    let enrolment = match agent.spec.define() {
        Ok(enrolment) => enrolment,
        Err(mistakes) => return Ok(Err(Refused::for_mistakes(&mistakes))),
    };
    let uid = agent.uid().and_then(|uid| uid.parse().ok());
    let created_at = super::validate::created_at(&agent.metadata);
    let (Some(uid), Some(created_at)) = (uid, created_at) else { return Ok(Err(Refused::no_identity())) };
    let identity = context.identity(agent, uid);
    let mirrored = Mirrored {
        did: &enrolment.did,
        public_key: &enrolment.public_key,
        suspended: enrolment.suspended,
        quotas: enrolment.quotas,
        identity: &identity,
        created_at,
    };
    context.store.enrol_resource_unless_held(&mirrored).await.map(Ok)
}

/// Its alarms follow it, and are counted.
async fn followed(context: &Context, did: &Did, suspended: bool) -> AgentReport {
    let counted = async {
        context.store.follow_agent(did).await?;
        context.store.count_living_alarms_of(did).await
    };
    match counted.await {
        Ok(alarms) => AgentReport::Stands { suspended, alarms },
        Err(error) => AgentReport::Failed(error),
    }
}

fn duplicate(context: &Context, agent: &Agent, holder: &Holder) -> Refused {
    let here = agent.uid().and_then(|uid| uid.parse().ok()).map(|uid| context.identity(agent, uid));
    let did = &agent.spec.did;
    let message = match (holder, here) {
        (Holder::Resource(other), Some(here)) => {
            format!("spec.did: {did} is held by {}, which is older; delete one of the two", told(&here, other))
        }
        (Holder::Resource(_), None) => format!("spec.did: {did} is held by another Agent; delete one of the two"),
        (Holder::CommandLine, _) => format!(
            "spec.did: {did} was enrolled on the command line; run `chronosd agent remove {did}` and this Agent takes its place"
        ),
    };
    Refused { reason: reason::DUPLICATE_DID, message }
}

/// An Agent as somebody beside `here` would call it.
pub fn told(here: &Identity, agent: &Identity) -> String {
    let Identity { cluster, namespace, name, .. } = agent;
    if *cluster == here.cluster {
        format!("Agent {namespace}/{name}")
    } else {
        format!(
            "Agent {namespace}/{name} of cluster {cluster}; if that cluster is gone, `chronosd cluster adopt {cluster}` or `forget` it"
        )
    }
}
