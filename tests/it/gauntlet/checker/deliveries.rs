//! What went out, under which id, how often, and whether the rows tell the same.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    super::history::{Symptom, Wake},
    book::Book,
};

/// The name space of delivery ids, spelt out.
const DELIVERIES: &[u8; 16] = b"chronos_delivery";

pub fn no_wake_is_early(book: &Book<'_>) -> Vec<String> {
    let due_at =
        |alarm: Uuid, nominal: DateTime<Utc>| book.alarms.get(&alarm).map_or(nominal, |row| nominal + row.offset());
    let wakes = book.history.wakes.iter().filter_map(|wake| {
        let due_at = due_at(wake.alarm_id, wake.scheduled_for);
        (wake.arrived_at < due_at)
            .then(|| format!("alarm {} was due at {due_at} and woke the router at {}", wake.alarm_id, wake.arrived_at))
    });
    let tries = book.history.attempts.iter().filter(|one| one.attempt > 0).filter_map(|one| {
        let due_at = due_at(one.alarm_id, one.scheduled_for);
        (one.started_at < due_at)
            .then(|| format!("alarm {} was due at {due_at} and an attempt began at {}", one.alarm_id, one.started_at))
    });
    wakes.chain(tries).collect()
}

/// A version 5 UUID over alarm, epoch and the nominal instant in microseconds.
pub fn delivery_id(alarm: Uuid, epoch: i64, scheduled_for: DateTime<Utc>) -> Uuid {
    let name = [&alarm.as_bytes()[..], &epoch.to_be_bytes(), &scheduled_for.timestamp_micros().to_be_bytes()].concat();
    Uuid::new_v5(&Uuid::from_bytes(*DELIVERIES), &name)
}

pub fn an_occurrence_has_one_delivery_id(book: &Book<'_>) -> Vec<String> {
    let sent = book.history.wakes.iter().map(|wake| (wake.delivery_id, wake.alarm_id, wake.scheduled_for));
    let told = book.history.attempts.iter();
    let told = told.filter_map(|one| Some((one.delivery_id?, one.alarm_id, one.last_at.unwrap_or(one.scheduled_for))));
    let all: BTreeSet<_> = sent.chain(told).collect();

    let mut found = Vec::new();
    let (mut by_delivery, mut by_occurrence) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for (delivery, alarm, at) in &all {
        by_delivery.entry(delivery).or_default().push((alarm, at));
        by_occurrence.entry((alarm, at)).or_default().push(delivery);
        // Every epoch there has been: a re-planned occurrence is another one.
        let epochs = 0..=book.alarms.get(alarm).map_or(0, |row| row.schedule_epoch);
        if !epochs.into_iter().any(|epoch| delivery_id(*alarm, epoch, *at) == *delivery) {
            found.push(format!("delivery {delivery} is not the id of alarm {alarm} at {at}"));
        }
    }
    for (delivery, occurrences) in by_delivery {
        if occurrences.len() > 1 {
            found.push(format!("delivery {delivery} stands for {} occurrences", occurrences.len()));
        }
    }
    for ((alarm, at), deliveries) in by_occurrence {
        let planned = book.alarms.get(alarm).map_or(0, |row| row.schedule_epoch) + 1;
        if i64::try_from(deliveries.len()).is_ok_and(|ids| ids > planned) {
            found.push(format!("alarm {alarm} at {at} went out under {} delivery ids", deliveries.len()));
        }
    }
    found
}

pub fn a_repeat_has_a_fault_to_explain_it(book: &Book<'_>) -> Vec<String> {
    pairs(book, |_| true)
        .filter(|(first, second)| first.attempt == second.attempt && !explained(book, Symptom::Repeated, first, second))
        .map(|(first, second)| {
            format!(
                "alarm {}: attempt {} of delivery {} was sent at {} by {:?} and again at {} by {:?}, and no fault explains it",
                first.alarm_id,
                first.attempt,
                first.delivery_id,
                first.arrived_at,
                first.replica,
                second.arrived_at,
                second.replica
            )
        })
        .collect()
}

pub fn a_second_acceptance_has_a_fault_to_explain_it(book: &Book<'_>) -> Vec<String> {
    pairs(book, Wake::was_taken)
        // The same number twice is a repeat, which has its own rule.
        .filter(|(first, second)| {
            first.attempt != second.attempt && !explained(book, Symptom::TakenTwice, first, second)
        })
        .map(|(first, second)| {
            format!(
                "alarm {}: the router took delivery {} as attempt {} and again as attempt {}, and no fault explains it",
                first.alarm_id, first.delivery_id, first.attempt, second.attempt
            )
        })
        .collect()
}

/// Neighbours among the wakes of one delivery, as far as they are of interest; of one number beside each other.
fn pairs<'a>(book: &Book<'a>, of_interest: impl Fn(&Wake) -> bool) -> impl Iterator<Item = (&'a Wake, &'a Wake)> {
    let deliveries = book.wakes.values().map(|wakes| {
        let mut wakes: Vec<_> = wakes.iter().copied().filter(|wake| of_interest(wake)).collect();
        wakes.sort_by_key(|wake| (wake.attempt, wake.arrived_at));
        wakes
    });
    let pairs = deliveries.flat_map(|wakes| wakes.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>());
    pairs.collect::<Vec<_>>().into_iter()
}

fn explained(book: &Book<'_>, symptom: Symptom, first: &Wake, second: &Wake) -> bool {
    book.explained(symptom, &first.replica, Some(&second.replica), first.arrived_at, second.arrived_at)
}

/// Those that counted. What was fenced or cancelled repeats a number or stands beside.
pub fn attempts_are_numbered_without_gaps(book: &Book<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for (delivery, tries) in &book.tries {
        let mut counted: Vec<_> = tries
            .iter()
            .filter(|one| ["delivered", "retrying", "exhausted"].contains(&one.outcome.as_str()))
            .map(|one| (one.attempt, one.outcome.as_str()))
            .collect();
        counted.sort_unstable();
        let alarm = tries.first().map_or(Uuid::nil(), |one| one.alarm_id);
        if !counted.iter().zip(1..).all(|((number, _), expected)| *number == expected) {
            let numbers: Vec<_> = counted.iter().map(|(number, _)| number).collect();
            found.push(format!("alarm {alarm}: the attempts of delivery {delivery} are numbered {numbers:?}"));
        }
        let early_end = counted.iter().rev().skip(1).find(|(_, outcome)| *outcome != "retrying");
        found.extend(early_end.map(|(number, outcome)| {
            format!(
                "alarm {alarm}: attempt {number} of delivery {delivery} was {outcome}, and there was another after it"
            )
        }));
    }
    found
}

pub fn what_is_recorded_was_answered(book: &Book<'_>) -> Vec<String> {
    let tries = book.tries.values().flatten();
    tries
        .filter_map(|one| {
            let status = one.http_status.and_then(|status| u16::try_from(status).ok());
            let name = || format!("alarm {}: attempt {} is recorded as {}", one.alarm_id, one.attempt, one.outcome);
            match status {
                None if one.outcome == "delivered" => Some(format!("{} without an answer", name())),
                None => None,
                Some(status) if one.outcome == "delivered" && !(200..=299).contains(&status) => {
                    Some(format!("{} with HTTP {status}", name()))
                }
                Some(status) if !book.wakes_at(one.delivery_id, one.attempt).any(|wake| wake.answered(status)) => {
                    Some(format!("{} with HTTP {status}, which the router never answered", name()))
                }
                Some(_) => None,
            }
        })
        .collect()
}

pub fn a_failure_without_an_answer_has_a_fault_to_explain_it(book: &Book<'_>) -> Vec<String> {
    let failed = book.tries.values().flatten().filter(|one| ["retrying", "exhausted"].contains(&one.outcome.as_str()));
    failed
        .filter(|one| one.http_status.is_none())
        .filter(|one| {
            let sender = book.wakes_at(one.delivery_id, one.attempt).next().map_or("", |wake| wake.replica.as_str());
            !book.explained(Symptom::Unanswered, sender, None, one.started_at, one.ended_at())
        })
        .map(|one| {
            format!(
                "alarm {}: attempt {} failed without an answer, and no fault explains it",
                one.alarm_id, one.attempt
            )
        })
        .collect()
}

pub fn what_was_sent_is_recorded(book: &Book<'_>) -> Vec<String> {
    let unrecorded = book.history.wakes.iter().filter(|wake| {
        let tries = book.tries.get(&wake.delivery_id).map_or(&[][..], Vec::as_slice);
        let recorded = tries.iter().any(|one| one.attempt == wake.attempt);
        let until = book.history.read_at;
        !recorded && !book.explained(Symptom::Unrecorded, &wake.replica, None, wake.arrived_at, until)
    });
    unrecorded
        .map(|wake| {
            format!(
                "alarm {}: attempt {} was sent at {}, and no row tells of it",
                wake.alarm_id, wake.attempt, wake.arrived_at
            )
        })
        .collect()
}
