//! What became of every alarm.

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    book::{About, Book, Found, UNKNOWN_WITHIN},
    deliveries,
    faults::Undoes,
    rows::{Attempt, Row},
    sent::{Sent, To},
    slots::{Grid, delivery_id, stored},
    stories::{Story, Timers, is_done},
};
use crate::log::{Asked, Schedule};

/// How long after all was healed, or after it was due if that is later, an occurrence may take until it is taken or told otherwise.
/// At these settings a dead replica's claims are free within a second, a lease ends after 3, a Kubernetes Lease after 15; the ladder
/// has rungs of at most 2 s; and everything that became due meanwhile comes at once.
pub const RECOVERY: TimeDelta = TimeDelta::seconds(25);

pub fn every_alarm_fired_or_says_why_not(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate() {
        let about = About::Story(place);
        if story.rows.is_empty()
            && let Some(call) = story.accepted()
            && !story.undone
            && !may_have_been_a_short_life(story)
        {
            let what =
                format!("{} was accepted at {} (call {}), and no row tells of it", story.label, at(call), call.number);
            found.push(Found { rule: "lost", about: about.clone(), what });
        }
        for row in story.rows.iter().map(|row| &book.rows[*row]) {
            found.extend(fate(book, story, row).map(|what| Found { rule: "lost", about: about.clone(), what }));
        }
    }
    found
}

fn at(call: &crate::log::Call) -> DateTime<Utc> {
    call.answered_at.unwrap_or(call.asked_at)
}

/// A resource that was deleted before the controller had seen it, or may have been, was no alarm yet.
fn may_have_been_a_short_life(story: &Story<'_>) -> bool {
    story.resource.is_some() && story.possible().any(|call| matches!(call.asked, Asked::Delete { .. }))
}

fn fate(book: &Book<'_>, story: &Story<'_>, row: &Row) -> Option<String> {
    let id = row.id;
    let told = |outcomes: &[&str]| {
        book.attempts_of(id).any(|one| {
            outcomes.contains(&one.outcome.as_str()) && one.last_at.unwrap_or(one.scheduled_for) == row.scheduled_for
        })
    };
    match (row.status.as_str(), row.is_series()) {
        ("fired", true) => Some(format!("alarm {id} is over, and its series has no end")),
        ("fired", false) if !told(&["delivered"]) => {
            Some(format!("alarm {id} is fired, and no attempt at {} delivered it", row.scheduled_for))
        }
        ("fired", false) => None,
        ("failed", _) if !told(&["exhausted", "missed", "skipped"]) => {
            Some(format!("alarm {id} is failed, and no row says why"))
        }
        ("failed", _) if row.last_error.is_empty() => Some(format!("alarm {id} is failed without a reason")),
        ("failed", _) => None,
        ("cancelled", _) if !may_be_cancelled(book, story, row) => {
            Some(format!("alarm {id} is cancelled, and nobody did"))
        }
        ("cancelled" | "active", _) => None,
        ("paused", _) if !may_be_paused(story) => Some(format!("alarm {id} is paused, and nobody did")),
        ("paused", _) => None,
        (other, _) => Some(format!("alarm {id} has a status that nobody knows: {other}")),
    }
}

fn may_be_cancelled(book: &Book<'_>, story: &Story<'_>, row: &Row) -> bool {
    story.undone
        || story.possible().any(|call| matches!(call.asked, Asked::Cancel { .. } | Asked::Delete { .. }))
        // Made anew under the same name: the row of the one before is cancelled.
        || story.rows.iter().any(|other| book.rows[*other].created_at > row.created_at)
}

fn may_be_paused(story: &Story<'_>) -> bool {
    story.undone
        || story.possible().any(|call| matches!(call.asked, Asked::Pause { .. } | Asked::Apply { suspend: true, .. }))
}

/// `CHRONOS_RETRY_CAP_MS` of a run, and a second: nothing waits on its ladder for longer.
const LADDER: TimeDelta = TimeDelta::seconds(3);

/// An alarm that lives stands at an instant that somebody asked for, or at a slot, and is planned for it, or for a rung of its ladder.
pub fn what_lives_stands_where_it_should(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for row in book.rows.iter().filter(|row| row.is_living()) {
        let about = book.about(row.id);
        let (was_asked_for, said) = match &about {
            About::Story(story) => {
                let story = &book.stories[*story];
                let said = story.last_word(book.log.end.read_at);
                // When the controller came to it nobody wrote down.
                let said = if story.resource.is_some() { Some(book.log.end.read_at) } else { said };
                (may_stand_at(story, Some(row), row.scheduled_for), said)
            }
            About::Timers(timers) => {
                let commands = || book.timers[*timers].commands();
                let said = commands().map(|(call, _, _)| call.answered_at.unwrap_or(call.asked_at) + UNKNOWN_WITHIN);
                (commands().any(|(_, due_at, _)| due_at == row.scheduled_for), said.max())
            }
            // Which checkpoint set it is another rule's; it is planned when that is stored.
            About::Session(_) => (true, Some(row.created_at)),
            About::Else(_) => continue, // nobody made it, which is another rule's
        };
        if !was_asked_for {
            let what = format!("alarm {} stands at {}, which nobody asked for", row.id, row.scheduled_for);
            found.push(Found { rule: "lost", about: about.clone(), what });
        }
        let tried = book.attempts_of(row.id).map(Attempt::ended_at).max();
        let due = (row.scheduled_for + row.spread_offset).max(said.unwrap_or(row.scheduled_for));
        let latest = due.max(tried.unwrap_or(due)) + LADDER;
        if row.next_fire_at > latest {
            let what = format!(
                "alarm {} stands at {}, and is planned for {}: {} too late",
                row.id,
                row.scheduled_for,
                row.next_fire_at,
                row.next_fire_at - latest
            );
            found.push(Found { rule: "lost", about, what });
        }
    }
    found
}

/// Slots of a series that were given up as too late were too late.
pub fn what_was_too_late_was_late(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for one in book.attempts.iter().filter(|one| one.reason.as_deref() == Some("late")) {
        let About::Story(place) = book.about(one.alarm_id) else { continue };
        let limit = |definition: &crate::log::Definition| {
            let given = definition.max_lateness_seconds;
            if definition.misfire.as_deref() == Some("skip") { Some(given.unwrap_or(60)) } else { given }
        };
        let least = book.stories[place].definitions().filter_map(|(_, definition)| limit(definition)).min();
        let late = one.started_at - one.last_at.unwrap_or(one.scheduled_for);
        let allowed = least.map(|seconds| TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX / 1000)));
        if allowed.is_none_or(|allowed| late <= allowed) {
            let what = format!("the slot of {} was given up as too late, {late} after it", one.scheduled_for);
            found.push(Found { rule: "lost", about: About::Story(place), what });
        }
    }
    found
}

/// When an occurrence was due: its instant, or when somebody last had a say if that is later (a resumed alarm is due then).
fn due(story: &Story<'_>, row: &Row, scheduled_for: DateTime<Utc>, seen: DateTime<Utc>) -> DateTime<Utc> {
    let said = story.last_word(seen).unwrap_or(scheduled_for);
    (scheduled_for + row.spread_offset).max(said)
}

/// When what this wake is for was due; `None`: nobody knows.
pub fn due_at(book: &Book<'_>, sent: &Sent<'_>, about: &About) -> Option<DateTime<Utc>> {
    let (scheduled_for, taken_at) = (sent.scheduled_for, sent.at());
    let row = sent.alarm.and_then(|id| book.row_by_id.get(&id)).map(|place| &book.rows[*place]);
    match (about, row) {
        (About::Story(story), Some(row)) => Some(due(&book.stories[*story], row, scheduled_for, taken_at)),
        (About::Timers(timers), _) => {
            let asked = book.timers[*timers].commands().filter(|(call, _, _)| call.asked_at <= taken_at);
            // Set when it was past already, it is due when it is set.
            Some(asked.map(|(call, _, _)| at(call)).max().unwrap_or(scheduled_for).max(scheduled_for))
        }
        (About::Session(session), _) => {
            let events =
                book.events.iter().filter(|event| event.session_key == *session && event.created_at <= taken_at);
            Some(events.map(|event| event.created_at).max().unwrap_or(scheduled_for).max(scheduled_for))
        }
        (About::Story(_), None) | (About::Else(_), _) => None,
    }
}

pub fn nothing_is_late(book: &Book<'_>) -> Vec<Found> {
    let end = &book.log.end;
    let mut found = Vec::new();
    for row in book.rows.iter().filter(|row| row.status == "active") {
        let about = book.about(row.id);
        let allowed = row.next_fire_at.max(end.healed_at) + RECOVERY;
        if allowed < end.read_at {
            let what = format!("alarm {} was due at {} and nothing became of it", row.id, row.next_fire_at);
            found.push(Found { rule: "late", about, what });
        }
    }
    // Only what was first taken so late can be late.
    for places in book.wakes_by_delivery.values() {
        let wakes = || places.iter().map(|place| &book.wakes[*place]);
        let Some(sent) = wakes().find(|sent| sent.was_taken()) else { continue };
        let (scheduled_for, taken_at) = (sent.scheduled_for, sent.at());
        if taken_at <= end.healed_at.max(scheduled_for) + RECOVERY {
            continue;
        }
        let about = deliveries::about(book, sent);
        let Some(due_at) = due_at(book, sent, &about) else { continue };
        if taken_at > end.healed_at.max(due_at) + RECOVERY && !book.excused(&about) {
            let what = format!("due at {due_at}, it was first taken at {taken_at}");
            found.push(Found { rule: "late", about, what });
        }
    }
    found
}

pub fn nothing_is_stuck(book: &Book<'_>) -> Vec<Found> {
    let read_at = book.log.end.read_at;
    let rows = book.rows.iter().filter(|row| row.claim_token.is_some());
    // A pause while a wake is in flight leaves the claim to its dispatcher; if that has died, nobody wants the row until it is resumed,
    // and a resumption looks at the lease.
    let rows = rows.filter(|row| row.status != "paused" || row.claimed_until.is_none_or(|until| until > read_at));
    let rows = rows.map(|row| Found {
        rule: "stuck",
        about: book.about(row.id),
        what: format!("alarm {} is still claimed at rest", row.id),
    });
    let effects = book.effects.iter().filter(|effect| match effect.r#type.as_str() {
        "wake" => ["pending", "executing"].contains(&effect.status.as_str()),
        // A send that nobody acknowledged waits for its client; one that is executing has a lease that ends.
        _ => {
            effect.status == "executing"
                && effect.claimed_until.is_none_or(|until| until + TimeDelta::seconds(10) < read_at)
        }
    });
    let effects = effects.map(|effect| Found {
        rule: "stuck",
        about: About::Session(effect.session_key.clone()),
        what: format!("effect {} ({}) is still {} at rest", effect.id, effect.r#type, effect.status),
    });
    rows.chain(effects).collect()
}

/// What was counted is what is recorded. One transaction writes both: nothing excuses a difference.
pub fn what_was_counted_is_recorded(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for row in &book.rows {
        let delivered = book.attempts_of(row.id).filter(|one| one.is_try() && one.outcome == "delivered").count();
        if usize::try_from(row.fired_count).ok() != Some(delivered) {
            let what = format!("alarm {} counts {} deliveries, and {delivered} are recorded", row.id, row.fired_count);
            found.push(Found { rule: "uncounted", about: book.about(row.id), what });
        }
        let runs = book
            .attempts_of(row.id)
            .filter(|one| !one.is_try() && ["missed", "skipped"].contains(&one.outcome.as_str()));
        // What is parked is recorded, and counted by nobody.
        let missed: i64 = runs.filter(|one| one.reason.as_deref() != Some("parked")).filter_map(|one| one.slots).sum();
        if row.missed_count != missed {
            let what = format!("alarm {} counts {} missed slots, and {missed} are recorded", row.id, row.missed_count);
            found.push(Found { rule: "uncounted", about: book.about(row.id), what });
        }
    }
    found
}

/// The instant of a once alarm that had come when somebody gave it another left a trace: a try, or the word of the edit. Of a series every
/// slot is judged.
pub fn what_was_given_up_is_told(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let single = |story: &&Story<'_>| story.resource.is_none() && !story.undone && story.rows.len() == 1;
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| single(story)) {
        let row = &book.rows[story.rows[0]];
        let plans: Vec<_> = story.definitions().collect();
        for (before, after) in plans.iter().zip(plans.iter().skip(1)) {
            let (Schedule::At(instant), Schedule::At(other)) = (before.1.schedule, after.1.schedule) else { continue };
            // Certain: planned before its time, and replaced after it had come. A re-arming may have planned it otherwise.
            let planned = is_done(before.0) && before.0.answered_at.is_some_and(|planned_at| planned_at < instant);
            let replaced = is_done(after.0) && after.0.asked_at > instant && other != instant;
            if !planned || !replaced || story.rearmings().next().is_some() {
                continue;
            }
            let instant = stored(instant);
            let is_told = book.attempts_of(row.id).any(|one| one.last_at.unwrap_or(one.scheduled_for) == instant);
            if !is_told {
                let what = format!("alarm {} was due at {instant}, then planned anew, and nothing tells of it", row.id);
                found.push(Found { rule: "lost", about: About::Story(place), what });
            }
        }
    }
    found
}

/// What the router took is not told as passed over or too late, not even if whoever sent it died before it could say so: it is sent again,
/// or told as fenced.
pub fn what_arrived_is_not_told_otherwise(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    // What is parked was claimed again and again, and nobody knows what came of it.
    let is_passed = |one: &&Attempt| {
        !one.is_try()
            && ["missed", "skipped"].contains(&one.outcome.as_str())
            && one.reason.as_deref() != Some("parked")
    };
    for one in book.attempts.iter().filter(is_passed) {
        let About::Story(place) = book.about(one.alarm_id) else { continue };
        let (Some((first, last)), Some(id)) = (one.told(), one.delivery_id) else { continue };
        let Some(epoch) = deliveries::epoch_of(book, id, one.alarm_id, last) else { continue };
        let wakes = book.stories[place].wakes.iter().map(|wake| &book.wakes[*wake]);
        let of_it = wakes.filter(|sent| sent.alarm == Some(one.alarm_id) && sent.was_taken());
        for sent in of_it.filter(|sent| (first..=last).contains(&sent.scheduled_for)) {
            let is_its = delivery_id(one.alarm_id, epoch, sent.scheduled_for) == sent.delivery;
            // A failover takes back that it was claimed.
            if is_its && !book.is_undone(Undoes::Rows, sent.scheduled_for, sent.at()) {
                let what = format!(
                    "the wake for {} was taken at {}, and is told as {} ({})",
                    sent.scheduled_for,
                    sent.at(),
                    one.outcome,
                    one.reason.as_deref().unwrap_or_default()
                );
                found.push(Found { rule: "denied", about: About::Story(place), what });
            }
        }
    }
    found
}

/// Nobody is woken who was not to be, nor at an instant that nobody asked for.
pub fn nobody_else_is_woken(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for sent in book.wakes.iter().filter(|sent| sent.to == To::Agent) {
        let about = deliveries::about(book, sent);
        match &about {
            About::Story(story) => {
                let story = &book.stories[*story];
                if !was_asked_for(book, story, sent) {
                    let what = format!("a wake for {} at {}, which nobody asked for", sent.scheduled_for, sent.at());
                    found.push(Found { rule: "phantom", about, what });
                }
            }
            About::Timers(_) | About::Session(_) | About::Else(_) => {
                let what =
                    format!("a wake of alarm {:?} ({:?}) at {}, which nobody made", sent.alarm, sent.label, sent.at());
                found.push(Found { rule: "phantom", about, what });
            }
        }
    }
    for row in book.rows.iter().filter(|row| !book.by_id.contains_key(&row.id)) {
        let what = format!("alarm {} ({:?}) is there, and nobody made it", row.id, row.label);
        found.push(Found { rule: "phantom", about: book.about(row.id), what });
    }
    for one in book.attempts.iter().filter(|one| !book.by_id.contains_key(&one.alarm_id)) {
        // A service call's timer that was deleted, after its creation or its wakes were lost to a failover.
        let undone = |timers: &Timers<'_>| timers.undone && timers.owner == one.owner_did;
        if book.timers.iter().any(undone) || book.is_undone(Undoes::Rows, one.started_at, one.ended_at()) {
            continue;
        }
        // Deregistered, and none of its wakes ever came: nothing says which call it was, but that the owner had one that is gone.
        let gone =
            book.timers.iter().any(|timers| timers.owner == one.owner_did && timers.deregistrations().next().is_some());
        if !gone {
            let what = format!("alarm {} has an attempt at {}, and nobody made it", one.alarm_id, one.started_at);
            found.push(Found { rule: "phantom", about: book.about(one.alarm_id), what });
        }
    }
    found
}

fn was_asked_for(book: &Book<'_>, story: &Story<'_>, sent: &Sent<'_>) -> bool {
    let row = sent.alarm.and_then(|id| book.row_by_id.get(&id)).map(|place| &book.rows[*place]);
    may_stand_at(story, row, sent.scheduled_for)
}

fn may_stand_at(story: &Story<'_>, row: Option<&Row>, at: DateTime<Utc>) -> bool {
    if story.instants().any(|instant| instant == at) {
        return true;
    }
    // Without a row nobody knows from when a series counts.
    let Some(row) = row else {
        return story.definitions().any(|(_, one)| !matches!(one.schedule, crate::log::Schedule::At(_)));
    };
    let mut grids = story.definitions().filter_map(|(_, definition)| Grid::of(&definition.schedule, row.created_at));
    grids.any(|grid| grid.number(at).is_some())
}
