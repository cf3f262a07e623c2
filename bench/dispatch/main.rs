//! How fast wakes go out and alarms come in, and what they cost: `make bench` (some of it: `make bench ONLY="drain lateness"`).
//!
//! Everything is real: a Postgres with fsync on, `chronosd` as a process, a sink that takes wakes over HTTP in a process of its
//! own, an API server where resources are measured. Where nothing is to be measured but the database, the dispatcher runs in here and hands its wakes to nobody.
//! Absolute figures swing by a factor of two between runs on shared machines: only the ratios of one run mean anything, and
//! each is printed beside what it is compared with. Every round is shown.
//!
//! | file | does |
//! |---|---|
//! | here | the order of things, and what is promised (`performance.md`) |
//! | [`scenarios`] | one function per question about ourselves |
//! | [`day`] | a day of a million daily alarms, replayed in minutes |
//! | [`peers`] | other schedulers beside us: `make bench-peers` |
//! | [`field`] | one round of what we and they do alike |
//! | [`contender`] | whose turn it is |
//! | [`facade`] | what the HTTP facade costs, beside the bare INSERT |
//! | [`sessions`] | events, sends and timers of sessions, beside the bare transactions; and whether a day of them adds up |
//! | [`controller`] | what Alarms cost as resources, and how often their statuses are written |
//! | [`ideal`] | what the same schema can do at best: claims and settles in batches, and nothing else |
//! | [`world`] | Postgres, rows, `chronosd` |
//! | [`process`] | processes, and what the kernel knows of them |
//! | [`cluster`] | an API server |
//! | [`sink`] | who takes the wakes |
//! | [`report`] | the table |

mod cluster;
mod contender;
mod controller;
mod day;
mod facade;
mod field;
mod ideal;
mod peers;
mod process;
mod report;
mod scenarios;
mod sessions;
mod sink;
mod world;

use anyhow::bail;
use mimalloc::MiMalloc;
use report::Report;
use world::World;

/// As `chronosd` has it: a dispatcher that runs in here is no other.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Every scenario, in the order in which they run.
const SCENARIOS: [&str; 11] =
    ["layout", "drain", "http", "lateness", "noisy", "idle", "growth", "day", "facade", "sessions", "controller"];

fn main() -> anyhow::Result<()> {
    // Cargo says --bench to whatever it runs.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let provider = rustls::crypto::ring::default_provider().install_default();
    anyhow::ensure!(provider.is_ok(), "nobody else chooses a TLS library");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match words.first().map(String::as_str) {
        Some(sink::WORD) => sink::serve(words.get(1)),
        // peers [NAME…]: every scenario for these, or a screening of all and then of the best three.
        Some("peers") => runtime.block_on(beside_peers(&words)),
        _ => runtime.block_on(alone(&words)),
    }
}

/// Ourselves, beside the bare thing. One that fails is told of, and the others go on.
async fn alone(words: &[String]) -> anyhow::Result<()> {
    if let Some(unknown) = words.iter().find(|word| !SCENARIOS.contains(&word.as_str())) {
        bail!("there is no scenario {unknown}: choose among {}", SCENARIOS.join(", "));
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let mut report = Report::begin()?;
    for name in SCENARIOS.into_iter().filter(|name| wanted(name)) {
        if let Err(error) = scenario(name, words, &mut report).await {
            report.failed(name, &error);
        }
    }
    report.end()
}

async fn scenario(name: &str, words: &[String], report: &mut Report) -> anyhow::Result<()> {
    // Each in a server of its own: what one leaves behind is not the next one's cost.
    let world = World::start().await?;
    report.describe(&world, words).await?;
    report.scenario(name);
    match name {
        "layout" => scenarios::layout(&world, report).await,
        "drain" => scenarios::drain(&world, report).await,
        "http" => scenarios::http(&world, report).await,
        "lateness" => scenarios::lateness(&world, report).await,
        "noisy" => scenarios::noisy(&world, report).await,
        "idle" => scenarios::idle(&world, report).await,
        "growth" => scenarios::growth(&world, report).await,
        "day" => day::day(&world, report).await,
        "facade" => facade::facade(&world, report).await,
        "sessions" => sessions::sessions(&world, report).await,
        "controller" => controller::controller(&world, report).await,
        other => unreachable!("{other} is in the list"),
    }
}

/// Those who are named in everything; if nobody is, all of them in one drain, and the best in everything.
async fn beside_peers(words: &[String]) -> anyhow::Result<()> {
    const BEST: usize = 3;
    let (mut chosen, mut ended) = (words[1..].to_vec(), Vec::new());
    if chosen.is_empty() {
        let mut report = Report::begin()?;
        match screen(words, &mut report).await {
            Ok(names) => chosen = names.into_iter().take(BEST).collect(),
            Err(error) => report.failed("screen", &error),
        }
        ended.push(report.end());
    }
    for name in &chosen {
        // A run each: what is compared was measured within minutes.
        let mut report = Report::begin()?;
        if let Err(error) = compare(name, words, &mut report).await {
            report.failed(name, &error);
        }
        ended.push(report.end());
    }
    ended.into_iter().collect()
}

async fn screen(words: &[String], report: &mut Report) -> anyhow::Result<Vec<String>> {
    let world = World::start().await?;
    report.describe(&world, words).await?;
    peers::screen(&world, &peers::Peer::all()?, report).await
}

async fn compare(name: &str, words: &[String], report: &mut Report) -> anyhow::Result<()> {
    let world = World::start().await?;
    report.describe(&world, words).await?;
    if name == peers::CRON {
        drop(world);
        return peers::cron(report).await;
    }
    peers::compare(&world, name, report).await
}
