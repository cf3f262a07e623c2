//! The whole status of an Alarm, from what its row says. Pure.

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use super::{Report, conditions::Conditions};
use crate::{
    crd::{
        AlarmAttempt, AlarmStatus, Phase,
        condition::{DELIVERING, DUPLICATE, reason},
    },
    domain::{
        alarm::{Cause, Status},
        occurrence::{self, Outcome},
        rfc3339,
        schedule::Schedule,
    },
    store::{alarms::Alarm as Stored, attempts::Entry, resources::Facts},
};

/// How many instants ahead a status shows.
const UPCOMING: usize = 5;

pub fn status(meta: &ObjectMeta, before: Option<&AlarmStatus>, report: &Report, now: DateTime<Utc>) -> AlarmStatus {
    let generation = meta.generation.unwrap_or_default();
    let known = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let conditions = Conditions { before: known, generation, now };
    match report {
        Report::Stored { facts, .. } => {
            let alarm = &facts.alarm;
            let ready = conditions.ready(ready_reason(alarm.status), &sentence(alarm));
            AlarmStatus {
                phase: Some(phase(alarm.status)),
                conditions: with_facts(vec![ready], &conditions, facts),
                ..told(facts, generation)
            }
        }
        Report::Refused { refused, stored } => {
            let message = format!("{}{}", refused.message, until_then(stored.as_deref()));
            let stalled = conditions.stalled(refused.reason, &message);
            match stored {
                None => AlarmStatus { phase: Some(Phase::Invalid), conditions: stalled, ..nothing(generation) },
                Some(facts) => AlarmStatus {
                    phase: Some(Phase::Invalid),
                    conditions: with_facts(stalled, &conditions, facts),
                    ..told(facts, generation)
                },
            }
        }
        Report::Failed(error) => AlarmStatus {
            observed_generation: generation,
            conditions: {
                let mut all = conditions.reconciling(error, meta.deletion_timestamp.is_some());
                // Of these nothing is known that would be new.
                all.extend(known.iter().filter(|one| [DELIVERING, DUPLICATE].contains(&one.type_.as_str())).cloned());
                all
            },
            ..before.cloned().unwrap_or_default()
        },
    }
}

/// What becomes of what an earlier version of the resource asked for.
fn until_then(stored: Option<&Facts>) -> &'static str {
    match stored.map(|facts| (facts.alarm.status, facts.alarm.paused_by())) {
        Some((Status::Active, _)) => "; until then what was stored before goes on",
        Some((Status::Paused, causes)) if causes.contains(&Cause::Spec) => {
            "; until then what was stored before does not fire"
        }
        Some((Status::Paused | Status::Fired | Status::Failed | Status::Cancelled, _)) | None => "",
    }
}

/// What a row says.
fn told(facts: &Facts, generation: i64) -> AlarmStatus {
    let alarm = &facts.alarm;
    AlarmStatus {
        alarm_id: Some(alarm.id.to_string()),
        schedule: Some(alarm.when.fire_at.map_or_else(|| alarm.when.cron_expr.clone(), rfc3339)),
        next_fire_time: (alarm.status == Status::Active).then(|| rfc3339(alarm.next_fire_at)),
        upcoming: upcoming(alarm),
        last_fired_time: alarm.last_fired_at.map(rfc3339),
        last_attempt_time: facts.attempts.first().map(|attempt| rfc3339(attempt.started_at)),
        failure_count: alarm.failure_count,
        last_error: occurrence::error_class(&alarm.last_error).to_owned(),
        fired_count: alarm.fired_count,
        missed_count: alarm.missed_count,
        attempts: facts.attempts.iter().map(attempt).collect(),
        fire_requested_at: facts.fire_requested.clone(),
        ..nothing(generation)
    }
}

fn nothing(generation: i64) -> AlarmStatus {
    AlarmStatus { observed_generation: generation, ..AlarmStatus::default() }
}

fn attempt(entry: &Entry) -> AlarmAttempt {
    AlarmAttempt {
        scheduled_for: rfc3339(entry.scheduled_for),
        attempt: entry.attempt,
        started_at: rfc3339(entry.started_at),
        duration_milliseconds: entry.duration_ms,
        outcome: entry.outcome.as_str().to_owned(),
        http_status: entry.http_status,
    }
}

/// The effective instants of the occurrence that waits and of those behind it. From the row alone, not from the clock: a status is
/// written when something happens, not because time goes by.
fn upcoming(alarm: &Stored) -> Vec<String> {
    let (Status::Active, Ok(timing)) = (alarm.status, alarm.when.timing()) else { return vec![] };
    let offset = alarm.when.offset().unwrap_or_default();
    // On its ladder the occurrence's own instant has passed.
    let waits = (alarm.failure_count == 0).then_some(alarm.next_fire_at);
    let behind = match timing.schedule {
        Schedule::Once { .. } => vec![],
        Schedule::Cron(recurrence) => {
            let schedule = Schedule::Cron(recurrence);
            // One that somebody fired by hand lies between two slots.
            schedule.upcoming(alarm.next_fire_at.max(alarm.scheduled_for + offset) - offset, UPCOMING)
        }
    };
    let behind = behind.into_iter().map(|slot| slot + offset);
    waits.into_iter().chain(behind).take(UPCOMING).map(rfc3339).collect()
}

/// Those that hang on what happened to its wakes, and on other clusters.
fn with_facts(mut all: Vec<Condition>, conditions: &Conditions<'_>, facts: &Facts) -> Vec<Condition> {
    all.extend(delivering(conditions, facts));
    if let Some(cluster) = facts.elsewhere {
        let message = format!(
            "cluster {cluster} has a living alarm of this owner, namespace and name, and both fire; if that cluster is gone: `chronosd cluster adopt {cluster}`, or `forget`"
        );
        all.push(conditions.one(DUPLICATE, true, reason::OTHER_CLUSTER, &message));
    }
    all
}

/// Whether the router takes its wakes. An answer that came too late to count says nothing about that.
fn delivering(conditions: &Conditions<'_>, facts: &Facts) -> Option<Condition> {
    let alarm = &facts.alarm;
    let verdict = facts.attempts.iter().find_map(|attempt| match attempt.outcome {
        Outcome::Delivered => Some((true, reason::DELIVERED)),
        Outcome::Retrying => Some((false, reason::RETRYING)),
        Outcome::Exhausted => Some((false, reason::EXHAUSTED)),
        Outcome::Missed | Outcome::Skipped | Outcome::Cancelled | Outcome::Fenced => None,
    });
    // Attempts are kept for some weeks; that it was delivered is known for longer.
    let verdict = verdict.or(alarm.last_fired_at.map(|_| (true, reason::DELIVERED)));
    let class = occurrence::error_class(&alarm.last_error);
    let class = if class.is_empty() { "see the attempts" } else { class };
    verdict.map(|(holds, why)| {
        let message = match why {
            reason::RETRYING => format!(
                "the router did not take the last wake ({class}); attempt {} at {}",
                alarm.failure_count + 1,
                rfc3339(alarm.next_fire_at)
            ),
            reason::EXHAUSTED => format!("the router did not take the last wake, which was given up ({class})"),
            _ => "last wake delivered".to_owned(),
        };
        conditions.one(DELIVERING, holds, why, &message)
    })
}

fn phase(status: Status) -> Phase {
    match status {
        Status::Active => Phase::Active,
        Status::Paused => Phase::Paused,
        Status::Fired => Phase::Fired,
        Status::Failed => Phase::Failed,
        Status::Cancelled => Phase::Cancelled,
    }
}

/// Ready means stored and scheduled as specified, whatever the router says to its wakes: a dead router must not block
/// every GitOps sync.
fn ready_reason(status: Status) -> &'static str {
    match status {
        Status::Active => reason::SCHEDULED,
        Status::Paused => reason::PAUSED,
        Status::Fired => reason::FIRED,
        Status::Failed => reason::FAILED,
        Status::Cancelled => reason::CANCELLED,
    }
}

fn sentence(alarm: &Stored) -> String {
    let error = occurrence::error_class(&alarm.last_error);
    match (alarm.status, alarm.failure_count) {
        (Status::Active, 0) => format!("next wake {}", local(alarm)),
        (Status::Active, failures) => {
            format!("attempt {} at {} after {failures} failed ({error})", failures + 1, rfc3339(alarm.next_fire_at))
        }
        (Status::Paused, _) => format!("paused: {}", causes(&alarm.paused_by())),
        (Status::Fired, _) => {
            let last = alarm.last_fired_at.map(|at| format!("; last wake delivered {}", rfc3339(at)));
            format!("nothing is left to fire{}", last.unwrap_or_default())
        }
        (Status::Failed, _) if error.starts_with("missed: ") => error.to_owned(),
        (Status::Failed, _) => format!("given up: {error}"),
        (Status::Cancelled, _) => format!("cancelled: {}", cancelled(alarm.cancelled_by.as_deref())),
    }
}

/// As a clock in its zone shows it.
fn local(alarm: &Stored) -> String {
    let Ok(timing) = alarm.when.timing() else { return rfc3339(alarm.next_fire_at) };
    match timing.schedule {
        Schedule::Once { .. } => rfc3339(alarm.next_fire_at),
        Schedule::Cron(recurrence) => {
            let zone = recurrence.zone();
            let at = zone.local(alarm.next_fire_at);
            let sharp = alarm.next_fire_at.timestamp() % 60 == 0 && at.timestamp_subsec_micros() == 0;
            let shown = at.format(if sharp { "%Y-%m-%d %H:%M" } else { "%Y-%m-%d %H:%M:%S" });
            format!("{shown} {}", zone.name())
        }
    }
}

fn causes(causes: &[Cause]) -> String {
    let words = causes.iter().map(|cause| match cause {
        Cause::Spec => "spec.suspend is true",
        Cause::Agent => "its agent is suspended or not enrolled",
        Cause::Owner => "its owner asked for it",
    });
    words.collect::<Vec<_>>().join(", ")
}

fn cancelled(by: Option<&str>) -> &'static str {
    match by {
        Some("resource") => {
            "this resource was deleted, or gone, before, and one that comes back is not armed again; delete it and apply it anew"
        }
        Some("cluster") => "its cluster was forgotten; delete it and apply it anew",
        Some("agent") => "its agent was removed; delete it and apply it anew",
        Some(_) | None => "delete it and apply it anew",
    }
}

/// How long the row had waited to be told of.
pub fn lag(report: &Report, now: DateTime<Utc>) -> Option<TimeDelta> {
    match report {
        Report::Stored { facts, .. } => Some(now - facts.alarm.updated_at),
        Report::Refused { .. } | Report::Failed(_) => None,
    }
}
