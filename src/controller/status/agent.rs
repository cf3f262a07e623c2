//! The whole status of an Agent. Pure.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::conditions::Conditions;
use crate::{
    controller::validate::Refused,
    crd::{
        AgentStatus,
        condition::{READY, reason},
    },
    store,
};

/// What a reconcile of an Agent found.
pub enum AgentReport {
    Stands { suspended: bool, alarms: u64 },
    Refused(Refused),
    Failed(store::Error),
}

pub fn agent_status(
    meta: &ObjectMeta,
    before: Option<&AgentStatus>,
    report: &AgentReport,
    now: DateTime<Utc>,
) -> AgentStatus {
    let generation = meta.generation.unwrap_or_default();
    let known = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let conditions = Conditions { before: known, generation, now };
    let counted = before.map_or(0, |before| before.active_alarms);
    let (active_alarms, conditions) = match report {
        AgentReport::Stands { suspended: false, alarms } => {
            (i64::try_from(*alarms).unwrap_or(i64::MAX), vec![conditions.ready(reason::ENROLLED, "enrolled")])
        }
        AgentReport::Stands { suspended: true, alarms } => (
            i64::try_from(*alarms).unwrap_or(i64::MAX),
            vec![conditions.ready(reason::SUSPENDED, "suspended: it is not let in, and none of its alarms fires")],
        ),
        AgentReport::Refused(refused) => (0, conditions.stalled(refused.reason, &refused.message)),
        AgentReport::Failed(error) => (counted, conditions.reconciling(error, meta.deletion_timestamp.is_some())),
    };
    AgentStatus { observed_generation: generation, active_alarms, conditions }
}

/// Whether it stands otherwise than before: what its Alarms and its rivals hang on.
pub fn stands_otherwise(before: Option<&AgentStatus>, next: &AgentStatus) -> bool {
    let standing = |status: &AgentStatus| {
        let ready = status.conditions.iter().find(|condition| condition.type_ == READY);
        (status.observed_generation, ready.map(|ready| (ready.status.clone(), ready.reason.clone())))
    };
    before.map(standing) != Some(standing(next))
}
