//! What must hold when a world has come to rest: section 11 of the design, as far as a dispatcher can break it.

use std::collections::BTreeMap;

use chronos::domain::{
    alarm::Status,
    ids::DeliveryId,
    occurrence::{Outcome, Passed},
    schedule::Schedule,
};

use super::{
    client::Epoch,
    table::{MS, Micros, What, at, micros},
    world::{Arrival, World},
};

/// What was broken, in words.
pub fn broken(world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    at_rest(world, &mut broken);
    told_once(world, &mut broken);
    numbered(world, &mut broken);
    delivered(world, &mut broken);
    arrivals(world, &mut broken);
    repeats(world, &mut broken);
    not_taken_back(world, &mut broken);
    broken
}

fn at_rest(world: &World, broken: &mut Vec<String>) {
    for (alarm, row) in world.table.rows.iter().enumerate() {
        if row.claim.is_some() {
            broken.push(format!("alarm {alarm} is claimed at rest"));
        }
        let cancelled = world.client.cancelled.iter().any(|(cancelled, _)| *cancelled == alarm);
        if cancelled && row.status != Status::Cancelled {
            broken.push(format!("alarm {alarm} was cancelled and is {}", row.status.as_str()));
        }
    }
}

/// The slots of a plan up to and including that instant.
fn slots(epoch: &Epoch, until: Micros) -> Vec<Micros> {
    match &epoch.timing.schedule {
        Schedule::Once { .. } => vec![epoch.first].into_iter().filter(|slot| *slot <= until).collect(),
        Schedule::Cron(recurrence) => {
            let all = std::iter::successors(Some(at(epoch.first)), |slot| recurrence.next_after(*slot));
            all.map(micros).take_while(|slot| *slot <= until).collect()
        }
    }
}

/// Every slot that passed is told: tried, or in one run of those that were not.
fn told_once(world: &World, broken: &mut Vec<String>) {
    let mut told: BTreeMap<(usize, i64, Micros), u32> = BTreeMap::new();
    for row in &world.table.history {
        match &row.what {
            What::Tried { scheduled_for, outcome: Outcome::Delivered | Outcome::Exhausted, .. } => {
                *told.entry((row.alarm, row.epoch, *scheduled_for)).or_default() += 1;
            }
            What::Tried { .. } => {}
            What::Passed(passed) => {
                let epoch = world.epochs.iter().find(|epoch| epoch.alarm == row.alarm && epoch.number == row.epoch);
                let members = slots(epoch.expect("it was planned"), micros(passed.run.last));
                let members: Vec<Micros> =
                    members.into_iter().filter(|slot| *slot >= micros(passed.run.first)).collect();
                if members.len() as u64 != passed.run.slots {
                    broken.push(format!(
                        "alarm {}: a run of {} slots stands for {}",
                        row.alarm,
                        passed.run.slots,
                        members.len()
                    ));
                }
                for slot in members {
                    *told.entry((row.alarm, row.epoch, slot)).or_default() += 1;
                }
            }
        }
    }
    for epoch in &world.epochs {
        let cancelled = world.client.cancelled.iter().find(|(alarm, _)| *alarm == epoch.alarm).map(|(_, at)| *at);
        let is_last = epoch.ended_at.is_none();
        let until = epoch.ended_at.map_or(Micros::MAX, |ended_at| ended_at - epoch.offset);
        for slot in slots(epoch, until) {
            let times = told.get(&(epoch.alarm, epoch.number, slot)).copied().unwrap_or(0);
            let excused = epoch.spared == Some(slot) || (is_last && cancelled.is_some());
            if times > 1 || (times == 0 && !excused) {
                broken.push(format!(
                    "alarm {}, plan {}: slot {} is told {times} times",
                    epoch.alarm,
                    epoch.number,
                    slot / MS
                ));
            }
        }
    }
}

/// Attempts at an occurrence are counted from one, without gaps.
fn numbered(world: &World, broken: &mut Vec<String>) {
    let mut numbers: BTreeMap<(usize, i64, Micros), Vec<(u32, bool)>> = BTreeMap::new();
    for row in &world.table.history {
        if let What::Tried { scheduled_for, number, outcome, .. } = &row.what {
            let counts = !matches!(outcome, Outcome::Fenced | Outcome::Cancelled);
            numbers.entry((row.alarm, row.epoch, *scheduled_for)).or_default().push((*number, counts));
        }
    }
    for ((alarm, _, slot), attempts) in numbers {
        let counted: Vec<u32> = attempts.iter().filter(|(_, counts)| *counts).map(|(number, _)| *number).collect();
        let most = u32::try_from(counted.len()).expect("a few");
        if !counted.iter().copied().eq(1..=most) || attempts.iter().any(|(number, _)| *number > most + 1) {
            broken
                .push(format!("alarm {alarm}, slot {}: attempts are numbered {counted:?} in {attempts:?}", slot / MS));
        }
    }
}

/// What is written down as delivered was taken by the router, and what is spent was delivered or given up for a reason.
fn delivered(world: &World, broken: &mut Vec<String>) {
    let taken =
        |delivery: DeliveryId| world.arrivals.iter().any(|arrival| arrival.delivery == delivery && arrival.taken);
    for row in &world.table.history {
        if let What::Tried { delivery, outcome: Outcome::Delivered, scheduled_for, .. } = &row.what
            && !taken(*delivery)
        {
            broken.push(format!("alarm {}: slot {} counts as delivered and was not", row.alarm, scheduled_for / MS));
        }
    }
}

fn arrivals(world: &World, broken: &mut Vec<String>) {
    let mut ids: BTreeMap<(usize, i64, Micros), DeliveryId> = BTreeMap::new();
    let mut occurrences: BTreeMap<DeliveryId, (usize, i64, Micros)> = BTreeMap::new();
    for arrival in &world.arrivals {
        let Arrival { alarm, epoch, scheduled_for, effective_at, claimed_at, delivery, at, .. } = arrival;
        if at < effective_at {
            broken.push(format!("alarm {alarm}: slot {} arrived at {}", scheduled_for / MS, at / MS));
        }
        let occurrence = (*alarm, *epoch, *scheduled_for);
        if *ids.entry(occurrence).or_insert(*delivery) != *delivery {
            broken.push(format!("alarm {alarm}: slot {} has two delivery ids", scheduled_for / MS));
        }
        if *occurrences.entry(*delivery).or_insert(occurrence) != occurrence {
            broken.push(format!("alarm {alarm}: two slots share a delivery id"));
        }
        if world.client.cancelled.iter().any(|(cancelled, since)| cancelled == alarm && claimed_at > since) {
            broken.push(format!("alarm {alarm} was claimed at {} after it was cancelled", claimed_at / MS));
        }
        let paused = world.client.paused.iter();
        if paused.into_iter().any(|(paused, from, to)| paused == alarm && claimed_at > from && claimed_at < to) {
            broken.push(format!("alarm {alarm} was claimed at {} while it was paused", claimed_at / MS));
        }
    }
}

/// The same wake again after it was taken: only if somebody who sent it was hit.
fn repeats(world: &World, broken: &mut Vec<String>) {
    let mut sent: BTreeMap<DeliveryId, Vec<&Arrival>> = BTreeMap::new();
    for arrival in &world.arrivals {
        let before = sent.entry(arrival.delivery).or_default();
        if before.iter().any(|before| before.taken) {
            let hit = |one: &Arrival| {
                let overlaps = |from: Micros, to: Micros| to >= one.claimed_at - SHADOW && from <= arrival.at;
                world.faults.iter().any(|(worker, from, to)| *worker == one.worker && overlaps(*from, *to))
            };
            if !before.iter().any(|before| hit(before)) && !hit(arrival) {
                broken.push(format!(
                    "alarm {}: slot {} arrived again at {}, and nobody was hit",
                    arrival.alarm,
                    arrival.scheduled_for / MS,
                    arrival.at / MS
                ));
            }
        }
        before.push(arrival);
    }
}

/// What the router has is not told as too late, as another's, or as passed over: whoever comes after a crash comes to the same verdict,
/// and what an edit overtakes is told as fenced.
fn not_taken_back(world: &World, broken: &mut Vec<String>) {
    for row in &world.table.history {
        let What::Passed(Passed { run, outcome: Outcome::Missed | Outcome::Skipped, reason }) = &row.what else {
            continue;
        };
        let told = micros(run.first)..=micros(run.last);
        let is_its = |arrival: &&Arrival| (arrival.alarm, arrival.epoch) == (row.alarm, row.epoch);
        for arrival in world.arrivals.iter().filter(is_its).filter(|one| one.taken && told.contains(&one.scheduled_for))
        {
            let slot = arrival.scheduled_for / MS;
            broken.push(format!("alarm {}: slot {slot} was taken and is told as {}", row.alarm, reason.as_str()));
        }
    }
}

/// A fault before the claim may still explain a repeat: beats that were lost are counted by peers a while later.
const SHADOW: Micros = 2_000 * MS;
