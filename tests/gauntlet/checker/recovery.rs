//! How long it takes after a fault until wakes are on time again, and how late the latest came meanwhile.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    book::{About, Book},
    deliveries,
    punctual::touches_wakes,
    stories::{definition_in, is_done},
    verdict::Recovery,
};
use crate::log::{Fault, Kind, Schedule};

/// On time: of what comes due within a second,
const WINDOW: TimeDelta = TimeDelta::seconds(1);
/// nine out of ten
const SHARE: (usize, usize) = (9, 10);
/// are taken within a second.
const PROMPT: TimeDelta = TimeDelta::seconds(1);
/// Fewer occurrences than this say nothing.
const ENOUGH: usize = 5;
const STEP: TimeDelta = TimeDelta::milliseconds(50);
/// A wake that was due so long before a fault and had not come may have been under way when it struck.
const UNDER_WAY: TimeDelta = TimeDelta::seconds(1);

/// Of each kind, for each fault that struck: from its end until wakes were on time again. A kill is over when the slot has a process again,
/// which does not matter to whoever waits for a wake: there the time runs from when it struck. Where another fault that wakes notice was
/// there meanwhile, the time would be of both: such a fault is counted, and not timed. And how late the latest wake came, which says what
/// becomes of the few that a dead replica had claimed while others go on.
pub fn of(book: &Book<'_>) -> Vec<Recovery> {
    let course = Course::of(book);
    let all = left_alone(book);
    let elects = book.log.run.mode == "leader";
    let mut by_kind: BTreeMap<Kind, Recovery> = BTreeMap::new();
    for fault in book.faults.struck() {
        let from = begin(fault);
        let took = course.back_on_time(from);
        let is_other = |other: &&&Fault| other.number != fault.number && touches_wakes(other.kind, elects);
        let meets = |other: &&Fault| other.planned_at <= from + took && other.over_at.is_none_or(|over| over >= from);
        let recovery = by_kind.entry(fault.kind).or_insert_with(|| Recovery::of(fault.kind));
        if took > TimeDelta::zero() && book.faults.struck().iter().filter(is_other).any(meets) {
            recovery.among_others += 1;
        } else {
            recovery.again.0.push(took.to_std().unwrap_or_default());
            recovery.latest.0.push(latest(&all, fault, from + took).to_std().unwrap_or_default());
        }
    }
    by_kind.into_values().collect()
}

/// When it was due, and when the router first took it.
type Taken = (DateTime<Utc>, DateTime<Utc>);

/// Alarms that were made in time, by one call, and left alone: nothing but a fault can make them late. In the order of when they were due.
fn left_alone(book: &Book<'_>) -> Vec<Taken> {
    let mut all = Vec::with_capacity(book.wakes_by_delivery.len());
    for places in book.wakes_by_delivery.values() {
        let first = places.iter().map(|place| &book.wakes[*place]).find(|sent| sent.was_taken());
        let Some((sent, About::Story(place))) = first.map(|sent| (sent, deliveries::about(book, sent))) else {
            continue;
        };
        let story = &book.stories[place];
        let [call] = story.calls.as_slice() else { continue };
        let is_single = definition_in(call).is_some_and(|alarm| matches!(alarm.schedule, Schedule::At(_)));
        let in_time = is_done(call) && call.answered_at.is_some_and(|answered_at| answered_at < sent.scheduled_for);
        if is_single && in_time && story.resource.is_none() && !story.undone {
            all.push((sent.scheduled_for, sent.at()));
        }
    }
    all.sort_unstable();
    all
}

/// How late the latest wake came of those that were due while the fault lasted, or under way when it struck.
fn latest(all: &[Taken], fault: &Fault, until: DateTime<Utc>) -> TimeDelta {
    let struck_at = fault.struck_at.unwrap_or(fault.planned_at);
    let place = |instant| all.partition_point(|(due, _)| *due < instant);
    let due = &all[place(struck_at - UNDER_WAY)..place(until.max(struck_at))];
    let late = due.iter().filter(|(_, taken_at)| *taken_at > struck_at).map(|(due, taken_at)| *taken_at - *due);
    late.max().unwrap_or_default()
}

fn begin(fault: &Fault) -> DateTime<Utc> {
    let struck_at = fault.struck_at.unwrap_or(fault.planned_at);
    let at_its_blow = matches!(fault.kind, Kind::Kill | Kind::KillAt(_));
    if at_its_blow { struck_at } else { fault.over_at.unwrap_or(struck_at) }
}

/// When occurrences were due, in order, and how many of those before each were prompt.
struct Course {
    due: Vec<DateTime<Utc>>,
    prompt_before: Vec<usize>,
}

impl Course {
    fn of(book: &Book<'_>) -> Self {
        let mut all: Vec<(DateTime<Utc>, bool)> = Vec::with_capacity(book.wakes_by_delivery.len());
        for places in book.wakes_by_delivery.values() {
            let mut wakes = places.iter().map(|place| &book.wakes[*place]);
            let Some(first) = wakes.clone().next() else { continue };
            let row = first.alarm.and_then(|id| book.row_by_id.get(&id)).map(|place| &book.rows[*place]);
            let due = first.scheduled_for + row.map_or(TimeDelta::zero(), |row| row.spread_offset);
            all.push((due, wakes.any(|sent| sent.was_taken() && sent.at() - due < PROMPT)));
        }
        all.sort_unstable();
        let mut prompt_before = vec![0];
        for (_, prompt) in &all {
            prompt_before.push(prompt_before[prompt_before.len() - 1] + usize::from(*prompt));
        }
        Self { due: all.into_iter().map(|(due, _)| due).collect(), prompt_before }
    }

    fn back_on_time(&self, from: DateTime<Utc>) -> TimeDelta {
        let Some(last) = self.due.last() else { return TimeDelta::zero() };
        let mut at = from;
        while at <= *last && !self.is_on_time(at) {
            at += STEP;
        }
        at - from
    }

    fn is_on_time(&self, at: DateTime<Utc>) -> bool {
        let place = |instant| self.due.partition_point(|due| *due < instant);
        let (first, end) = (place(at), place(at + WINDOW));
        let prompt = self.prompt_before[end] - self.prompt_before[first];
        end - first >= ENOUGH && prompt * SHARE.1 >= (end - first) * SHARE.0
    }
}
