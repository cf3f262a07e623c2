//! Every occurrence that was owed is somewhere: the sum of what became of them is the sum of what was planned.

use std::collections::{BTreeSet, HashSet};

use super::{
    book::{About, Book, Found},
    rows::Row,
    series,
    stories::Story,
    verdict::Counts,
};
use crate::log::{Answer, Asked};

/// What became of the occurrences of one row.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    owed: usize,
    fires: usize,
    exhausted: usize,
    missed: usize,
    cancelled: usize,
    ahead: usize,
}

impl Fates {
    fn sum(&self) -> usize {
        self.fires + self.exhausted + self.missed + self.cancelled + self.ahead
    }
}

/// `named`: what other rules have found already, and is not named twice.
pub fn count(book: &Book<'_>, named: &BTreeSet<About>, counts: &mut Counts) -> Vec<Found> {
    let mut found = Vec::new();
    for row in &book.rows {
        let about = book.about(row.id);
        let fates = fates(book, row);
        counts.occurrences += fates.owed;
        counts.fires += fates.fires;
        counts.exhausted += fates.exhausted;
        counts.missed += fates.missed;
        counts.cancelled += fates.cancelled;
        counts.ahead += fates.ahead;
        // What a failover took back was planned in the same transaction in which it was told: rows add up all the same. But the first
        // slot of an alarm that was made again may lie before its creation.
        if fates.owed != fates.sum() && !named.contains(&about) && !book.excused(&about) {
            let what = format!(
                "alarm {} owed {} occurrences, and {} became of them: {fates:?}",
                row.id,
                fates.owed,
                fates.sum()
            );
            found.push(Found { rule: "ledger", about, what });
        }
    }
    // Timers whose call was deregistered have no row: their traces tell.
    let rows: HashSet<_> = book.rows.iter().map(|row| row.id).collect();
    for one in book.attempts.iter().filter(|one| !rows.contains(&one.alarm_id)) {
        match (one.is_try(), one.outcome.as_str()) {
            (true, "delivered") => counts.fires += 1,
            (false, "cancelled") => counts.cancelled += 1,
            _ => continue,
        }
        counts.occurrences += 1;
    }
    let gone = |story: &&Story<'_>| story.rows.is_empty() && story.undone && story.accepted().is_some();
    let gone = book.stories.iter().filter(gone).count();
    counts.undone += gone;
    counts.occurrences += gone;
    found
}

fn fates(book: &Book<'_>, row: &Row) -> Fates {
    let mut fates = Fates::default();
    let plans = series::plans(book, row);
    for epoch in 0..=row.schedule_epoch {
        let mut told = 0;
        for one in plans.get(&epoch).into_iter().flat_map(series::Plan::told) {
            let slots = usize::try_from(one.slots.unwrap_or(1)).unwrap_or(1);
            told += slots;
            match one.outcome.as_str() {
                "delivered" => fates.fires += 1,
                "exhausted" => fates.exhausted += 1,
                _ => fates.missed += slots,
            }
        }
        let is_last = epoch == row.schedule_epoch;
        if !is_last {
            // One that was planned anew before anything became of it.
            fates.cancelled += usize::from(told == 0);
            fates.owed += told.max(1);
            continue;
        }
        // It stands at an occurrence, or stood there.
        match row.status.as_str() {
            "cancelled" => fates.cancelled += 1,
            "active" | "paused" => fates.ahead += 1,
            _ => {}
        }
        fates.owed += if row.is_series() { owed_by_series(book, row, told) } else { 1 };
    }
    fates
}

/// By arithmetic: from the first slot to the one it stands at, or is told up to.
fn owed_by_series(book: &Book<'_>, row: &Row, told: usize) -> usize {
    let standing = usize::from(["cancelled", "active", "paused"].contains(&row.status.as_str()));
    let About::Story(story) = book.about(row.id) else { return told + standing };
    let spans = series::spans(book, &book.stories[story], row);
    spans.and_then(|slots| usize::try_from(slots).ok()).unwrap_or(told + standing)
}

/// What was asked for, and what came of it.
pub fn calls(book: &Book<'_>, counts: &mut Counts) {
    let log = book.log;
    counts.faults = book.faults.struck().len();
    counts.calls = log.calls.len();
    counts.unknown = log.calls.iter().filter(|call| matches!(call.answer, Answer::Unknown { .. })).count();
    counts.refused = log.calls.iter().filter(|call| matches!(call.answer, Answer::Refused { .. })).count();
    counts.alarms = book.rows.len();
    for row in &book.rows {
        match (row.subject.as_str(), row.source.as_str()) {
            ("service_call", _) => counts.service_call_timers += 1,
            ("session", _) => counts.session_timers += 1,
            (_, "kubernetes") => counts.resource_alarms += 1,
            _ => counts.http_alarms += 1,
        }
    }
    counts.wakes = log.wakes.len();
    counts.attempts = book.attempts.len();
    counts.sessions = book.sessions.len();
    counts.events = book.events.len();
    counts.checkpoints = book.checkpoints.len();
    counts.sends = book.effects.iter().filter(|effect| effect.send_seq.is_some()).count();
    counts.frames = log.frames.len();
    counts.promotions = book.events.iter().filter(|event| event.r#type == "timer").count();
    counts.service_calls = log.calls.iter().filter(|call| matches!(call.asked, Asked::Register { .. })).count();
}
