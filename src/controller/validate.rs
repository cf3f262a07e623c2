//! Is what the resource asks for possible? Pure: the resource in, a definition or a refusal out. Whether its owner may be named, and
//! whether the owner may have so much, the database knows: see [`super::apply`].

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::{
    crd::{self, Alarm, Mistake, condition::reason},
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
    pub suspended: bool,
    /// The annotation that asks for a wake now.
    pub fire_requested: Option<String>,
}

/// Why it cannot, as its status will say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: &'static str,
    pub message: String,
}

impl Refused {
    /// Of every mistake at once. What is wrong with the schedule has a reason of its own.
    pub fn for_mistakes(mistakes: &[Mistake]) -> Self {
        const SCHEDULE: [&str; 7] =
            ["cronExpr", "timezone", "fireAt", "delaySeconds", "startsAt", "endsAt", "spreadSeconds"];
        let of_schedule =
            |mistake: &Mistake| mistake.field.strip_prefix("spec.").is_some_and(|field| SCHEDULE.contains(&field));
        let sentences: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Self {
            reason: if mistakes.iter().all(of_schedule) { reason::INVALID_SCHEDULE } else { reason::INVALID_SPEC },
            message: sentences.join("; "),
        }
    }
}

impl Refused {
    /// Of an object that the API server stored under another definition.
    pub fn unreadable(why: &str) -> Self {
        let message = format!(
            "the object cannot be read ({why}): it was stored under another definition of its kind; apply it anew in the form that `kubectl explain` shows"
        );
        Self { reason: reason::INVALID_SPEC, message }
    }

    /// Of an object that no API server has seen.
    pub fn no_identity() -> Self {
        Self {
            reason: reason::INVALID_SPEC,
            message: "metadata: no uid, namespace, generation or creation time; only an API server can give them"
                .to_owned(),
        }
    }
}

pub fn validate(alarm: &Alarm, max_failures: u32) -> Result<Valid, Refused> {
    let (uid, namespace, generation, created_at) = identity(alarm)?;
    let defaults = Defaults { born_at: created_at, delays_from: created_at, max_failures };
    let labels = alarm.metadata.labels.clone().unwrap_or_default();
    let defined = alarm.spec.define(labels, defaults);
    let (owner, definition, fire_requested) = match (defined, crd::fire_requested(alarm.annotations())) {
        (Ok((owner, definition)), Ok(requested)) => (owner, definition, requested),
        (Ok(_), Err(mistake)) => return Err(Refused::for_mistakes(&[mistake])),
        (Err(mistakes), Ok(_)) => return Err(Refused::for_mistakes(&mistakes)),
        (Err(mut mistakes), Err(mistake)) => {
            mistakes.push(mistake);
            return Err(Refused::for_mistakes(&mistakes));
        }
    };
    let suspended = alarm.spec.suspend;
    Ok(Valid { uid, namespace, generation, created_at, owner, definition, suspended, fire_requested })
}

/// What the API server gives every object.
fn identity(alarm: &Alarm) -> Result<(ResourceUid, String, i64, DateTime<Utc>), Refused> {
    let uid = alarm.uid().and_then(|uid| uid.parse().ok());
    match (uid, alarm.namespace(), alarm.metadata.generation, created_at(&alarm.metadata)) {
        (Some(uid), Some(namespace), Some(generation), Some(created)) => Ok((uid, namespace, generation, created)),
        (_, _, _, _) => Err(Refused::no_identity()),
    }
}

pub fn created_at(meta: &ObjectMeta) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(meta.creation_timestamp.as_ref()?.0.as_second(), 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::FIRE_REQUESTED_AT;

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

    fn refused(spec: serde_json::Value) -> (&'static str, String) {
        let refused = validate(&alarm(spec), 5).unwrap_err();
        (refused.reason, refused.message)
    }

    #[test]
    fn a_delay_counts_from_the_resources_creation() {
        let valid = validate(&alarm(json!({ "delaySeconds": 60 })), 5).unwrap();
        let schedule = crate::domain::schedule::Schedule::Once { fire_at: "2026-11-16T12:01:00Z".parse().unwrap() };
        assert_eq!(valid.definition.timing.schedule, schedule);
        assert_eq!(valid.definition.max_failures, 5);
    }

    #[test]
    fn payload_json_is_kept_to_the_byte() {
        let valid = validate(&alarm(json!({ "delaySeconds": 60, "payloadJson": "{\"b\":1.50, \"a\":1}" })), 5);
        assert_eq!(valid.unwrap().definition.payload.as_str(), "{\"b\":1.50, \"a\":1}");
    }

    #[test]
    fn labels_suspension_and_the_request_to_fire_come_from_the_resource() {
        let mut resource = alarm(json!({ "delaySeconds": 60, "suspend": true }));
        resource.metadata.labels = Some([("team".to_owned(), "tea".to_owned())].into());
        resource.metadata.annotations = Some([(FIRE_REQUESTED_AT.to_owned(), "now".to_owned())].into());
        let valid = validate(&resource, 5).unwrap();
        assert_eq!(valid.definition.labels["team"], "tea");
        assert_eq!((valid.suspended, valid.fire_requested.as_deref()), (true, Some("now")));
        resource.metadata.annotations = Some([(FIRE_REQUESTED_AT.to_owned(), "x".repeat(257))].into());
        let refused = validate(&resource, 5).unwrap_err();
        assert_eq!(refused.reason, "InvalidSpec");
        assert!(
            refused
                .message
                .starts_with("metadata.annotations.chronos.dev/fire-requested-at: is 257 bytes long; give at most 256")
        );
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
