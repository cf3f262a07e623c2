//! YAML → store, store → status. One reconcile, as a list of steps:
//!
//! 1. [`validate`]: is what the resource asks for possible? Pure.
//! 2. [`apply`]: the row in Postgres becomes what the resource says.
//! 3. [`status`]: what the row says is mirrored to `.status`, by nobody else.
//!
//! A deleted resource is held by a finalizer until its alarm is cancelled. Database changes come as hints ([`feed`]); a
//! periodic resync finds what hints lost. Nothing here is needed for an alarm to fire: the row does that.

mod apply;
mod backoff;
mod feed;
mod status;
pub mod validate;

use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, future::join_all, try_join};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    runtime::{
        self, Controller as Runtime,
        controller::{Action, Config},
        finalizer::{self, Event, finalizer},
        reflector::ObjectRef,
        watcher,
    },
};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    clock::Clock,
    crd::{Agent, Alarm},
    domain::ids::ClusterId,
    store::{self, Store},
    telemetry::chain,
};

/// The name users see in `metadata.finalizers`.
const FINALIZER: &str = "chronos.dev/cancel-alarm";
/// How often every resource is looked at without a hint.
const RESYNC: Duration = Duration::from_secs(300);
/// Between two looks for a cluster that is away, or for CRDs that are not installed yet.
const CLUSTER_PAUSE: Duration = Duration::from_secs(2);
/// Resources reconciled at once: more would only queue for database connections.
const CONCURRENCY: u16 = 8;

#[derive(Debug, Error)]
pub enum Error {
    #[error("reading the cluster's id (the uid of namespace kube-system)")]
    ClusterId(#[source] kube::Error),
    #[error("namespace kube-system has no uid")]
    NoClusterId,
    #[error("listing Alarms and Agents (are the CRDs of `chronosd crd` installed?)")]
    NotServed(#[source] kube::Error),
    #[error("reading the Agents of namespace {namespace}")]
    Agents {
        namespace: String,
        #[source]
        source: kube::Error,
    },
    #[error("writing the status of Alarm {name}")]
    Status {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("storing Alarm {name}")]
    Store {
        name: String,
        #[source]
        source: store::Error,
    },
    #[error("Alarm {0} has no uid, namespace or creation time, which every object of an API server has")]
    NoIdentity(String),
    #[error("the finalizer of an Alarm")]
    Finalizer(#[source] Box<finalizer::Error<Error>>),
}

/// What every reconcile works with.
pub struct Context {
    client: Client,
    store: Store,
    clock: Arc<dyn Clock>,
    cluster: ClusterId,
    max_failures: u32,
    backoff: backoff::Backoff,
}

#[derive(Clone)]
pub struct Controller {
    pub client: Client,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    /// Empty: all.
    pub namespaces: Vec<String>,
    pub max_failures: u32,
    /// Set once the resources can be listed.
    pub ready: Arc<AtomicBool>,
}

impl Controller {
    pub async fn run(self, stop: CancellationToken) {
        let scopes: Vec<Option<String>> =
            if self.namespaces.is_empty() { vec![None] } else { self.namespaces.into_iter().map(Some).collect() };
        let cluster = tokio::select! {
            cluster = cluster_served(&self.client, &scopes) => cluster,
            () = stop.cancelled() => return,
        };
        self.ready.store(true, Ordering::Relaxed);
        let context = Arc::new(Context {
            client: self.client,
            store: self.store,
            clock: self.clock,
            cluster,
            max_failures: self.max_failures,
            backoff: backoff::Backoff::default(),
        });
        let (hints, heard): (Vec<_>, Vec<_>) = scopes.iter().map(|_| feed::channel()).unzip();
        let subscribers = scopes.iter().cloned().zip(hints).collect();
        let watches = scopes.into_iter().zip(heard).map(|(scope, heard)| watch(&context, scope, heard, &stop));
        tokio::select! {
            _ = join_all(watches) => {}
            () = feed::listen(&context.store, cluster, subscribers) => unreachable!("the feed listens until it is dropped"),
        }
    }
}

/// One watch over one namespace, or over all.
async fn watch(context: &Arc<Context>, scope: Option<String>, heard: feed::Hints, stop: &CancellationToken) {
    let alarms: Api<Alarm> = scoped(&context.client, scope.as_deref());
    let agents: Api<Agent> = scoped(&context.client, scope.as_deref());
    let runtime = Runtime::new(alarms, watcher::Config::default().any_semantic());
    let known = runtime.store();
    runtime
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches(agents, watcher::Config::default(), move |agent: Agent| {
            // An Agent that comes or goes decides about every Alarm of its DID in its namespace.
            let concerned = move |alarm: &Arc<Alarm>| {
                alarm.namespace() == agent.namespace() && agent.spec.enrols(&alarm.spec.owner)
            };
            known.state().into_iter().filter(concerned).map(|alarm| ObjectRef::from_obj(&*alarm)).collect::<Vec<_>>()
        })
        .reconcile_on(heard)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, error_policy, Arc::clone(context))
        .for_each(|result| async {
            match result {
                // error_policy has logged it.
                Ok(_) | Err(runtime::controller::Error::ReconcilerFailed(..)) => {}
                // An object that was deleted while it waited for its turn.
                Err(runtime::controller::Error::ObjectNotFound(_)) => {}
                Err(error) => warn!(error = %chain(&error), "watching Alarms and Agents"),
            }
        })
        .await;
}

async fn reconcile(alarm: Arc<Alarm>, context: Arc<Context>) -> Result<Action, Error> {
    let api: Api<Alarm> = Api::namespaced(context.client.clone(), &alarm.namespace().unwrap_or_default());
    let reference = ObjectRef::from_obj(&*alarm);
    let done = finalizer(&api, FINALIZER, alarm, |event| async {
        match event {
            Event::Apply(alarm) => bring_about(&api, &alarm, &context).await,
            Event::Cleanup(alarm) => apply::cancel(&context, &alarm).await.map(|()| Action::await_change()),
        }
    })
    .await;
    match done {
        Ok(action) => {
            context.backoff.forget(&reference);
            Ok(action)
        }
        Err(error) => Err(Error::Finalizer(Box::new(error))),
    }
}

/// The steps.
async fn bring_about(api: &Api<Alarm>, alarm: &Alarm, context: &Context) -> Result<Action, Error> {
    let agents = agents_beside(alarm, context).await?; // cluster
    let valid = validate::validate(alarm, &agents, context.max_failures); // pure
    let report = match valid {
        Err(refused) => apply::refuse(context, alarm, refused).await, // Postgres
        Ok(valid) => apply::apply(context, alarm, &valid).await,      // Postgres
    };
    status::mirror(api, alarm, &report, context.clock.now()).await?; // cluster
    match report {
        status::Report::Stored(_) => Ok(Action::requeue(RESYNC)),
        // A typo waits for an edit, a missing Agent for its Agent: both come as events.
        status::Report::Refused { .. } => Ok(Action::await_change()),
        status::Report::Failed(source) => Err(Error::Store { name: alarm.name_any(), source }),
    }
}

async fn agents_beside(alarm: &Alarm, context: &Context) -> Result<Vec<Agent>, Error> {
    let namespace = alarm.namespace().unwrap_or_default();
    let api: Api<Agent> = Api::namespaced(context.client.clone(), &namespace);
    let agents = api.list(&ListParams::default()).await.map_err(|source| Error::Agents { namespace, source })?;
    Ok(agents.items)
}

/// Growing pauses per object; nothing here is given up.
fn error_policy(alarm: Arc<Alarm>, error: &Error, context: Arc<Context>) -> Action {
    let pause = context.backoff.next(ObjectRef::from_obj(&*alarm));
    let (namespace, name) = (alarm.namespace().unwrap_or_default(), alarm.name_any());
    warn!(namespace, name, error = %chain(error), "Alarm {namespace}/{name} cannot be reconciled; again in {pause:?}");
    Action::requeue(pause)
}

/// Waits until the API server answers and serves both kinds in every scope, and returns the cluster's id. A cluster that is
/// away, or that has no CRDs yet, is not our failure, and must not end a process that also delivers.
async fn cluster_served(client: &Client, scopes: &[Option<String>]) -> ClusterId {
    let mut told = String::new();
    loop {
        match try_join!(cluster_id(client), crds_served(client, scopes)) {
            Ok((cluster, ())) => return cluster,
            // Said once, not every other second.
            Err(error) if chain(&error) == told => {}
            Err(error) => {
                told = chain(&error);
                warn!(error = told, "Alarms and Agents cannot be watched yet; waiting");
            }
        }
        tokio::time::sleep(CLUSTER_PAUSE).await;
    }
}

/// A cluster is known by the uid of its kube-system namespace, as nothing else about it is sure to stay.
async fn cluster_id(client: &Client) -> Result<ClusterId, Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = api.get("kube-system").await.map_err(Error::ClusterId)?;
    namespace.meta().uid.as_deref().and_then(|uid| uid.parse().ok()).ok_or(Error::NoClusterId)
}

async fn crds_served(client: &Client, scopes: &[Option<String>]) -> Result<(), Error> {
    let one = ListParams::default().limit(1);
    for scope in scopes {
        let (alarms, agents): (Api<Alarm>, Api<Agent>) =
            (scoped(client, scope.as_deref()), scoped(client, scope.as_deref()));
        try_join!(alarms.list(&one), agents.list(&one)).map_err(Error::NotServed)?;
    }
    Ok(())
}

fn scoped<K>(client: &Client, scope: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        None => Api::all(client.clone()),
        Some(namespace) => Api::namespaced(client.clone(), namespace),
    }
}
