//! The scenarios that Chronos and its peers run alike: one round each.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use crate::{
    contender::{Contender, Workers},
    report::{Report, Round},
    sink::Sink,
    world::{Due, Owners, World},
};

/// What an agent gives along, as a rule.
pub const PAYLOAD: i32 = 1024;
/// Between two looks at whether a backlog is gone.
const LOOK: Duration = Duration::from_millis(50);
/// What is late by more than this is not waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// From the start of workers until they only wait.
const AT_REST_AFTER: Duration = Duration::from_secs(20);
/// How long it is quiet between the last row's INSERT and its instant, at least.
const QUIET: TimeDelta = TimeDelta::seconds(3);

/// Rows that are added together.
#[derive(Clone, Copy)]
struct Batch {
    owners: Owners,
    rows: i64,
    /// From one to the next.
    apart: TimeDelta,
    /// From the instant of the round to the first.
    behind: TimeDelta,
}

/// What one round came to.
pub struct Measured {
    /// Jobs done, of all that were due, and in how many seconds.
    pub done: i64,
    /// Not all were done in time.
    cut: bool,
    pub seconds: f64,
    /// Bytes of write-ahead log a job.
    pub wal: f64,
    /// Processor time a job, in microseconds: of the workers, if they are processes, and of Postgres.
    pub cpu: Option<f64>,
    pub postgres: f64,
    /// The most memory that the workers had, in MB, if they are processes.
    pub memory: Option<f64>,
    /// How late each came to the sink, in microseconds, sorted.
    pub late: Vec<i64>,
    /// Jobs of a peer that were done once more, and that came before their instant; ours must not.
    repeated: Option<i64>,
    early: Option<i64>,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        float(self.done) / self.seconds
    }

    pub fn was_cut(&self) -> bool {
        self.cut
    }

    pub fn record(&self, report: &mut Report, round: &Round<'_>) {
        let mut figures = vec![
            ("per_second", self.per_second()),
            ("jobs", float(self.done)),
            ("seconds", self.seconds),
            ("wal_bytes", self.wal),
            ("postgres_us", self.postgres),
        ];
        if self.was_cut() {
            figures.push(("cut", 1.0));
        }
        figures.extend(self.cpu.map(|cpu| ("cpu_us", cpu)));
        figures.extend(self.memory.map(|memory| ("peak_mb", memory)));
        figures.extend(self.repeated.map(|repeated| ("repeated", float(repeated))));
        figures.extend(self.early.map(|early| ("early", float(early))));
        report.record(round, &figures, Some(&self.late));
    }
}

/// What it costs to wait.
pub struct Rest {
    /// A second.
    pub transactions: f64,
    /// Percent of a core.
    pub cpu: f64,
    pub postgres: f64,
    /// MB.
    pub memory: f64,
}

impl Rest {
    pub fn told(&self) -> String {
        let Self { transactions, cpu, postgres, memory } = self;
        format!(
            "{transactions:.1} transactions/s, {cpu:.2} % of a core, Postgres {postgres:.2} %, memory {memory:.0} MB"
        )
    }

    pub fn record(&self, report: &mut Report, round: &Round<'_>) {
        let figures = [
            ("statements_per_second", self.transactions),
            ("cpu_percent", self.cpu),
            ("postgres_percent", self.postgres),
            ("memory_mb", self.memory),
        ];
        report.record(round, &figures, None);
    }
}

/// Whose turn it is, and how.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub world: &'a World,
    pub who: Contender<'a>,
    pub processes: usize,
    /// `None`: jobs do nothing.
    pub sink: Option<&'a Sink>,
}

impl Turn<'_> {
    pub fn name(&self) -> String {
        self.who.name(self.processes, self.sink)
    }

    /// So many due at one instant, until the last is done, or for so long.
    pub async fn drain(&self, rows: i64, payload: i32, patience: Duration) -> anyhow::Result<Measured> {
        let batch = Batch { owners: Owners::All, rows, apart: TimeDelta::zero(), behind: TimeDelta::zero() };
        self.run(&[batch], payload, patience, |_| true).await
    }

    /// So many a second, for so long.
    pub async fn lateness(&self, a_second: i64, seconds: i64) -> anyhow::Result<Measured> {
        let apart = TimeDelta::microseconds(1_000_000 / a_second);
        let batch = Batch { owners: Owners::All, rows: a_second * seconds, apart, behind: TimeDelta::zero() };
        let patience = Duration::from_secs(seconds.unsigned_abs()) + PATIENCE;
        self.run(&[batch], PAYLOAD, patience, |_| true).await
    }

    /// Quiet owners, two alarms each over ten seconds; and beside them one owner of whom `crowd` are due when they begin. How late those of the
    /// quiet ones came.
    pub async fn quiet_beside(&self, crowd: i64) -> anyhow::Result<Measured> {
        const A_SECOND: i64 = 200;
        const ROWS: i64 = 1998;
        let apart = TimeDelta::microseconds(1_000_000 / A_SECOND);
        // Half a millisecond off: the crowd's instant is nobody else's.
        let behind = TimeDelta::microseconds(500_500);
        let quiet = Batch { owners: Owners::Others, rows: ROWS, apart, behind };
        let noisy = Batch { owners: Owners::First, rows: crowd, apart: TimeDelta::zero(), behind: TimeDelta::zero() };
        let batches = if crowd > 0 { vec![noisy, quiet] } else { vec![quiet] };
        self.run(&batches, PAYLOAD, PATIENCE * 2, |behind| behind != TimeDelta::zero()).await
    }

    /// Nothing to do, for so long.
    pub async fn idle(&self, seconds: u32) -> anyhow::Result<Rest> {
        let workers = self.who.start(self.world, self.processes, self.sink).await?;
        // What is done once at the start is not what it costs to wait. Ours makes the history's partitions in its second round of
        // upkeep, which is 15 s after the first.
        tokio::time::sleep(AT_REST_AFTER).await;
        let (transactions, begun) = (self.world.transactions().await?, Instant::now());
        let before = (workers.cpu()?, self.world.postgres_cpu());
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        let after = (workers.cpu()?, self.world.postgres_cpu());
        let all = self.world.transactions().await? - transactions;
        let share = |cpu: f64| cpu / f64::from(seconds) * 100.0;
        let rest = Rest {
            transactions: float(all) / begun.elapsed().as_secs_f64(),
            cpu: share(after.0 - before.0),
            postgres: share(after.1 - before.1),
            memory: workers.memory()? / 1e6,
        };
        workers.stop().await?;
        Ok(rest)
    }

    /// One round: workers, rows, the instant, until all is done. `counted`: which arrivals are looked at, by how far their instants
    /// lie behind that of the round.
    async fn run(
        &self,
        batches: &[Batch],
        payload: i32,
        patience: Duration,
        counted: impl Fn(TimeDelta) -> bool,
    ) -> anyhow::Result<Measured> {
        for allowance in [1, 2] {
            let workers = self.who.start(self.world, self.processes, self.sink).await?;
            if let Some(at) = self.rows_at(batches, payload, allowance).await? {
                return self.worked_off(workers, at, batches, patience, counted).await;
            }
            workers.stop().await?;
            self.clean().await?;
        }
        bail!("the rows were not there in time, twice: the machine is busy with something else")
    }

    async fn worked_off(
        &self,
        workers: Workers,
        at: DateTime<Utc>,
        batches: &[Batch],
        patience: Duration,
        counted: impl Fn(TimeDelta) -> bool,
    ) -> anyhow::Result<Measured> {
        let Self { world, who, sink, .. } = *self;
        let rows: i64 = batches.iter().map(|batch| batch.rows).sum();
        let begun = sleep_until(world, at).await?;
        // From the instant on: what a worker spends on looking while nothing is due, `idle` says.
        let (wal, postgres, cpu) = (world.wal().await?, world.postgres_cpu(), workers.cpu()?);
        // Not before the last is due: until then there may be moments without work.
        let last = batches
            .iter()
            .map(|batch| batch.behind + batch.apart * i32::try_from(batch.rows).unwrap_or(i32::MAX))
            .max();
        tokio::time::sleep_until(begun + last.context("there are rows")?.to_std()?).await;
        let (mut done, mut cut) = (rows, false);
        loop {
            workers.live()?;
            let arrived = match sink {
                Some(sink) => i64::try_from(sink.count().await?)?.min(rows),
                None => rows,
            };
            if arrived == rows && !who.is_due(world).await? {
                break;
            }
            if begun.elapsed() > patience {
                done = (rows - who.left(world).await?).clamp(0, arrived);
                cut = done < rows;
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let a_job = |all: f64| all * 1e6 / float(done.max(1));
        let measured = Measured {
            done,
            cut,
            seconds,
            wal: (world.wal().await? - wal) / float(done.max(1)),
            cpu: workers.has_processes().then(|| workers.cpu().map(|after| a_job(after - cpu))).transpose()?,
            postgres: a_job(world.postgres_cpu() - postgres),
            memory: workers.has_processes().then(|| workers.peak_memory().map(|bytes| bytes / 1e6)).transpose()?,
            late: Vec::new(),
            repeated: None,
            early: None,
        };
        let worked_on = workers.stop().await?;
        if cut {
            // What did come is of no use: those that came last are missing.
            self.clean().await?;
            return Ok(measured);
        }
        who.check(world, rows, worked_on).await?;
        let is_counted = |due| counted(due - at);
        let measured = match (who, sink) {
            (Contender::Chronos, None) => measured,
            (Contender::Chronos, Some(sink)) => Measured { late: late(sink, rows, is_counted).await?, ..measured },
            (Contender::Peer(..), None) => Measured { repeated: worked_on.map(|all| all - rows), ..measured },
            (Contender::Peer(..), Some(sink)) => {
                let Arrived { late, repeated, early } = arrived(sink, rows, is_counted).await?;
                Measured { late, repeated: Some(repeated), early: Some(early), ..measured }
            }
        };
        who.clear(world).await?;
        Ok(measured)
    }

    /// Adds rows whose instants count from an instant that has not come when all of them are there; `None` if it has.
    async fn rows_at(&self, batches: &[Batch], payload: i32, allowance: i32) -> anyhow::Result<Option<DateTime<Utc>>> {
        let (world, who) = (self.world, self.who);
        let rows: i64 = batches.iter().map(|batch| batch.rows).sum();
        let at = world.now().await? + (QUIET + who.takes_to_add(rows)) * allowance;
        for batch in batches {
            let first = at + batch.behind;
            let due = if batch.apart.is_zero() { Due::At(first) } else { Due::Every(first, batch.apart) };
            who.add(world, batch.owners, batch.rows, due, payload).await?;
        }
        who.ready_the_table(world).await?;
        Ok((world.now().await? < at).then_some(at))
    }

    /// Nothing is left of a round that was not ended: the next one finds the tables as the first did.
    pub async fn clean(&self) -> anyhow::Result<()> {
        self.who.forget(self.world).await?;
        if let Some(sink) = self.sink {
            sink.take().await?;
        }
        Ok(())
    }
}

pub async fn sleep_until(world: &World, at: DateTime<Utc>) -> anyhow::Result<Instant> {
    let left = (at - world.now().await?).to_std().unwrap_or_default();
    let begins = Instant::now() + left;
    tokio::time::sleep_until(begins).await;
    Ok(begins)
}

/// What came to the sink.
struct Arrived {
    /// Microseconds, sorted, of those that count; of one that came more than once, as it came first.
    late: Vec<i64>,
    /// How many came once more, and how many before their instant.
    repeated: i64,
    early: i64,
}

async fn arrived(sink: &Sink, rows: i64, counted: impl Fn(DateTime<Utc>) -> bool) -> anyhow::Result<Arrived> {
    let arrivals = sink.take().await?;
    let mut ids = HashSet::new();
    let first: Vec<_> = arrivals.iter().filter(|(.., id)| ids.insert(id.as_str())).collect();
    let jobs = i64::try_from(first.len())?;
    ensure!(jobs == rows, "{rows} jobs, but {} arrivals of {jobs}", arrivals.len());
    let due = |micros: i64| DateTime::from_timestamp_micros(micros).expect("an instant of this century");
    let counts = first.iter().filter(|(_, micros, _)| counted(due(*micros)));
    let mut late: Vec<i64> = counts.map(|(late, ..)| *late).collect();
    late.sort_unstable();
    let early = arrivals.iter().filter(|(late, ..)| *late < 0).count();
    Ok(Arrived { late, repeated: i64::try_from(arrivals.len())? - jobs, early: i64::try_from(early)? })
}

/// How late those came that count by their instants; every one came once, and none early.
pub async fn late(sink: &Sink, rows: i64, counted: impl Fn(DateTime<Utc>) -> bool) -> anyhow::Result<Vec<i64>> {
    let Arrived { late, repeated, early } = arrived(sink, rows, counted).await?;
    ensure!((repeated, early) == (0, 0), "{repeated} came once more, and {early} came early");
    Ok(late)
}

/// For arithmetic and people.
#[expect(clippy::cast_precision_loss, reason = "a few million at most")]
pub fn float(count: i64) -> f64 {
    count as f64
}

pub fn rate(rows: i64, begun: Instant) -> f64 {
    float(rows) / begun.elapsed().as_secs_f64()
}
