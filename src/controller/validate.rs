//! Is what the resource asks for possible? Pure: the resource and the Agents beside it in, a definition or a refusal out.

use chrono::{DateTime, Utc};
use kube::ResourceExt;

use crate::{
    crd::{Agent, Alarm, Mistake, condition::reason},
    domain::{
        access::Did,
        alarm::{Defaults, Definition},
        ids::ResourceUid,
    },
};

/// A resource that can be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Valid {
    pub uid: ResourceUid,
    pub namespace: String,
    pub generation: i64,
    pub created_at: DateTime<Utc>,
    pub owner: Did,
    pub definition: Definition,
}

/// Why it cannot, as its status will say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: &'static str,
    pub message: String,
}

pub fn validate(alarm: &Alarm, agents: &[Agent], max_failures: u32) -> Result<Valid, Refused> {
    let (uid, namespace, generation, created_at) = identity(alarm)?;
    let defaults = Defaults { born_at: created_at, delays_from: created_at, max_failures };
    let (owner, definition) = alarm.spec.define(defaults).map_err(|mistakes| refusal(&mistakes))?;
    if !agents.iter().any(|agent| agent.spec.enrols(&alarm.spec.owner) && agent.metadata.deletion_timestamp.is_none()) {
        let message = format!(
            "spec.owner: no Agent with the DID {owner} stands in namespace {namespace}; ask an administrator to create one"
        );
        return Err(Refused { reason: reason::OWNER_NOT_ALLOWED, message });
    }
    Ok(Valid { uid, namespace, generation, created_at, owner, definition })
}

fn refusal(mistakes: &[Mistake]) -> Refused {
    let of_schedule = |mistake: &Mistake| {
        matches!(mistake.field.as_str(), "spec.cronExpr" | "spec.timezone" | "spec.fireAt" | "spec.delaySeconds")
    };
    let sentences: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    Refused {
        reason: if mistakes.iter().all(of_schedule) { reason::INVALID_SCHEDULE } else { reason::INVALID_SPEC },
        message: sentences.join("; "),
    }
}

/// What the API server gives every object.
fn identity(alarm: &Alarm) -> Result<(ResourceUid, String, i64, DateTime<Utc>), Refused> {
    let created = alarm.metadata.creation_timestamp.as_ref();
    let created = created.and_then(|time| DateTime::from_timestamp(time.0.as_second(), 0));
    let uid = alarm.uid().and_then(|uid| uid.parse().ok());
    match (uid, alarm.namespace(), alarm.metadata.generation, created) {
        (Some(uid), Some(namespace), Some(generation), Some(created)) => Ok((uid, namespace, generation, created)),
        (_, _, _, _) => Err(Refused {
            reason: reason::INVALID_SPEC,
            message: "metadata: no uid, namespace, generation or creation time; only an API server can give them"
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DID: &str = "did:matrix:ann:d75a980182b10ab7";

    fn alarm(spec: serde_json::Value) -> Alarm {
        let mut whole = json!({ "owner": DID, "wakeMessage": "wake up" });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "apiVersion": "chronos.dev/v1alpha1",
            "kind": "Alarm",
            "metadata": {
                "name": "tea", "namespace": "home", "generation": 1,
                "uid": "00000000-0000-0000-0000-000000000001", "creationTimestamp": "2026-11-16T12:00:00Z"
            },
            "spec": whole
        }))
        .unwrap()
    }

    fn agents() -> Vec<Agent> {
        let spec =
            json!({ "did": DID, "publicKey": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a" });
        let agent = json!({
            "apiVersion": "chronos.dev/v1alpha1", "kind": "Agent",
            "metadata": { "name": "ann", "namespace": "home" }, "spec": spec
        });
        vec![serde_json::from_value(agent).unwrap()]
    }

    fn refused(spec: serde_json::Value) -> (&'static str, String) {
        let refused = validate(&alarm(spec), &agents(), 5).unwrap_err();
        (refused.reason, refused.message)
    }

    #[test]
    fn a_delay_counts_from_the_resources_creation() {
        let valid = validate(&alarm(json!({ "delaySeconds": 60 })), &agents(), 5).unwrap();
        let schedule = crate::domain::schedule::Schedule::Once { fire_at: "2026-11-16T12:01:00Z".parse().unwrap() };
        assert_eq!(valid.definition.timing.schedule, schedule);
        assert_eq!(valid.definition.max_failures, 5);
    }

    #[test]
    fn payload_json_is_kept_to_the_byte() {
        let valid =
            validate(&alarm(json!({ "delaySeconds": 60, "payloadJson": "{\"b\":1.50, \"a\":1}" })), &agents(), 5);
        assert_eq!(valid.unwrap().definition.payload.as_str(), "{\"b\":1.50, \"a\":1}");
    }

    #[test]
    fn an_owner_without_an_agent_beside_the_alarm_is_not_allowed() {
        let refused = validate(&alarm(json!({ "delaySeconds": 60 })), &[], 5).unwrap_err();
        assert_eq!(refused.reason, "OwnerNotAllowed");
        assert!(refused.message.contains("namespace home"), "{}", refused.message);
    }

    #[test]
    fn a_mistake_is_told_with_the_name_the_user_wrote() {
        let (reason, message) = refused(json!({ "cronExpr": "0 9 * *" }));
        assert_eq!(reason, "InvalidSchedule");
        assert!(message.starts_with("spec.cronExpr: "), "{message}");
        let (reason, message) = refused(json!({ "delaySeconds": 60, "payloadJson": "{" }));
        assert_eq!(reason, "InvalidSpec");
        assert!(message.starts_with("spec.payloadJson: "), "{message}");
        let (reason, message) = refused(json!({ "fireAt": "tomorrow" }));
        assert_eq!(reason, "InvalidSchedule");
        assert!(message.starts_with("spec.fireAt: is \"tomorrow\""), "{message}");
    }
}
