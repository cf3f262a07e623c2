//! Everything that a run needs and can break.
//!
//! ```text
//!   driver ──► facade proxy ──────┐            (one of each proxy for each slot, in the rig's own process)
//!                                 ▼
//!        ┌─ bridge ── netns r1: chronosd r1.4 ──► postgres proxy  ──► primary ─► replication proxy ─► standby
//!        │            netns r2: chronosd r2.1 ──► router proxy    ──► sink
//!        └─────────── netns r3: chronosd r3.7 ──► apiserver proxy ──► API server ─► etcd
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | `network` | the bridge and the namespaces; removes all of it, of dead runs, too |
//! | `proxy` | a line that can be delayed, cut, silenced, or lose a reply |
//! | `postgres` | primary and standby |
//! | `cluster` | the control plane |
//! | `slot` | a place for a replica, and its supervisor |
//! | `clock` | a replica's time of day |
//! | `rest` | whether everything has come to rest; the tables |
//! | `shell` | other programs and signals |

pub mod clock;
pub mod cluster;
pub mod network;
pub mod postgres;
pub mod proxy;
mod rest;
pub mod shell;
pub mod slot;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use futures::future::{join_all, try_join_all};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    log::{Kind, Tables},
    sink,
};
use cluster::Cluster;
use network::{Debris, Direction, Network};
use postgres::Postgres;
use proxy::{Mode, Proxy};
use slot::{API_PORT, Life, Lines, Orders, Slot};

const SLOTS: usize = 3;
/// Times are short, so that much happens in a run.
pub const BEAT_MS: u64 = 200;
pub const LEASE_SECONDS: u64 = 3;
pub const WAKE_TIMEOUT_SECONDS: u64 = 1;
pub const MAX_FAILURES: u32 = 5;
pub const AUTONOMY_MAX_CONSECUTIVE: u32 = 3;
pub const AUTONOMY_COOLDOWN_MS: u64 = 1500;
/// Every secret of the run.
const TOKEN: &str = "a-token-of-the-gauntlet-0123456789abcdef";
/// For a replica to get ready on a busy machine, after whatever has happened.
const READY: Duration = Duration::from_secs(90);

pub struct Setup {
    /// Of the run: logs go below it.
    pub directory: PathBuf,
    /// `leader` or `active`.
    pub mode: String,
    /// chronosd with fail points.
    pub binary: PathBuf,
    /// Another build of it, for [`Kind::Replace`].
    pub other: PathBuf,
    pub mutant: Option<String>,
    pub sink: sink::Handle,
    pub kinds: Vec<Kind>,
}

/// Where the driver knocks.
#[derive(Clone)]
pub struct Entry {
    /// Slot, and the facade's base URL through its proxy.
    pub facades: Vec<(String, String)>,
    /// What every caller of a facade presents.
    pub token: String,
    pub apiserver: Apiserver,
    pub namespace: String,
}

/// The API server itself, with nothing in between.
#[derive(Clone)]
pub struct Apiserver {
    pub url: String,
    pub token: String,
    /// PEM
    pub ca: Vec<u8>,
}

// Dropped in this order: what runs first, what it ran on last.
pub struct World {
    supervisors: Mutex<Vec<AbortOnDropHandle<()>>>,
    pub slots: Vec<Arc<Slot>>,
    pub postgres: Postgres,
    pub cluster: Cluster,
    pub network: Network,
    pub setup: Setup,
    /// Whether all slots run the other build.
    pub on_other: AtomicBool,
    _debris: Debris,
}

impl World {
    /// Migrated, with CRDs and namespace; all replicas are ready.
    pub async fn start(setup: Setup) -> anyhow::Result<Arc<Self>> {
        rustls::crypto::ring::default_provider().install_default().ok(); // somebody else was first
        ensure!(
            clock::library_is_there(),
            "clocks cannot be set off without libfaketime: testbed/setup.sh test installs it"
        );
        network::sweep_the_dead();
        let (logs, scratch) = (setup.directory.join("logs"), network::scratch(std::process::id()));
        std::fs::create_dir_all(&logs)?;
        let debris = Debris;
        std::fs::create_dir_all(&scratch)?;
        let (postgres, cluster) = tokio::try_join!(Postgres::start(&logs, &scratch), Cluster::start(&logs, &scratch))?;
        let network = Network::make(SLOTS).await?;
        let primary = postgres.primary().await;
        migrate(&setup.binary, primary).await?;
        let mut slots = Vec::new();
        for number in 1..=SLOTS {
            let place = Place { setup: &setup, network: &network, cluster: &cluster, logs: &logs, scratch: &scratch };
            slots.push(Arc::new(place.slot(number, primary).await?));
        }
        let start = |slot: &Arc<Slot>| AbortOnDropHandle::new(tokio::spawn(Arc::clone(slot).supervise()));
        let supervisors = Mutex::new(slots.iter().map(start).collect());
        let on_other = AtomicBool::new(false);
        let world = Self { supervisors, slots, postgres, cluster, network, setup, on_other, _debris: debris };
        world.all_ready().await?;
        Ok(Arc::new(world))
    }

    pub fn entry(&self) -> Entry {
        let facade = |slot: &Arc<Slot>| (slot.name.clone(), format!("http://{}", slot.facade()));
        Entry {
            facades: self.slots.iter().map(facade).collect(),
            token: TOKEN.to_owned(),
            apiserver: self.cluster.apiserver.clone(),
            namespace: cluster::NAMESPACE.to_owned(),
        }
    }

    /// All rows, from the present primary itself.
    pub async fn tables(&self) -> anyhow::Result<Tables> {
        rest::tables(self).await
    }

    /// All Alarm objects, from the API server itself.
    pub async fn resources(&self) -> anyhow::Result<Vec<Value>> {
        self.cluster.alarms().await
    }

    /// Everything up, every line open, all replicas ready with honest clocks. An error tells, too, what has ended by itself since
    /// the start.
    pub async fn heal(&self) -> anyhow::Result<()> {
        self.setup.sink.behave(sink::Mode::Well).await?;
        self.postgres.heal().await?;
        self.cluster.serves().await?;
        self.retarget().await;
        for slot in &self.slots {
            for direction in [Direction::Out, Direction::In] {
                self.network.mend(slot.number, direction).await?;
            }
            for pair in [&slot.lines.postgres, &slot.lines.router, &slot.lines.apiserver, &slot.lines.facade] {
                pair.set(Mode::Pass);
            }
            slot.clock.set(0)?;
            slot.thaw();
        }
        self.all_ready().await?;
        self.no_troubles()
    }

    async fn all_ready(&self) -> anyhow::Result<()> {
        try_join_all(self.slots.iter().map(|slot| slot.wait_ready(READY))).await?;
        Ok(())
    }

    /// Every replica's Postgres is the present primary.
    pub async fn retarget(&self) {
        let primary = self.postgres.primary().await;
        for slot in &self.slots {
            slot.lines.postgres.retarget(primary);
        }
    }

    fn no_troubles(&self) -> anyhow::Result<()> {
        let troubles: Vec<String> = self.slots.iter().flat_map(|slot| slot.troubles()).collect();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
        Ok(())
    }

    /// How often a replica ended before it was ready, for want of a database as a rule, and was started again.
    pub fn false_starts(&self) -> usize {
        self.slots.iter().map(|slot| slot.false_starts()).sum()
    }

    /// By SIGTERM. An error names one that did not end cleanly.
    pub async fn stop_replicas(&self) -> anyhow::Result<()> {
        let ended = join_all(self.slots.iter().map(|slot| slot.stop())).await;
        let wrong: Vec<String> = ended.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        self.no_troubles()
    }

    /// How many alarms are overdue.
    pub async fn overdue(&self) -> anyhow::Result<i64> {
        rest::overdue(self).await
    }

    /// `None`: at rest.
    pub async fn unrest(&self) -> anyhow::Result<Option<String>> {
        rest::unrest(self).await
    }

    /// From which build the slots are started next, and whether it has fail points.
    pub fn swap_builds(&self) -> (PathBuf, bool) {
        let to_other = !self.on_other.fetch_xor(true, Ordering::SeqCst);
        let setup = &self.setup;
        if to_other { (setup.other.clone(), false) } else { (setup.binary.clone(), true) }
    }

    pub async fn close(self: Arc<Self>) {
        for slot in &self.slots {
            slot.stop().await.ok();
        }
        if let Ok(mut supervisors) = self.supervisors.lock() {
            supervisors.clear();
        }
        self.postgres.close().await;
        self.cluster.close().await;
        // Not left to the last owner: there may be one that lives longer than the program's patience.
        network::sweep(|pid| pid == std::process::id());
    }
}

/// What a slot is made from.
struct Place<'a> {
    setup: &'a Setup,
    network: &'a Network,
    cluster: &'a Cluster,
    logs: &'a Path,
    scratch: &'a Path,
}

impl Place<'_> {
    async fn slot(&self, number: usize, primary: SocketAddr) -> anyhow::Result<Slot> {
        let (name, address) = (format!("r{number}"), self.network.of(number));
        let at_bridge = SocketAddr::from((self.network.address, 0));
        let apiserver = self.cluster.apiserver.url.strip_prefix("https://").context("it speaks TLS")?.parse()?;
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let lines = Lines {
            postgres: Proxy::listen(at_bridge, primary).await?,
            router: Proxy::listen(at_bridge, self.setup.sink.address()).await?,
            apiserver: Proxy::listen(at_bridge, apiserver).await?,
            facade: Proxy::listen(here, SocketAddr::from((address, API_PORT))).await?,
        };
        let place = self.scratch.join(&name);
        let points = place.join("points");
        std::fs::create_dir_all(&points)?;
        let kubeconfig = place.join("kubeconfig");
        self.cluster.write_kubeconfig(&kubeconfig, lines.apiserver.address)?;
        let mut environment = settings(&self.setup.mode);
        environment.push(("CHRONOS_POSTGRES_URI", Postgres::uri(lines.postgres.address)));
        environment.push(("KUBECONFIG", kubeconfig.display().to_string()));
        environment.extend(self.setup.mutant.clone().map(|mutant| ("CHRONOS_MUTANT", mutant)));
        Ok(Slot {
            number,
            name,
            address,
            lines,
            clock: clock::Clock::new(place.join("clock"))?,
            points,
            logs: self.logs.to_owned(),
            environment,
            life: watch::Sender::new(Life::default()),
            orders: Mutex::new(Orders::new(self.setup.binary.clone())),
            http: reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?,
        })
    }
}

fn settings(mode: &str) -> Vec<(&'static str, String)> {
    let settings = [
        ("CHRONOS_ROLES", "controller,dispatch,api"),
        ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "false"),
        ("CHRONOS_BIND", "0.0.0.0"),
        ("CHRONOS_PORT", "9096"),
        ("CHRONOS_METRICS_PORT", "9097"),
        ("CHRONOS_TOKEN", TOKEN),
        ("CHRONOS_AGENT_AUTH_SECRET", TOKEN),
        ("CHRONOS_WAKE_TOKEN", TOKEN),
        ("CHRONOS_ENROLMENT", "registered"),
        ("CHRONOS_OWNER_RATE", "0"),
        ("CHRONOS_DISPATCH_MODE", mode),
        ("CHRONOS_NAMESPACE", cluster::NAMESPACE),
        ("CHRONOS_TICK_MS", "200"),
        ("CHRONOS_RETRY_BASE_MS", "200"),
        ("CHRONOS_RETRY_CAP_MS", "2000"),
        ("CHRONOS_ORPHAN_GRACE_SECONDS", "3"),
        ("CHRONOS_SHUTDOWN_SECONDS", "3"),
        ("CHRONOS_AUTONOMY_ACK_MS", "2000"),
        ("CHRONOS_LOG", "info"),
    ];
    let times = [
        ("CHRONOS_BEAT_MS", BEAT_MS),
        ("CHRONOS_LEASE_SECONDS", LEASE_SECONDS),
        ("CHRONOS_WAKE_TIMEOUT_SECONDS", WAKE_TIMEOUT_SECONDS),
        ("CHRONOS_MAX_FAILURES", MAX_FAILURES.into()),
        ("CHRONOS_AUTONOMY_MAX_CONSECUTIVE", AUTONOMY_MAX_CONSECUTIVE.into()),
        ("CHRONOS_AUTONOMY_COOLDOWN_MS", AUTONOMY_COOLDOWN_MS),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name, value.to_owned()));
    settings.chain(times.map(|(name, value)| (name, value.to_string()))).collect()
}

async fn migrate(binary: &Path, primary: SocketAddr) -> anyhow::Result<()> {
    let variable = format!("CHRONOS_POSTGRES_URI={}", Postgres::uri(primary));
    let words = [variable.as_ref(), binary.as_os_str(), "migrate".as_ref()];
    shell::run("env", words).await.context("migrating")?;
    Ok(())
}
