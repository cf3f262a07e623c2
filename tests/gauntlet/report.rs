//! What people read: lines while it runs, tables at the end.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    checker::{Counts, NAMES, Recovery, Verdict},
    log::{Kind, Log, Run},
    mutants::Mutant,
    simulation::Outcome,
};

pub fn begins(mutant: Option<&str>, seed: u64, faults: usize, mode: &str) {
    let what = mutant.map_or_else(String::new, |mutant| format!("mutant {mutant}: "));
    println!("{what}seed {seed}, {faults} faults, dispatch mode {mode}");
}

/// One run. Says whether it was valid and every promise held.
pub fn one(log: &Log, verdict: &Verdict) -> bool {
    let Counts { faults, calls, unknown, fires, wakes, repeats_explained, judged, judged_later, .. } = verdict.counts;
    let took = (log.end.read_at - log.run.started_at).num_seconds();
    if !verdict.holds() {
        print!("{}", verdict.print());
    }
    println!(
        "seed {}: {took} s, {faults} faults, {calls} calls ({unknown} unknown), {fires} fires, {wakes} wakes, {repeats_explained} repeats that a fault explains ({judged} could have been repeated by none at once, {judged_later} by none a lease later); {}",
        log.run.seed,
        sentence(verdict)
    );
    verdict.holds()
}

fn sentence(verdict: &Verdict) -> String {
    match (verdict.invalid.len(), verdict.violations.len()) {
        (0, 0) => "every promise held".to_owned(),
        (0, broken) => format!("{broken} promises BROKEN"),
        (invalid, broken) => format!("INVALID for {invalid} reasons, {broken} promises broken"),
    }
}

/// A run of which everything but its counts is forgotten.
pub type Batch = (Run, Verdict);

/// All batches, as the tables that stand in docs/reliability.md.
pub fn all(batches: &[Batch]) -> bool {
    println!(
        "\n| seed | mode | faults | calls | unknown | fires | exhausted | missed | cancelled | ahead | undone | occurrences | wakes | judged at once | judged later | repeats explained | violations |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut sums = [0; 14];
    for (run, verdict) in batches {
        let c = &verdict.counts;
        let cells = [
            c.faults,
            c.calls,
            c.unknown,
            c.fires,
            c.exhausted,
            c.missed,
            c.cancelled,
            c.ahead,
            c.undone,
            c.occurrences,
            c.wakes,
            c.judged,
            c.judged_later,
            c.repeats_explained,
        ];
        sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell);
        println!("| {} | {} | {} | {} |", run.seed, run.mode, row(&cells), verdict.violations.len());
    }
    let broken: usize = batches.iter().map(|(_, verdict)| verdict.violations.len()).sum();
    println!("| **all** | | {} | {broken} |", row(&sums));
    let without_cluster: usize = batches.iter().map(|(_, verdict)| verdict.counts.without_cluster).sum();
    println!(
        "\nOccurrences that were due while nothing but the cluster was broken, and judged by it: {without_cluster}."
    );
    rules(batches);
    kinds(batches);
    let good = batches.iter().filter(|(_, verdict)| verdict.holds()).count();
    let hold = good == batches.len();
    println!(
        "\n{}",
        if hold { "Every promise held." } else { "NOT every promise held, or a run was invalid: see above." }
    );
    counted(good, batches.len())
}

fn row(cells: &[usize]) -> String {
    cells.iter().map(usize::to_string).collect::<Vec<_>>().join(" | ")
}

/// What was looked for, and how often it was found.
fn rules(batches: &[Batch]) {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, verdict) in batches {
        for (rule, count) in verdict.by_rule() {
            *found.entry(rule).or_default() += count;
        }
    }
    let told = |rule: &&str| format!("{rule} {}", found.get(rule).unwrap_or(&0));
    println!("\nViolations by rule: {}.", NAMES.iter().map(told).collect::<Vec<_>>().join(", "));
}

/// Faults by kind, and how long it took after each until wakes were on time again.
fn kinds(batches: &[Batch]) {
    let mut struck: BTreeMap<Kind, Recovery> = BTreeMap::new();
    for (run, verdict) in batches {
        let none = run.kinds.iter().map(|kind| Recovery::of(*kind));
        for recovery in none.chain(verdict.recovery.iter().cloned()) {
            struck.entry(recovery.kind).or_insert_with(|| Recovery::of(recovery.kind)).add(&recovery);
        }
    }
    println!(
        "\n| fault | struck | timed | on time again after (median) | (worst) | latest wake came late by (median) | (worst) |"
    );
    println!("|---|---|---|---|---|---|---|");
    let (mut all, mut timed) = (0, 0);
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    for (kind, recovery) in struck {
        let (again, latest, count) = (&recovery.again, &recovery.latest, recovery.again.0.len());
        let cells = [again.median(), again.worst(), latest.median(), latest.worst()].map(seconds).join(" | ");
        println!("| {} | {} | {count} | {cells} |", kind.name(), count + recovery.among_others);
        (all, timed) = (all + count + recovery.among_others, timed + count);
    }
    println!("| **all** | {all} | {timed} | | | | |");
}

pub type Hunted<'a> = (&'a Mutant, u64, Verdict);

/// Whether a mutant was found: by one of the rules that are made for it.
fn caught((mutant, _, verdict): &Hunted<'_>) -> bool {
    verdict.violations.iter().any(|violation| mutant.rules.contains(&violation.rule))
}

pub fn mutant(hunted: &Hunted<'_>) {
    let (mutant, seed, verdict) = hunted;
    let found: Vec<_> = verdict.by_rule().into_iter().map(|(rule, count)| format!("{rule} {count}")).collect();
    let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
    let word = if caught(hunted) { "caught" } else { "MISSED" };
    println!("mutant {} (seed {seed}): {word}; found: {found}", mutant.name);
    for violation in verdict.violations.iter().filter(|one| mutant.rules.contains(&one.rule)).take(1) {
        println!("    {}: {}", violation.rule, violation.what);
    }
}

pub fn mutants(all: &[Hunted<'_>]) -> bool {
    println!("\n| mutant | caught by |\n|---|---|");
    for hunted in all {
        let found: Vec<_> = hunted.2.by_rule().into_iter().map(|(rule, count)| format!("{rule} ({count})")).collect();
        let found = if caught(hunted) { found.join(", ") } else { format!("MISSED; found {}", found.join(", ")) };
        println!("| {} | {found} |", hunted.0.name);
    }
    let count = all.iter().filter(|hunted| caught(hunted)).count();
    println!("\nMutants caught: {count} of {}.", all.len());
    counted(count, all.len())
}

/// As Cargo closes a suite: `.ci/run` adds these up.
fn counted(good: usize, all: usize) -> bool {
    let word = if good == all { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {good} passed; {} failed; 0 ignored", all - good);
    good == all
}

pub fn simulated(outcome: &Outcome) -> bool {
    for failure in &outcome.failures {
        print!("{failure}");
    }
    println!(
        "{} interleavings: {:?}; {} broke something",
        outcome.interleavings,
        outcome.counts,
        outcome.failures.len()
    );
    outcome.failures.is_empty()
}
