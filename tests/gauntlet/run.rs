//! One run from beginning to end, and several in a row.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    arguments::Setting,
    checker::{self, Verdict},
    driver::{self, Load},
    log::{End, Journal, Kind, Log, Run, write_json},
    mutants::{MUTANTS, Mutant},
    nemesis::{self, Pace},
    report, sink,
    world::{self, World},
};

/// How long a healed world may take until nothing is due, claimed or out of step. The checker judges by what was written down
/// when; this only ends the wait.
const REST: Duration = Duration::from_secs(90);
/// Faults that a mutant is looked for with.
const FAULTS_FOR_A_MUTANT: usize = 12;
/// From so many faults on a run is a long one.
const LONG: usize = 100;
/// How long the driver makes things before the first fault: a world without anything in it is not worth breaking.
const HEAD_START: Duration = Duration::from_secs(3);

/// What is to be done in one run.
struct Plan {
    seed: u64,
    faults: usize,
    kinds: Vec<Kind>,
    pace: Pace,
    mode: String,
    mutant: Option<String>,
}

/// Batch by batch. Says whether every promise held, and every kind struck.
pub async fn batches(setting: &Setting) -> anyhow::Result<bool> {
    let (kinds, first) = (setting.kinds()?, setting.first_seed());
    let count = setting.faults.div_ceil(setting.batch).max(1);
    let mut batches = Vec::new();
    for (batch, seed) in (first..).take(count).enumerate() {
        let faults = setting.batch.min(setting.faults - batch * setting.batch);
        let mode = setting.mode.clone().unwrap_or_else(|| MODES[(seed % 2) as usize].to_owned());
        let plan = Plan { seed, faults, kinds: kinds.clone(), pace: setting.pace, mode, mutant: None };
        let (log, verdict) =
            one(setting, plan).await.with_context(|| format!("the run with seed {seed} broke down"))?;
        report::one(&log, &verdict);
        batches.push((log.run, verdict));
    }
    Ok(report::all(&batches))
}

/// The directories of runs once more, each read again.
pub fn again(directories: &[PathBuf]) -> anyhow::Result<bool> {
    let mut batches = Vec::new();
    for directory in directories {
        let log = Log::read(directory).context("this is no directory of a run")?;
        let verdict = checker::check(&log);
        report::one(&log, &verdict);
        batches.push((log.run, verdict));
    }
    Ok(report::all(&batches))
}

/// Mutant by mutant. Says whether each was found.
pub async fn mutants(setting: &Setting, names: &[String]) -> anyhow::Result<bool> {
    let unknown = names.iter().find(|name| !MUTANTS.iter().any(|mutant| mutant.name == **name));
    if let Some(name) = unknown {
        let known: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        anyhow::bail!("there is no mutant `{name}`; there are {}", known.join(", "));
    }
    let asked = |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| name == mutant.name);
    let mut found = Vec::new();
    for mutant in MUTANTS.iter().filter(asked) {
        let seed = setting.first_seed();
        let plan = Plan {
            seed,
            faults: FAULTS_FOR_A_MUTANT,
            kinds: mutant.kinds.to_vec(),
            pace: setting.pace,
            mode: setting.mode.clone().unwrap_or_else(|| mutant.mode.to_owned()),
            mutant: Some(mutant.name.to_owned()),
        };
        let (_, verdict) =
            one(setting, plan).await.with_context(|| format!("the run of mutant {} broke down", mutant.name))?;
        found.push((mutant, seed, verdict));
        report::mutant(found.last().expect("just pushed"));
    }
    Ok(report::mutants(&found))
}

const MODES: [&str; 2] = ["active", "leader"];

async fn one(setting: &Setting, plan: Plan) -> anyhow::Result<(Log, Verdict)> {
    let temporary = tempfile::tempdir()?;
    let name = match &plan.mutant {
        Some(mutant) => format!("{mutant}-{}", plan.seed),
        None => plan.seed.to_string(),
    };
    let directory = setting.directory.as_ref().map_or(temporary.path(), PathBuf::as_path).join(name);
    std::fs::create_dir_all(&directory)?;
    report::begins(plan.mutant.as_deref(), plan.seed, plan.faults, &plan.mode);
    strike(setting, &plan, &directory).await?;
    let log = Log::read(&directory)?;
    let verdict = checker::check(&log);
    if verdict.holds() || plan.mutant.is_some() {
        return Ok((log, verdict));
    }
    // Worth a look: what was written down stays.
    if setting.directory.is_none() {
        drop(temporary.keep());
    }
    eprintln!("gauntlet: what was written down is kept: gauntlet check {}", directory.display());
    Ok((log, verdict))
}

/// Everything but the judgement.
async fn strike(setting: &Setting, plan: &Plan, directory: &Path) -> anyhow::Result<()> {
    let run = Run {
        seed: plan.seed,
        faults: plan.faults,
        kinds: plan.kinds.clone(),
        mode: plan.mode.clone(),
        mutant: plan.mutant.clone(),
        builds: vec![build(&setting.binary)?, build(&setting.other)?],
        lease_ms: world::LEASE_SECONDS * 1000,
        beat_ms: world::BEAT_MS,
        wake_timeout_ms: world::WAKE_TIMEOUT_SECONDS * 1000,
        max_failures: world::MAX_FAILURES,
        autonomy_max_consecutive: world::AUTONOMY_MAX_CONSECUTIVE,
        autonomy_cooldown_ms: world::AUTONOMY_COOLDOWN_MS,
        started_at: now(),
    };
    write_json(&directory.join("run.json"), &run)?;
    let sink = sink::Handle::start(directory).await?;
    let world = World::start(world::Setup {
        directory: directory.to_owned(),
        mode: plan.mode.clone(),
        binary: setting.binary.clone(),
        other: setting.other.clone(),
        mutant: plan.mutant.clone(),
        sink,
        kinds: plan.kinds.clone(),
    })
    .await?;
    let outcome = in_world(plan, directory, &world).await;
    world.close().await;
    outcome
}

async fn in_world(plan: &Plan, directory: &Path, world: &Arc<World>) -> anyhow::Result<()> {
    let calls = Arc::new(Journal::create(&directory.join("calls.jsonl"))?);
    let faults = Arc::new(Journal::create(&directory.join("faults.jsonl"))?);
    let enough = CancellationToken::new();
    let driving = tokio::spawn(driver::run(world.entry(), load(plan), calls, enough.clone()));
    sleep(HEAD_START).await;
    nemesis::run(Arc::clone(world), &plan.kinds, plan.faults, plan.pace, plan.seed, faults).await?;
    world.heal().await?;
    let healed_at = now();
    enough.cancel();
    driving.await??;
    rest(world).await?;
    world.stop_replicas().await?;
    let false_starts = world.false_starts();
    if false_starts > 0 {
        println!(
            "{false_starts} times a replica was started while it could not be, for want of a database as a rule, and again"
        );
    }
    let (tables, resources) = (world.tables().await?, world.resources().await?);
    write_json(&directory.join("end.json"), &End { healed_at, read_at: now(), tables, resources })
}

async fn rest(world: &World) -> anyhow::Result<()> {
    let since = Instant::now();
    while let Some(why) = world.unrest().await? {
        if since.elapsed() > REST {
            eprintln!("gauntlet: not at rest {REST:?} after the last fault: {why}");
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// A long run has 100 fires a fault, as the nemesis paces them, on two cores; also with a leader, of whom there is none for a quarter of a
/// minute after each death. For a short one, or to see a bug, a third of it is enough, and leaves the machine to the tests beside it. Where
/// faults are apart, too: to catch up with a quarter of a minute takes both cores for so long that beats are late, and no fault is there to
/// explain what comes of it.
fn load(plan: &Plan) -> Load {
    let share = if plan.faults < LONG || plan.pace == Pace::Apart { 0.3 } else { 1.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of series")]
    let series = (150.0 * share) as usize;
    Load { seed: plan.seed, once_per_second: 110.0 * share, series, resources: 16, sessions: 8, service_calls: 10 }
}

/// What tells two builds apart: the beginning of the file's hash.
fn build(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex::encode(&Sha256::digest(bytes)[..6]))
}

/// The machine's time, which is Postgres', too.
#[expect(clippy::disallowed_methods, reason = "the rig stands outside of what is tried")]
fn now() -> DateTime<Utc> {
    Utc::now()
}
