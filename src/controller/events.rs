//! Kubernetes events: what `kubectl describe` shows of an Alarm's past. Told once, on transitions, after the status that shows them was
//! written. For people: one that cannot be written is let go.

use std::time::Duration;

use chrono::{DateTime, Utc};
use kube::{
    Resource,
    runtime::events::{Event, EventType, Recorder},
};
use tracing::debug;

use super::Context;
use crate::{
    crd::{
        Alarm, AlarmAttempt, AlarmStatus, Guarded, Phase,
        condition::{READY, STALLED},
    },
    domain::{alarm::lifecycle::NotFired, occurrence::Outcome},
    telemetry::chain,
};

/// The API server caps it at 1,024 bytes.
const NOTE_CAP: usize = 1000;
/// For all of one object.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What happened between two statuses. Pure.
pub fn of(before: Option<&AlarmStatus>, after: &AlarmStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let message = |status: &AlarmStatus, kind: &str| {
        status.conditions.iter().find(|one| one.type_ == kind).map(|one| one.message.clone())
    };
    // By reason and generation: a sentence may count something that changes by itself.
    let stalled = |status: &AlarmStatus| {
        let condition = status.conditions.iter().find(|one| one.type_ == STALLED)?;
        Some((condition.reason.clone(), condition.observed_generation))
    };
    let again = stalled(after).is_some() && before.and_then(stalled) == stalled(after);
    if let Some(stalled) = message(after, STALLED).filter(|_| !again) {
        events.push(event(EventType::Warning, "Invalid", stalled));
    }
    let scheduled = |status: &AlarmStatus| (status.phase, status.schedule.clone());
    if after.phase == Some(Phase::Active) && before.map(scheduled) != Some(scheduled(after)) {
        events.push(event(EventType::Normal, "Scheduled", message(after, READY).unwrap_or_default()));
    }
    let seen_until = before.and_then(|before| instant(before.last_attempt_time.as_deref()?));
    let new = after.attempts.iter().rev().filter(|attempt| instant(&attempt.started_at) > seen_until);
    events.extend(new.filter_map(|attempt| tried(attempt, after)));
    let missed = after.missed_count - before.map_or(0, |before| before.missed_count);
    if missed > 0 {
        let slots = if missed == 1 { "1 slot".to_owned() } else { format!("{missed} slots") };
        events.push(event(EventType::Warning, "Missed", format!("{slots} passed without a wake")));
    }
    events
}

/// A request for a wake now that cannot be had.
pub fn refused(why: NotFired) -> Event {
    event(EventType::Warning, "FireRefused", format!("no wake now, as was asked for: {why}"))
}

fn tried(attempt: &AlarmAttempt, after: &AlarmStatus) -> Option<Event> {
    let AlarmAttempt { scheduled_for, attempt: number, .. } = attempt;
    let answer = attempt.http_status.map_or_else(|| "no answer".to_owned(), |status| format!("HTTP {status}"));
    let failed = format!("attempt {number} at the wake of {scheduled_for} failed: {answer}");
    match Outcome::try_from(attempt.outcome.clone()).ok()? {
        Outcome::Retrying => {
            let next = after.next_fire_time.as_ref().map(|next| format!("; next {next}"));
            Some(event(EventType::Warning, "DeliveryFailed", failed + &next.unwrap_or_default()))
        }
        Outcome::Exhausted => Some(event(EventType::Warning, "Exhausted", failed + "; given up")),
        Outcome::Delivered | Outcome::Missed | Outcome::Skipped | Outcome::Cancelled | Outcome::Fenced => None,
    }
}

fn instant(text: &str) -> Option<DateTime<Utc>> {
    text.parse().ok()
}

fn event(kind: EventType, reason: &str, note: String) -> Event {
    let action = match kind {
        EventType::Normal => "Schedule",
        EventType::Warning => "Deliver",
    };
    let note = note.chars().scan(0, |bytes, c| {
        *bytes += c.len_utf8();
        (*bytes <= NOTE_CAP).then_some(c)
    });
    Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(note.collect()),
        action: action.to_owned(),
        secondary: None,
    }
}

pub async fn publish(context: &Context, alarm: &Guarded<Alarm>, events: &[Event]) {
    let about = alarm.object_ref(&());
    let told = async {
        for event in events {
            context.event_pace.turn().await;
            // A new one each time: one that remembers would count an event of the same reason up and keep its first sentence.
            let recorder = Recorder::new(context.client.clone(), context.reporter.clone());
            if let Err(error) = recorder.publish(event, &about).await {
                debug!(error = %chain(&error), "an event could not be written");
            }
        }
    };
    if tokio::time::timeout(TIMEOUT, told).await.is_err() {
        debug!("events could not be written in time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::AlarmAttempt;

    fn active() -> AlarmStatus {
        AlarmStatus { phase: Some(Phase::Active), schedule: Some("@daily".to_owned()), ..AlarmStatus::default() }
    }

    fn attempt(number: i32, outcome: &str) -> AlarmAttempt {
        AlarmAttempt {
            scheduled_for: "2026-11-16T09:00:00Z".to_owned(),
            attempt: number,
            started_at: format!("2026-11-16T09:0{number}:00Z"),
            outcome: outcome.to_owned(),
            http_status: Some(503),
            ..AlarmAttempt::default()
        }
    }

    fn reasons(before: Option<&AlarmStatus>, after: &AlarmStatus) -> Vec<String> {
        of(before, after).into_iter().map(|event| event.reason).collect()
    }

    #[test]
    fn a_transition_is_told_once() {
        assert_eq!(reasons(None, &active()), ["Scheduled"]);
        assert!(reasons(Some(&active()), &active()).is_empty());
        let edited = AlarmStatus { schedule: Some("@hourly".to_owned()), ..active() };
        assert_eq!(reasons(Some(&active()), &edited), ["Scheduled"]);
        let missed = AlarmStatus { missed_count: 3, ..active() };
        assert_eq!(of(Some(&active()), &missed)[0].note.as_deref(), Some("3 slots passed without a wake"));
    }

    #[test]
    fn every_failed_attempt_that_is_new_is_told_in_order() {
        let first = AlarmStatus {
            attempts: vec![attempt(1, "retrying")],
            last_attempt_time: Some("2026-11-16T09:01:00Z".to_owned()),
            ..active()
        };
        assert_eq!(reasons(Some(&active()), &first), ["DeliveryFailed"]);
        let after = AlarmStatus {
            attempts: vec![attempt(3, "exhausted"), attempt(2, "retrying"), attempt(1, "retrying")],
            ..active()
        };
        assert_eq!(reasons(Some(&first), &after), ["DeliveryFailed", "Exhausted"]);
    }

    #[test]
    fn a_note_stays_below_the_cap_whatever_it_is_written_in() {
        let note = event(EventType::Normal, "Scheduled", "é".repeat(2000)).note.unwrap();
        assert_eq!(note.len(), NOTE_CAP);
    }
}
