//! Every slot of a series is told exactly once: delivered, exhausted, or in a run of those that did not fire.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    book::{About, Book, Found},
    deliveries::epoch_of,
    rows::{Attempt, Row},
    slots::Grid,
    stories::{Story, definition_in, is_done},
};
use crate::log::{Asked, Definition, Schedule};

/// What one plan of a series left behind.
#[derive(Default)]
pub struct Plan<'b> {
    told: Vec<&'b Attempt>,
    /// Slots that were tried, or sent, whatever came of it.
    tried: BTreeSet<DateTime<Utc>>,
}

impl<'b> Plan<'b> {
    pub fn told(&self) -> impl Iterator<Item = &'b Attempt> {
        self.told.iter().copied()
    }
}

/// Slots of a plan by number, as one of the possible definitions has them.
pub struct Reading {
    pub grid: Grid,
    /// How often each slot is told.
    pub told: BTreeMap<i64, usize>,
    /// Of these nothing is told.
    pub gaps: Vec<i64>,
    pub wrong: Vec<String>,
}

/// Each plan's rows. A run that has no delivery id (the database wrote it) belongs to the newest.
pub fn plans<'b>(book: &'b Book<'_>, row: &Row) -> BTreeMap<i64, Plan<'b>> {
    let mut plans: BTreeMap<i64, Plan<'b>> = BTreeMap::new();
    for one in book.attempts_of(row.id) {
        let at = one.last_at.unwrap_or(one.scheduled_for);
        // What has an id that belongs to no plan is another rule's.
        let epoch = one.delivery_id.map_or(Some(row.schedule_epoch), |delivery| epoch_of(book, delivery, row.id, at));
        let Some(epoch) = epoch else { continue };
        let plan = plans.entry(epoch).or_default();
        if one.told().is_some() {
            plan.told.push(one);
        }
        if one.is_try() {
            plan.tried.insert(one.scheduled_for);
        }
    }
    plans
}

pub fn every_slot_is_told_once(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate() {
        for row in story.rows.iter().map(|row| &book.rows[*row]).filter(|row| row.is_series()) {
            let about = About::Story(place);
            let wrong = untold(book, story, row);
            found.extend(wrong.into_iter().map(|(rule, what)| Found { rule, about: about.clone(), what }));
        }
    }
    found
}

/// Definitions that are series, the newest first.
fn schedules<'a>(story: &Story<'a>) -> Vec<&'a Definition> {
    let mut all: Vec<&Definition> = story.definitions().map(|(_, definition)| definition).collect();
    all.retain(|definition| !matches!(definition.schedule, Schedule::At(_)));
    all.reverse();
    all.dedup_by_key(|definition| definition.schedule);
    all
}

fn untold(book: &Book<'_>, story: &Story<'_>, row: &Row) -> Vec<(&'static str, String)> {
    let mut plans = plans(book, row);
    // What was one instant before it became a series is told as that.
    let instants: BTreeSet<DateTime<Utc>> = story.instants().collect();
    for plan in plans.values_mut() {
        plan.told.retain(|one| !instants.contains(&one.last_at.unwrap_or(one.scheduled_for)));
    }
    let definitions = schedules(story);
    let mut found = Vec::new();
    for epoch in 0..=row.schedule_epoch {
        let empty = Plan::default();
        let plan = plans.get(&epoch).unwrap_or(&empty);
        let bounds = bounds(story, row, epoch);
        // Which definition a plan followed is not always known: the one that explains it best is taken.
        let readings = definitions.iter().filter_map(|definition| read(plan, &definition.schedule, row, &bounds));
        let Some(best) = readings.min_by_key(|reading| {
            (reading.wrong.len(), reading.gaps.len(), reading.told.values().filter(|times| **times > 1).count())
        }) else {
            continue;
        };
        found.extend(best.wrong.iter().map(|what| ("phantom", format!("alarm {}: {what}", row.id))));
        for (slot, times) in best.told.iter().filter(|(_, times)| **times > 1) {
            found.push((
                "numbering",
                format!("alarm {}: the slot of {} is told {times} times", row.id, best.grid.at(*slot)),
            ));
        }
        let mut gaps = best.gaps;
        // The occurrence that stood when the plan was replaced is told by the edit, unless it was on its ladder: then its failed attempts
        // tell of it. One, the last.
        let stood = gaps.last().map(|gap| best.grid.at(*gap)).filter(|_| epoch < row.schedule_epoch);
        if stood.is_some_and(|at| plan.tried.contains(&at)) {
            gaps.pop();
        }
        // A failover takes back what was told together with where the alarm stood: nothing excuses a gap.
        if !gaps.is_empty() {
            let slots: Vec<String> = gaps.iter().take(5).map(|gap| best.grid.at(*gap).to_string()).collect();
            let what = format!("alarm {}: {} slots left no trace: {}", row.id, gaps.len(), slots.join(", "));
            found.push(("lost", what));
        }
    }
    found
}

/// Between which instants a plan certainly ran.
pub struct Bounds {
    /// Slots after this are owed; `None`: it is not known when the plan began, and the first slot told is the first.
    from: Option<DateTime<Utc>>,
    until: Until,
}

/// Up to where slots are told.
enum Until {
    /// This one is not: the alarm stands there.
    Before(DateTime<Utc>),
    /// Until this, with it: what had passed was told when the plan was replaced.
    With(DateTime<Utc>),
    /// Nobody knows when it ended: the last slot told is the last.
    Unknown,
}

fn bounds(story: &Story<'_>, row: &Row, epoch: i64) -> Bounds {
    // The calls that planned it anew, if each of them is certain and they are as many as the row says.
    let mut before: Option<(Schedule, Option<u64>)> = None;
    let mut replans = Vec::new();
    // A failover may have taken back one of them: then another planned what it had planned.
    let mut certain = story.resource.is_none() && story.rows.len() == 1 && !story.undone;
    for call in story.possible() {
        // The same POST once more changes nothing.
        if matches!(call.asked, Asked::Create { .. }) && before.is_some() {
            continue;
        }
        certain &= !matches!(call.asked, Asked::Rearm { .. });
        let Some(definition) = definition_in(call) else { continue };
        // What was a single alarm before has no slots.
        certain &= !matches!(definition.schedule, Schedule::At(_));
        let now = (definition.schedule, definition.spread_seconds);
        if before.is_some_and(|before| before != now) {
            replans.push((call, before.and_then(|(_, spread)| spread)));
            certain &= is_done(call);
        }
        before = Some(now);
    }
    certain &= usize::try_from(row.schedule_epoch).ok() == Some(replans.len());
    let replan = |number: i64| usize::try_from(number).ok().and_then(|number| replans.get(number)).filter(|_| certain);
    // An HTTP alarm is planned when its row is made; a resource's when the controller comes to it, which is not written down: slots
    // before that are not owed. The same goes for a plan that nobody can tell the call of.
    let from = match epoch {
        0 => Some(row.created_at).filter(|_| certain || row.schedule_epoch == 0).filter(|_| story.resource.is_none()),
        _ => replan(epoch - 1).and_then(|(call, _)| call.answered_at),
    };
    let until = if epoch == row.schedule_epoch {
        // It stands at this occurrence, or stood there when it was cancelled.
        Until::Before(row.scheduled_for)
    } else {
        // A slot is due up to its spread later: what was not due yet was not told.
        let spread = |seconds: u64| TimeDelta::seconds(i64::try_from(seconds).unwrap_or(0));
        replan(epoch)
            .map_or(Until::Unknown, |(call, spread_by)| Until::With(call.asked_at - spread(spread_by.unwrap_or(0))))
    };
    Bounds { from, until }
}

/// `None`: this plan has nothing to do with this schedule.
fn read(plan: &Plan<'_>, schedule: &Schedule, row: &Row, bounds: &Bounds) -> Option<Reading> {
    let grid = Grid::of(schedule, row.created_at)?;
    let mut reading = Reading { grid, told: BTreeMap::new(), gaps: vec![], wrong: vec![] };
    for one in &plan.told {
        let Some((first, last)) = one.told() else { continue };
        match (grid.number(first), grid.number(last)) {
            (Some(from), Some(to)) => {
                if one.slots.is_some_and(|slots| slots != to - from + 1) {
                    reading.wrong.push(format!("a run from {first} to {last} counts {:?} slots", one.slots));
                }
                for slot in from..=to.min(from + 100_000) {
                    *reading.told.entry(slot).or_default() += 1;
                }
            }
            (None, _) | (_, None) => reading.wrong.push(format!("no slot of it lies at {first} or {last}")),
        }
    }
    let first = bounds.from.map(|from| grid.after(from)).or_else(|| reading.told.keys().next().copied());
    let next = match bounds.until {
        Until::Before(at) => {
            // Where it stands beside every slot, nobody can say which it should have come to.
            let last = reading.told.keys().next_back().map(|last| last + 1);
            if grid.number(at).is_none() {
                reading.wrong.push(format!("it stands at {at}, where no slot lies"));
            }
            grid.number(at).or(last)
        }
        Until::With(at) => Some(grid.after(at)),
        Until::Unknown => reading.told.keys().next_back().map(|last| last + 1),
    };
    if let (Some(first), Some(next)) = (first, next) {
        // Never more than a run can have: a schedule that does not fit has gaps without end.
        reading.gaps = (first..next.min(first + 100_000)).filter(|slot| !reading.told.contains_key(slot)).collect();
    }
    Some(reading)
}

/// How many slots the newest plan spans: from its first to the one it stands at, or is told up to. `None`: nobody can say.
pub fn spans(book: &Book<'_>, story: &Story<'_>, row: &Row) -> Option<i64> {
    let plans = plans(book, row);
    let empty = Plan::default();
    let plan = plans.get(&row.schedule_epoch).unwrap_or(&empty);
    let bounds = bounds(story, row, row.schedule_epoch);
    let readings = schedules(story).into_iter().filter_map(|definition| read(plan, &definition.schedule, row, &bounds));
    let best = readings.min_by_key(|reading| (reading.wrong.len(), reading.gaps.len()))?;
    let stands = best.grid.number(row.scheduled_for)?;
    let last = row.series_at.and_then(|told| best.grid.number(told)).map_or(stands, |told| told.max(stands));
    // An edit is done between its question and its answer: what is told from before the answer was owed as well.
    let told = best.told.keys().next().copied().into_iter();
    let first = told.chain(bounds.from.map(|from| best.grid.after(from))).min().unwrap_or(stands);
    Some(last - first.min(stands) + 1)
}
