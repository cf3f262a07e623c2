//! What is over, paused or replaced stays so; one key is one alarm.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::{
    book::{About, Book, Found, UNKNOWN_WITHIN},
    faults::{Symptom, Undoes},
    rows::Row,
    sent::Sent,
    slots::Grid,
    stories::{Story, body, definition_in, id_in, is_done, said_in_flight},
};
use crate::log::{Answer, Asked, Call, Schedule};

fn status(body: &Value) -> &str {
    body.get("status").and_then(Value::as_str).unwrap_or_default()
}

fn is_over(status: &str) -> bool {
    ["fired", "failed", "cancelled"].contains(&status)
}

/// A wake that came after it must not, was it held up on its way?
fn held_up(book: &Book<'_>, sent: &Sent<'_>, since: DateTime<Utc>) -> bool {
    book.faults.explain(Symptom::HeldUp, Some(sent.sender()), since - book.lease, sent.at())
}

/// After a cancel, and after anybody was told that it is over, it stays over.
pub fn nothing_is_revived(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| !story.undone && story.resource.is_none())
    {
        for call in story.calls.iter().filter(|call| !matches!(call.asked, Asked::Trespass { .. })) {
            let Some((body, answered_at)) = body(call).zip(call.answered_at) else { continue };
            let told = status(body);
            if !is_over(told) || story.may_be_revived_from(call.asked_at).is_some() {
                continue;
            }
            let row = story.rows.first().map(|row| &book.rows[*row]);
            if let Some(row) = row.filter(|row| row.status != told) {
                let what = format!(
                    "alarm {} was {told} at {answered_at} (call {}) and is {}",
                    row.id, call.number, row.status
                );
                found.push(Found { rule: "revived", about: About::Story(place), what });
                break;
            }
        }
    }
    found
}

/// No wake after a cancel, but the one that was in flight.
pub fn nothing_comes_after_a_cancel(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| !story.undone) {
        for call in story.calls.iter().filter(|call| is_done(call)) {
            let what = if matches!(call.asked, Asked::Cancel { .. }) {
                after_cancel(book, story, call)
            } else if matches!(call.asked, Asked::Delete { .. }) {
                after_delete(book, story, call)
            } else {
                None
            };
            found.extend(what.map(|what| Found { rule: "after-cancel", about: About::Story(place), what }));
        }
    }
    found
}

fn after_cancel(book: &Book<'_>, story: &Story<'_>, call: &Call) -> Option<String> {
    let (body, answered_at) = body(call).zip(call.answered_at)?;
    if status(body) != "cancelled" {
        return None; // it was over before, and an attempt at it may still be under way
    }
    let revived = story.may_be_revived_from(call.asked_at);
    let in_time = |at: DateTime<Utc>| at > answered_at && revived.is_none_or(|revived| at < revived);
    // The one that was in flight may still arrive, if this answer said so, or an earlier one, or one that nobody heard. One that was held
    // up may be of a claim that was lost before.
    let mut cancels = story.possible().filter(|earlier| matches!(earlier.asked, Asked::Cancel { .. }));
    let in_flight = cancels.any(|earlier| said_in_flight(earlier, answered_at));
    let after: Vec<&Sent<'_>> =
        story.wakes.iter().map(|place| &book.wakes[*place]).filter(|sent| in_time(sent.at())).collect();
    let free = after.iter().filter(|sent| !held_up(book, sent, answered_at)).count();
    if free > usize::from(in_flight) {
        let said = if in_flight { "one wake" } else { "nothing" };
        return Some(format!("cancelled at {answered_at} with {said} in flight, and {free} wakes came after"));
    }
    let counted = story.ids.iter().flat_map(|id| book.attempts_of(*id)).filter(|one| one.counted());
    let mut late = counted.filter(|one| in_time(one.started_at));
    late.next().map(|one| {
        format!(
            "cancelled at {answered_at}, and attempt {} of {} counted as {} all the same",
            one.attempt, one.started_at, one.outcome
        )
    })
}

/// `Done` says that the resource is gone: its row was cancelled before. Whether a wake was in flight then nobody is told: one may come,
/// within the lease.
fn after_delete(book: &Book<'_>, story: &Story<'_>, call: &Call) -> Option<String> {
    let gone_at = call.answered_at?;
    let rows = story.rows.iter().map(|row| &book.rows[*row]).filter(|row| row.created_at <= call.asked_at);
    let ids: BTreeSet<Uuid> = rows.map(|row| row.id).collect();
    let wakes = story.wakes.iter().map(|place| &book.wakes[*place]);
    let after = wakes.filter(|sent| sent.at() > gone_at && sent.alarm.is_some_and(|id| ids.contains(&id)));
    let after: Vec<&Sent<'_>> = after.filter(|sent| !held_up(book, sent, gone_at)).collect();
    let late = after.iter().find(|sent| sent.at() > gone_at + book.lease);
    late.map(|sent| format!("deleted at {gone_at}, and a wake came at {}", sent.at()))
        .or_else(|| (after.len() > 1).then(|| format!("deleted at {gone_at}, and {} wakes came after", after.len())))
}

/// No wake while it is paused, but the one that was in flight. Of a resource nobody is told when its pause holds.
pub fn nothing_comes_while_paused(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| !story.undone) {
        for call in story.calls.iter().filter(|call| matches!(call.asked, Asked::Pause { .. })) {
            let Some((body, paused_at)) = body(call).zip(call.answered_at) else { continue };
            if status(body) != "paused" {
                continue;
            }
            let resumed = story.may_be_resumed_from(call.asked_at);
            let wakes = story.wakes.iter().map(|place| &book.wakes[*place]);
            let within =
                wakes.filter(|sent| sent.at() > paused_at && resumed.is_none_or(|resumed| sent.at() < resumed));
            let within: Vec<&Sent<'_>> = within.filter(|sent| !held_up(book, sent, paused_at)).collect();
            let late = within.iter().find(|sent| sent.at() > paused_at + book.lease);
            let what = late.map(|sent| format!("paused at {paused_at}, and a wake came at {}", sent.at()));
            let what = what.or_else(|| {
                (within.len() > 1).then(|| format!("paused at {paused_at}, and {} wakes came", within.len()))
            });
            found.extend(what.map(|what| Found { rule: "after-pause", about: About::Story(place), what }));
        }
    }
    found
}

/// No wake of a plan that somebody was told is replaced; but one that was in flight.
pub fn nothing_comes_of_a_plan_that_was_replaced(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| !story.undone && story.resource.is_none())
    {
        let versions = story.versions();
        if versions.iter().all(|version| version.until.is_none()) {
            continue;
        }
        for sent in story.wakes.iter().map(|wake| &book.wakes[*wake]) {
            let Some(row) = sent.alarm.and_then(|id| book.row_by_id.get(&id)).map(|row| &book.rows[*row]) else {
                continue;
            };
            let fits = |schedule: &Schedule| match Grid::of(schedule, row.created_at) {
                Some(grid) => grid.number(sent.scheduled_for).is_some(),
                None => matches!(schedule, Schedule::At(at) if super::slots::stored(*at) == sent.scheduled_for),
            };
            let fitting = versions.iter().filter(|version| fits(&version.definition.schedule));
            // The one that stood longest. None: an instant of a re-arming, or one that nobody asked for, which is another rule's.
            let longest =
                fitting.map(|version| version.until).max_by_key(|until| until.unwrap_or(DateTime::<Utc>::MAX_UTC));
            let Some(ended_at) = longest.flatten() else { continue };
            let rearmed = story.rearmings().any(|instant| instant == sent.scheduled_for);
            if !rearmed && sent.at() > ended_at + book.lease && !held_up(book, sent, ended_at) {
                let what = format!(
                    "planned anew at {ended_at}, and a wake for {} of the old plan came at {}",
                    sent.scheduled_for,
                    sent.at()
                );
                found.push(Found { rule: "after-cancel", about: About::Story(place), what });
            }
        }
    }
    found
}

/// Message and payload arrive to the byte, as they were when it was claimed, for whom they are.
pub fn wakes_say_what_was_asked(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate() {
        let versions = story.versions();
        let user = user_of(story.owner);
        for sent in story.wakes.iter().map(|wake| &book.wakes[*wake]) {
            let about = About::Story(place);
            if sent.owner != story.owner || sent.user.as_deref() != Some(user) {
                let what = format!(
                    "a wake of {}'s alarm came at {} for {} ({:?})",
                    story.owner,
                    sent.at(),
                    sent.owner,
                    sent.user
                );
                found.push(Found { rule: "foreign", about, what });
                continue;
            }
            let says = |version: &&super::stories::Version<'_>| {
                let definition = version.definition;
                let payload = sent.payload.as_deref().unwrap_or("{}");
                definition.message == sent.message && definition.payload == payload && definition.label == sent.label
            };
            let fitting: Vec<_> = versions.iter().filter(says).collect();
            if fitting.is_empty() {
                let what = format!(
                    "a wake came at {} with message {:?} and payload {:?}, which nobody asked for",
                    sent.at(),
                    sent.message,
                    sent.payload
                );
                found.push(Found { rule: "altered", about, what });
                continue;
            }
            // A wake says what its claim found: a lease after an edit nobody holds a claim from before it.
            let stood = |version: &&&super::stories::Version<'_>| {
                version.from <= sent.at()
                    && version.until.is_none_or(|until| sent.at() <= until + book.lease || held_up(book, sent, until))
            };
            if !fitting.iter().any(|version| stood(&version)) && !story.undone {
                let what =
                    format!("a wake came at {} with message {:?}, which was replaced before", sent.at(), sent.message);
                found.push(Found { rule: "altered", about, what });
            }
        }
    }
    found
}

/// At the end a row is what the last edit made it; where no other can have come after that. Of a resource, its spec tells.
pub fn rows_say_what_was_asked_last(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| !story.undone && story.resource.is_none())
    {
        let [row] = story.rows[..] else { continue };
        let row = &book.rows[row];
        if let Some(what) = last_edit(story).and_then(|last| differs(story, last, row)) {
            found.push(Found { rule: "altered", about: About::Story(place), what });
        }
    }
    found
}

/// The edit that certainly was the last. A POST makes an alarm or changes nothing: it comes before all others.
fn last_edit<'a>(story: &Story<'a>) -> Option<&'a Call> {
    let edits: Vec<&Call> = story.definitions().map(|(call, _)| call).collect();
    let is_edit = |call: &&&Call| !matches!(call.asked, Asked::Create { .. });
    if !edits.iter().any(|call| is_edit(&call)) {
        return edits.iter().find(|call| is_done(call)).copied();
    }
    let last = edits.iter().filter(is_edit).filter(|call| is_done(call)).max_by_key(|call| call.asked_at)?;
    let others = edits.iter().filter(is_edit).filter(|call| call.number != last.number);
    let until = |call: &Call| call.answered_at.filter(|_| is_done(call)).unwrap_or(call.asked_at + UNKNOWN_WITHIN);
    others.into_iter().all(|call| until(call) < last.asked_at).then_some(*last)
}

fn differs(story: &Story<'_>, last: &Call, row: &Row) -> Option<String> {
    let definition = definition_in(last)?;
    let name = || format!("alarm {} (call {})", row.id, last.number);
    if row.owner_did != story.owner {
        return Some(format!("{} is {}'s, and was made by {}", name(), row.owner_did, story.owner));
    }
    if row.wake_message != definition.message {
        return Some(format!("{} says {:?}, and was to say {:?}", name(), row.wake_message, definition.message));
    }
    if serde_json::from_str::<Value>(&definition.payload).ok().as_ref() != Some(&row.payload) {
        return Some(format!("{} carries {}, and was to carry {}", name(), row.payload, definition.payload));
    }
    // An edit of the words alone says nothing of the schedule: whatever nobody answered may stand.
    let open = story.definitions().filter(|(call, _)| !is_done(call)).map(|(_, definition)| &definition.schedule);
    let is = |schedule: &Schedule| match schedule {
        Schedule::At(at) => row.fire_at == Some(super::slots::stored(*at)) && row.cron_expr.is_empty(),
        Schedule::Every { seconds, .. } => row.cron_expr == format!("@every {seconds}s"),
        Schedule::EveryMinutes(minutes) => row.cron_expr == format!("*/{minutes} * * * *"),
    };
    let rearmed = story.rearmings().any(|at| row.fire_at == Some(at));
    let fits = rearmed || is(&definition.schedule) || open.into_iter().any(is);
    (!fits).then(|| {
        format!("{} is to fire at {:?} {}, and not {:?}", name(), row.fire_at, row.cron_expr, definition.schedule)
    })
}

pub fn user_of(did: &str) -> &str {
    did.split(':').nth(2).unwrap_or_default()
}

/// One key, or one call, is one alarm.
pub fn one_key_is_one_alarm(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, story) in book.stories.iter().enumerate().filter(|(_, story)| story.resource.is_none()) {
        let told: BTreeSet<Uuid> = story
            .calls
            .iter()
            .filter(|call| matches!(call.asked, Asked::Create { .. } | Asked::Put { .. }))
            .filter_map(|call| id_in(body(call)?))
            .collect();
        let rows: BTreeSet<Uuid> = story.rows.iter().map(|row| book.rows[*row].id).collect();
        let woken: BTreeSet<Uuid> = story.wakes.iter().filter_map(|wake| book.wakes[*wake].alarm).collect();
        let all: BTreeSet<Uuid> = told.into_iter().chain(rows.iter().copied()).chain(woken).collect();
        // A failover may have taken back the first alarm, and the same call made a second.
        if all.len() > 1 && (!story.undone || rows.len() > 1) {
            let what = format!("{} is {} alarms: {all:?}", story.label, all.len());
            found.push(Found { rule: "key-twice", about: About::Story(place), what });
        }
    }
    let mut by_key: BTreeMap<(&str, &str), Vec<Uuid>> = BTreeMap::new();
    for row in book.rows.iter().filter(|row| !row.idempotency_key.is_empty()) {
        by_key.entry((&row.owner_did, &row.idempotency_key)).or_default().push(row.id);
    }
    for ((_, key), ids) in by_key.iter().filter(|(_, ids)| ids.len() > 1) {
        // Of one story it is above.
        let abouts: BTreeSet<About> = ids.iter().map(|id| book.about(*id)).collect();
        if abouts.len() > 1 {
            let what = format!("the key {key:?} stands for {} alarms", ids.len());
            found.push(Found { rule: "key-twice", about: book.about(ids[0]), what });
        }
    }
    found
}

/// A nonce is taken once, and nobody sees or changes what is somebody else's.
pub fn nobody_gets_in_who_must_not(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut taken: BTreeMap<&str, &Call> = BTreeMap::new();
    for call in &book.log.calls {
        let Asked::Trespass { on, how } = &call.asked else { continue };
        let what = match &call.answer {
            Answer::Done { .. } => "was let in",
            // That it is there is nobody else's business either.
            Answer::Refused { status, .. } if *status != 404 => "was told something else than 404",
            Answer::Refused { .. } | Answer::Unknown { .. } => continue,
        };
        let what = format!("{} {what}: {how:?} on {on}, which is somebody else's (call {})", call.owner, call.number);
        let about = on.parse().map_or_else(|_| About::Session(on.clone()), |id| book.about(id));
        found.push(Found { rule: "foreign", about, what });
    }
    for call in book.log.calls.iter().filter(|call| is_done(call)) {
        let Asked::Verify { nonce } = &call.asked else { continue };
        let Some(first) = taken.insert(nonce, call) else { continue };
        // A failover may have brought it back.
        if ![first, call].iter().any(|call| book.call_undone(Undoes::Rows, call)) {
            let what = format!("a nonce was taken twice, by calls {} and {}", first.number, call.number);
            found.push(Found { rule: "nonce-twice", about: About::Else(format!("{first:?}\n{call:?}")), what });
        }
    }
    found
}
