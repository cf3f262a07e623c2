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
//! | [`scenarios`] | one function per question |
//! | [`facade`] | what the HTTP facade costs, beside the bare INSERT |
//! | [`sessions`] | events, sends and timers of sessions, beside the bare transactions; and whether a day of them adds up |
//! | [`controller`] | what Alarms cost as resources, and how often their statuses are written |
//! | [`ideal`] | what the same schema can do at best: claims and settles in batches, and nothing else |
//! | [`world`] | Postgres, rows, processes |
//! | [`cluster`] | an API server |
//! | [`sink`] | who takes the wakes |
//! | [`report`] | the table |

mod cluster;
mod controller;
mod facade;
mod ideal;
mod report;
mod scenarios;
mod sessions;
mod sink;
mod world;

use anyhow::bail;
use report::Report;
use world::World;

/// Every scenario, in the order in which they run.
const SCENARIOS: [&str; 9] =
    ["layout", "drain", "http", "lateness", "idle", "growth", "facade", "sessions", "controller"];

fn main() -> anyhow::Result<()> {
    // Cargo says --bench to whatever it runs.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let provider = rustls::crypto::ring::default_provider().install_default();
    anyhow::ensure!(provider.is_ok(), "nobody else chooses a TLS library");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if words.first().is_some_and(|word| word == sink::WORD) {
        return sink::serve();
    }
    if let Some(unknown) = words.iter().find(|word| !SCENARIOS.contains(&word.as_str())) {
        bail!("there is no scenario {unknown}: choose among {}", SCENARIOS.join(", "));
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    runtime.block_on(async {
        let mut report = Report::begin();
        for name in SCENARIOS.into_iter().filter(|name| wanted(name)) {
            // Each in a server of its own: what one leaves behind is not the next one's cost.
            let world = World::start().await?;
            match name {
                "layout" => scenarios::layout(&world, &mut report).await?,
                "drain" => scenarios::drain(&world, &mut report).await?,
                "http" => scenarios::http(&world, &mut report).await?,
                "lateness" => scenarios::lateness(&world, &mut report).await?,
                "idle" => scenarios::idle(&world, &mut report).await?,
                "facade" => facade::facade(&world, &mut report).await?,
                "sessions" => sessions::sessions(&world, &mut report).await?,
                "growth" => scenarios::growth(&world, &mut report).await?,
                "controller" => controller::controller(&world, &mut report).await?,
                other => unreachable!("{other} is in the list"),
            }
        }
        report.end();
        Ok(())
    })
}
