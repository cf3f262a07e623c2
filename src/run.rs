//! The composition root: builds everything a process runs and watches it. The first task to end ends the process: a
//! half-alive replica would still look alive from outside.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use kube::{Client, config::KubeConfigOptions, config::Kubeconfig};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    clock::{self, Clock},
    config::{self, Config, DispatchMode},
    controller::{self, Controller},
    dispatch::{Dispatcher, Gate, Limits, Parts, Pulse},
    domain::ids::WorkerId,
    http,
    leader::{self, Election, Leadership, Standing},
    mutants::{self, Mutant},
    router::{Addresses, Router, Secrets},
    store::{self, Store},
    telemetry::{chain, metrics, probes, traces},
    upkeep::{Retention, Upkeep},
};

/// Probes and `/healthz` ask one thing, and seldom.
const PROBE_POOL: u32 = 2;
/// Nothing is asked on it: it listens.
const STREAMS_POOL: u32 = 1;
/// The longest that an API server may be silent in the middle of an answer.
const CLUSTER_SILENCE: Duration = Duration::from_secs(295);
/// After the grace period for deliveries everything else has this long.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The Leases: who claims what is due, and who is the controller.
const DISPATCH_LEASE: &str = "chronos-dispatch";
const CONTROLLER_LEASE: &str = "chronos-controller";
/// How long a controller that must stop may finish what it is at: after that another may lead.
const HANDOVER: Duration = leader::LEASE.saturating_sub(leader::RENEW_DEADLINE);

/// Where the cluster is.
#[derive(Clone, Debug)]
pub enum Cluster {
    /// There is none, whatever the environment says.
    None,
    /// In-cluster credentials, or an explicit KUBECONFIG. The home kubeconfig is never used silently: it may point at
    /// anything.
    Environment,
    Kubeconfig(std::path::PathBuf),
}

/// A process that has started: everything listens.
pub struct Running {
    /// The facade's address; `None` without that role.
    pub api: Option<SocketAddr>,
    pub probes: SocketAddr,
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    traces: Option<traces::Exporter>,
    stop: CancellationToken,
    grace: Duration,
}

pub async fn start(config: Config, cluster: Cluster) -> anyhow::Result<Running> {
    mutants::announce()?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let files = http::server::raise_file_limit();
    let database = &config.database;
    let traces = config.collector.as_ref().map(traces::start).transpose()?;
    let mut process = Process {
        tasks: JoinSet::new(),
        stop: CancellationToken::new(),
        pools: probes::Pools::default(),
        clock: clock::system(),
        id: Uuid::new_v4(),
        renewals: Vec::new(),
    };

    let watcher = process.connect(database, "probes", PROBE_POOL).await?;
    watcher.check_schema().await?;
    let ready = Arc::new(AtomicBool::new(!config.roles.controller));
    let listener = listen(&config.listen, config.listen.metrics_port, "CHRONOS_METRICS_PORT").await?;
    let probes = listener.local_addr()?;
    let readiness = probes::Readiness { store: watcher.clone(), controller: Arc::clone(&ready) };
    let serving = probes::serve(listener, readiness, process.pools.clone(), metrics::install(), process.stop.clone());
    process.tasks.spawn(async move { ("probes", serving.await.context("serving probes")) });

    let mut api_address = None;
    if let Some(api) = &config.api {
        let store = process.connect(database, store::API, database.api_pool).await?;
        let most = http::server::most_connections(files, own_connections(&config));
        let streams = Arc::new(http::Streams::new(database.hints.is_some(), most));
        if config.autonomy.enabled && database.hints.is_some() {
            process.streams(database, Arc::clone(&streams)).await?;
        }
        let (clock, mut autonomy) = (Arc::clone(&process.clock), config.autonomy);
        if mutants::on(Mutant::CapIgnored) {
            autonomy.restraint.max_consecutive = u32::MAX;
        }
        if mutants::on(Mutant::CooldownIgnored) {
            autonomy.restraint.cooldown = chrono::TimeDelta::zero();
        }
        let facade = http::Facade::new(store, watcher, clock, api, config.max_failures, autonomy, streams);
        let listener = listen(&config.listen, config.listen.port, "CHRONOS_PORT").await?;
        api_address = Some(listener.local_addr()?);
        process.api(listener, facade, api, most);
    }

    let elect_dispatch = config.dispatch.as_ref().is_some_and(|dispatch| dispatch.mode == DispatchMode::Leader);
    let client = match (config.roles.controller, elect_dispatch) {
        (true, _) => Some(client(&cluster).await?),
        (false, true) => find_client(&cluster).await?,
        (false, false) => None,
    };
    let elections = client.clone().map(|client| {
        let namespace = config.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let (identity, clock) = (leader::identity(process.id), Arc::clone(&process.clock));
        move |lease| Election::new(client.clone(), &namespace, lease, identity.clone(), Arc::clone(&clock))
    });
    if let Some(dispatch) = config.dispatch {
        let election = elections.as_ref().filter(|_| elect_dispatch).map(|elect| elect(DISPATCH_LEASE));
        process.dispatch(database, dispatch, config.shutdown, election, (config.autonomy, config.max_failures)).await?;
    }
    if let (true, Some(client), Some(elect)) = (config.roles.controller, client, elections) {
        let controller = Controller {
            client,
            store: process.connect(database, "controller", controller::CONNECTIONS).await?,
            clock: Arc::clone(&process.clock),
            namespaces: config.controller.namespaces,
            cluster_name: config.controller.cluster_name,
            orphan_grace: config.controller.orphan_grace,
            instance: leader::host(),
            max_failures: config.max_failures,
            ready,
        };
        process.controller(controller, elect(CONTROLLER_LEASE));
    }

    process.follow(config.files);
    info!(api = api_address.map(tracing::field::display), %probes, "chronos {} runs", env!("CARGO_PKG_VERSION"));
    let Process { tasks, stop, .. } = process;
    Ok(Running { api: api_address, probes, tasks, traces, stop, grace: config.shutdown + LAST_WORDS })
}

/// A process that is being put together.
struct Process {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
    pools: probes::Pools,
    clock: Arc<dyn Clock>,
    /// One name for it in Leases, beats and the attempts it makes.
    id: Uuid,
    renewals: Vec<Renewal>,
}

/// How a part of the process takes what is new in a configuration. A problem is told, and the part goes on as it is.
type Renewal = Box<dyn Fn(&Config) -> anyhow::Result<()> + Send + Sync>;

impl Process {
    async fn connect(
        &mut self,
        database: &config::Database,
        role: &'static str,
        connections: u32,
    ) -> anyhow::Result<Store> {
        let store = Store::connect(database, role, connections).await?;
        self.pools.watch(role, &store);
        let renewed = store.clone();
        self.renewals.push(Box::new(move |config| Ok(renewed.renew(&config.database)?)));
        Ok(store)
    }

    fn api(&mut self, listener: TcpListener, facade: http::Facade, api: &config::Api, most_connections: usize) {
        let (certificate, tls) = api.tls.as_ref().map(|tls| watch::channel(Arc::clone(&tls.server))).unzip();
        let renewed = facade.clone();
        self.renewals.push(Box::new(move |config| {
            let Some(api) = &config.api else { return Ok(()) };
            renewed.renew(api);
            if let (Some(certificate), Some(tls)) = (&certificate, &api.tls) {
                certificate.send_replace(Arc::clone(&tls.server));
            }
            Ok(())
        }));
        let serving = http::serve(listener, facade, http::server::Door { tls, most_connections }, self.stop.clone());
        self.tasks.spawn(async move {
            serving.await;
            ("api", Ok(()))
        });
    }

    /// Hints for the streams of sessions, on a connection of their own: one of the facade's would be gone for good.
    async fn streams(&mut self, database: &config::Database, streams: Arc<http::Streams>) -> anyhow::Result<()> {
        let store = self.connect(database, "streams", STREAMS_POOL).await?;
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            streams.listen(&store, stop).await;
            ("streams", Ok(()))
        });
        Ok(())
    }

    /// Secrets that change in their files, from now on.
    fn follow(&mut self, files: config::Files) {
        let (renewals, stop) = (std::mem::take(&mut self.renewals), self.stop.clone());
        let renew = move |config: &Config| {
            for error in renewals.iter().filter_map(|renewal| renewal(config).err()) {
                warn!(error = %chain(&*error), "what is new in the configuration cannot be used; what was there before stays");
            }
        };
        self.tasks.spawn(async move {
            files.run(renew, stop).await;
            ("files", Ok(()))
        });
    }

    /// The dispatcher, its upkeep, and its election, if there is one.
    async fn dispatch(
        &mut self,
        database: &config::Database,
        dispatch: config::Dispatch,
        shutdown: Duration,
        election: Option<Election>,
        (autonomy, max_failures): (config::Autonomy, u32),
    ) -> anyhow::Result<()> {
        let store = self.connect(database, store::DISPATCH, database.dispatch_pool).await?;
        let current = secrets(&dispatch);
        let addresses = Addresses { router: dispatch.wake_url, sink: dispatch.sink_url };
        let router = Router::new(addresses, current, dispatch.wake_timeout, Arc::clone(&self.clock))?;
        let renewed = router.clone();
        self.renewals.push(Box::new(move |config| {
            let Some(dispatch) = &config.dispatch else { return Ok(()) };
            Ok(renewed.renew(secrets(dispatch))?)
        }));
        let limits = Limits {
            tick: dispatch.tick,
            lease: dispatch.lease,
            wake_timeout: dispatch.wake_timeout,
            batch: dispatch.batch,
            concurrency: dispatch.concurrency,
            owner_concurrency: dispatch.owner_concurrency,
            beat: dispatch.beat,
            shutdown,
            hints: database.hints.is_some(),
            sessions: autonomy.enabled,
            max_failures,
        };
        let pulse = Arc::new(Pulse::new(limits.beat));
        let gate = if let Some(election) = election {
            let leadership = election.leadership();
            // Given back at once when told to stop: claiming stops then, too, and what is in flight needs no Lease.
            let (stop, of_leader) = (self.stop.clone(), Arc::clone(&pulse));
            self.tasks.spawn(async move {
                // One that has lost the database cannot claim, and must not keep others from it.
                election.run(|| !of_leader.is_lost(), stop).await;
                ("election of the dispatcher", Ok(()))
            });
            Gate::Elected(leadership)
        } else {
            info!("this replica delivers whatever others do: no election, or no cluster to hold it in");
            Gate::Open
        };
        let worker = WorkerId::from_uuid(self.id);
        let retention = Retention {
            attempt_days: dispatch.attempt_days,
            alarm_days: dispatch.alarm_days,
            session_days: autonomy.retention_days,
        };
        let upkeep = Upkeep::new(store.clone(), worker, retention);
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            upkeep.run(stop).await;
            ("upkeep", Ok(()))
        });
        let (ladder, clock) = (dispatch.ladder, Arc::clone(&self.clock));
        let parts =
            Parts { store, router: Arc::new(router), ladder, limits, pulse, clock, worker, host: leader::host() };
        let stop = self.stop.clone();
        self.tasks.spawn(async move { ("dispatch", Dispatcher::run(parts, gate, stop).await.context("dispatching")) });
        Ok(())
    }

    /// The controller, whenever this replica leads.
    fn controller(&mut self, controller: Controller, election: Election) {
        let leadership = election.leadership();
        // Given back only after the controller has ended, however it ends.
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        self.tasks.spawn(async move {
            election.run(|| true, ended).await;
            ("election of the controller", Ok(()))
        });
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            while_leading(controller, leadership, stop).await;
            drop(end);
            ("controller", Ok(()))
        });
    }
}

impl Running {
    /// Until a signal, or until the first task ends, which is an error.
    pub async fn until_stopped(mut self) -> anyhow::Result<()> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ended = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            ended = self.tasks.join_next() => ended,
            gone = traces_ended(&mut self.traces) => Some(gone),
        };
        info!("stopping");
        self.stop.cancel();
        let rest = async {
            while let Some(ended) = self.tasks.join_next().await {
                match ended {
                    Ok((_, Ok(()))) => {}
                    Ok((name, Err(error))) => warn!(error = %chain(&*error), "task {name} did not end well"),
                    Err(error) => warn!(%error, "a task panicked while stopping"),
                }
            }
        };
        if tokio::time::timeout(self.grace, rest).await.is_err() {
            warn!("not everything ended within the grace period");
        }
        // Last: the deliveries that have just landed are told, too.
        if let Some(exporter) = self.traces {
            exporter.flush(LAST_WORDS).await;
        }
        match ended {
            None => Ok(()),
            Some(Err(panic)) => Err(panic).context("a task panicked"),
            Some(Ok((name, Ok(())))) => bail!("task {name} ended by itself"),
            Some(Ok((name, Err(error)))) => Err(error.context(format!("task {name} ended"))),
        }
    }
}

/// Without a collector there is nothing to end.
async fn traces_ended(
    exporter: &mut Option<traces::Exporter>,
) -> Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError> {
    let Some(running) = exporter else { return std::future::pending().await };
    let ended = running.ended().await;
    *exporter = None; // there is nothing left to flush
    ended.map(|()| ("traces", Ok(())))
}

/// Runs the controller whenever this replica leads, until told to stop. Ready is a follower, and a leader that has listed
/// its resources.
async fn while_leading(controller: Controller, mut leadership: Leadership, stop: CancellationToken) {
    loop {
        match leadership.standing() {
            Standing::Leading { until } if Instant::now() < until => {
                controller.ready.store(false, Ordering::Relaxed);
                let term = stop.child_token();
                let mut work = pin!(controller.clone().run(term.clone()));
                tokio::select! {
                    () = &mut work => return,
                    () = stop.cancelled() => {}
                    () = leadership.lost() => term.cancel(),
                }
                if tokio::time::timeout(HANDOVER, work).await.is_err() {
                    warn!("the controller is cut short: it did not end within {HANDOVER:?}");
                }
                info!("the controller rests");
            }
            Standing::Following { .. } => controller.ready.store(true, Ordering::Relaxed),
            Standing::Leading { .. } | Standing::Undecided | Standing::Unreachable => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = leadership.changed() => {}
        }
    }
}

fn secrets(dispatch: &config::Dispatch) -> Secrets {
    Secrets {
        wake_token: dispatch.wake_token.clone(),
        sink_token: dispatch.sink_token.clone(),
        signing_keys: dispatch.signing_keys.clone(),
    }
}

/// As many as this process may have with others, all at once: to the database, and to the router.
fn own_connections(config: &Config) -> u64 {
    let database = &config.database;
    let pools = PROBE_POOL + STREAMS_POOL + database.api_pool + database.dispatch_pool + controller::CONNECTIONS;
    // Half as many again for wakes of sessions.
    let deliveries = config.dispatch.as_ref().map_or(0, |dispatch| dispatch.concurrency + dispatch.concurrency / 2);
    u64::from(pools).saturating_add(deliveries as u64)
}

async fn listen(listen: &config::Listen, port: u16, variable: &str) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(listen.bind, port);
    let flag = config::flag(variable);
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ({variable}, --{flag})"))
}

/// A client of the API server, for those who cannot do without.
pub async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    find_client(cluster).await?.context(
        "role controller needs a cluster: run inside one, set KUBECONFIG or --kubeconfig, \
         or leave controller out of --roles",
    )
}

/// A client of the API server, if there is one. What was named and cannot be used is an error.
pub async fn find_client(cluster: &Cluster) -> anyhow::Result<Option<Client>> {
    let mut config = match cluster {
        Cluster::None => return Ok(None),
        Cluster::Kubeconfig(path) => {
            let kubeconfig =
                Kubeconfig::read_from(path).with_context(|| format!("reading the kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
        Cluster::Environment if std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty()) => {
            kube::Config::from_kubeconfig(&KubeConfigOptions::default())
                .await
                .context("reading the file in KUBECONFIG")?
        }
        Cluster::Environment => match kube::Config::incluster() {
            Ok(config) => config,
            Err(error) => {
                if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
                    warn!(error = %chain(&error), "this is a pod, but the cluster's credentials are not mounted");
                }
                return Ok(None);
            }
        },
    };
    // A host that vanished without a word must not keep a request for ever. A watch hears at least a bookmark within a minute or so, and
    // ends by itself before this.
    config.read_timeout = Some(CLUSTER_SILENCE);
    config.reset_reader_on_write = true;
    Ok(Some(Client::try_from(config)?))
}
