//! What the row says, mirrored to `.status`. The controller is its only writer: server-side apply, skipped when nothing
//! would change.

use chrono::{DateTime, Utc};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Error, validate::Refused};
use crate::{
    crd::{
        Alarm, AlarmStatus, Phase,
        condition::{READY, RECONCILING, STALLED, reason},
    },
    domain::{alarm::Status, occurrence, rfc3339},
    store::{self, alarms::Alarm as Stored},
};

const FIELD_MANAGER: &str = "chronos-controller";
/// Of a condition's message, in the API server's schema.
const MESSAGE_CAP: usize = 32_768;

/// What a reconcile found.
pub enum Report {
    Stored(Box<Stored>),
    /// `stored` is what an earlier version of the resource asked for; it goes on.
    Refused {
        refused: Refused,
        stored: Option<Box<Stored>>,
    },
    Failed(store::Error),
}

pub async fn mirror(api: &Api<Alarm>, alarm: &Alarm, report: &Report, now: DateTime<Utc>) -> Result<(), Error> {
    let status = status(alarm, report, now);
    if alarm.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let name = alarm.name_any();
    let patch = json!({
        "apiVersion": "chronos.dev/v1alpha1",
        "kind": "Alarm",
        "metadata": { "name": name },
        "status": status,
    });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    match api.patch_status(&name, &parameters, &Patch::Apply(patch)).await {
        Ok(_) => Ok(()),
        // Deleted meanwhile: there is nobody left to tell.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(Error::Status { name, source }),
    }
}

/// The whole status. Pure.
fn status(alarm: &Alarm, report: &Report, now: DateTime<Utc>) -> AlarmStatus {
    let before = alarm.status.clone().unwrap_or_default();
    let generation = alarm.metadata.generation.unwrap_or_default();
    let conditions = Conditions { before: &before.conditions, generation, now };
    match report {
        Report::Stored(stored) => AlarmStatus {
            phase: Some(phase(stored.status)),
            conditions: vec![conditions.condition(READY, true, ready_reason(stored.status), &sentence(stored))],
            ..facts(stored, generation)
        },
        Report::Refused { refused, stored } => {
            let living = stored.as_ref().is_some_and(|stored| stored.status.is_living());
            let goes_on = if living { "; until then what was stored before goes on" } else { "" };
            let message = format!("{}{goes_on}", refused.message);
            AlarmStatus {
                phase: Some(Phase::Invalid),
                conditions: vec![
                    conditions.condition(READY, false, refused.reason, &message),
                    conditions.condition(STALLED, true, refused.reason, &message),
                ],
                ..stored.as_ref().map_or_else(|| nothing(generation), |stored| facts(stored, generation))
            }
        }
        Report::Failed(error) => {
            let (reason, message) = if error.is_away() {
                (
                    reason::DATABASE_UNAVAILABLE,
                    "the database does not answer; it is tried again. Alarms in it keep their place",
                )
            } else {
                (reason::STORE_FAILED, "storing it failed; it is tried again. The operator's log says why")
            };
            AlarmStatus {
                observed_generation: generation,
                conditions: vec![
                    conditions.condition(READY, false, reason, message),
                    conditions.condition(RECONCILING, true, reason, message),
                ],
                ..before.clone()
            }
        }
    }
}

/// What a row says.
fn facts(stored: &Stored, generation: i64) -> AlarmStatus {
    AlarmStatus {
        alarm_id: Some(stored.id.to_string()),
        schedule: Some(stored.when.fire_at.map_or_else(|| stored.when.cron_expr.clone(), rfc3339)),
        next_fire_time: (stored.status == Status::Active).then(|| rfc3339(stored.next_fire_at)),
        last_fired_time: stored.last_fired_at.map(rfc3339),
        failure_count: stored.failure_count,
        last_error: occurrence::error_class(&stored.last_error).to_owned(),
        fired_count: stored.fired_count,
        missed_count: stored.missed_count,
        ..nothing(generation)
    }
}

fn nothing(generation: i64) -> AlarmStatus {
    AlarmStatus { observed_generation: generation, ..AlarmStatus::default() }
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

fn sentence(stored: &Stored) -> String {
    let error = occurrence::error_class(&stored.last_error);
    match (stored.status, stored.failure_count) {
        (Status::Active, 0) => format!("next wake {}", rfc3339(stored.next_fire_at)),
        (Status::Active, failures) => {
            format!("attempt {} at {} after {failures} failed ({error})", failures + 1, rfc3339(stored.next_fire_at))
        }
        (Status::Paused, _) => "paused".to_owned(),
        (Status::Fired, _) => {
            let last = stored.last_fired_at.map(|at| format!("; last wake delivered {}", rfc3339(at)));
            format!("nothing is left to fire{}", last.unwrap_or_default())
        }
        (Status::Failed, _) => format!("given up: {error}"),
        (Status::Cancelled, _) => format!("cancelled by {}", stored.cancelled_by.as_deref().unwrap_or("nobody")),
    }
}

struct Conditions<'a> {
    before: &'a [Condition],
    generation: i64,
    now: DateTime<Utc>,
}

impl Conditions<'_> {
    /// The time of the last transition stays while the status stays.
    fn condition(&self, kind: &str, holds: bool, reason: &str, message: &str) -> Condition {
        let status = if holds { "True" } else { "False" };
        let same = self.before.iter().find(|before| before.type_ == kind && before.status == status);
        let now = Timestamp::from_second(self.now.timestamp()).expect("chrono's instants lie inside jiff's");
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(MESSAGE_CAP).collect(),
            observed_generation: Some(self.generation),
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        }
    }
}
