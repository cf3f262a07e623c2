//! One function per question about ourselves. Each begins with an empty, migrated database.

use std::{sync::LazyLock, time::Duration};

use chrono::TimeDelta;
use chronos::{
    domain::{
        ids::WorkerId,
        occurrence::{Answer, next},
    },
    store::{
        Store,
        claims::{Attempt, Beat, Claim, Look, Room, Settlement},
    },
};
use sqlx::Executor;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    contender::{Contender, ladder},
    field::{PATIENCE, PAYLOAD, Turn, float, rate, sleep_until},
    ideal,
    report::{Report, Round, all, grouped, median, percentile},
    sink::Sink,
    world::{Due, World},
};

/// How often each figure is taken; the median counts.
pub const ROUNDS: usize = 3;
/// Rows that wait in the future, beside those that are due; PENDING in the environment says otherwise, for a quick look.
pub static PENDING: LazyLock<i64> =
    LazyLock::new(|| std::env::var("PENDING").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000));
pub const DRAINED: i64 = 100_000;
pub const DRAINED_OVER_HTTP: i64 = 50_000;
pub const BURST: i64 = 10_000;
/// How long a router takes that does something with a wake.
const ROUTER_TAKES: Duration = Duration::from_millis(100);
/// Due of one owner at once, beside quiet ones.
pub const CROWD: i64 = 100_000;

/// So many of ours.
fn ours<'a>(world: &'a World, processes: usize, sink: Option<&'a Sink>) -> Turn<'a> {
    Turn { world, who: Contender::Chronos, processes, sink }
}

/// A round of ours, for the results.
fn round<'a>(scenario: &'a str, who: &'a str, number: usize) -> Round<'a> {
    Round { scenario, who, config: "", number }
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
                let drained = ours(world, 1, None).drain(50_000, payload, PATIENCE).await?;
                figures[place].push((drained.per_second(), drained.wal));
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
    report.title(&format!(
        "Drain without a router: {} due beside {} pending, 1 KB payload, attempts written",
        grouped(float(DRAINED)),
        grouped(float(*PENDING))
    ));
    let mut rates = vec![Vec::new(); 3];
    let mut wals = vec![Vec::new(); 3];
    for number in 1..=ROUNDS {
        let (rate, wal) = drained_ideally(world, DRAINED, PAYLOAD).await?;
        report.record(&round("drain", "ideal", number), &[("per_second", rate), ("wal_bytes", wal)], None);
        rates[0].push(rate);
        wals[0].push(wal);
        for processes in [1, 2] {
            let turn = ours(world, processes, None);
            let drained = turn.drain(DRAINED, PAYLOAD, PATIENCE).await?;
            drained.record(report, &round("drain", &turn.name(), number));
            rates[processes].push(drained.per_second());
            wals[processes].push(drained.wal);
        }
    }
    let names = ["ideal batch loop, two connections", "dispatcher", "two dispatchers"];
    for (name, (rates, wals)) in names.iter().zip(rates.iter().zip(&wals)) {
        let (rate, wal) = (grouped(median(rates)), grouped(median(wals)));
        report.line(name, &format!("{rate:>8} /s   ({})   WAL {wal} B an alarm", all(rates)));
    }
    let [ideal, one, two] = [&rates[0], &rates[1], &rates[2]].map(|rates| median(rates));
    report.at_least("1. drain: dispatcher / ideal batch loop", one / ideal, 0.8);
    report.at_least("7. drain: two dispatchers / one, without a router", two / one, 1.2);
    Ok(())
}

async fn drained_ideally(world: &World, rows: i64, payload: i32) -> anyhow::Result<(f64, f64)> {
    let at = world.now().await? + TimeDelta::seconds(4) + TimeDelta::microseconds(rows * 144);
    world.add(rows, Due::At(at), payload).await?;
    world.pool.execute("VACUUM ANALYZE alarms").await?;
    world.pool.execute("CHECKPOINT").await?;
    let wal = world.wal().await?;
    let begun = sleep_until(world, at).await?;
    ideal::drain(&world.pool).await?;
    let rate = rate(rows, begun);
    let wal = (world.wal().await? - wal) / float(rows);
    world.check_delivered(rows).await?;
    world.settle_down().await?;
    Ok((rate, wal))
}

/// The same with wakes over HTTP, by chronosd as a process; and a burst.
pub async fn http(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    report
        .title(&format!("With wakes over HTTP to a sink on this machine, beside {} pending", grouped(float(*PENDING))));
    let (one, ratio) = one_and_two(world, report, "http", &sink).await?;
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for number in 1..=ROUNDS {
        let turn = ours(world, 1, Some(&sink));
        let burst = turn.drain(BURST, PAYLOAD, PATIENCE).await?;
        burst.record(report, &round("burst", &turn.name(), number));
        p50.push(percentile(&burst.late, 50.0) / 1e3);
        p99.push(percentile(&burst.late, 99.0) / 1e3);
    }
    report.line(
        &format!("{} at one instant", grouped(float(BURST))),
        &format!("p50 {} ms ({}), p99 {} ms ({})", grouped(median(&p50)), all(&p50), grouped(median(&p99)), all(&p99)),
    );
    let ideally = float(BURST) / one * 1e3;
    report.at_most("4. burst: p99 / (10 000 / own drain rate over HTTP)", median(&p99) / ideally, 1.2);
    report.at_least("7. drain: two processes / one, over HTTP", ratio, 1.2);
    drop(sink);
    // What a second process is for: routers take their time, and one process has only so many wakes in flight.
    let takes = ROUTER_TAKES.as_millis();
    let sink = Sink::that_takes(ROUTER_TAKES)?;
    report.title(&format!("The same with a router that takes {takes} ms"));
    let (_, ratio) = one_and_two(world, report, "slow", &sink).await?;
    report.at_least(&format!("7. drain: two processes / one, with a router that takes {takes} ms"), ratio, 1.2);
    Ok(())
}

/// How many a second one process drains, and how many times that two do.
async fn one_and_two(world: &World, report: &mut Report, scenario: &str, sink: &Sink) -> anyhow::Result<(f64, f64)> {
    let mut rates = vec![Vec::new(); 2];
    for number in 1..=ROUNDS {
        for processes in [1, 2] {
            let turn = ours(world, processes, Some(sink));
            let drained = turn.drain(DRAINED_OVER_HTTP, PAYLOAD, PATIENCE).await?;
            drained.record(report, &round(scenario, &turn.name(), number));
            rates[processes - 1].push(drained.per_second());
        }
    }
    for (name, rates) in [("chronosd, drain", &rates[0]), ("two chronosd, drain", &rates[1])] {
        report.line(name, &format!("{:>8} /s   ({})", grouped(median(rates)), all(rates)));
    }
    let (one, two) = (median(&rates[0]), median(&rates[1]));
    Ok((one, two / one))
}

/// How late wakes come when so many are due a second.
pub async fn lateness(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    report.title(&format!("Lateness over HTTP beside {} pending, in milliseconds", grouped(float(*PENDING))));
    for (a_second, seconds) in [(200, 10), (1000, 20)] {
        let mut p99s = Vec::new();
        for number in 1..=ROUNDS {
            let turn = ours(world, 1, Some(&sink));
            let measured = turn.lateness(a_second, seconds).await?;
            measured.record(report, &round(&format!("lateness-{a_second}"), &turn.name(), number));
            let percent = |percent| percentile(&measured.late, percent) / 1e3;
            report.line(
                &format!("{a_second} a second for {seconds} s"),
                &format!(
                    "p50 {:.1}  p99 {:.1}  max {:.1}   CPU a wake: chronosd {:.0} us, Postgres {:.0} us",
                    percent(50.0),
                    percent(99.0),
                    percent(100.0),
                    measured.cpu.unwrap_or_default(),
                    measured.postgres
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

/// One owner of whom very many are due at once, and others who do not notice.
pub async fn noisy(world: &World, report: &mut Report) -> anyhow::Result<()> {
    world.add(*PENDING, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    report.title(&format!(
        "999 quiet owners, 200 wakes a second, alone and beside one owner with {} due at once; beside {} pending",
        grouped(float(CROWD)),
        grouped(float(*PENDING))
    ));
    let mut p99s = vec![Vec::new(); 2];
    for number in 1..=ROUNDS {
        for (place, (config, crowd)) in [("alone", 0), ("beside", CROWD)].into_iter().enumerate() {
            let turn = ours(world, 1, Some(&sink));
            let measured = turn.quiet_beside(crowd).await?;
            measured.record(report, &Round { scenario: "noisy", who: &turn.name(), config, number });
            let percent = |percent| percentile(&measured.late, percent) / 1e3;
            report.line(
                &format!("quiet owners, {config}"),
                &format!("p50 {:.1}  p99 {:.1}  max {:.1} ms", percent(50.0), percent(99.0), percent(100.0)),
            );
            p99s[place].push(percent(99.0));
        }
    }
    report.at_most("noisy owner: p99 of the quiet ones beside it / alone", median(&p99s[1]) / median(&p99s[0]), 2.0);
    Ok(())
}

/// What it costs to wait.
pub async fn idle(world: &World, report: &mut Report) -> anyhow::Result<()> {
    // The gauges are counted once a minute. Housekeeping, once an hour, is not in it.
    const SECONDS: u32 = 60;
    world.add(*PENDING, Due::Pending, 64).await?;
    world.settle_down().await?;
    let sink = Sink::start()?;
    report.title(&format!("Idle beside {} pending, over {SECONDS} s", grouped(float(*PENDING))));
    let (mut transactions, mut cpu) = (Vec::new(), Vec::new());
    for number in 1..=ROUNDS {
        let turn = ours(world, 1, Some(&sink));
        let rest = turn.idle(SECONDS).await?;
        rest.record(report, &round("idle", &turn.name(), number));
        report.line("chronosd, one dispatcher", &rest.told());
        transactions.push(rest.transactions);
        cpu.push(rest.cpu);
    }
    report.at_most("5. idle: transactions a second", median(&transactions), 2.0);
    report.at_most("5. idle: % of a core", median(&cpu), 1.0);
    Ok(())
}

/// What a claim costs while ever more wait in the future, and after a million have been settled.
pub async fn growth(world: &World, report: &mut Report) -> anyhow::Result<()> {
    const SIZES: [i64; 3] = [100_000, 1_000_000, 10_000_000];
    const SETTLED: i64 = 1_000_000;
    /// What the largest step takes on disk, its log included.
    const DISK: u64 = 20 << 30;
    report.title(
        "Growth: one claim of 500 rows behind the last, 64 B payload, in milliseconds (median of 60, three times); one from the beginning; a settle",
    );
    let (mut there, mut costs) = (0, Vec::new());
    for size in SIZES {
        if size > 1_000_000 && free_disk()? < DISK {
            report.line(&format!("{} pending", grouped(float(size))), "not tried: under 20 GB of disk are free");
            break;
        }
        world.add(size - there, Due::Pending, 64).await?;
        there = size;
        world.settle_down().await?;
        let before = claim_costs(world).await?;
        report.line(&format!("{} pending", grouped(float(size))), &before.told());
        for (number, costs) in (1..).zip(before.each()) {
            let figures = [&[("rows", float(size))][..], &costs].concat();
            report.record(&round("pending", "dispatcher", number), &figures, None);
        }
        costs.push(median(&before.claims));
        if size == 1_000_000 {
            // Nobody vacuums by hand: what autovacuum has not come to is in the way.
            for _ in 0..SETTLED / DRAINED {
                let at = world.now().await?;
                world.add(DRAINED, Due::At(at), 64).await?;
                ideal::drain(&world.pool).await?;
            }
            let after = claim_costs(world).await?;
            for (config, costs) in [("before", &before), ("after", &after)] {
                for (number, costs) in (1..).zip(costs.each()) {
                    let round = Round { scenario: "settled", who: "dispatcher", config, number };
                    report.record(&round, &costs, None);
                }
            }
            report.line("  after a million were settled", &after.told());
            // The first is what nearly all are; the second comes once a second, and is the worst of them.
            let ratios =
                [("behind the last", &after.claims, &before.claims), ("from the beginning", &after.anew, &before.anew)];
            for (which, after, before) in ratios {
                let what = format!("6. growth: a claim {which} after 1 M settled / before");
                report.at_most(&what, median(after) / median(before), 1.5);
            }
        }
    }
    if let [least, .., most] = costs[..]
        && costs.len() == SIZES.len()
    {
        report.at_most("6. growth: a claim at 10 M pending / at 100 k", most / least, 1.3);
    }
    Ok(())
}

/// What claims and settles cost, in milliseconds, as often as figures are taken.
#[derive(Default)]
struct Costs {
    /// One behind the other, as a dispatcher claims.
    claims: Vec<f64>,
    /// From the beginning, past all that was settled and is not vacuumed yet: once a second.
    anew: Vec<f64>,
    settles: Vec<f64>,
}

impl Costs {
    fn each(&self) -> impl Iterator<Item = [(&'static str, f64); 3]> {
        let costs = self.claims.iter().zip(&self.anew).zip(&self.settles);
        costs.map(|((claim, anew), settle)| [("claim_ms", *claim), ("anew_ms", *anew), ("settle_ms", *settle)])
    }

    fn told(&self) -> String {
        let each = self.claims.iter().map(|claim| format!("{claim:.2}")).collect::<Vec<_>>().join(", ");
        let [claim, anew, settle] = [&self.claims, &self.anew, &self.settles].map(|costs| median(costs));
        format!("claim {claim:.2} ({each})   from the beginning {anew:.2}   settle {settle:.2}")
    }
}

async fn claim_costs(world: &World) -> anyhow::Result<Costs> {
    let mut costs = Costs::default();
    for _ in 0..ROUNDS {
        let (claim, anew, settle) = claim_cost(world).await?;
        costs.claims.push(claim);
        costs.anew.push(anew);
        costs.settles.push(settle);
    }
    Ok(costs)
}

async fn claim_cost(world: &World) -> anyhow::Result<(f64, f64, f64)> {
    const ROUNDS: usize = 72;
    /// Every so many of them begin at the beginning.
    const ANEW: usize = 6;
    const ROWS: usize = 500;
    let store: Store = world.store(4).await?;
    let worker = WorkerId::from_uuid(Uuid::new_v4());
    let at = world.now().await?;
    world.add(i64::try_from(ROUNDS * ROWS)?, Due::At(at), 64).await?;
    let beat = Beat { version: "bench", host: "bench".to_owned() };
    let (mut claims, mut anew, mut settles) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for round in 0..ROUNDS {
        let after = last.filter(|_| round % ANEW != 0);
        let look = Look {
            worker,
            beat: (round == 0).then_some(&beat),
            lease: Duration::from_secs(120),
            room: Room { rows: ROWS, bytes: 64 << 20, of_owner: 32, owners: Vec::new() },
            suspects: true,
            sessions: true,
            after,
            backlog: None,
        };
        let begun = Instant::now();
        let found = store.look(&look).await?;
        let costs = if after.is_some() { &mut claims } else { &mut anew };
        costs.push(begun.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(found.claims.len() == ROWS, "claimed {} of {ROWS}", found.claims.len());
        last = found.claims.iter().map(Claim::place).max();
        let settlements: Vec<Settlement> = found.claims.iter().map(accepted).collect();
        let pairs: Vec<_> = found.claims.iter().zip(&settlements).collect();
        let begun = Instant::now();
        store.settle_under_token(worker, &pairs).await?;
        settles.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    store.sign_off(worker).await?;
    Ok((median(&claims), median(&anew), median(&settles)))
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
