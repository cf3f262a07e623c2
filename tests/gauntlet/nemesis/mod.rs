//! Breaks things, one after another and some at once, and writes down when.
//!
//! | file | what it is |
//! |---|---|
//! | `plan` | which fault comes next, to whom and for how long; pure but for its dice |
//! | `reserve` | what is being broken already, and by whom |
//! | `process` | replicas: killed, frozen, told to stop, replaced; their clocks |
//! | `points` | replicas that die or stop at a certain point of their work |
//! | `lines` | proxies, partitions, the router's manners |
//! | `servers` | Postgres and the control plane |

mod lines;
mod plan;
mod points;
mod process;
mod reserve;
mod servers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    log::{FaultLine, Journal, Kind},
    sink,
    world::{World, network::Direction, proxy::Mode, shell::now},
};
pub use plan::Pace;
use plan::{Going, Plan, Strike};
use reserve::{Hold, Reserve};

/// Between two looks at what may be broken next.
const A_MOMENT: Duration = Duration::from_millis(50);
/// Nothing that one fault does takes longer, on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);
/// A replica is there again, whatever else is broken meanwhile.
const READY: Duration = Duration::from_secs(90);

/// Returns when `faults` have struck, each kind among them, and all are over.
pub async fn run(
    world: Arc<World>,
    kinds: &[Kind],
    faults: usize,
    pace: Pace,
    seed: u64,
    journal: Arc<Journal>,
) -> anyhow::Result<()> {
    let reserve = Reserve::default();
    let nemesis = Arc::new(Nemesis { world, journal, numbers: AtomicU64::new(1) });
    let mut plan = Plan::new(kinds, faults, pace, seed);
    let mut tasks: JoinSet<(Kind, anyhow::Result<bool>)> = JoinSet::new();
    let mut going = Going::default();
    let deadline = Instant::now() + Duration::from_secs(180) + Duration::from_secs(20) * u32::try_from(faults)?;
    let mut failed = None;
    loop {
        let mut may = failed.is_none() && (pace != Pace::Apart || (tasks.is_empty() && nemesis.is_calm().await?));
        if failed.is_none()
            && let Some(outage) = plan.outage()
        {
            // Nothing is begun until all that is under way is over, and caught up with.
            if tasks.is_empty() && nemesis.is_calm().await? {
                nemesis.controlplane_kill(&outage).await?;
                plan.had_outage();
                continue;
            }
            may = false;
        }
        let next = if may { plan.next(&nemesis.world, &reserve, &going) } else { None };
        if let Some((strike, hold, pause)) = next {
            let nemesis = Arc::clone(&nemesis);
            going.begins(strike.kind);
            tasks.spawn(async move {
                let kind = strike.kind;
                let done = timeout(LONGEST, nemesis.strike(strike, hold)).await;
                let done = done.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not end")));
                (kind, done.with_context(|| format!("fault {}", kind.name())))
            });
            sleep(pause).await;
        } else if tasks.is_empty() && (failed.is_some() || plan.is_done()) {
            return failed.map_or(Ok(()), Err);
        }
        if tasks.is_empty() {
            sleep(A_MOMENT).await;
        } else if let Ok(Some(ended)) = timeout(A_MOMENT, tasks.join_next()).await {
            let (kind, struck) = ended.context("a fault panicked")?;
            going.ends(kind);
            match struck {
                Ok(struck) => plan.note(kind, struck),
                // Those that are under way are brought to an end all the same.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        ensure!(Instant::now() < deadline, "the faults take too long; left: {}", plan.left());
    }
}

struct Nemesis {
    world: Arc<World>,
    journal: Arc<Journal>,
    numbers: AtomicU64,
}

impl Nemesis {
    /// Nothing is overdue.
    async fn is_calm(&self) -> anyhow::Result<bool> {
        Ok(self.world.overdue().await? == 0)
    }

    /// Whether it struck. It is over.
    async fn strike(&self, strike: Strike, hold: Hold) -> anyhow::Result<bool> {
        match strike.kind {
            Kind::Kill => self.kill(&strike).await,
            Kind::Freeze => self.freeze(&strike).await,
            Kind::Terminate => self.terminate(&strike).await,
            Kind::KillAt(point) | Kind::FreezeAt(point) => self.at_point(&strike, point, hold).await,
            Kind::Replace => self.replace(&strike).await,
            Kind::ClockSkew => self.clock_skew(&strike).await,
            Kind::ClockJump => self.clock_jump(&strike).await,
            Kind::PostgresKill | Kind::PostgresRestart => self.postgres_stop(&strike).await,
            Kind::PostgresFreeze => self.postgres_freeze(&strike).await,
            Kind::BackendsTerminated => self.backends_terminated(&strike).await,
            Kind::DiskFull => self.disk_full(&strike).await,
            Kind::FailoverSync | Kind::FailoverAsync => self.failover(&strike).await,
            Kind::Delay(pair) => self.line(&strike, pair, lines::delay(&strike)).await,
            Kind::Cut(pair) => self.line(&strike, pair, Mode::Cut).await,
            Kind::BlackHole(pair) => self.line(&strike, pair, lines::black_hole(&strike)).await,
            Kind::ReplyLost(pair) => self.reply_lost(&strike, pair).await,
            Kind::Partition => self.partition(&strike, &[Direction::Out, Direction::In]).await,
            Kind::PartitionOut => self.partition(&strike, &[Direction::Out]).await,
            Kind::PartitionIn => self.partition(&strike, &[Direction::In]).await,
            Kind::ApiserverKill | Kind::EtcdKill => self.controlplane_kill(&strike).await,
            Kind::ApiserverFreeze | Kind::EtcdFreeze => self.controlplane_freeze(&strike).await,
            Kind::EtcdCompact => self.etcd_compact(&strike).await,
            Kind::EtcdRestore => self.etcd_restore(&strike).await,
            Kind::LeaseStolen => self.lease_stolen(&strike).await,
            Kind::RouterSlow => self.router(&strike, lines::slow(&strike)).await,
            Kind::RouterFails => self.router(&strike, lines::fails(&strike)).await,
            Kind::RouterResets => self.router(&strike, sink::Mode::Resets).await,
            Kind::RouterHuge => self.router(&strike, sink::Mode::Huge).await,
        }
    }

    /// Written down before anything is done.
    fn plan(&self, kind: Kind, target: Option<String>) -> Record<'_> {
        self.plan_since(now(), kind, target)
    }

    /// The same for one of which it is only known now that it was under way.
    fn plan_since(&self, at: DateTime<Utc>, kind: Kind, target: Option<String>) -> Record<'_> {
        let number = self.numbers.fetch_add(1, Ordering::SeqCst);
        self.journal.write(&FaultLine::Planned { number, at, kind, target: target.clone() });
        Record { journal: &self.journal, number, target }
    }
}

/// A fault in the log.
struct Record<'a> {
    journal: &'a Journal,
    number: u64,
    target: Option<String>,
}

impl Record<'_> {
    fn struck(&self, detail: impl Into<String>) {
        self.struck_and_undoes(None, detail);
    }

    fn struck_and_undoes(&self, undoes_from: Option<DateTime<Utc>>, detail: impl Into<String>) {
        let (number, target, detail) = (self.number, self.target.clone(), detail.into());
        self.journal.write(&FaultLine::Struck { number, at: now(), target, undoes_from, detail });
    }

    fn over(&self) {
        self.journal.write(&FaultLine::Over { number: self.number, at: now() });
    }
}
