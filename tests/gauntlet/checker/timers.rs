//! Timers of service calls: each that is set ends `Reached`, with its event; the last one, if it was set again; never given up.

use chrono::{DateTime, Utc};

use super::{
    book::{About, Book, Found},
    faults::Symptom,
    sent::{Sent, To},
    slots::delivery_id,
    stories::{Timers, is_done, said_in_flight},
};
use crate::log::{Asked, Call};

pub fn timers_reach_their_end(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, timers) in book.timers.iter().enumerate() {
        let about = About::Timers(place);
        let mut say = |rule: &'static str, what: String| {
            found.push(Found { rule, about: about.clone(), what: format!("{}: {what}", timers.name) });
        };
        if !timers.undone {
            if let Some(what) = end(book, timers) {
                say("timer", what);
            }
            if let Some(what) = after_deregistration(book, timers) {
                say("after-cancel", what);
            }
        }
        for sent in timers.wakes.iter().map(|wake| &book.wakes[*wake]) {
            let payload = sent.payload.as_deref().unwrap_or_default();
            // The event's instant is cut to the millisecond.
            let due = |at: DateTime<Utc>| at.timestamp_millis() == sent.scheduled_for.timestamp_millis();
            let mut of_instant = timers.commands().filter(|(_, at, _)| due(*at)).peekable();
            if of_instant.peek().is_none() {
                say("phantom", format!("an event for {}, which nobody asked for", sent.scheduled_for));
            } else if !of_instant.any(|(_, _, asked)| asked == payload) {
                say("altered", format!("the event for {} came with the payload {payload:?}", sent.scheduled_for));
            }
            if let Some(what) = of_a_timer_that_was_set_anew(book, timers, sent) {
                say("timer", what);
            }
        }
    }
    for sent in book.wakes.iter().filter(|sent| sent.to == To::ServiceCall) {
        let about = super::deliveries::about(book, sent);
        if !matches!(about, About::Timers(_)) {
            let what =
                format!("an event of {:?} for {}, and nobody of that name has such a call", sent.call, sent.owner);
            found.push(Found { rule: "foreign", about, what });
        }
    }
    found
}

/// How it must stand at the end, if that is certain.
fn end(book: &Book<'_>, timers: &Timers<'_>) -> Option<String> {
    let row = timers.row.map(|row| &book.rows[row]);
    let last = timers.commands().filter(|(call, _, _)| is_done(call)).max_by_key(|(call, _, _)| call.asked_at);
    let removed = |since: DateTime<Utc>| {
        timers.deregistrations().any(|call| !is_done(call) || call.answered_at.is_none_or(|at| at >= since))
    };
    let Some(row) = row else {
        // Set, and nobody may have deregistered it since.
        let (call, due_at, _) = last?;
        return (!removed(call.asked_at))
            .then(|| format!("its timer for {due_at} was accepted (call {}), and no row tells of it", call.number));
    };
    let known = book.service_calls.contains(&(timers.owner.to_owned(), timers.name.to_owned()));
    if !known {
        return Some("its timer is there, and the call is not".to_owned());
    }
    // The last that was done, or any that was asked for since or may have come later.
    let may_stand = |(call, due_at, _): (&Call, DateTime<Utc>, &str)| {
        due_at == row.scheduled_for
            && last.is_none_or(|(last, _, _)| !is_done(call) || call.answered_at.is_none_or(|at| at >= last.asked_at))
    };
    if !timers.commands().any(may_stand) {
        return Some(format!("its timer stands at {}, which is not what was asked for last", row.scheduled_for));
    }
    if row.status == "fired" {
        let id = delivery_id(row.id, row.schedule_epoch, row.scheduled_for);
        if !book.wakes_of(id).any(Sent::was_taken) {
            return Some(format!("its timer of {} is reached, and nobody took the event", row.scheduled_for));
        }
    }
    // One that is still scheduled and due is late, by that rule.
    None
}

/// No event after it was deregistered, but the one that was in flight.
fn after_deregistration(book: &Book<'_>, timers: &Timers<'_>) -> Option<String> {
    for call in timers.deregistrations() {
        let Some(answered_at) = call.answered_at.filter(|_| is_done(call)) else { continue };
        // From then on it may be another one of the same name.
        let until = |later: &&&Call| {
            matches!(later.asked, Asked::Register { .. })
                && (!is_done(later) || later.answered_at.is_none_or(|at| at > call.asked_at))
        };
        let again = timers.calls.iter().filter(until).map(|later| later.asked_at.max(call.asked_at)).min();
        // Asked once more it finds nothing in flight: that was said to the first, or nobody heard it.
        let in_flight = timers.deregistrations().any(|earlier| said_in_flight(earlier, answered_at));
        let wakes = timers.wakes.iter().map(|place| &book.wakes[*place]);
        let after = wakes.filter(|sent| sent.at() > answered_at && again.is_none_or(|again| sent.at() < again));
        let after = after
            .filter(|sent| {
                !book.faults.explain(Symptom::HeldUp, Some(sent.sender()), answered_at - book.lease, sent.at())
            })
            .count();
        if after > usize::from(in_flight) {
            return Some(format!("deregistered at {answered_at}, and {after} events came after"));
        }
    }
    None
}

/// Set anew, its old instant tells nobody anything; but an event that was in flight.
fn of_a_timer_that_was_set_anew(book: &Book<'_>, timers: &Timers<'_>, sent: &Sent<'_>) -> Option<String> {
    if timers.undone {
        return None;
    }
    let due = |at: DateTime<Utc>| at.timestamp_millis() == sent.scheduled_for.timestamp_millis();
    let of_instant: Vec<_> = timers.commands().filter(|(_, at, _)| due(*at)).collect();
    let newest = of_instant
        .iter()
        .map(|(call, _, _)| if is_done(call) { call.answered_at } else { None })
        .max_by_key(|at| at.unwrap_or(DateTime::<Utc>::MAX_UTC))??;
    let replaced = timers.commands().filter(|(call, at, _)| is_done(call) && !due(*at) && call.asked_at >= newest);
    let replaced_at = replaced.filter_map(|(call, _, _)| call.answered_at).min()?;
    let late = sent.at() > replaced_at + book.lease
        && !book.faults.explain(Symptom::HeldUp, Some(sent.sender()), replaced_at - book.lease, sent.at());
    late.then(|| format!("set anew at {replaced_at}, and the event for {} came at {}", sent.scheduled_for, sent.at()))
}
