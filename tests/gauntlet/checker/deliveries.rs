//! What went out, under which id, how often, and whether the rows tell the same.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::{
    book::{About, Book, Found},
    faults::{Symptom, Undoes},
    rows::Attempt,
    sent::{Sent, To},
    slots::delivery_id,
};
use crate::log::{Fault, Kind, Pair};

/// Of whom a wake tells.
pub fn about(book: &Book<'_>, sent: &Sent<'_>) -> About {
    if let Some((session, _, _)) = &sent.session {
        return About::Session(session.clone());
    }
    if let Some(id) = sent.alarm {
        return book.about(id);
    }
    let place = book.tries.get(&sent.delivery).and_then(|tries| tries.first());
    let by_call =
        || book.timers.iter().position(|one| one.owner == sent.owner && Some(one.name) == sent.call.as_deref());
    match (place, by_call()) {
        (_, Some(timers)) => About::Timers(timers),
        (Some(place), None) => book.about(book.attempts[*place].alarm_id),
        (None, None) => About::Else(sent.wake.body.clone()),
    }
}

pub fn no_wake_is_early(book: &Book<'_>) -> Vec<Found> {
    let offset = |alarm: Option<Uuid>, nominal: DateTime<Utc>| {
        let row = alarm.and_then(|id| book.row_by_id.get(&id)).map(|place| &book.rows[*place]);
        // An edit of the spread changes the offset: the row's is that of the occurrence it stands at, and of those since the last edit.
        row.filter(|row| row.schedule_epoch == 0 && row.is_series()).map_or(nominal, |row| nominal + row.spread_offset)
    };
    let wakes = book.wakes.iter().filter_map(|sent| {
        let due_at = offset(sent.alarm, sent.scheduled_for);
        (sent.at() < due_at).then(|| Found {
            rule: "early",
            about: about(book, sent),
            what: format!("due at {due_at}, it woke the router at {}", sent.at()),
        })
    });
    let tries = book.attempts.iter().filter(|one| one.is_try()).filter_map(|one| {
        let due_at = offset(Some(one.alarm_id), one.scheduled_for);
        // The wake of it, if it came, is found above.
        let came = one.delivery_id.is_some_and(|delivery| book.wakes_of(delivery).any(|sent| sent.at() < due_at));
        (one.started_at < due_at && !came).then(|| Found {
            rule: "early",
            about: book.about(one.alarm_id),
            what: format!("due at {due_at}, an attempt began at {}", one.started_at),
        })
    });
    wakes.chain(tries).collect()
}

pub fn an_occurrence_has_one_delivery_id(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for sent in book.wakes.iter().filter(|sent| sent.wake.delivery_header != sent.delivery.to_string()) {
        let what = format!("delivery {} came with the header {:?}", sent.delivery, sent.wake.delivery_header);
        found.push(Found { rule: "split-id", about: about(book, sent), what });
    }
    // A service call's wake names no alarm, and its instant is cut to the millisecond: its attempts tell.
    let sent = book.wakes.iter().filter_map(|sent| Some((sent.delivery, sent.alarm?, sent.scheduled_for)));
    let told = book.attempts.iter();
    let told = told.filter_map(|one| Some((one.delivery_id?, one.alarm_id, one.last_at.unwrap_or(one.scheduled_for))));
    let all: BTreeSet<_> = sent.chain(told).collect();
    let mut by_delivery = BTreeMap::<Uuid, Vec<_>>::new();
    for (delivery, alarm, at) in &all {
        by_delivery.entry(*delivery).or_default().push((*alarm, *at));
        if epoch_of(book, *delivery, *alarm, *at).is_none() {
            let what = format!("delivery {delivery} is not the id of alarm {alarm} at {at}");
            found.push(Found { rule: "split-id", about: book.about(*alarm), what });
        }
    }
    for (delivery, occurrences) in by_delivery.iter().filter(|(_, occurrences)| occurrences.len() > 1) {
        let what = format!("delivery {delivery} stands for {} occurrences: {occurrences:?}", occurrences.len());
        found.push(Found { rule: "shared-id", about: book.about(occurrences[0].0), what });
    }
    found
}

/// Which plan of the alarm an occurrence belongs to.
pub fn epoch_of(book: &Book<'_>, delivery: Uuid, alarm: Uuid, at: DateTime<Utc>) -> Option<i64> {
    let stored = book.row_by_id.get(&alarm).map(|place| book.rows[*place].schedule_epoch);
    // What was undone, or deleted, may have been planned more often than the row says: by as many calls as there were.
    let lenient = match book.by_id.get(&alarm) {
        Some(About::Story(story)) if stored.is_none() || book.stories[*story].undone => {
            book.stories[*story].calls.len()
        }
        Some(About::Timers(timers)) if stored.is_none() || book.timers[*timers].undone => {
            book.timers[*timers].calls.len()
        }
        Some(about @ About::Session(_)) if stored.is_none() || book.excused(about) => 1000,
        _ => 0,
    };
    let newest = stored.unwrap_or(0).max(i64::try_from(lenient).unwrap_or(0));
    (0..=newest).find(|epoch| delivery_id(alarm, *epoch, at) == delivery)
}

/// The wakes of each delivery that was sent more than once; those of one number beside each other.
fn sent_again<'b>(book: &'b Book<'_>) -> impl Iterator<Item = Vec<&'b Sent<'b>>> {
    book.wakes_by_delivery.values().filter(|places| places.len() > 1).map(|places| {
        let mut wakes: Vec<&Sent<'_>> = places.iter().map(|place| &book.wakes[*place]).collect();
        wakes.sort_by_key(|sent| (sent.number, sent.at()));
        wakes
    })
}

/// Wakes, each with the last one before it, of another number, that the router took. Whether it took this one as well does not matter: it
/// should not have come.
fn taken_and_sent_again<'b>(book: &'b Book<'_>) -> Vec<(&'b Sent<'b>, &'b Sent<'b>)> {
    let mut pairs = Vec::new();
    for wakes in sent_again(book) {
        for (place, second) in wakes.iter().enumerate() {
            // One that was held up and came later than its successor was sent before it.
            let before = |first: &&&Sent<'_>| {
                first.wake.was_taken()
                    && first.number != second.number
                    && (second.wake.was_taken() || first.at() < second.at())
            };
            pairs.extend(wakes[..place].iter().rev().find(before).map(|first| (*first, *second)));
        }
    }
    pairs
}

/// Repeats that nothing explains; and how many there were that something did.
pub fn repeats<'b>(book: &'b Book<'_>) -> (Vec<Found>, usize) {
    let mut found = Vec::new();
    let mut explained = 0;
    let mut judge = |symptom: Symptom, first: &Sent<'_>, second: &Sent<'_>, what: String| {
        let about = about(book, first);
        if is_explained(book, symptom, first, (second.sender(), second.at())) {
            explained += 1;
        } else {
            found.push(Found { rule: "repeat", about, what });
        }
    };
    let neighbours = |wakes: Vec<&'b Sent<'b>>| wakes.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
    for (first, second) in sent_again(book).flat_map(neighbours) {
        // A service call's wake has no number: if the first was not taken, the second is the next attempt.
        if first.number != second.number || (first.number.is_none() && !first.was_taken()) {
            continue;
        }
        let symptom = symptom_of(first);
        let what = format!(
            "attempt {} of delivery {} was sent at {} by {} and again at {} by {}, and no fault explains it",
            first.number.map_or("?".to_owned(), |number| number.to_string()),
            first.delivery,
            first.at(),
            first.sender(),
            second.at(),
            second.sender()
        );
        judge(symptom, first, second, what);
    }
    // The same number twice is above.
    for (first, second) in taken_and_sent_again(book) {
        let what = format!(
            "the router took delivery {} as attempt {} of {} at {}, and it was sent again as attempt {} of {} at {}, and no fault explains it",
            first.delivery,
            first.number.unwrap_or(0),
            first.sender(),
            first.at(),
            second.number.unwrap_or(0),
            second.sender(),
            second.at()
        );
        judge(Symptom::TakenTwice, first, second, what);
    }
    (found, explained)
}

/// Without a number, a repeat may also be the next attempt after an answer that was lost.
fn symptom_of(first: &Sent<'_>) -> Symptom {
    if first.number.is_none() { Symptom::TakenTwice } else { Symptom::Repeated }
}

fn is_explained(book: &Book<'_>, symptom: Symptom, first: &Sent<'_>, second: (&str, DateTime<Utc>)) -> bool {
    book.faults.explain_again(symptom, (first.sender(), first.at()), second)
        // A failover may have taken back that the first was settled.
        || book.is_undone(Undoes::Rows, first.at(), first.at())
}

/// How many wakes there are of which it would be named had they been sent twice: by the same process, at once; and by another one when the
/// lease was over. Where faults are dense, one is at hand for whatever happens, and that nothing is found says little.
pub fn judged(book: &Book<'_>) -> (usize, usize) {
    let named = |sent: &Sent<'_>, again: (&str, DateTime<Utc>)| !is_explained(book, symptom_of(sent), sent, again);
    let at_once = |sent: &&Sent<'_>| named(sent, (sent.sender(), sent.at() + TimeDelta::milliseconds(50)));
    // Whoever it is: faults of a replica that is none are none.
    let later = |sent: &&Sent<'_>| named(sent, ("another", sent.at() + book.lease));
    (book.wakes.iter().filter(at_once).count(), book.wakes.iter().filter(later).count())
}

/// Those that counted are numbered from 1 without a gap, and end with the first that is not tried again.
pub fn attempts_are_numbered_without_gaps(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (delivery, places) in &book.tries {
        let tries: Vec<&Attempt> = places.iter().map(|place| &book.attempts[*place]).collect();
        let mut counted: Vec<_> =
            tries.iter().filter(|one| one.counted()).map(|one| (one.attempt, one.outcome.as_str())).collect();
        counted.sort_unstable();
        let about = book.about(tries[0].alarm_id);
        let numbers: Vec<i64> = counted.iter().map(|(number, _)| *number).collect();
        if !numbers.iter().zip(1..).all(|(number, expected)| *number == expected) {
            // Rows and numbers are one transaction's: a failover takes back both or none, and excuses nothing.
            let what = format!("the attempts of delivery {delivery} that counted are numbered {numbers:?}");
            found.push(Found { rule: "numbering", about, what });
            continue;
        }
        if let Some((number, outcome)) = counted.iter().rev().skip(1).find(|(_, outcome)| *outcome != "retrying") {
            let what = format!("attempt {number} of delivery {delivery} was {outcome}, and there was another after it");
            found.push(Found { rule: "numbering", about, what });
        }
    }
    found
}

/// What is recorded is what the router answered.
pub fn what_is_recorded_was_answered(book: &Book<'_>) -> Vec<Found> {
    // A session's timer is promoted, not sent: its wake is an effect of its own.
    let tries = book.tries.values().flatten().map(|place| &book.attempts[*place]);
    tries.filter_map(|one| recorded_wrong(book, one)).collect()
}

fn recorded_wrong(book: &Book<'_>, one: &Attempt) -> Option<Found> {
    let about = book.about(one.alarm_id);
    if matches!(about, About::Session(_)) {
        return None;
    }
    let wakes: Vec<&Sent<'_>> = one
        .delivery_id
        .into_iter()
        .flat_map(|delivery| book.wakes_of(delivery))
        .filter(|sent| sent.number.is_none_or(|number| number == one.attempt))
        .collect();
    let answered = |status: u16| {
        wakes
            .iter()
            .any(|sent| matches!(sent.wake.reaction, Some((crate::log::Reaction::Status(code), _)) if code == status))
    };
    let name = format!("attempt {} of {} is recorded as {}", one.attempt, one.scheduled_for, one.outcome);
    let (rule, what) = match (one.outcome.as_str(), one.http_status) {
        ("delivered", None) => ("uncounted", format!("{name} without an answer")),
        ("delivered", Some(status)) if !(200..=299).contains(&status) => {
            ("uncounted", format!("{name} with HTTP {status}"))
        }
        ("delivered", Some(_)) if !wakes.iter().any(|sent| sent.was_taken()) => {
            ("lost", format!("{name}, and the router took no wake of it"))
        }
        // It was thrown away for this: that must have been said.
        ("retrying" | "exhausted", Some(status)) if !answered(status) => {
            ("unjustified-failure", format!("{name} with HTTP {status}, which the router never answered"))
        }
        ("retrying" | "exhausted", Some(status)) if (200..=299).contains(&status) => {
            ("unjustified-failure", format!("{name} with HTTP {status}, which is a success"))
        }
        _ => return None,
    };
    Some(Found { rule, about, what })
}

/// A failure without an answer has a fault to explain it; and nothing is given up before its last attempt.
pub fn failures_are_justified(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for one in book.attempts.iter().filter(|one| one.is_try()) {
        let about = book.about(one.alarm_id);
        if ["retrying", "exhausted"].contains(&one.outcome.as_str()) && one.http_status.is_none() {
            let wake = one.delivery_id.into_iter().flat_map(|delivery| book.wakes_of(delivery));
            let mut wake = wake.filter(|sent| sent.number.is_none_or(|number| number == one.attempt));
            let by_worker = one.worker.and_then(|worker| book.workers.get(&worker)).map(String::as_str);
            // Who sent it is known by its worker; if that has sent nothing that arrived, by this wake; else it may have been anybody.
            let sender = by_worker.or_else(|| wake.next().map(Sent::sender));
            let second = TimeDelta::seconds(1);
            if !book.faults.explain(Symptom::Unanswered, sender, one.started_at - second, one.ended_at() + second) {
                let what = format!(
                    "attempt {} at {} by {} failed without an answer ({}), and no fault explains it",
                    one.attempt,
                    one.started_at,
                    sender.unwrap_or("nobody knows whom"),
                    one.error
                );
                found.push(Found { rule: "unjustified-failure", about: about.clone(), what });
            }
        }
        if one.outcome == "exhausted" && one.http_status != Some(410) {
            let least = match &about {
                About::Story(story) => {
                    let story = &book.stories[*story];
                    let default = book.log.run.max_failures;
                    story.definitions().map(|(_, definition)| definition.max_failures.unwrap_or(default)).min()
                }
                // Timers are never given up.
                About::Timers(_) | About::Session(_) => Some(u32::MAX),
                About::Else(_) => None,
            };
            if least.is_some_and(|least| one.attempt < i64::from(least) + 1) {
                let rule = if matches!(about, About::Timers(_)) { "timer" } else { "unjustified-failure" };
                let what = format!("given up after attempt {} at {}", one.attempt, one.started_at);
                found.push(Found { rule, about, what });
            }
        }
    }
    found
}

/// Every wake has a row of its own that tells of its attempt: counted, or fenced, or cancelled. But one whose sender could not write it.
pub fn what_was_sent_is_recorded(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (delivery, places) in &book.wakes_by_delivery {
        let mut by_number: BTreeMap<Option<i64>, Vec<&Sent<'_>>> = BTreeMap::new();
        for sent in places.iter().map(|place| &book.wakes[*place]).filter(|sent| sent.to != To::Session) {
            by_number.entry(sent.number).or_default().push(sent);
        }
        for (number, wakes) in by_number {
            let tries = book.tries.get(delivery).into_iter().flatten().map(|place| &book.attempts[*place]);
            let rows = tries.filter(|one| number.is_none_or(|number| number == one.attempt)).count();
            if rows >= wakes.len() {
                continue;
            }
            let unexplained: Vec<&&Sent<'_>> = wakes.iter().filter(|sent| !may_be_unrecorded(book, sent)).collect();
            let about = about(book, wakes[0]);
            // A stranger has a rule of its own.
            if rows < unexplained.len() && !matches!(about, About::Else(_)) {
                let what = format!(
                    "attempt {} of delivery {delivery} was sent {} times, the last at {} by {}, and {rows} rows tell of it",
                    number.unwrap_or(1),
                    wakes.len(),
                    unexplained[unexplained.len() - 1].at(),
                    unexplained[unexplained.len() - 1].sender()
                );
                found.push(Found { rule: "unrecorded", about, what });
            }
        }
    }
    found
}

fn may_be_unrecorded(book: &Book<'_>, sent: &Sent<'_>) -> bool {
    let (from, until) = (sent.at() - book.lease, sent.at() + book.lease + TimeDelta::seconds(1));
    let sender = Some(sent.sender());
    // Awake after its lease, a replica writes what it has to say; if its lines to Postgres were cut meanwhile, the first try fails and
    // there is no second.
    let slept_and_cut = || {
        let lines = |fault: &Fault| matches!(fault.kind, Kind::BackendsTerminated | Kind::ReplyLost(Pair::Postgres));
        book.faults.explain(Symptom::HeldUp, sender, from, until) && book.faults.within(from, until).any(lines)
    };
    book.faults.explain(Symptom::Unrecorded, sender, from, until)
        || book.is_undone(Undoes::Rows, sent.at(), sent.at())
        || slept_and_cut()
}
