//! The composition root: builds everything a process runs and watches it. The first task to end ends the process: a
//! half-alive replica would still look alive from outside.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, bail};
use kube::{Client, config::KubeConfigOptions, config::Kubeconfig};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    clock,
    config::{self, Config},
    controller::Controller,
    dispatch::{Dispatcher, Limits, Parts},
    domain::ids::WorkerId,
    http,
    router::Router,
    store::Store,
    telemetry::{metrics, probes, traces},
    upkeep::{Retention, Upkeep},
};

/// Connections of the controller: its reconciles, and one that hears hints.
const CONTROLLER_POOL: u32 = 10;
/// Probes ask one thing, and seldom.
const PROBE_POOL: u32 = 1;
/// After the grace period for deliveries everything else has this long.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where the cluster is.
#[derive(Clone, Debug)]
pub enum Cluster {
    /// Role controller is off.
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
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let clock = clock::system();
    let database = &config.database;
    let traces = config.collector.as_ref().map(traces::start).transpose()?;

    let watcher = Store::connect(database, "probes", PROBE_POOL).await?;
    watcher.check_schema().await?;
    let ready = Arc::new(AtomicBool::new(!config.roles.controller));

    let listener = listen(&config.listen, config.listen.metrics_port, "CHRONOS_METRICS_PORT").await?;
    let probes = listener.local_addr()?;
    let pools = probes::Pools::default();
    pools.watch("probes", &watcher);
    let readiness = probes::Readiness { store: watcher, controller: Arc::clone(&ready) };
    let serving = probes::serve(listener, readiness, pools.clone(), metrics::install(), stop.clone());
    tasks.spawn(async move { ("probes", serving.await.context("serving probes")) });

    let mut api_address = None;
    if let Some(api) = &config.api {
        let store = Store::connect(database, "api", database.api_pool).await?;
        pools.watch("api", &store);
        let facade = http::Facade::new(store, Arc::clone(&clock), api, config.max_failures);
        let listener = listen(&config.listen, config.listen.port, "CHRONOS_PORT").await?;
        api_address = Some(listener.local_addr()?);
        let serving = http::serve(listener, facade, stop.clone());
        tasks.spawn(async move { ("api", serving.await.context("serving the facade")) });
    }

    if let Some(dispatch) = config.dispatch {
        let store = Store::connect(database, "dispatch", database.dispatch_pool).await?;
        pools.watch("dispatch", &store);
        let router = Router::new(
            dispatch.wake_url,
            &dispatch.wake_token,
            dispatch.signing_keys,
            dispatch.wake_timeout,
            Arc::clone(&clock),
        )?;
        let limits = Limits {
            tick: dispatch.tick,
            lease: dispatch.lease,
            wake_timeout: dispatch.wake_timeout,
            batch: dispatch.batch,
            concurrency: dispatch.concurrency,
            owner_concurrency: dispatch.owner_concurrency,
            beat: dispatch.beat,
            shutdown: config.shutdown,
            hints: database.hints.is_some(),
        };
        let worker = WorkerId::from_uuid(Uuid::new_v4());
        let retention = Retention { attempt_days: dispatch.attempt_days, alarm_days: dispatch.alarm_days };
        let upkeep = Upkeep::new(store.clone(), worker, retention);
        let until = stop.clone();
        tasks.spawn(async move {
            upkeep.run(until).await;
            ("upkeep", Ok(()))
        });
        let ladder = dispatch.ladder;
        let parts = Parts { store, router, ladder, limits, clock: Arc::clone(&clock), worker, host: host() };
        let (_gate, may_claim) = tokio::sync::watch::channel(true);
        let stop = stop.clone();
        tasks.spawn(async move { ("dispatch", Dispatcher::run(parts, may_claim, stop).await.context("dispatching")) });
    }

    if config.roles.controller {
        let store = Store::connect(database, "controller", CONTROLLER_POOL).await?;
        pools.watch("controller", &store);
        let controller = Controller {
            client: client(&cluster).await?,
            store,
            clock,
            namespaces: config.controller.namespaces,
            max_failures: config.max_failures,
            ready,
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            controller.run(stop).await;
            ("controller", Ok(()))
        });
    }

    info!(api = api_address.map(tracing::field::display), %probes, "chronos {} runs", env!("CARGO_PKG_VERSION"));
    Ok(Running { api: api_address, probes, tasks, traces, stop, grace: config.shutdown + LAST_WORDS })
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
        let rest = async { while self.tasks.join_next().await.is_some() {} };
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

/// What people call this machine or pod.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
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

async fn listen(listen: &config::Listen, port: u16, variable: &str) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(listen.bind, port);
    let flag = config::flag(variable);
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ({variable}, --{flag})"))
}

/// A client of the API server.
pub async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    let config = match cluster {
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
        Cluster::Environment | Cluster::None => kube::Config::incluster().context(
            "role controller needs a cluster: run inside one, set KUBECONFIG or --kubeconfig, \
             or leave controller out of --roles",
        )?,
    };
    Ok(Client::try_from(config)?)
}
