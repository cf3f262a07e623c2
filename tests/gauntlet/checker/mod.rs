//! Reads the log of a run and names every promise that was not kept. Pure, offline.
//!
//! The rules know nothing of the code they judge: they work from what was asked and answered, what the router saw, what the nemesis
//! did and what the tables say at rest, and compute delivery ids, slots and keys by themselves. A rule is a function over the `Book`,
//! the log turned around; it is strict where the log makes a thing certain, and says in a comment why it is lenient where it is.

mod book;
mod deliveries;
mod ends;
mod fates;
mod faults;
mod ledger;
mod punctual;
mod recovery;
mod resources;
mod rows;
mod sends;
mod sent;
mod series;
mod sessions;
mod slots;
mod stories;
mod telling;
mod timeline;
mod timers;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use book::{Book, Found};
pub use verdict::{Counts, Recovery, Verdict, Violation};

use crate::log::{Kind, Log};

/// What violations are called, in the order of the design's promises.
pub const NAMES: &[&str] = &[
    "lost",
    "late",
    "stuck",
    "uncounted",
    "unjustified-failure",
    "timer",
    "early",
    "phantom",
    "split-id",
    "shared-id",
    "repeat",
    "unrecorded",
    "numbering",
    "denied",
    "after-cancel",
    "after-pause",
    "revived",
    "foreign",
    "nonce-twice",
    "key-twice",
    "altered",
    "status",
    "orphan",
    "seq-gap",
    "event-lost",
    "effect-twice",
    "cap",
    "cooldown",
    "ledger",
];

type Rule = fn(&Book<'_>) -> Vec<Found>;

const RULES: &[Rule] = &[
    fates::every_alarm_fired_or_says_why_not,
    fates::what_lives_stands_where_it_should,
    fates::what_was_too_late_was_late,
    fates::nothing_is_late,
    fates::nothing_is_stuck,
    fates::what_was_counted_is_recorded,
    fates::nobody_else_is_woken,
    fates::what_was_given_up_is_told,
    fates::what_arrived_is_not_told_otherwise,
    series::every_slot_is_told_once,
    deliveries::no_wake_is_early,
    deliveries::an_occurrence_has_one_delivery_id,
    deliveries::attempts_are_numbered_without_gaps,
    deliveries::what_is_recorded_was_answered,
    deliveries::failures_are_justified,
    deliveries::what_was_sent_is_recorded,
    ends::nothing_is_revived,
    ends::nothing_comes_after_a_cancel,
    ends::nothing_comes_while_paused,
    ends::nothing_comes_of_a_plan_that_was_replaced,
    ends::wakes_say_what_was_asked,
    ends::rows_say_what_was_asked_last,
    ends::one_key_is_one_alarm,
    ends::nobody_gets_in_who_must_not,
    resources::statuses_agree_with_rows,
    timers::timers_reach_their_end,
    sessions::logs_have_no_gaps,
    sessions::acknowledged_events_are_there,
    sessions::timers_are_promoted_once,
    sessions::promoted_timers_wake,
    sessions::set_timers_fire,
    sends::checkpoints_are_there,
    sends::effects_are_recorded_once,
    sends::the_agent_restrains_itself,
    sends::sends_are_sent_once,
    sends::what_is_acknowledged_is_completed,
];

/// So many violations of a rule have their timelines: a bug that breaks everything breaks it alike.
const TIMELINES: usize = 20;

pub fn check(log: &Log) -> Verdict {
    let book = Book::of(log);
    let mut counts = Counts::default();
    ledger::calls(&book, &mut counts);
    let mut found = book.unreadable.clone();
    found.extend(RULES.iter().flat_map(|rule| rule(&book)));
    let (repeats, explained) = deliveries::repeats(&book);
    found.extend(repeats);
    counts.repeats_explained = explained;
    (counts.judged, counts.judged_later) = deliveries::judged(&book);
    let (late, without_cluster) = punctual::wakes_need_no_cluster(&book);
    found.extend(late);
    counts.without_cluster = without_cluster;
    let named: BTreeSet<_> = found.iter().map(|one| one.about.clone()).collect();
    found.extend(ledger::count(&book, &named, &mut counts));
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    let violations = found.into_iter().map(|Found { rule, about, what }| {
        let shown = shown.entry(rule).or_default();
        *shown += 1;
        let timeline = if *shown <= TIMELINES { timeline::of(&book, &about) } else { vec![] };
        Violation { rule, what, timeline }
    });
    let violations = violations.collect();
    Verdict { violations, invalid: invalid(&book, &counts), counts, recovery: recovery::of(&book) }
}

/// If a repeat of fewer wakes than this, in percent, would have been named, a run says nothing of repeats: "none without a fault" is then
/// true of whatever the product does.
const LEAST_JUDGED: usize = 25;

/// Why the run says nothing.
fn invalid(book: &Book<'_>, counts: &Counts) -> Vec<String> {
    let log = book.log;
    let mut found = Vec::new();
    for kind in &log.run.kinds {
        if !book.faults.struck().iter().any(|fault| fault.kind == *kind) {
            found.push(format!("no fault of kind {} ever struck", kind.name()));
        }
    }
    for fault in log.faults.iter().filter(|fault| fault.over_at.is_none()) {
        found.push(format!("fault {} ({}) was never over", fault.number, fault.kind.name()));
    }
    if counts.fires == 0 {
        found.push("nothing fired".to_owned());
    }
    if log.run.kinds.contains(&Kind::ApiserverKill) && counts.without_cluster == 0 {
        found.push("nothing was due while only the cluster was away".to_owned());
    }
    if counts.judged * 100 < counts.wakes * LEAST_JUDGED {
        found.push(format!("faults are too dense: of {} wakes only {} are judged", counts.wakes, counts.judged));
    }
    found
}
