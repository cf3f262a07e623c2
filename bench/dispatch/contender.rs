//! Who is measured: Chronos, or a peer that does the same in its own way, each on a database of its own of the same server. Every
//! scenario of [`crate::field`] is written once, for all of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use chrono::TimeDelta;
use chronos::{
    clock,
    dispatch::{Dispatcher, Gate, Limits, Parts, Pulse},
    domain::{ids::WorkerId, ladder::Ladder, occurrence::Answer, trace::Trace, wake::Wake},
    router::Receive,
};
use futures::future::BoxFuture;
use sqlx::Executor;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::{
    peers::{Config, Rival},
    process::Process,
    sink::Sink,
    world::{Daemon, Due, Owners, World},
};

#[derive(Clone, Copy)]
pub enum Contender<'a> {
    Chronos,
    Peer(&'a Rival, Config),
}

impl Contender<'_> {
    /// As it is called in the tables.
    pub fn name(self, processes: usize, sink: Option<&Sink>) -> String {
        let one = match (self, sink) {
            (Self::Chronos, Some(_)) => "chronosd",
            (Self::Chronos, None) => "dispatcher",
            (Self::Peer(rival, _), _) => rival.peer.name.as_str(),
        };
        match (processes, self) {
            (1, _) => one.to_owned(),
            (_, Self::Chronos) if sink.is_none() => "two dispatchers".to_owned(),
            _ => format!("two {one}"),
        }
    }

    pub fn config(self) -> &'static str {
        match self {
            Self::Chronos => "",
            Self::Peer(_, config) => config.as_str(),
        }
    }

    /// `owners` mean something to Chronos alone: no peer knows owners.
    pub async fn add(self, world: &World, owners: Owners, rows: i64, due: Due, payload: i32) -> anyhow::Result<()> {
        match self {
            Self::Chronos => world.add_of(owners, rows, due, payload).await,
            Self::Peer(rival, _) => rival.add(rows, due.steps(world.now().await?), payload, due).await,
        }
    }

    /// How long it takes to add so many rows, with something to spare.
    pub fn takes_to_add(self, rows: i64) -> TimeDelta {
        match self {
            Self::Chronos => TimeDelta::seconds(1) + TimeDelta::microseconds(rows * 120),
            Self::Peer(rival, _) => rival.takes_to_add(rows),
        }
    }

    /// Statistics as they are after a while, and nothing left to write.
    pub async fn ready_the_table(self, world: &World) -> anyhow::Result<()> {
        match self {
            Self::Chronos => world.pool.execute("VACUUM ANALYZE alarms").await?,
            Self::Peer(rival, _) => rival.pool.execute("VACUUM ANALYZE").await?,
        };
        world.pool.execute("CHECKPOINT").await?;
        Ok(())
    }

    /// The next round finds the tables as this one did.
    pub async fn clear(self, world: &World) -> anyhow::Result<()> {
        match self {
            Self::Chronos => world.settle_down().await,
            Self::Peer(rival, _) => {
                rival.clear().await?;
                world.pool.execute("CHECKPOINT").await?;
                Ok(())
            }
        }
    }

    /// Whether anything is due and not done.
    pub async fn is_due(self, world: &World) -> anyhow::Result<bool> {
        match self {
            Self::Chronos => world.is_due().await,
            Self::Peer(rival, _) => rival.is_due().await,
        }
    }

    /// How much is due and not done.
    pub async fn left(self, world: &World) -> anyhow::Result<i64> {
        match self {
            Self::Chronos => {
                let left = "SELECT count(*) FROM alarms WHERE status = 'active' AND next_fire_at <= now()";
                Ok(sqlx::query_scalar(left).fetch_one(&world.pool).await?)
            }
            Self::Peer(rival, _) => rival.left().await,
        }
    }

    /// What is due or soon will be is gone, whoever had it in hand.
    pub async fn forget(self, world: &World) -> anyhow::Result<()> {
        match self {
            Self::Chronos => world.forget().await,
            Self::Peer(rival, _) => {
                rival.forget().await?;
                self.clear(world).await
            }
        }
    }

    /// Every one was done: by us once, by a peer at least once. `worked_on`: how many the workers have counted, if they count.
    pub async fn check(self, world: &World, rows: i64, worked_on: Option<i64>) -> anyhow::Result<()> {
        let worked_on = worked_on.unwrap_or(rows);
        match self {
            Self::Chronos => {
                ensure!(worked_on == rows, "{rows} alarms, but {worked_on} wakes");
                world.check_delivered(rows).await
            }
            Self::Peer(..) => {
                ensure!(worked_on >= rows, "{rows} jobs, but {worked_on} were worked on");
                Ok(())
            }
        }
    }

    /// Starts so many workers; they take jobs when this returns. Without a sink nothing is sent anywhere: of Chronos the dispatcher runs
    /// in here then, and hands its wakes to nobody.
    pub async fn start(self, world: &World, processes: usize, sink: Option<&Sink>) -> anyhow::Result<Workers> {
        let mut workers = Workers::default();
        for _ in 0..processes {
            match (self, sink) {
                (Self::Chronos, Some(sink)) => workers.daemons.push(world.dispatcher(sink).await?),
                (Self::Chronos, None) => workers.inside.push(Inside::start(world).await?),
                (Self::Peer(rival, config), sink) => workers.rivals.push(rival.work(config, sink).await?),
            }
        }
        Ok(workers)
    }
}

/// Those who work, until they are stopped.
#[derive(Default)]
pub struct Workers {
    daemons: Vec<Daemon>,
    inside: Vec<Inside>,
    rivals: Vec<crate::peers::Working>,
}

impl Workers {
    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.daemons.iter().map(|daemon| &daemon.process).chain(self.rivals.iter().map(|rival| &rival.process))
    }

    pub fn has_processes(&self) -> bool {
        self.inside.is_empty()
    }

    /// None of them has died.
    pub fn live(&self) -> anyhow::Result<()> {
        self.processes().try_for_each(Process::lives)
    }

    /// Processor time of all of them, in seconds; not of a dispatcher in here, which nobody can tell from the rest.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        self.processes().map(Process::cpu).sum()
    }

    pub fn memory(&self) -> anyhow::Result<f64> {
        self.processes().map(Process::memory).sum()
    }

    pub fn peak_memory(&self) -> anyhow::Result<f64> {
        self.processes().map(Process::peak_memory).sum()
    }

    /// Ends them. How many jobs they say they have worked on, if all of them count.
    pub async fn stop(self) -> anyhow::Result<Option<i64>> {
        let Self { daemons, inside, rivals } = self;
        let mut worked_on = daemons.is_empty().then_some(0);
        for inside in inside {
            let taken = inside.stop().await?;
            worked_on = worked_on.map(|all| all + taken);
        }
        for rival in rivals {
            let worked = rival.stop().await;
            worked_on = worked_on.zip(worked).map(|(all, worked)| all + worked);
        }
        drop(daemons);
        Ok(worked_on)
    }
}

/// Somebody who takes every wake at once: what is left is the dispatcher and the database.
#[derive(Default)]
struct Nobody {
    taken: AtomicI64,
}

impl Receive for Nobody {
    fn wake<'a>(&'a self, _wake: &'a Wake, _trace: &'a Trace) -> BoxFuture<'a, Answer> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Answer::Accepted { http_status: 200 } })
    }
}

/// Connections of a dispatcher, by default.
const POOL: u32 = 10;

/// A dispatcher in here, with the default settings; it ends with this.
struct Inside {
    stop: DropGuard,
    running: JoinHandle<Result<(), chronos::dispatch::Error>>,
    nobody: Arc<Nobody>,
}

impl Inside {
    async fn start(world: &World) -> anyhow::Result<Self> {
        let (stop, nobody) = (CancellationToken::new(), Arc::<Nobody>::default());
        let limits = limits();
        let parts = Parts {
            store: world.store(POOL).await?,
            router: Arc::clone(&nobody) as Arc<dyn Receive>,
            ladder: ladder(),
            pulse: Arc::new(Pulse::new(limits.beat)),
            limits,
            clock: clock::system(),
            worker: WorkerId::from_uuid(Uuid::new_v4()),
            host: "bench".to_owned(),
        };
        let running = tokio::spawn(Dispatcher::run(parts, Gate::Open, stop.clone()));
        Ok(Self { stop: stop.drop_guard(), running, nobody })
    }

    async fn stop(self) -> anyhow::Result<i64> {
        let Self { stop, running, nobody } = self;
        drop(stop);
        running.await??;
        Ok(nobody.taken.load(Ordering::Relaxed))
    }
}

fn limits() -> Limits {
    Limits {
        tick: Duration::from_secs(1),
        lease: Duration::from_secs(120),
        wake_timeout: Duration::from_secs(60),
        beat: Duration::from_secs(5),
        batch: 500,
        concurrency: 512,
        owner_concurrency: 32,
        shutdown: Duration::from_secs(5),
        hints: true,
        sessions: true,
        max_failures: 5,
    }
}

pub fn ladder() -> Ladder {
    Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 }
}
