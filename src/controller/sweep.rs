//! Rows whose resource is gone without a word: its finalizer was removed by force, or the cluster came back from an older snapshot.
//! Nothing is cancelled blindly. A row is an orphan only
//!
//! 1. after the watch has listed everything once and does not show its uid,
//! 2. for the whole of a grace, during which somebody may apply it again or bring the cluster back,
//! 3. and when the API server, asked past every cache, says 200 and shows no such object. Any other answer means nothing.
//!
//! Another cluster's rows, and those of namespaces that are not watched, are never touched.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    runtime::reflector::{ObjectRef, Store as Cache},
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Context, Error, agents, audit::Audit, scope::Scope};
use crate::{
    crd::Guarded,
    domain::ids::ResourceUid,
    store::resources::{Identity, Living},
    telemetry::{chain, metrics},
};

/// Between two rounds, if the grace is not shorter.
const ROUND: Duration = Duration::from_secs(60);
/// For the audit, and for the sweep, of one round: an API server that vanished answers nothing, not even an error. Both and the pause
/// between rounds are less than the three minutes after which a cluster counts as gone.
const PATIENCE: Duration = Duration::from_secs(45);
/// Rounds within one grace.
const ROUNDS: u32 = 5;

/// Since when uids have been missing.
pub struct Sweep {
    grace: Duration,
    missing: HashMap<ResourceUid, Instant>,
}

/// Whoever sweeps no more, because another leads now, tells of no duplicates: what was counted last would stand for ever.
impl Drop for Sweep {
    fn drop(&mut self) {
        metrics::duplicates(0);
    }
}

impl Sweep {
    pub fn new(grace: Duration) -> Self {
        Self { grace, missing: HashMap::new() }
    }

    /// Until the watches must begin anew. Also writes down, each round, that this cluster has a controller.
    pub async fn run(&mut self, context: &Context) {
        for scope in &context.scopes.0 {
            // Ends with an error only when the watch has ended, and we with it.
            let _complete = scope.alarms.wait_until_ready().await;
            let _complete = scope.agents.wait_until_ready().await;
        }
        let mut audit = Audit::new();
        loop {
            // Whatever the API server is up to: this says that a controller is at work.
            context.see_cluster().await;
            // First: what a cache shows that is adrift proves nothing.
            match tokio::time::timeout(PATIENCE, audit.is_adrift(context)).await.unwrap_or(Err(Error::Silent)) {
                Ok(true) => return,
                Ok(false) => {
                    let swept = tokio::time::timeout(PATIENCE, self.run_once(context)).await;
                    if let Err(error) = swept.unwrap_or(Err(Error::Silent)) {
                        warn!(error = %chain(&error), "the sweep for orphans is put off");
                    }
                }
                Err(error) => debug!(error = %chain(&error), "the watches cannot be compared with the API server now"),
            }
            tokio::time::sleep(ROUND.min(self.grace / ROUNDS)).await;
        }
    }

    async fn run_once(&mut self, context: &Context) -> Result<(), Error> {
        let store = |source| Error::Store { name: "of this cluster".to_owned(), source };
        let mut still_missing = HashSet::new();
        for agent in context.store.agents_of_cluster(context.cluster).await.map_err(store)? {
            let Some(scope) = watched(context, &agent) else { continue };
            if self.is_orphan(context, &scope.agents, &agent, &mut still_missing).await? {
                let removed = context.store.remove_agent_of_resource(agent.cluster, agent.uid).await.map_err(store)?;
                if let Some(removed) = removed {
                    metrics::orphan_swept();
                    let Identity { namespace, name, .. } = &agent;
                    agents::ring(context, &ObjectRef::new(name).within(namespace), &removed.did).await;
                    info!(owner_did = %removed.did, "agent {} is not enrolled any more: Agent {namespace}/{name} is gone", removed.did);
                }
            }
        }
        let mut after = None;
        loop {
            let (living, next) = context.store.living_resources(context.cluster, after).await.map_err(store)?;
            for Living { identity: alarm, waits } in living {
                // Handed over, it waits for whatever resource has its name.
                let named = || ObjectRef::new(&alarm.name).within(&alarm.namespace);
                if waits && watched(context, &alarm).is_some_and(|scope| scope.alarms.get(&named()).is_some()) {
                    continue;
                }
                let Some(scope) = watched(context, &alarm) else { continue };
                if self.is_orphan(context, &scope.alarms, &alarm, &mut still_missing).await?
                    && context.store.cancel_resource(alarm.cluster, alarm.uid).await.map_err(store)?
                {
                    metrics::orphan_swept();
                    let Identity { uid, namespace, name, .. } = &alarm;
                    info!(%uid, namespace, name, "the alarm of {namespace}/{name} is cancelled: its resource is gone");
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        self.missing.retain(|uid, _| still_missing.contains(uid));
        metrics::duplicates(context.store.count_duplicates(context.cluster).await.map_err(store)?);
        Ok(())
    }

    async fn is_orphan<K>(
        &mut self,
        context: &Context,
        cache: &Cache<Guarded<K>>,
        row: &Identity,
        still_missing: &mut HashSet<ResourceUid>,
    ) -> Result<bool, Error>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
        Guarded<K>: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let shown = cache.get(&ObjectRef::new(&row.name).within(&row.namespace));
        if shown.is_some_and(|object| has_uid(&*object, row.uid)) {
            self.missing.remove(&row.uid);
            return Ok(false);
        }
        let since = *self.missing.entry(row.uid).or_insert_with(Instant::now);
        still_missing.insert(row.uid);
        if since.elapsed() < self.grace {
            return Ok(false);
        }
        let api: Api<Guarded<K>> = Api::namespaced(context.client.clone(), &row.namespace);
        let by_name = ListParams::default().fields(&format!("metadata.name={}", row.name));
        let listed = api.list(&by_name).await.map_err(Error::Sweep)?;
        Ok(!listed.items.iter().any(|object| has_uid(object, row.uid)))
    }
}

fn has_uid(object: &impl Resource<DynamicType = ()>, uid: ResourceUid) -> bool {
    object.uid().and_then(|text| text.parse().ok()) == Some(uid)
}

fn watched<'a>(context: &'a Context, row: &Identity) -> Option<&'a Scope> {
    context.scopes.0.iter().find(|scope| scope.holds(&row.namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_sweeps_no_more_tells_of_no_duplicates() {
        let recorder = metrics::recorder();
        ::metrics::with_local_recorder(&recorder, || {
            let sweep = Sweep::new(Duration::from_secs(300));
            metrics::duplicates(3);
            assert!(recorder.handle().render().contains("\nchronos_alarms_duplicated 3\n"));
            drop(sweep);
        });
        assert!(recorder.handle().render().contains("\nchronos_alarms_duplicated 0\n"));
    }
}
