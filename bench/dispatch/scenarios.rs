//! One function per question. Each begins with an empty, migrated database.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    clock,
    dispatch::{Dispatcher, Gate, Limits, Parts, Pulse},
    domain::{
        ids::WorkerId,
        ladder::Ladder,
        occurrence::{Answer, next},
        trace::Trace,
        wake::Wake,
    },
    router::Receive,
    store::{
        Store,
        claims::{Attempt, Beat, Claim, Look, Room, Settlement},
    },
};
use futures::future::BoxFuture;
use sqlx::Executor;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    ideal,
    report::{Report, all, grouped, median, percentile},
    sink::Sink,
    world::{Due, World},
};

/// How often each drain is repeated; the median counts.
const ROUNDS: usize = 3;
/// Rows that wait in the future, beside those that are due; PENDING in the environment says otherwise, for a quick look.
static PENDING: LazyLock<i64> =
    LazyLock::new(|| std::env::var("PENDING").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000));
const DRAINED: i64 = 100_000;
const DRAINED_OVER_HTTP: i64 = 50_000;
const BURST: i64 = 10_000;
/// What an agent gives along, as a rule.
const PAYLOAD: i32 = 1024;

/// Somebody who takes every wake at once: what is left is the dispatcher and the database.
struct Nobody {
    taken: AtomicI64,
}

impl Receive for Nobody {
    fn wake<'a>(&'a self, _wake: &'a Wake, _trace: &'a Trace) -> BoxFuture<'a, Answer> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Answer::Accepted { http_status: 200 } })
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

fn ladder() -> Ladder {
    Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 }
}

/// How long before its instant the rows of a round are all there: the INSERT takes most of it, the rest is quiet.
fn lead(rows: i64, payload: i32) -> TimeDelta {
    TimeDelta::seconds(4) + TimeDelta::microseconds(rows * (80 + i64::from(payload) / 16))
}

/// Rows due at one instant, and what it takes from there until the last is settled: rows a second.
async fn from_instant(world: &World, rows: i64, payload: i32) -> anyhow::Result<DateTime<Utc>> {
    let at = world.now().await? + lead(rows, payload);
    world.add(rows, Due::At(at), payload).await?;
    world.pool.execute("VACUUM ANALYZE alarms").await?;
    world.pool.execute("CHECKPOINT").await?;
    anyhow::ensure!(
        world.now().await? < at,
        "the rows were not there in time: the machine is busy with something else"
    );
    Ok(at)
}

pub async fn sleep_until(world: &World, at: DateTime<Utc>) -> anyhow::Result<Instant> {
    let left = (at - world.now().await?).to_std().unwrap_or_default();
    let begins = Instant::now() + left;
    tokio::time::sleep_until(begins).await;
    Ok(begins)
}

/// For arithmetic and people.
#[expect(clippy::cast_precision_loss, reason = "a few million at most")]
pub fn float(count: i64) -> f64 {
    count as f64
}

pub fn rate(rows: i64, begun: Instant) -> f64 {
    float(rows) / begun.elapsed().as_secs_f64()
}

/// One round of the dispatcher without a router: rows a second, and bytes of log a row.
async fn drained(world: &World, dispatchers: usize, rows: i64, payload: i32) -> anyhow::Result<(f64, f64)> {
    let at = from_instant(world, rows, payload).await?;
    let stop = CancellationToken::new();
    let nobody = Arc::new(Nobody { taken: AtomicI64::new(0) });
    let mut running = Vec::new();
    for _ in 0..dispatchers {
        let parts = Parts {
            store: world.store(4).await?,
            router: Arc::clone(&nobody) as Arc<dyn Receive>,
            ladder: ladder(),
            limits: limits(),
            pulse: Arc::new(Pulse::new(limits().beat)),
            clock: clock::system(),
            worker: WorkerId::from_uuid(Uuid::new_v4()),
            host: "bench".to_owned(),
        };
        running.push(tokio::spawn(Dispatcher::run(parts, Gate::Open, stop.clone())));
    }
    let wal = world.wal().await?;
    let begun = sleep_until(world, at).await?;
    while nobody.taken.load(Ordering::Relaxed) < rows {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.until_drained().await?;
    let rate = rate(rows, begun);
    let wal = (world.wal().await? - wal) / float(rows);
    stop.cancel();
    for dispatcher in running {
        dispatcher.await??;
    }
    world.check_delivered(rows).await?;
    world.settle_down().await?;
    Ok((rate, wal))
}

async fn drained_ideally(world: &World, rows: i64, payload: i32) -> anyhow::Result<(f64, f64)> {
    let at = from_instant(world, rows, payload).await?;
    let wal = world.wal().await?;
    let begun = sleep_until(world, at).await?;
    ideal::drain(&world.pool).await?;
    let rate = rate(rows, begun);
    let wal = (world.wal().await? - wal) / float(rows);
    world.check_delivered(rows).await?;
    world.settle_down().await?;
    Ok((rate, wal))
}

/// One round with chronosd as processes and wakes over HTTP: wakes a second until the last is settled, and how late each came.
async fn drained_over_http(world: &World, sink: &Sink, processes: usize, rows: i64) -> anyhow::Result<(f64, Vec<i64>)> {
    let mut daemons = Vec::new();
    for _ in 0..processes {
        daemons.push(world.dispatcher(sink).await?);
    }
    let at = from_instant(world, rows, PAYLOAD).await?;
    let begun = sleep_until(world, at).await?;
    sink.wait_for(usize::try_from(rows)?).await?;
    world.until_drained().await?;
    let rate = rate(rows, begun);
    drop(daemons);
    world.check_delivered(rows).await?;
    let late = late(sink, rows).await?;
    world.settle_down().await?;
    Ok((rate, late))
}

/// Microseconds, sorted; every wake came once.
pub async fn late(sink: &Sink, rows: i64) -> anyhow::Result<Vec<i64>> {
    let wakes = sink.take().await?;
    let ids: std::collections::HashSet<&str> = wakes.iter().map(|(_, id)| id.as_str()).collect();
    let rows = usize::try_from(rows)?;
    anyhow::ensure!(
        (wakes.len(), ids.len()) == (rows, rows),
        "{rows} alarms, but {} wakes of {}",
        wakes.len(),
        ids.len()
    );
    let mut late: Vec<i64> = wakes.iter().map(|(late, _)| *late).collect();
    late.sort_unstable();
    anyhow::ensure!(late[0] >= 0, "a wake came {} us early", -late[0]);
    Ok(late)
}

/// In-line or out of line: where payload and message live (ADR 7).
pub async fn layout(world: &World, report: &mut Report) -> anyhow::Result<()> {
    const LAYOUTS: [(&str, &str); 4] = [
        ("as the migrations make it (EXTERNAL)", "SELECT 1"),
        (
            "compressed by pglz (EXTENDED)",
            "ALTER TABLE alarms ALTER payload SET STORAGE EXTENDED, ALTER wake_message SET STORAGE EXTENDED",
        ),
        (
            "compressed by lz4 (EXTENDED)",
            "ALTER TABLE alarms ALTER payload SET STORAGE EXTENDED, ALTER wake_message SET STORAGE EXTENDED,
             ALTER payload SET COMPRESSION lz4, ALTER wake_message SET COMPRESSION lz4",
        ),
        ("out of line (EXTERNAL, toast_tuple_target 128)", "ALTER TABLE alarms SET (toast_tuple_target = 128)"),
    ];
    report.title("Where the payload lives: drained/s without a router, beside 100 000 pending");
    for payload in [PAYLOAD, 4 * PAYLOAD] {
        let mut figures = vec![Vec::new(); LAYOUTS.len()];
        for _ in 0..ROUNDS {
            for (place, (_, change)) in LAYOUTS.iter().enumerate() {
                world.pool.execute("TRUNCATE alarms CASCADE").await?;
                world.pool.execute("ALTER TABLE alarms RESET (toast_tuple_target), ALTER payload SET STORAGE EXTERNAL, ALTER wake_message SET STORAGE EXTERNAL, ALTER payload SET COMPRESSION default, ALTER wake_message SET COMPRESSION default").await?;
                world.pool.execute(*change).await?;
                world.add(100_000, Due::Pending, payload).await?;
                figures[place].push(drained(world, 1, 50_000, payload).await?);
            }
        }
        for ((name, _), figures) in LAYOUTS.iter().zip(figures) {
            let (rates, wals): (Vec<f64>, Vec<f64>) = figures.into_iter().unzip();
            let (rate, wal) = (grouped(median(&rates)), grouped(median(&wals)));
            report.line(
                &format!("{payload} B, {name}"),
                &format!("{rate:>8} /s   ({})   WAL {wal} B an alarm", all(&rates)),
            );
        }
    }
    Ok(())
}

/// Claim to settled, attempts written, no router: one dispatcher, two, and the ideal.
pub async fn drain(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let (mut one, mut two, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        best.push(drained_ideally(world, DRAINED, PAYLOAD).await?);
        one.push(drained(world, 1, DRAINED, PAYLOAD).await?);
        two.push(drained(world, 2, DRAINED, PAYLOAD).await?);
    }
    report.title(&format!(
        "Drain without a router: {} due beside {} pending, 1 KB payload, attempts written",
        grouped(float(DRAINED)),
        grouped(float(*PENDING))
    ));
    let mut rates = Vec::new();
    for (name, rounds) in [("ideal batch loop, two connections", best), ("dispatcher", one), ("two dispatchers", two)] {
        let (figures, wals): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        let (figure, wal) = (median(&figures), median(&wals));
        report
            .line(name, &format!("{:>8} /s   ({})   WAL {} B an alarm", grouped(figure), all(&figures), grouped(wal)));
        rates.push(figure);
    }
    report.at_least("1. drain: dispatcher / ideal batch loop", rates[1] / rates[0], 0.8);
    report.at_least("7. drain: two dispatchers / one, without a router", rates[2] / rates[1], 1.2);
    Ok(())
}

/// The same with wakes over HTTP, by chronosd as a process; and a burst.
pub async fn http(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    let (mut one, mut two, mut bursts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(drained_over_http(world, &sink, 1, DRAINED_OVER_HTTP).await?.0);
        two.push(drained_over_http(world, &sink, 2, DRAINED_OVER_HTTP).await?.0);
        bursts.push(drained_over_http(world, &sink, 1, BURST).await?.1);
    }
    report
        .title(&format!("With wakes over HTTP to a sink on this machine, beside {} pending", grouped(float(*PENDING))));
    report.line("chronosd, drain", &format!("{:>8} /s   ({})", grouped(median(&one)), all(&one)));
    report.line("two chronosd, drain", &format!("{:>8} /s   ({})", grouped(median(&two)), all(&two)));
    let p99: Vec<f64> = bursts.iter().map(|late| percentile(late, 99.0) / 1e3).collect();
    let p50: Vec<f64> = bursts.iter().map(|late| percentile(late, 50.0) / 1e3).collect();
    report.line(
        &format!("{} at one instant", grouped(float(BURST))),
        &format!("p50 {} ms ({}), p99 {} ms ({})", grouped(median(&p50)), all(&p50), grouped(median(&p99)), all(&p99)),
    );
    let ideally = float(BURST) / median(&one) * 1e3;
    report.at_most("4. burst: p99 / (10 000 / own drain rate over HTTP)", median(&p99) / ideally, 1.2);
    report.at_least("7. drain: two processes / one, over HTTP", median(&two) / median(&one), 1.2);
    Ok(())
}

/// How late wakes come when so many are due a second.
pub async fn lateness(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    report.title(&format!("Lateness over HTTP beside {} pending, in milliseconds", grouped(float(*PENDING))));
    for (a_second, seconds) in [(200, 10), (1000, 20)] {
        let mut p99s = Vec::new();
        for _ in 0..ROUNDS {
            let rows = a_second * seconds;
            let daemon = world.dispatcher(&sink).await?;
            let at = world.now().await? + lead(rows, PAYLOAD);
            world.add(rows, Due::Every(at, TimeDelta::microseconds(1_000_000 / a_second)), PAYLOAD).await?;
            world.pool.execute("VACUUM ANALYZE alarms").await?;
            let before = (daemon.cpu()?, world.postgres_cpu());
            sink.wait_for(usize::try_from(rows)?).await?;
            world.until_drained().await?;
            let after = (daemon.cpu()?, world.postgres_cpu());
            drop(daemon);
            world.check_delivered(rows).await?;
            let late = late(&sink, rows).await?;
            world.settle_down().await?;
            let percent = |percent| percentile(&late, percent) / 1e3;
            let cost = |seconds: f64| seconds * 1e6 / float(rows);
            report.line(
                &format!("{a_second} a second for {seconds} s"),
                &format!(
                    "p50 {:.1}  p99 {:.1}  max {:.1}   CPU a wake: chronosd {:.0} us, Postgres {:.0} us",
                    percent(50.0),
                    percent(99.0),
                    percent(100.0),
                    cost(after.0 - before.0),
                    cost(after.1 - before.1)
                ),
            );
            p99s.push(percent(99.0));
        }
        if a_second == 1000 {
            report.at_most("3. lateness at 1 000 a second: p99 in ms", median(&p99s), 25.0);
        }
    }
    Ok(())
}

/// What it costs to wait.
pub async fn idle(world: &World, report: &mut Report) -> anyhow::Result<()> {
    const SECONDS: u32 = 30;
    world.add(*PENDING, Due::Pending, 64).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    let daemon = world.dispatcher(&sink).await?;
    // What is done once at the start is not what it costs to wait.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (transactions, begun) = (world.transactions().await?, Instant::now());
    let before = (daemon.cpu()?, world.postgres_cpu());
    tokio::time::sleep(Duration::from_secs(SECONDS.into())).await;
    let after = (daemon.cpu()?, world.postgres_cpu());
    let all = world.transactions().await? - transactions;
    let seconds = begun.elapsed().as_secs_f64();
    let a_second = float(all) / seconds;
    let share = |cpu: f64| cpu / f64::from(SECONDS) * 100.0;
    let (ours, theirs) = (share(after.0 - before.0), share(after.1 - before.1));
    report.title(&format!("Idle beside {} pending, over {SECONDS} s", grouped(float(*PENDING))));
    report.line(
        "chronosd, one dispatcher",
        &format!(
            "{a_second:.1} statements/s, {ours:.2} % of a core, Postgres {theirs:.2} %, memory {:.0} MB",
            daemon.memory()? / 1e6
        ),
    );
    report.at_most("5. idle: statements a second", a_second, 2.0);
    report.at_most("5. idle: % of a core", ours, 1.0);
    Ok(())
}

/// What a claim costs while ever more wait in the future, and after a million have been settled.
pub async fn growth(world: &World, report: &mut Report) -> anyhow::Result<()> {
    const SIZES: [i64; 3] = [100_000, 1_000_000, 10_000_000];
    const SETTLED: i64 = 1_000_000;
    /// What the largest step takes on disk, its log included.
    const DISK: u64 = 20 << 30;
    report.title("Growth: one claim of 500 rows, 64 B payload, in milliseconds (median of 60), and its settle");
    let (mut there, mut costs) = (0, Vec::new());
    for size in SIZES {
        if size > 1_000_000 && free_disk()? < DISK {
            report.line(&format!("{} pending", grouped(float(size))), "not tried: under 20 GB of disk are free");
            break;
        }
        world.add(size - there, Due::Pending, 64).await?;
        there = size;
        world.settle_down().await?;
        let (claim, settle) = claim_cost(world).await?;
        report.line(&format!("{} pending", grouped(float(size))), &format!("claim {claim:.2}   settle {settle:.2}"));
        costs.push(claim);
        if size == 1_000_000 {
            // Nobody vacuums by hand: what autovacuum has not come to is in the way.
            for _ in 0..SETTLED / DRAINED {
                let at = world.now().await?;
                world.add(DRAINED, Due::At(at), 64).await?;
                ideal::drain(&world.pool).await?;
            }
            let (after, settle) = claim_cost(world).await?;
            report.line("  after a million were settled", &format!("claim {after:.2}   settle {settle:.2}"));
            report.at_most("6. growth: a claim after 1 M settled / before", after / claim, 1.5);
        }
    }
    if let [least, .., most] = costs[..]
        && costs.len() == SIZES.len()
    {
        report.at_most("6. growth: a claim at 10 M pending / at 100 k", most / least, 1.3);
    }
    Ok(())
}

/// A claim of 500 rows and its settle, in milliseconds.
async fn claim_cost(world: &World) -> anyhow::Result<(f64, f64)> {
    const ROUNDS: usize = 60;
    const ROWS: usize = 500;
    let store: Store = world.store(1).await?;
    let worker = WorkerId::from_uuid(Uuid::new_v4());
    let at = world.now().await?;
    world.add(i64::try_from(ROUNDS * ROWS)?, Due::At(at), 64).await?;
    let beat = Beat { version: "bench", host: "bench".to_owned() };
    let (mut claims, mut settles) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let look = Look {
            worker,
            beat: (round == 0).then_some(&beat),
            lease: Duration::from_secs(120),
            room: Room { rows: ROWS, bytes: 64 << 20, of_owner: 32, owners: Vec::new() },
            suspects: true,
            sessions: true,
            after: None,
            backlog: None,
        };
        let begun = Instant::now();
        let found = store.look(&look).await?;
        claims.push(begun.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(found.claims.len() == ROWS, "claimed {} of {ROWS}", found.claims.len());
        let settlements: Vec<Settlement> = found.claims.iter().map(accepted).collect();
        let pairs: Vec<_> = found.claims.iter().zip(&settlements).collect();
        let begun = Instant::now();
        store.settle_under_token(worker, &pairs).await?;
        settles.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    store.sign_off(worker).await?;
    Ok((median(&claims), median(&settles)))
}

fn accepted(claim: &Claim) -> Settlement {
    let answer = Answer::Accepted { http_status: 200 };
    let settled = next(&claim.occurrence(), &answer, &ladder(), claim.claimed_at, 0.5);
    let attempt = Attempt {
        started_at: claim.claimed_at,
        duration: Duration::ZERO,
        http_status: answer.http_status(),
        error: String::new(),
    };
    Settlement::answered(claim, settled, claim.claimed_at, attempt)
}

/// Bytes free where Postgres keeps its data.
fn free_disk() -> anyhow::Result<u64> {
    let output = std::process::Command::new("df").args(["--output=avail", "-B1"]).arg(std::env::temp_dir()).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().nth(1).unwrap_or_default().trim().parse()?)
}
