//! The row in Postgres becomes what the resource says.

use kube::{Api, Resource, ResourceExt, api::ListParams};
use sha2::{Digest, Sha256};

use super::{
    Context, Error, agents,
    status::Report,
    validate::{Refused, Valid},
};
use crate::{
    crd::{Agent, Alarm, Guarded, Mistake, condition::reason},
    domain::{access::Did, alarm::Draft, quota::Exceeded},
    store::{
        agents::{Enrolled, Holder},
        resources::{Applied, Desired, Doubt, Identity},
    },
};

/// What came of it.
pub enum Outcome {
    Report(Report),
    /// Nothing yet: the API server itself must say first how the resource stands.
    Doubtful(Doubt),
    /// Nothing, ever: it is gone, and another one stands under its name.
    Superseded,
}

pub async fn apply(
    context: &Context,
    alarm: &Alarm,
    valid: &Valid,
    confirmed: Option<&Doubt>,
) -> Result<Outcome, Error> {
    let identity = context.identity(alarm, valid.uid);
    let hash = fingerprint(valid);
    let desired = Desired {
        identity: &identity,
        generation: valid.generation,
        owner: &valid.owner,
        definition: &valid.definition,
        hash: &hash,
        created_at: valid.created_at,
        suspended: valid.suspended,
        fire_requested: valid.fire_requested.as_deref(),
        confirmed,
    };
    let mut applied = context.store.apply_resource(&desired).await;
    if let Ok(Applied::NotOwned(holder)) = applied {
        // The Agent may have come a moment ago, and nobody has mirrored it yet.
        if let Err(refused) = enrol_beside(context, &identity, &valid.owner, holder).await? {
            return Ok(Outcome::Report(silence(context, &identity, refused).await));
        }
        applied = context.store.apply_resource(&desired).await;
    }
    let report = match applied {
        Ok(Applied::Stored { facts, not_fired }) => Report::Stored { facts, not_fired },
        Ok(Applied::Doubtful(doubt)) => return Ok(Outcome::Doubtful(doubt)),
        Ok(Applied::Superseded) => return Ok(Outcome::Superseded),
        Ok(Applied::NeverFires) => refuse(context, &identity, Refused::for_mistakes(&[Mistake::never_fires()])).await,
        Ok(Applied::OverQuota(exceeded)) => refuse(context, &identity, over_quota(&exceeded)).await,
        Ok(Applied::NotOwned(holder)) => {
            silence(context, &identity, not_owned(&identity, &valid.owner, None, holder.as_ref())).await
        }
        Err(error) => Report::Failed(error),
    };
    Ok(Outcome::Report(report))
}

/// Nothing is written for what is refused; what was stored before, if anything, goes on and is reported as it is. Unless it may not
/// speak for its owner any more: a typo must not keep it alive.
pub async fn refuse(context: &Context, identity: &Identity, refused: Refused) -> Report {
    let stored = match context.store.find_resource(identity).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return Report::Refused { refused, stored: None },
        Err(error) => return Report::Failed(error),
    };
    let owner = stored.alarm.owner_did.parse::<Did>();
    let agent = match &owner {
        Ok(owner) => context.store.find_agent(owner).await,
        Err(_) => Ok(None),
    };
    match agent {
        Ok(Some(agent)) if agent.may_own(identity) => Report::Refused { refused, stored: Some(Box::new(stored)) },
        Ok(Some(_) | None) => silence(context, identity, refused).await,
        Err(error) => Report::Failed(error),
    }
}

/// The same for one that may not speak for its owner: what was stored before does not go on.
async fn silence(context: &Context, identity: &Identity, refused: Refused) -> Report {
    match context.store.silence_resource(identity).await {
        Ok(stored) => Report::Refused { refused, stored: stored.map(Box::new) },
        Err(error) => Report::Failed(error),
    }
}

fn over_quota(exceeded: &Exceeded) -> Refused {
    let field = match exceeded {
        Exceeded::ActiveAlarms { .. } => "spec.owner",
        Exceeded::Interval { .. } => "spec.cronExpr",
    };
    Refused { reason: reason::QUOTA_EXCEEDED, message: format!("{field}: {exceeded}") }
}

/// Mirrors the Agent of this DID that stands beside the Alarm, past every cache; says why not if there is none, or if it does not hold
/// the DID.
async fn enrol_beside(
    context: &Context,
    alarm: &Identity,
    owner: &Did,
    holder: Option<Holder>,
) -> Result<Result<(), Refused>, Error> {
    let namespace = &alarm.namespace;
    let api: Api<Guarded<Agent>> = Api::namespaced(context.client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(|source| Error::Agents { namespace: namespace.clone(), source })?;
    let standing = listed.items.iter().filter(|agent| agent.meta().deletion_timestamp.is_none());
    let readable = standing.filter_map(|agent| agent.read.as_ref().ok());
    let mut last = None;
    for agent in readable.filter(|agent| agent.spec.enrols(owner.as_str())) {
        match agents::enrol(context, agent).await {
            Ok(Ok(Enrolled::Stands(_))) if stands_still(context, &api, agent).await? => return Ok(Ok(())),
            Ok(Ok(Enrolled::Stands(_))) => {}
            Ok(Ok(Enrolled::Held(holder))) => last = Some((agent.name_any(), holder)),
            // It says itself what is wrong with it.
            Ok(Err(_refused)) => last = holder.clone().map(|holder| (agent.name_any(), holder)),
            Err(source) => return Err(Error::Store { name: agent.name_any(), source }),
        }
    }
    Ok(Err(match last {
        Some((agent, holder)) => not_owned(alarm, owner, Some(&agent), Some(&holder)),
        None => not_owned(alarm, owner, None, holder.as_ref()),
    }))
}

/// Whether an Agent that was just mirrored is still as it was listed. Its own reconcile may have come between the list and the writing:
/// one that is gone by now must not have been brought back, nor a suspension undone.
async fn stands_still(context: &Context, api: &Api<Guarded<Agent>>, agent: &Agent) -> Result<bool, Error> {
    let (name, namespace) = (agent.name_any(), agent.namespace().unwrap_or_default());
    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = api.list(&by_name).await.map_err(|source| Error::Agents { namespace, source })?;
    let mut found = found.items.into_iter();
    let found = found.find(|found| found.uid() == agent.uid() && found.meta().deletion_timestamp.is_none());
    let Some(found) = found else {
        if let Some(uid) = agent.uid().and_then(|uid| uid.parse().ok()) {
            let removed = context.store.remove_agent_of_resource(context.cluster, uid).await;
            removed.map_err(|source| Error::Store { name, source })?;
        }
        return Ok(false);
    };
    if found.meta().generation != agent.metadata.generation
        && let Ok(newer) = &found.read
    {
        let enrolled = agents::enrol(context, newer).await.map_err(|source| Error::Store { name, source })?;
        return Ok(matches!(enrolled, Ok(Enrolled::Stands(_))));
    }
    Ok(true)
}

/// `beside`: an Agent that stands in the Alarm's namespace and does not hold the DID.
fn not_owned(alarm: &Identity, owner: &Did, beside: Option<&str>, holder: Option<&Holder>) -> Refused {
    let namespace = &alarm.namespace;
    let held = match holder {
        None => String::new(),
        Some(Holder::CommandLine) => " (it was enrolled on the command line, which is for HTTP alone)".to_owned(),
        Some(Holder::Resource(agent)) => format!(" (it is held by {})", agents::told(alarm, agent)),
    };
    let message = match beside {
        None => format!(
            "spec.owner: no Agent with the DID {owner} stands in namespace {namespace}{held}; ask an administrator to create one, or create another Alarm for an owner that has one"
        ),
        Some(agent) => format!(
            "spec.owner: Agent {agent} of namespace {namespace} does not hold the DID {owner}{held}; ask an administrator which of them should go"
        ),
    };
    Refused { reason: reason::OWNER_NOT_ALLOWED, message }
}

/// Before the finalizer lets go.
pub async fn cancel(context: &Context, identity: &Identity) -> Result<(), crate::store::Error> {
    context.store.cancel_resource(identity.cluster, identity.uid).await.map(|_was_living| ())
}

/// What the row was made from. Length-prefixed, so that no two definitions share one.
fn fingerprint(valid: &Valid) -> [u8; 32] {
    let definition = &valid.definition;
    let draft = Draft::of(definition);
    let number = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
    let parts = [
        valid.owner.to_string(),
        draft.label,
        serde_json::to_string(&draft.labels).expect("a map of texts is JSON"),
        draft.fire_at.unwrap_or_default(),
        draft.cron_expr.unwrap_or_default(),
        draft.timezone.unwrap_or_default(),
        draft.starts_at.unwrap_or_default(),
        draft.ends_at.unwrap_or_default(),
        number(draft.spread_seconds),
        draft.misfire.unwrap_or_default(),
        number(draft.max_lateness_seconds),
        draft.conversation_id,
        draft.wake_message,
        draft.payload.unwrap_or_default(),
        number(draft.max_failures),
    ];
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
