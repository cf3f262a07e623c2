//! What became of every alarm.

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use super::{
    super::history::{Alarm, Kind, Wake},
    book::Book,
};

pub fn every_alarm_fired_or_says_why_not(book: &Book<'_>) -> Vec<String> {
    book.created
        .iter()
        .filter_map(|(id, kind)| fate(book, *id, *kind).map(|what| format!("alarm {id} {what}")))
        .collect()
}

fn fate(book: &Book<'_>, id: Uuid, kind: Kind) -> Option<String> {
    let Some(alarm) = book.alarms.get(&id) else {
        return Some("was accepted, and no row tells of it".to_owned());
    };
    let any = |outcomes: &[&str]| book.attempts_of(id).any(|one| outcomes.contains(&one.outcome.as_str()));
    match (alarm.status.as_str(), kind) {
        ("fired", Kind::Once) if !any(&["delivered"]) => Some("is fired, and no attempt delivered it".to_owned()),
        ("fired", Kind::Once) if !book.wakes_of(id).any(Wake::was_taken) => {
            Some("is fired, and the router took no wake of it".to_owned())
        }
        ("fired", _) => None,
        ("failed", _) if !any(&["exhausted", "missed"]) => Some("is failed, and no attempt says why".to_owned()),
        ("failed", _) if alarm.last_error.is_empty() => Some("is failed without a reason".to_owned()),
        ("failed", _) => None,
        ("cancelled", _) if !book.cancelled.contains_key(&id) => Some("is cancelled, and nobody did".to_owned()),
        ("cancelled", _) => None,
        ("active", _) if alarm.next_fire_at <= book.history.read_at => {
            Some(format!("was due at {} and nothing became of it", alarm.next_fire_at))
        }
        ("active" | "paused", _) => None,
        (other, _) => Some(format!("has a status that nobody knows: {other}")),
    }
}

pub fn every_slot_of_a_series_is_told_once(book: &Book<'_>) -> Vec<String> {
    let series = book.created.iter().filter_map(|(id, kind)| match kind {
        Kind::Once => None,
        Kind::Every(period) => book.alarms.get(id).map(|alarm| (*alarm, *period)),
    });
    series.flat_map(|(alarm, period)| untold_slots(book, alarm, period)).collect()
}

/// Slots are numbered from 1, a period after creation.
fn untold_slots(book: &Book<'_>, alarm: &Alarm, period: Duration) -> Vec<String> {
    let id = alarm.id;
    let period = i64::try_from(period.as_micros()).expect("a test's period is short");
    let number = |instant: chrono::DateTime<chrono::Utc>| {
        let since = (instant - alarm.created_at).num_microseconds().expect("a test is short");
        (since > 0 && since % period == 0).then_some(since / period)
    };
    let (mut told, mut found): (BTreeMap<i64, usize>, Vec<String>) = (BTreeMap::new(), Vec::new());
    for attempt in book.attempts_of(id) {
        let (first, last) = match attempt.outcome.as_str() {
            "delivered" | "exhausted" => (attempt.scheduled_for, attempt.scheduled_for),
            "missed" | "skipped" => {
                (attempt.first_at.unwrap_or(attempt.scheduled_for), attempt.last_at.unwrap_or(attempt.scheduled_for))
            }
            _ => continue, // these tell of a try, not of a slot
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) => {
                if attempt.slots.is_some_and(|slots| slots != last - first + 1) {
                    found.push(format!(
                        "alarm {id}: a run from slot {first} to {last} counts {:?} slots",
                        attempt.slots
                    ));
                }
                (first..=last).for_each(|slot| *told.entry(slot).or_default() += 1);
            }
            (None, _) | (_, None) => found.push(format!("alarm {id}: no slot lies at {first} or {last}")),
        }
    }
    // An alarm that lives on has told everything before the slot now due; one that is over, everything before its last.
    let next = match alarm.status.as_str() {
        "active" | "paused" => number(alarm.scheduled_for).unwrap_or(1),
        _ => told.keys().next_back().map_or(1, |last| last + 1),
    };
    found.extend(
        (1..next).filter(|slot| !told.contains_key(slot)).map(|slot| format!("alarm {id}: slot {slot} left no trace")),
    );
    let often = told.iter().filter(|(_, count)| **count > 1);
    found.extend(often.map(|(slot, count)| format!("alarm {id}: slot {slot} is told {count} times")));
    found
}

pub fn what_was_counted_was_delivered(book: &Book<'_>) -> Vec<String> {
    let wrong = book.history.alarms.iter().filter_map(|alarm| {
        let delivered = book.attempts_of(alarm.id).filter(|one| one.outcome == "delivered").count();
        let counted = usize::try_from(alarm.fired_count).unwrap_or(usize::MAX);
        (counted != delivered)
            .then(|| format!("alarm {} counts {counted} deliveries, and {delivered} are recorded", alarm.id))
    });
    wrong.collect()
}

pub fn nothing_is_claimed_at_rest(book: &Book<'_>) -> Vec<String> {
    let claimed = book.history.alarms.iter().filter(|alarm| alarm.claim_token.is_some());
    claimed.map(|alarm| format!("alarm {} is still claimed at rest", alarm.id)).collect()
}

pub fn nobody_else_is_woken(book: &Book<'_>) -> Vec<String> {
    let woken = book.history.wakes.iter().map(|wake| (wake.alarm_id, "was woken"));
    let told = book.history.attempts.iter().map(|attempt| (attempt.alarm_id, "has an attempt"));
    let strangers = woken.chain(told).filter(|(id, _)| !book.created.contains_key(id));
    strangers.map(|(id, what)| format!("alarm {id} {what}, and nobody made it")).collect()
}
