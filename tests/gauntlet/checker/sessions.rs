//! Logs of sessions, their timers, and the wakes of those.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::{
    book::{About, Book, Found},
    ends::user_of,
    faults::{Symptom, Undoes},
    rows::{Effect, Event},
    sent::{Sent, To},
    slots::stored,
    stories::body,
};
use crate::log::{Answer, Asked};

fn session(key: &str) -> About {
    About::Session(key.to_owned())
}

/// Numbered from 1 without gaps, events and sends. Of the table alone: nothing excuses it.
pub fn logs_have_no_gaps(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut by_session: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for event in &book.events {
        by_session.entry(&event.session_key).or_default().push(event.seq);
    }
    let mut sends: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for effect in &book.effects {
        if let Some(seq) = effect.send_seq {
            sends.entry(&effect.session_key).or_default().push(seq);
        }
    }
    for (key, row) in &book.sessions {
        let empty = Vec::new();
        let numbers = by_session.get(key.as_str()).unwrap_or(&empty);
        if !is_counted(numbers) || row.last_seq != i64::try_from(numbers.len()).unwrap_or(-1) {
            let what = format!("{key} counts {} events, and they are numbered {}", row.last_seq, gaps(numbers));
            found.push(Found { rule: "seq-gap", about: session(key), what });
        }
        let mut numbers = sends.get(key.as_str()).cloned().unwrap_or_default();
        numbers.sort_unstable();
        if !is_counted(&numbers) || row.last_send_seq != i64::try_from(numbers.len()).unwrap_or(-1) {
            let what = format!("{key} counts {} sends, and they are numbered {}", row.last_send_seq, gaps(&numbers));
            found.push(Found { rule: "seq-gap", about: session(key), what });
        }
    }
    found
}

fn is_counted(numbers: &[i64]) -> bool {
    numbers.iter().zip(1..).all(|(number, expected)| *number == expected)
}

fn gaps(numbers: &[i64]) -> String {
    let wrong = numbers.iter().zip(1..).find(|(number, expected)| *number != expected);
    match (wrong, numbers.last()) {
        (Some((number, expected)), _) => format!("with {number} where {expected} should be"),
        (None, Some(last)) => format!("up to {last}"),
        (None, None) => "not at all".to_owned(),
    }
}

/// What was acknowledged to a client is there, under that number, as it was said; and nothing that nobody said.
pub fn acknowledged_events_are_there(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let events: HashMap<(&str, Uuid), &Event> =
        book.events.iter().map(|event| ((event.session_key.as_str(), event.id), event)).collect();
    let mut said: BTreeSet<(&str, Uuid)> = BTreeSet::new();
    for call in &book.log.calls {
        let Asked::Event { session: key, id, kind, payload } = &call.asked else { continue };
        if !matches!(call.answer, Answer::Refused { .. }) {
            said.insert((key, *id));
        }
        let Some(body) = body(call) else { continue };
        let told = body.get("seq").and_then(Value::as_i64);
        let about = session(key);
        let undone = book.call_undone(Undoes::Rows, call);
        let Some(event) = events.get(&(key.as_str(), *id)) else {
            if !undone {
                let what = format!("event {id} was acknowledged as {told:?} (call {}), and is not there", call.number);
                found.push(Found { rule: "event-lost", about, what });
            }
            continue;
        };
        if Some(event.seq) != told && !undone {
            let what = format!("event {id} was acknowledged as {told:?} (call {}), and is {}", call.number, event.seq);
            found.push(Found { rule: "event-lost", about: about.clone(), what });
        }
        let asked: Option<Value> = serde_json::from_str(payload).ok();
        if event.r#type != *kind || asked.as_ref() != Some(&event.payload) {
            let what =
                format!("event {id} is a {} with {}, and was a {kind} with {payload}", event.r#type, event.payload);
            found.push(Found { rule: "altered", about, what });
        }
    }
    for event in book.events.iter().filter(|event| event.r#type != "timer") {
        if !said.contains(&(event.session_key.as_str(), event.id)) {
            let what =
                format!("event {} ({}) of {} is there, and nobody said it", event.seq, event.r#type, event.session_key);
            found.push(Found { rule: "phantom", about: session(&event.session_key), what });
        }
    }
    found
}

/// What a promotion leaves in the outbox.
struct Told {
    alarm: Uuid,
    delivery: Uuid,
    scheduled_for: DateTime<Utc>,
    timer: String,
}

fn told(effect: &Effect) -> Option<Told> {
    let text = |name: &str| effect.payload.get(name).and_then(Value::as_str);
    Some(Told {
        alarm: text("alarm_id")?.parse().ok()?,
        delivery: text("delivery_id")?.parse().ok()?,
        scheduled_for: text("scheduled_for")?.parse().ok()?,
        timer: text("timer_id")?.to_owned(),
    })
}

/// A timer that fires becomes one event, with one wake in the outbox. One transaction: nothing excuses it.
pub fn timers_are_promoted_once(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let wakes: Vec<(&Effect, Option<Told>)> =
        book.effects.iter().filter(|effect| effect.r#type == "wake").map(|effect| (effect, told(effect))).collect();
    let mut by_delivery: BTreeMap<Uuid, usize> = BTreeMap::new();
    let mut by_event: BTreeMap<(&str, i64), usize> = BTreeMap::new();
    for (effect, told) in &wakes {
        *by_event.entry((&effect.session_key, effect.event_seq)).or_default() += 1;
        match told {
            Some(told) => *by_delivery.entry(told.delivery).or_default() += 1,
            None => found.push(Found {
                rule: "altered",
                about: session(&effect.session_key),
                what: format!("the wake {} says nothing that can be read: {}", effect.id, effect.payload),
            }),
        }
    }
    for (effect, told) in &wakes {
        let Some(told) = told else { continue };
        let about = session(&effect.session_key);
        let times = by_delivery[&told.delivery];
        let tries = book
            .attempts_of(told.alarm)
            .filter(|one| one.delivery_id == Some(told.delivery) && one.outcome == "delivered")
            .count();
        if times > 1 || tries > 1 {
            let what =
                format!("timer {} of {} was promoted {} times", told.timer, told.scheduled_for, times.max(tries));
            found.push(Found { rule: "effect-twice", about, what });
        } else if tries == 0 {
            let what =
                format!("timer {} of {} was promoted, and no attempt tells of it", told.timer, told.scheduled_for);
            found.push(Found { rule: "uncounted", about, what });
        }
    }
    for event in book.events.iter().filter(|event| event.r#type == "timer") {
        let times = by_event.get(&(event.session_key.as_str(), event.seq)).copied().unwrap_or(0);
        if times != 1 {
            let rule = if times == 0 { "lost" } else { "effect-twice" };
            let what = format!("the timer event {} of {} has {times} wakes", event.seq, event.session_key);
            found.push(Found { rule, about: session(&event.session_key), what });
        }
    }
    let logged: BTreeSet<(&str, i64)> = book
        .events
        .iter()
        .filter(|event| event.r#type == "timer")
        .map(|event| (event.session_key.as_str(), event.seq))
        .collect();
    for (effect, _) in
        wakes.iter().filter(|(effect, _)| !logged.contains(&(effect.session_key.as_str(), effect.event_seq)))
    {
        let what = format!("wake {} tells of event {}, which is no timer's", effect.id, effect.event_seq);
        found.push(Found { rule: "event-lost", about: session(&effect.session_key), what });
    }
    // The other way round: what was promoted is in the log.
    for row in book.rows.iter().filter(|row| row.subject == "session") {
        for one in book.attempts_of(row.id).filter(|one| one.is_try() && one.outcome == "delivered") {
            if one.delivery_id.is_none_or(|delivery| !by_delivery.contains_key(&delivery)) {
                let what =
                    format!("timer {:?} of {} was promoted, and no event tells of it", row.timer_id, one.scheduled_for);
                found.push(Found { rule: "event-lost", about: book.about(row.id), what });
            }
        }
    }
    found
}

/// Each wake of a promoted timer was taken, or says why not; says what it must, to whom it must.
pub fn promoted_timers_wake(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut known: BTreeMap<Uuid, (&Effect, Told)> = BTreeMap::new();
    for effect in book.effects.iter().filter(|effect| effect.r#type == "wake") {
        let Some(told) = told(effect) else { continue };
        let about = session(&effect.session_key);
        // What a failover undid may have been answered before: that it was taken stays in the router's log.
        if effect.status == "completed" && !book.wakes_of(told.delivery).any(Sent::was_taken) {
            let what = format!(
                "the wake of timer {} of {} is completed, and the router took none",
                told.timer, told.scheduled_for
            );
            found.push(Found { rule: "lost", about: about.clone(), what });
        }
        if effect.status == "failed" {
            // Given up after its last attempt; and what the router took is no failure, unless its answer was lost.
            let most = i64::from(book.log.run.max_failures);
            let taken = |sent: &&Sent<'_>| {
                let (from, until) = (sent.at(), sent.at() + book.lease);
                sent.was_taken() && !book.faults.explain(Symptom::TakenTwice, Some(sent.sender()), from, until)
            };
            if effect.reason.is_none()
                || effect.failure_count <= most
                || book.wakes_of(told.delivery).any(|sent| taken(&sent))
            {
                let what = format!(
                    "the wake of timer {} of {} is given up after {} attempts: {:?}",
                    told.timer, told.scheduled_for, effect.failure_count, effect.reason
                );
                found.push(Found { rule: "unjustified-failure", about: about.clone(), what });
            }
        }
        known.insert(told.delivery, (effect, told));
    }
    let payloads: HashMap<(&str, i64), &Value> =
        book.events.iter().map(|event| ((event.session_key.as_str(), event.seq), &event.payload)).collect();
    for sent in book.wakes.iter().filter(|sent| sent.to == To::Session) {
        let Some((key, timer, seq)) = &sent.session else { continue };
        let about = session(key);
        let Some((effect, told)) = known.get(&sent.delivery) else {
            // Promoted and told, and taken back; and when it was to be promoted again, the user spoke.
            if !book.is_undone(Undoes::Rows, sent.scheduled_for, sent.at()) {
                let what = format!("a wake of timer {timer} came at {}, and nobody promoted one", sent.at());
                found.push(Found { rule: "phantom", about, what });
            }
            continue;
        };
        let owner = book.sessions.get(&effect.session_key).map(|row| row.owner_did.as_str()).unwrap_or_default();
        if sent.owner != owner || sent.user.as_deref() != Some(user_of(owner)) || *key != effect.session_key {
            let what =
                format!("a wake of {}'s session {} came for {} and {key}", owner, effect.session_key, sent.owner);
            found.push(Found { rule: "foreign", about, what });
            continue;
        }
        let payload = sent.payload.as_deref().map(serde_json::from_str::<Value>).and_then(Result::ok);
        let asked = payloads
            .get(&(effect.session_key.as_str(), effect.event_seq))
            .and_then(|event| event.get("payload"))
            .cloned();
        let asked = asked.filter(|asked| asked.as_object().is_none_or(|object| !object.is_empty()));
        if *timer != told.timer
            || sent.scheduled_for != told.scheduled_for
            || payload != asked
            || !sent.message.is_empty()
        {
            let what = format!("the wake of timer {} came at {} as {}", told.timer, sent.at(), sent.wake.body);
            found.push(Found { rule: "altered", about: about.clone(), what });
        }
        // A failover may have given the event another number when the timer was promoted once more.
        if *seq != effect.event_seq && !book.is_undone(Undoes::Rows, sent.scheduled_for, sent.at()) {
            let what = format!("the wake of timer {} names event {seq}, and it is {}", told.timer, effect.event_seq);
            found.push(Found { rule: "altered", about, what });
        }
    }
    found
}

/// A timer as a checkpoint sets it.
struct Set<'a> {
    call: &'a crate::log::Call,
    event_seq: i64,
    fire_at: DateTime<Utc>,
}

/// Every timer that was set fires, or the user spoke, or it was set again.
pub fn set_timers_fire(book: &Book<'_>) -> Vec<Found> {
    let mut set: BTreeMap<(&str, &str), Vec<Set<'_>>> = BTreeMap::new();
    for call in &book.log.calls {
        let Asked::Checkpoint { session, event_seq, effects, .. } = &call.asked else { continue };
        let born = body(call).and_then(|body| body.get("effects")).and_then(Value::as_array);
        for (place, effect) in effects.iter().enumerate() {
            let is_timer = effect.get("type").and_then(Value::as_str) == Some("schedule_timer");
            let payload = effect.get("payload");
            let timer = payload.and_then(|payload| payload.get("timer_id")).and_then(Value::as_str);
            let at = payload
                .and_then(|payload| payload.get("fire_at"))
                .and_then(Value::as_str)
                .and_then(|at| at.parse().ok());
            // Certainly set: the answer says so.
            let done =
                born.and_then(|born| born.get(place)).and_then(|born| born.get("status")).and_then(Value::as_str);
            if let (true, Some(timer), Some(at), Some("completed")) = (is_timer, timer, at, done) {
                set.entry((session, timer)).or_default().push(Set { call, event_seq: *event_seq, fire_at: stored(at) });
            }
        }
    }
    let rows: HashMap<(&str, &str), usize> = book
        .rows
        .iter()
        .enumerate()
        .filter_map(|(place, row)| Some(((row.session_key.as_deref()?, row.timer_id.as_deref()?), place)))
        .collect();
    let user_spoke: BTreeMap<&str, i64> = book
        .events
        .iter()
        .filter(|event| event.r#type == "user_message")
        .map(|event| (event.session_key.as_str(), event.seq))
        .collect(); // in order of seq: the last stands
    let mut found = Vec::new();
    for ((key, timer), sets) in set {
        let about = session(key);
        if sets.iter().any(|set| book.call_undone(Undoes::Rows, set.call)) {
            continue;
        }
        let Some(last) = sets.iter().max_by_key(|set| set.event_seq) else { continue };
        let Some(row) = rows.get(&(key, timer)).map(|row| &book.rows[*row]) else {
            let what = format!(
                "timer {timer} was set for {} (call {}), and no row tells of it",
                last.fire_at, last.call.number
            );
            found.push(Found { rule: "lost", about, what });
            continue;
        };
        let spoke_since = user_spoke.get(key).is_some_and(|seq| *seq > last.event_seq);
        let delivered =
            book.attempts_of(row.id).any(|one| one.outcome == "delivered" && one.scheduled_for == last.fire_at);
        let what = match row.status.as_str() {
            "cancelled" if spoke_since => continue,
            "cancelled" => format!("timer {timer} is cancelled, and the user said nothing"),
            "fired" if delivered => continue,
            // A checkpoint that nobody answered may have set it anew.
            "fired" if row.scheduled_for != last.fire_at => continue,
            "fired" => format!("timer {timer} is fired, and was not promoted for {}", last.fire_at),
            // What is due and still pending is late, by that rule.
            _ => continue,
        };
        found.push(Found { rule: "lost", about, what });
    }
    found
}
