//! Who is fast at all, and then the best of them beside us in everything, ours between each two: the machine's moods show.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{Config, Peer, Rival};
use crate::{
    contender::Contender,
    field::{Measured, PATIENCE, PAYLOAD, Rest, Turn, float},
    report::{Report, Round, grouped, percentile},
    scenarios::{BURST, CROWD, DRAINED, DRAINED_OVER_HTTP, PENDING, ROUNDS},
    sink::Sink,
    world::{Due, Owners, World},
};

/// Jobs of a screening, and how long anybody is waited for.
const SCREENED: i64 = 200_000;
const SCREENING: Duration = Duration::from_secs(60);
/// What one peer may take in all, once it is installed. What there is no time for is said.
const BUDGET: Duration = Duration::from_secs(15 * 60);
/// Rows that wait beside a screening, and when the first figure of growth is taken.
const FEW: i64 = 100_000;
/// Long enough for a thousand jobs and more.
const LATENESS_SECONDS: i64 = 10;
const IDLE_SECONDS: u32 = 20;

/// One drain each, in both configurations, ours between them. The answer are their names, the fastest first.
pub async fn screen(world: &World, names: &[String], report: &mut Report) -> anyhow::Result<Vec<String>> {
    report.scenario("screen");
    report.title(&format!(
        "Screening: {} due at one instant beside {} pending, jobs that do nothing",
        grouped(float(SCREENED)),
        grouped(float(FEW))
    ));
    world.add(FEW, Due::Pending, PAYLOAD).await?;
    world.settle_down().await?;
    ours(world, report, 1).await?;
    let mut best = Vec::new();
    for (place, name) in names.iter().enumerate() {
        match screened(world, name, report).await {
            Ok(fastest) => best.push((fastest, name.clone())),
            Err(error) => report.failed(&format!("screen: {name}"), &error),
        }
        super::remove(world, name).await?;
        ours(world, report, place + 2).await?;
    }
    best.sort_by(|one, other| other.0.total_cmp(&one.0));
    Ok(best.into_iter().map(|(_, name)| name).collect())
}

/// Jobs a second in its better configuration.
async fn screened(world: &World, name: &str, report: &mut Report) -> anyhow::Result<f64> {
    let rival = entered(world, name, report).await?;
    pend(world, &rival, FEW).await?;
    let mut fastest = 0.0;
    for config in [Config::Fast, Config::Default] {
        let turn = Turn { world, who: Contender::Peer(&rival, config), processes: 1, sink: None };
        let measured = turn.drain(SCREENED, PAYLOAD, SCREENING).await?;
        tell(report, "screen", &turn, 1, &measured);
        fastest = measured.per_second().max(fastest);
        if measured.was_cut() && config == Config::Fast {
            report.note(&format!(
                "screen: {name} was stopped in its fast configuration, and not tried in its default one"
            ));
            break;
        }
    }
    rival.pool.close().await;
    Ok(fastest)
}

async fn ours(world: &World, report: &mut Report, number: usize) -> anyhow::Result<()> {
    let turn = Turn { world, who: Contender::Chronos, processes: 1, sink: None };
    match turn.drain(SCREENED, PAYLOAD, SCREENING).await {
        Ok(measured) => drop(tell(report, "screen", &turn, number, &measured)),
        Err(error) => {
            report.failed(&format!("screen: {}", turn.name()), &error);
            turn.clean().await?;
        }
    }
    Ok(())
}

/// Installed, told of, and on a database of its own.
async fn entered(world: &World, name: &str, report: &mut Report) -> anyhow::Result<Rival> {
    let peer = Peer::named(name)?;
    peer.install().await?;
    let (fast, default) = (peer.says_of(Config::Fast).await?, peer.says_of(Config::Default).await?);
    report.peer(name, &peer.version().await?, &fast, &default);
    Rival::new(world, peer).await
}

async fn pend(world: &World, rival: &Rival, rows: i64) -> anyhow::Result<()> {
    let who = Contender::Peer(rival, Config::Fast);
    who.add(world, Owners::All, rows, Due::Pending, PAYLOAD).await?;
    who.clear(world).await
}

/// A line for people, and one for the results.
fn tell(report: &mut Report, scenario: &str, turn: &Turn<'_>, number: usize, measured: &Measured) -> End {
    let name = turn.name();
    let config = turn.who.config();
    let cut = if measured.was_cut() {
        format!("   stopped after {:.0} s: {} done", measured.seconds, grouped(float(measured.done)))
    } else {
        String::new()
    };
    let late = told_late(measured);
    let cost = measured.cpu.map_or(String::new(), |cpu| format!("{cpu:.0} us + "));
    println!(
        "  {:<58} {:>8} /s   {cost}Postgres {:.0} us a job{late}{cut}",
        format!("{scenario} {number}: {name} {config}"),
        grouped(measured.per_second()),
        measured.postgres
    );
    measured.record(report, &Round { scenario, who: &name, config, number });
    end(measured)
}

fn told_late(measured: &Measured) -> String {
    if measured.late.is_empty() {
        return String::new();
    }
    let percent = |percent| percentile(&measured.late, percent) / 1e3;
    format!("   late by p50 {:.1}  p99 {:.1}  max {:.1} ms", percent(50.0), percent(99.0), percent(100.0))
}

fn end(measured: &Measured) -> End {
    if measured.was_cut() { End::Cut } else { End::Whole }
}

/// Everything, for one peer in its fast configuration beside us.
pub async fn compare(world: &World, name: &str, report: &mut Report) -> anyhow::Result<()> {
    report.scenario("compare");
    report.title(&format!("chronosd and {name}, in turn, beside {} pending", grouped(float(*PENDING))));
    let rival = entered(world, name, report).await?;
    let sink = Sink::start()?;
    let both = [Contender::Chronos, Contender::Peer(&rival, Config::Fast)];
    // From here: what is installed once is not what is compared.
    let until = Instant::now() + BUDGET;
    let mut pairing = Pairing { world, sink: &sink, both, until, out: HashSet::new() };

    add_pending(world, both, FEW).await?;
    for round in 1..=ROUNDS {
        pairing.growth(report, round, FEW).await;
    }
    add_pending(world, both, *PENDING - FEW).await?;
    // What is promised first, then what there is time for.
    for round in 1..=ROUNDS {
        pairing.drain(report, round, "drain", DRAINED, 1).await;
        pairing.drain(report, round, "http", DRAINED_OVER_HTTP, 1).await;
        pairing.lateness(report, round, "lateness-1000", 1000).await;
        pairing.drain(report, round, "burst", BURST, 1).await;
        pairing.lateness(report, round, "lateness-200", 200).await;
    }
    for round in 1..=ROUNDS {
        pairing.growth(report, round, *PENDING).await;
    }
    pairing.drain(report, 1, "http", DRAINED_OVER_HTTP, 2).await;
    pairing.noisy(report, 1).await;
    pairing.idle(report, 1).await;
    rival.remove(world).await
}

async fn add_pending(world: &World, both: [Contender<'_>; 2], rows: i64) -> anyhow::Result<()> {
    for who in both {
        who.add(world, Owners::All, rows, Due::Pending, PAYLOAD).await?;
        who.clear(world).await?;
    }
    Ok(())
}

/// One round of one scenario.
#[derive(Clone, Copy)]
struct Heat<'a> {
    scenario: &'a str,
    number: usize,
    processes: usize,
    over_http: bool,
}

/// What became of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Cut,
}

/// The two, and how much time they have.
struct Pairing<'a> {
    world: &'a World,
    sink: &'a Sink,
    both: [Contender<'a>; 2],
    until: Instant,
    /// Who was too slow for a scenario, or failed in it, is not asked for it again.
    out: HashSet<(usize, String)>,
}

impl Pairing<'_> {
    /// A turn of each, who goes first by turns. `tell` writes down what came of it. Whatever happens, the next may begin.
    async fn each<T>(
        &mut self,
        report: &mut Report,
        heat: Heat<'_>,
        run: impl AsyncFn(&Turn<'_>) -> anyhow::Result<T>,
        tell: impl Fn(&mut Report, &Turn<'_>, &T) -> End,
    ) {
        let Heat { scenario, number, processes, over_http } = heat;
        let places = if number % 2 == 1 { [0, 1] } else { [1, 0] };
        for place in places {
            let sink = over_http.then_some(self.sink);
            let turn = Turn { world: self.world, who: self.both[place], processes, sink };
            let what = format!("{scenario}, round {number}: {}", turn.name());
            if self.out.contains(&(place, scenario.to_owned())) {
                continue;
            }
            if Instant::now() > self.until {
                report.note(&format!("{what} was not run, the {} minutes are over", BUDGET.as_secs() / 60));
                continue;
            }
            match run(&turn).await {
                Ok(seen) if tell(report, &turn, &seen) == End::Whole => continue,
                Ok(_) => report.note(&format!("{what} was stopped, and is not asked for this again")),
                Err(error) => {
                    report.failed(&what, &error);
                    if let Err(error) = turn.clean().await {
                        report.failed(&format!("{what}: to clear what is left"), &error);
                    }
                }
            }
            self.out.insert((place, scenario.to_owned()));
        }
    }

    async fn growth(&mut self, report: &mut Report, round: usize, rows: i64) {
        const DRAINED: i64 = 20_000;
        let heat = Heat { scenario: "pending", number: round, processes: 1, over_http: false };
        let tell = |report: &mut Report, turn: &Turn<'_>, measured: &Measured| {
            let (name, config) = (turn.name(), turn.who.config());
            println!(
                "  {:<58} {:>8} /s",
                format!("{} pending {round}: {name} {config}", grouped(float(rows))),
                grouped(measured.per_second())
            );
            let mut figures = vec![("rows", float(rows)), ("per_second", measured.per_second())];
            figures.extend(measured.was_cut().then_some(("cut", 1.0)));
            report.record(&Round { scenario: "pending", who: &name, config, number: round }, &figures, None);
            end(measured)
        };
        self.each(report, heat, async |turn| turn.drain(DRAINED, PAYLOAD, PATIENCE).await, tell).await;
    }

    async fn drain(&mut self, report: &mut Report, round: usize, scenario: &str, rows: i64, processes: usize) {
        let heat = Heat { scenario, number: round, processes, over_http: scenario != "drain" };
        let run = async |turn: &Turn<'_>| turn.drain(rows, PAYLOAD, PATIENCE).await;
        self.each(report, heat, run, |report, turn, measured| tell(report, scenario, turn, round, measured)).await;
    }

    async fn lateness(&mut self, report: &mut Report, round: usize, scenario: &str, a_second: i64) {
        let heat = Heat { scenario, number: round, processes: 1, over_http: true };
        let run = async |turn: &Turn<'_>| turn.lateness(a_second, LATENESS_SECONDS).await;
        self.each(report, heat, run, |report, turn, measured| tell(report, scenario, turn, round, measured)).await;
    }

    /// Quiet owners alone, and beside a crowd.
    async fn noisy(&mut self, report: &mut Report, round: usize) {
        let heat = Heat { scenario: "noisy", number: round, processes: 1, over_http: true };
        for (config, crowd) in [("alone", 0), ("beside", CROWD)] {
            let tell = |report: &mut Report, turn: &Turn<'_>, measured: &Measured| {
                let name = turn.name();
                println!("  {:<58}{}", format!("quiet owners {config} a noisy one: {name}"), told_late(measured));
                measured.record(report, &Round { scenario: "noisy", who: &name, config, number: round });
                end(measured)
            };
            self.each(report, heat, async |turn| turn.quiet_beside(crowd).await, tell).await;
        }
    }

    async fn idle(&mut self, report: &mut Report, round: usize) {
        let heat = Heat { scenario: "idle", number: round, processes: 1, over_http: true };
        let tell = |report: &mut Report, turn: &Turn<'_>, rest: &Rest| {
            let (name, config) = (turn.name(), turn.who.config());
            println!("  {:<58} {}", format!("idle: {name} {config}"), rest.told());
            rest.record(report, &Round { scenario: "idle", who: &name, config, number: round });
            End::Whole
        };
        self.each(report, heat, async |turn| turn.idle(IDLE_SECONDS).await, tell).await;
    }
}
