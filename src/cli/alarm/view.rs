//! One alarm, for people and for programs.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use super::standing;
use crate::{
    cli::{
        fires,
        words::{cut, shown},
    },
    domain::{
        alarm::{Status, Timing},
        rfc3339,
        schedule::{Fire, Recurrence, Schedule},
    },
    http::alarms::view as http,
    store::alarms::{Alarm, Resource, Seen},
};

/// Fire times shown.
const UPCOMING: usize = 5;
/// As much of a message or payload as is shown to people; programs get all of it.
const LONGEST: usize = 200;

/// The facade's view, whose it is, and whether a wake is under way.
#[derive(Serialize)]
pub struct View {
    owner_did: String,
    #[serde(flatten)]
    view: http::View,
    in_flight: bool,
    /// Why the row cannot be read, if so.
    unreadable: Option<String>,
}

impl View {
    pub fn of(alarm: Alarm, now: DateTime<Utc>) -> Self {
        Self {
            owner_did: alarm.owner_did.clone(),
            in_flight: alarm.in_flight,
            unreadable: alarm.definition().err(),
            view: http::View::of(alarm, now),
        }
    }
}

/// The view, with whoever holds a claim.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    view: View,
    claim: Option<Value>,
}

pub fn json(seen: Seen, now: DateTime<Utc>) -> serde_json::Result<String> {
    let claim = seen.claimed_by.zip(seen.claimed_at).zip(seen.claimed_until).map(
        |((by, at), until)| json!({ "by": by, "at": rfc3339(at), "until": rfc3339(until), "claims": seen.claims }),
    );
    let whole = Whole { view: View::of(seen.alarm, now), claim };
    serde_json::to_string_pretty(&whole).map(|text| text + "\n")
}

/// Everything, a line each.
pub fn told(seen: &Seen, now: DateTime<Utc>) -> String {
    let alarm = &seen.alarm;
    let timing = alarm.when.timing();
    let readable = timing.as_ref().ok();
    let mut lines = vec![
        ("owner", alarm.owner_did.clone()),
        ("label", shown(&alarm.label)),
        ("schedule", readable.map_or_else(|| super::schedule(alarm), |timing| timing.schedule.describe())),
        ("status", standing(alarm)),
        ("next", next(alarm)),
        ("in flight", claim(seen)),
        ("failures", failures(alarm)),
        ("fired", fired(alarm)),
    ];
    if let Some(timing) = readable {
        lines.extend(policies(alarm, timing));
    }
    if let Err(why) = alarm.definition() {
        lines.push(("unreadable", format!("{why}; it is parked when it is due")));
    }
    lines.extend([
        ("message", shown(&cut(&alarm.wake_message, LONGEST))),
        ("payload", cut(&alarm.payload, LONGEST)),
        ("conversation", shown(&alarm.conversation_id)),
        ("key", shown(&alarm.idempotency_key)),
        ("correlation", alarm.correlation_id.clone()),
        ("managed by", managed_by(alarm)),
        ("created", format!("{}, revision {}", rfc3339(alarm.when.created_at), alarm.revision)),
        ("updated", rfc3339(alarm.updated_at)),
    ]);
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = lines.iter().map(|(name, value)| format!("  {name:width$}  {value}\n"));
    let mut told = format!("alarm {}\n{}", alarm.id, lines.collect::<String>());
    let fires = upcoming(alarm, readable, now);
    if !fires.is_empty() {
        told += "upcoming\n";
        told.extend(fires::lines(&fires).iter().map(|line| format!("  {line}\n")));
    }
    told
}

fn next(alarm: &Alarm) -> String {
    let (next, slot) = (rfc3339(alarm.next_fire_at), rfc3339(alarm.scheduled_for));
    match alarm.status {
        Status::Active if next == slot => next,
        Status::Active => format!("{next}, for the slot {slot}"),
        Status::Paused => format!("not before it is resumed; its slot is {slot}"),
        Status::Fired | Status::Cancelled | Status::Failed => format!("never; its last slot was {slot}"),
    }
}

fn claim(seen: &Seen) -> String {
    let claims = if seen.claims > 1 { format!(", claim {} of this occurrence", seen.claims) } else { String::new() };
    match (seen.claimed_by, seen.claimed_at, seen.claimed_until) {
        (Some(by), Some(at), Some(until)) if seen.alarm.in_flight => {
            format!("claimed by {by} at {}, until {}{claims}", rfc3339(at), rfc3339(until))
        }
        (Some(by), Some(_), Some(until)) => format!("no; the claim of {by} ended at {}{claims}", rfc3339(until)),
        (_, _, _) => "no".to_owned(),
    }
}

fn failures(alarm: &Alarm) -> String {
    let error = if alarm.last_error.is_empty() {
        String::new()
    } else {
        format!("; last error {}", shown(&cut(&alarm.last_error, LONGEST)))
    };
    format!("{}, at most {}{error}", alarm.failure_count, alarm.max_failures)
}

fn fired(alarm: &Alarm) -> String {
    let last = alarm.last_fired_at.map_or_else(String::new, |at| format!(", last at {}", rfc3339(at)));
    format!("{} times, {} slots missed{last}", alarm.fired_count, alarm.missed_count)
}

fn policies(alarm: &Alarm, timing: &Timing) -> Vec<(&'static str, String)> {
    let limit = timing.lateness_limit();
    let limit = limit.map_or("however late".to_owned(), |limit| format!("at most {} s late", limit.num_seconds()));
    let mut lines = vec![("misfire", format!("{}, {limit}", timing.misfire.as_str()))];
    if timing.spread > TimeDelta::zero() {
        let offset = alarm.when.offset().unwrap_or_default();
        let behind = offset.to_std().unwrap_or_default();
        let spread = timing.spread.num_seconds();
        lines.push(("spread", format!("{spread} s; it fires {behind:?} behind each slot")));
    }
    if let Some(window) = recurrence(timing).map(Recurrence::window) {
        let from = window.starts_at().map(|at| format!("from {}", rfc3339(at)));
        let until = window.ends_at().map(|at| format!("until {}", rfc3339(at)));
        let bounds: Vec<String> = [from, until].into_iter().flatten().collect();
        if !bounds.is_empty() {
            lines.push(("window", bounds.join(" ")));
        }
    }
    lines
}

fn managed_by(alarm: &Alarm) -> String {
    alarm.resource().map_or_else(
        || "its owner, over HTTP".to_owned(),
        |Resource { cluster, namespace, name }| format!("the resource Alarm {namespace}/{name} of cluster {cluster}"),
    )
}

fn recurrence(timing: &Timing) -> Option<&Recurrence> {
    match &timing.schedule {
        Schedule::Once { .. } => None,
        Schedule::Cron(recurrence) => Some(recurrence),
    }
}

/// The slots ahead of an active alarm.
fn upcoming(alarm: &Alarm, timing: Option<&Timing>, now: DateTime<Utc>) -> Vec<Fire> {
    let active = timing.filter(|_| alarm.status == Status::Active);
    // By its effective instants: the slot whose own has passed and whose effective one has not is still to come.
    let offset = alarm.when.offset().unwrap_or_default();
    active.map(|timing| timing.schedule.preview(now - offset, UPCOMING)).unwrap_or_default()
}
