//! YAML → store, store → status. One reconcile of an Alarm, as a list of steps:
//!
//! 1. [`validate`]: is what the resource asks for possible? Pure.
//! 2. [`apply`]: the row in Postgres becomes what the resource says. What would undo or repeat something is first confirmed by the API
//!    server itself, past every cache.
//! 3. [`status`]: what the row says is mirrored to `.status`, by nobody else; [`events`] tell of transitions.
//!
//! Agents are reconciled beside them ([`agents`]): an Alarm may name an owner only if an Agent of its own namespace holds that DID.
//!
//! A deleted resource is held by a finalizer until its alarm is cancelled, or its agent removed. Database changes come as hints
//! ([`feed`]); a periodic resync finds what hints lost; rows whose resource is gone without a word are found by the [`sweep`]. Nothing
//! here is needed for an alarm to fire: the row does that. Whether the watches still show what the API server has is looked at, too
//! ([`audit`]): after a restored snapshot they might not.
//!
//! | who finds out | and then |
//! |---|---|
//! | the watch of Alarms | that Alarm |
//! | the watch of Agents | that Agent; if it stands otherwise than before, its Alarms and its rivals ([`scope`]) |
//! | a hint from the database | that Alarm |
//! | the resync | every Alarm and Agent now and then |

mod agents;
mod apply;
mod audit;
mod backoff;
mod events;
mod feed;
pub mod release;
mod scope;
mod status;
mod sweep;
pub mod validate;

use std::{
    pin::pin,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, TryFutureExt, future::join_all, try_join};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    core::PartialObjectMetaExt,
    runtime::{
        self, Controller as Runtime,
        controller::{Action, Config},
        events::Reporter,
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
    crd::{Agent, Alarm, Guarded},
    domain::ids::{ClusterId, ResourceUid},
    mutants::{self, Point},
    store::{
        self, Store,
        resources::{Doubt, Identity},
    },
    telemetry::chain,
};

use apply::Outcome;
use scope::{AgentRef, AlarmRef, Bell, Scope, Scopes, scoped};
use status::Report;
use validate::Refused;

/// The names users see in `metadata.finalizers`.
pub const ALARM_FINALIZER: &str = "chronos.dev/cancel-alarm";
pub const AGENT_FINALIZER: &str = "chronos.dev/remove-agent";
/// How often every Alarm is looked at without a hint.
const RESYNC: Duration = Duration::from_secs(300);
/// The same for an Agent, whose alarms are counted then.
const AGENT_RESYNC: Duration = Duration::from_secs(60);
/// The same for one whose DID somebody else holds, who may be gone by now: in another cluster, or on the command line.
const RIVAL_RESYNC: Duration = Duration::from_secs(10);
/// An Alarm that is refused for want of room: there may be some by now.
const QUOTA_RESYNC: Duration = Duration::from_secs(60);
/// Between two looks for a cluster that is away, or for CRDs that are not installed yet.
const CLUSTER_PAUSE: Duration = Duration::from_secs(2);
/// Alarms reconciled at once: more would only queue for database connections.
const CONCURRENCY: u16 = 8;
/// Agents are few.
const AGENT_CONCURRENCY: u16 = 2;
/// The most connections to the database that all of this uses at once: reconciles, the sweep, and one that hears hints.
pub const CONNECTIONS: u32 = (CONCURRENCY + AGENT_CONCURRENCY) as u32 + 2;
/// All steps of one reconcile. An API server that is frozen answers nothing, not even an error; every step may be repeated.
const TIMEOUT: Duration = Duration::from_secs(45);
/// A row may change while its resource is looked at: once more, but not for ever.
const MOST_TURNS: usize = 3;

#[derive(Debug, Error)]
pub enum Error {
    #[error("reading the cluster's id (the uid of namespace kube-system)")]
    ClusterId(#[source] kube::Error),
    #[error("the API server does not answer")]
    Silent,
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
    #[error("reading Alarm {name} past the cache")]
    Confirm {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("asking whether an object is gone")]
    Sweep(#[source] kube::Error),
    #[error("comparing what the watches show with what the API server has")]
    Audit(#[source] kube::Error),
    #[error("writing the status of {name}")]
    Status {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("storing {name}")]
    Store {
        name: String,
        #[source]
        source: store::Error,
    },
    #[error("{0} has no uid, which every object of an API server has")]
    NoIdentity(String),
    #[error("{0}: its row keeps changing while it is looked at")]
    Restless(String),
    #[error("{name}: not done within {} s", TIMEOUT.as_secs())]
    Timeout { name: String },
    #[error("the finalizer of an object")]
    Finalizer(#[source] Box<finalizer::Error<Error>>),
}

/// What every reconcile works with.
pub struct Context {
    client: Client,
    store: Store,
    clock: Arc<dyn Clock>,
    cluster: ClusterId,
    cluster_name: String,
    max_failures: u32,
    scopes: Scopes,
    reporter: Reporter,
    pace: status::Pace,
    /// Of their own: a crowd of events must not hold up statuses.
    event_pace: status::Pace,
    ledger: status::Ledger,
    counts: status::Counts,
    alarm_backoff: backoff::Backoff<AlarmRef>,
    agent_backoff: backoff::Backoff<AgentRef>,
}

impl Context {
    fn identity(&self, object: &impl Resource<DynamicType = ()>, uid: ResourceUid) -> Identity {
        let namespace = object.namespace().unwrap_or_default();
        Identity { cluster: self.cluster, uid, namespace, name: object.name_any() }
    }

    /// For people, and for `cluster forget`: nothing else hangs on it.
    async fn see_cluster(&self) {
        if let Err(error) = self.store.see_cluster(self.cluster, &self.cluster_name).await {
            warn!(error = %chain(&error), "cannot write down that this cluster has a controller");
        }
    }
}

#[derive(Clone)]
pub struct Controller {
    pub client: Client,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    /// Empty: all.
    pub namespaces: Vec<String>,
    pub cluster_name: String,
    /// How long a resource must be gone before its alarm is cancelled as an orphan.
    pub orphan_grace: Duration,
    pub max_failures: u32,
    /// Whom events are from.
    pub instance: String,
    /// Set once the resources can be listed.
    pub ready: Arc<AtomicBool>,
}

impl Controller {
    pub async fn run(self, stop: CancellationToken) {
        let scopes: Vec<Option<String>> =
            if self.namespaces.is_empty() { vec![None] } else { self.namespaces.iter().cloned().map(Some).collect() };
        // Anew whenever the watches have lost touch with the API server, or another cluster stands behind its address: a list, and its
        // id, are where they find it again.
        loop {
            let cluster = tokio::select! {
                cluster = cluster_served(&self.client, &scopes) => cluster,
                () = stop.cancelled() => return,
            };
            self.ready.store(true, Ordering::Relaxed);
            self.watch_until_adrift(cluster, &scopes, &stop).await;
            tokio::select! {
                () = tokio::time::sleep(CLUSTER_PAUSE) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn watch_until_adrift(&self, cluster: ClusterId, scopes: &[Option<String>], stop: &CancellationToken) {
        let scopes = scopes.to_vec();
        let (scopes, watches): (Vec<_>, Vec<_>) = scopes.into_iter().map(|scope| watch(&self.client, scope)).unzip();
        let context = Arc::new(Context {
            reporter: Reporter { controller: status::FIELD_MANAGER.to_owned(), instance: Some(self.instance.clone()) },
            client: self.client.clone(),
            store: self.store.clone(),
            clock: Arc::clone(&self.clock),
            cluster,
            cluster_name: self.cluster_name.clone(),
            max_failures: self.max_failures,
            scopes: Scopes(scopes),
            pace: status::Pace::default(),
            event_pace: status::Pace::default(),
            ledger: status::Ledger::default(),
            counts: status::Counts::default(),
            alarm_backoff: backoff::Backoff::default(),
            agent_backoff: backoff::Backoff::default(),
        });
        context.see_cluster().await;
        let term = stop.child_token();
        let watches = join_all(watches.into_iter().map(|watch| watch.run(&context, &term)));
        let (mut watches, mut sweep) = (pin!(watches), sweep::Sweep::new(self.orphan_grace));
        tokio::select! {
            _ = &mut watches => {}
            () = feed::listen(&context) => unreachable!("the feed listens until it is dropped"),
            () = sweep.run(&context) => {
                term.cancel();
                watches.await; // what is being reconciled is finished
            }
        }
    }
}

/// Both watches over one namespace, or over all.
struct Watch {
    alarms: Runtime<Guarded<Alarm>>,
    agents: Runtime<Guarded<Agent>>,
    rings: scope::Rings,
}

fn watch(client: &Client, namespace: Option<String>) -> (Scope, Watch) {
    let config = watcher::Config::default;
    let alarms = Runtime::new(scoped(client, namespace.as_deref()), config());
    let agents = Runtime::new(scoped(client, namespace.as_deref()), config());
    let (bell, rings) = Bell::new();
    (Scope::new(namespace, alarms.store(), agents.store(), bell), Watch { alarms, agents, rings })
}

impl Watch {
    async fn run(self, context: &Arc<Context>, stop: &CancellationToken) {
        let alarms = self
            .alarms
            .with_config(Config::default().concurrency(CONCURRENCY))
            .reconcile_on(self.rings.alarms)
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(reconcile, error_policy, Arc::clone(context))
            .for_each(|result| async { log(result) });
        let agents = self
            .agents
            .with_config(Config::default().concurrency(AGENT_CONCURRENCY))
            .reconcile_on(self.rings.agents)
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(agents::reconcile, agent_error_policy, Arc::clone(context))
            .for_each(|result| async { log(result) });
        tokio::join!(alarms, agents);
    }
}

fn log<T>(result: Result<T, runtime::controller::Error<Error, watcher::Error>>) {
    match result {
        // The error policy has logged it.
        Ok(_) | Err(runtime::controller::Error::ReconcilerFailed(..)) => {}
        // An object that was deleted while it waited for its turn.
        Err(runtime::controller::Error::ObjectNotFound(_)) => {}
        Err(error) => warn!(error = %chain(&error), "watching Alarms and Agents"),
    }
}

async fn reconcile(seen: Arc<Guarded<Alarm>>, context: Arc<Context>) -> Result<Action, Error> {
    let api = Api::namespaced(context.client.clone(), &seen.namespace().unwrap_or_default());
    let reference: AlarmRef = ObjectRef::from_obj(&*seen);
    if seen.read.is_err() && seen.meta().deletion_timestamp.is_none() {
        // The API server takes hardly any change to an object that it would not let in today: no finalizer, and a status if it may be.
        let told = Box::pin(bring_about(&seen, &context)).map_err(finalizer::Error::ApplyFailed);
        return in_time(&seen.name_any(), told).await;
    }
    let meta = Arc::new(seen.meta().clone().into_response_partial::<Alarm>());
    let (alarm, with) = (&seen, &context);
    let done = finalizer(&api, ALARM_FINALIZER, meta, |event| async move {
        match event {
            Event::Apply(_) => bring_about(alarm, with).await,
            Event::Cleanup(_) => let_go(alarm, with).await,
        }
    });
    let done = in_time(&seen.name_any(), Box::pin(done)).await?;
    context.alarm_backoff.forget(&reference);
    Ok(done)
}

/// The whole of one reconcile has a deadline.
async fn in_time(
    name: &str,
    reconcile: impl Future<Output = Result<Action, finalizer::Error<Error>>>,
) -> Result<Action, Error> {
    match tokio::time::timeout(TIMEOUT, reconcile).await {
        Ok(done) => done.map_err(|error| Error::Finalizer(Box::new(error))),
        Err(_elapsed) => Err(Error::Timeout { name: name.to_owned() }),
    }
}

/// The steps.
async fn bring_about(seen: &Guarded<Alarm>, context: &Context) -> Result<Action, Error> {
    let (mut live, mut confirmed): (Option<Guarded<Alarm>>, Option<Doubt>) = (None, None);
    for _ in 0..MOST_TURNS {
        let alarm = live.as_ref().unwrap_or(seen);
        let outcome = match &alarm.read {
            Err(unreadable) => refuse(alarm, Refused::unreadable(&unreadable.why), context).await?,
            Ok(read) => match validate::validate(read, context.max_failures) {
                // pure
                Err(refused) => refuse(alarm, refused, context).await?, // Postgres
                Ok(valid) => apply::apply(context, read, &valid, confirmed.as_ref()).await?, // Postgres
            },
        };
        let report = match outcome {
            Outcome::Report(report) => report,
            // A younger one of the same name is stored already: the watch will tell.
            Outcome::Superseded => return Ok(Action::await_change()),
            Outcome::Doubtful(doubt) => {
                // cluster, past the cache
                let Some(found) = uncached(seen, context).await? else { return Ok(Action::await_change()) };
                (live, confirmed) = (Some(found), Some(doubt));
                continue;
            }
        };
        if matches!(report, Report::Stored { .. }) {
            mutants::point(Point::Reconciled);
        }
        let rests = status::mirror(context, alarm, &report).await?; // cluster
        return finish(alarm, report, rests);
    }
    Err(Error::Restless(seen.name_any()))
}

/// When to look again.
fn finish(alarm: &Guarded<Alarm>, report: Report, rests: Option<Duration>) -> Result<Action, Error> {
    let action = match report {
        Report::Stored { .. } => Action::requeue(rests.unwrap_or(RESYNC)),
        Report::Refused { refused, .. } if refused.reason == crate::crd::condition::reason::QUOTA_EXCEEDED => {
            Action::requeue(rests.unwrap_or(QUOTA_RESYNC))
        }
        // A typo waits for an edit, a missing Agent for its Agent: both come as events.
        Report::Refused { .. } => rests.map_or_else(Action::await_change, Action::requeue),
        Report::Failed(source) => return Err(Error::Store { name: alarm.name_any(), source }),
    };
    Ok(action)
}

async fn refuse(alarm: &Guarded<Alarm>, refused: Refused, context: &Context) -> Result<Outcome, Error> {
    Ok(Outcome::Report(apply::refuse(context, &known(alarm, context)?, refused).await))
}

fn known(alarm: &Guarded<Alarm>, context: &Context) -> Result<Identity, Error> {
    let uid = alarm.uid().and_then(|uid| uid.parse().ok()).ok_or_else(|| Error::NoIdentity(alarm.name_any()))?;
    Ok(context.identity(alarm, uid))
}

/// The resource as the API server has it now; `None`: gone, being deleted, or another one under the same name: the watch will tell.
async fn uncached(seen: &Guarded<Alarm>, context: &Context) -> Result<Option<Guarded<Alarm>>, Error> {
    let name = seen.name_any();
    let api: Api<Guarded<Alarm>> = Api::namespaced(context.client.clone(), &seen.namespace().unwrap_or_default());
    let found = api.get_opt(&name).await.map_err(|source| Error::Confirm { name, source })?;
    Ok(found.filter(|found| found.uid() == seen.uid() && found.meta().deletion_timestamp.is_none()))
}

/// Cancelled, and then let go. While the database is away the resource stays, and says why.
async fn let_go(seen: &Guarded<Alarm>, context: &Context) -> Result<Action, Error> {
    match apply::cancel(context, &known(seen, context)?).await {
        Ok(()) => {
            mutants::point(Point::Finalizer);
            context.ledger.forget(&ObjectRef::from_obj(seen));
            Ok(Action::await_change())
        }
        Err(source) => {
            let failed = Report::Failed(source);
            status::mirror(context, seen, &failed).await?;
            finish(seen, failed, None)
        }
    }
}

/// Growing pauses per object; nothing here is given up.
fn error_policy(alarm: Arc<Guarded<Alarm>>, error: &Error, context: Arc<Context>) -> Action {
    put_off("Alarm", &*alarm, error, context.alarm_backoff.next(ObjectRef::from_obj(&*alarm)))
}

fn agent_error_policy(agent: Arc<Guarded<Agent>>, error: &Error, context: Arc<Context>) -> Action {
    put_off("Agent", &*agent, error, context.agent_backoff.next(ObjectRef::from_obj(&*agent)))
}

fn put_off(kind: &str, object: &impl Resource<DynamicType = ()>, error: &Error, pause: Duration) -> Action {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    warn!(namespace, name, error = %chain(error), "{kind} {namespace}/{name} cannot be reconciled; again in {pause:?}");
    Action::requeue(pause)
}

/// Waits until the API server answers and serves both kinds in every scope, and returns the cluster's id. A cluster that is
/// away, or that has no CRDs yet, is not our failure, and must not end a process that also delivers.
async fn cluster_served(client: &Client, scopes: &[Option<String>]) -> ClusterId {
    let mut told = String::new();
    loop {
        let asked = async { try_join!(cluster_id(client), crds_served(client, scopes)) };
        match tokio::time::timeout(TIMEOUT, asked).await.unwrap_or(Err(Error::Silent)) {
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
        let (alarms, agents): (Api<Guarded<Alarm>>, Api<Guarded<Agent>>) =
            (scoped(client, scope.as_deref()), scoped(client, scope.as_deref()));
        try_join!(alarms.list(&one), agents.list(&one)).map_err(Error::NotServed)?;
    }
    Ok(())
}
