//! Is what the watch shows what the API server has? A cluster that came back from an older snapshot counts its versions from there
//! again. A watch that goes on from a version which is still to come then hears nothing, says nothing, and never ends by itself: neither
//! the API server nor kube notices. So we look, past the watch:
//!
//! - often, whether the newest version has gone down. One that is lower than any we have seen is from another past;
//! - now and then, because versions may have grown past that by then, whether every object stands as the cache shows it. One that does not,
//!   twice in a row in the same way, is not on its way to us.
//!
//! Either way the watches begin anew with a list.

use std::{collections::HashSet, time::Duration};

use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    runtime::reflector::{ObjectRef, Store as Cache},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::warn;

use super::{Context, Error, scope::scoped};
use crate::crd::{Alarm, Guarded};

/// Between two comparisons of everything.
const WHOLE: Duration = Duration::from_secs(300);
/// Objects in one answer.
const PAGE: u32 = 500;

pub struct Audit {
    highest: u64,
    compared_at: Instant,
    /// What differed last time: kind, namespace, name, and the version that the cache did not show.
    suspects: HashSet<Difference>,
}

type Difference = (&'static str, String, String, String);

impl Audit {
    pub fn new() -> Self {
        Self { highest: 0, compared_at: Instant::now(), suspects: HashSet::new() }
    }

    /// Whether the watches must begin anew.
    pub async fn is_adrift(&mut self, context: &Context) -> Result<bool, Error> {
        for scope in &context.scopes.0 {
            // Before the question: what is shown by then is at most as new as the answer.
            let cached = scope.alarms.state().iter().filter_map(|alarm| number(alarm.resource_version())).max();
            let newest = newest::<Alarm>(&scoped(&context.client, scope.namespace.as_deref())).await?;
            let known = self.highest.max(cached.unwrap_or(0));
            if newest.is_some_and(|newest| newest < known) {
                warn!(?newest, known, "the API server has gone back to an older version: the watches begin anew");
                return Ok(true);
            }
            self.highest = known.max(newest.unwrap_or(0));
        }
        if self.suspects.is_empty() && self.compared_at.elapsed() < WHOLE {
            return Ok(false);
        }
        self.compared_at = Instant::now();
        let mut differing = HashSet::new();
        for scope in &context.scopes.0 {
            let namespace = scope.namespace.as_deref();
            differing.extend(differences("Alarm", &scoped(&context.client, namespace), &scope.alarms).await?);
            differing.extend(differences("Agent", &scoped(&context.client, namespace), &scope.agents).await?);
        }
        let twice = differing.intersection(&self.suspects).count();
        self.suspects = differing;
        if twice > 0 {
            warn!(count = twice, "objects are not as the watches show them: the watches begin anew");
        }
        Ok(twice > 0)
    }
}

/// Versions are numbers by now, in Kubernetes' own words; where they are not, nothing is concluded from them.
fn number(version: Option<String>) -> Option<u64> {
    version?.parse().ok()
}

/// The version at which a list is true, asked past every cache.
async fn newest<K>(api: &Api<Guarded<K>>) -> Result<Option<u64>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let one = api.list_metadata(&ListParams::default().limit(1)).await.map_err(Error::Audit)?;
    Ok(number(one.metadata.resource_version))
}

async fn differences<K>(
    kind: &'static str,
    api: &Api<Guarded<K>>,
    cache: &Cache<Guarded<K>>,
) -> Result<HashSet<Difference>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + 'static,
{
    let (mut found, mut standing) = (HashSet::new(), HashSet::new());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = api.list_metadata(&page).await.map_err(Error::Audit)?;
        for object in listed.items {
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            let shown = cache.get(&ObjectRef::new(&name).within(&namespace));
            let version = object.resource_version().unwrap_or_default();
            if shown.and_then(|shown| shown.resource_version()).as_ref() != Some(&version) {
                found.insert((kind, namespace.clone(), name.clone(), version));
            }
            standing.insert((namespace, name));
        }
        match listed.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            Some(_) | None => break,
        }
    }
    for shown in cache.state() {
        let (namespace, name) = (shown.namespace().unwrap_or_default(), shown.name_any());
        if !standing.contains(&(namespace.clone(), name.clone())) {
            found.insert((kind, namespace, name, String::new()));
        }
    }
    Ok(found)
}
