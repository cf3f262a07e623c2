//! The resources as users write them: `Alarm` and `Agent` of `chronos.dev/v1alpha1`.
//!
//! What the API server can see it refuses at `kubectl apply` (lengths, ranges, CEL rules); what it cannot see (cron grammar,
//! owner policy) the controller reports in the status. `crds/` is generated from here by `chronosd crd` and diffed by
//! `make verify`. No object that the API server accepts may fail to be read here: one would stop the list, and so the
//! watch, for all the others. So texts that a person may get wrong are plain strings, and the free-form payload is taken as
//! raw text, however deep it is nested; and what cannot be read all the same, because the API server stored it under another
//! definition, is [`Guarded`].
//!
//! Files: `agent`, `alarm` (the types, with what the API server checks), `rule` (what it checks by CEL, and what it answers), `define`
//! (from a spec to what the domain relies on), `mistake` (what cannot stand, in the words of the file), `guarded` (an object, or why
//! it cannot be read).

mod agent;
mod alarm;
mod define;
mod guarded;
mod mistake;
mod rule;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde_json::json;

pub use agent::{Agent, AgentSpec, AgentStatus};
pub use alarm::{Alarm, AlarmAttempt, AlarmSpec, AlarmStatus, Phase};
pub use define::{Enrolment, fire_requested};
pub use guarded::{Guarded, Unreadable};
pub use mistake::Mistake;

/// Condition types and reasons, in one place: GitOps tools and alerts depend on the words.
pub mod condition {
    /// Stored and scheduled as specified. Always there.
    pub const READY: &str = "Ready";
    /// Cannot go on without an edit. Only there when true.
    pub const STALLED: &str = "Stalled";
    /// Not there yet; tried again without anybody's help. Only there when true.
    pub const RECONCILING: &str = "Reconciling";
    /// Whether the router takes its wakes. There from the first attempt on; never a reason not to be Ready.
    pub const DELIVERING: &str = "Delivering";
    /// Another cluster has an alarm of the same owner, namespace and name. Only there when true.
    pub const DUPLICATE: &str = "Duplicate";

    pub mod reason {
        pub const SCHEDULED: &str = "Scheduled";
        pub const PAUSED: &str = "Paused";
        pub const FIRED: &str = "Fired";
        pub const FAILED: &str = "Failed";
        pub const CANCELLED: &str = "Cancelled";
        pub const INVALID_SCHEDULE: &str = "InvalidSchedule";
        pub const INVALID_SPEC: &str = "InvalidSpec";
        pub const OWNER_NOT_ALLOWED: &str = "OwnerNotAllowed";
        pub const DATABASE_UNAVAILABLE: &str = "DatabaseUnavailable";
        pub const STORE_FAILED: &str = "StoreFailed";
        pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
        pub const DUPLICATE_DID: &str = "DuplicateDid";
        pub const ENROLLED: &str = "Enrolled";
        pub const SUSPENDED: &str = "Suspended";
        pub const DELIVERED: &str = "Delivered";
        pub const RETRYING: &str = "Retrying";
        pub const EXHAUSTED: &str = "Exhausted";
        pub const OTHER_CLUSTER: &str = "OtherCluster";
    }
}

/// Asks for one wake now: a value that was not seen before fires the alarm once.
pub const FIRE_REQUESTED_AT: &str = "chronos.dev/fire-requested-at";

/// Both definitions, as they are installed.
pub fn all() -> [CustomResourceDefinition; 2] {
    [agent::Agent::crd(), Alarm::crd()].map(born_unseen).map(told_whole)
}

/// A new object shows at once that nobody has looked at it yet; kstatus would take a missing generation for done.
fn born_unseen(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(status) = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("status")) {
            status.default = Some(JSON(json!({ "observedGeneration": -1 })));
        }
    }
    definition
}

/// `kubectl explain` breaks lines where the terminal ends; the lines of our sources would be broken twice.
fn told_whole(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    fn join(schema: &mut JSONSchemaProps) {
        if let Some(description) = &mut schema.description {
            *description = description.replace('\n', " ");
        }
        schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(join);
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
            join(items);
        }
    }
    let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(join);
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_definitions_can_be_made() {
        let names: Vec<_> = all().into_iter().map(|crd| crd.metadata.name.unwrap()).collect();
        assert_eq!(names, ["agents.chronos.dev", "alarms.chronos.dev"]);
    }

    #[test]
    fn every_field_is_explained_in_one_paragraph_and_refused_by_a_sentence() {
        fn look(schema: &JSONSchemaProps, path: &str) {
            let described = schema.description.as_deref().is_some_and(|words| !words.contains('\n'));
            assert!(described, "{path}: {:?}", schema.description);
            // What would answer with itself, and what `explain` does not read.
            let unkind = schema.pattern.is_some() || schema.min_length.is_some();
            assert!(!unkind, "{path}: a rule says better what to write");
            for (name, property) in schema.properties.iter().flatten() {
                look(property, &format!("{path}.{name}"));
            }
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
                items.properties.iter().flatten().for_each(|(name, item)| look(item, &format!("{path}[].{name}")));
            }
        }
        for definition in all() {
            let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            look(&schema, &definition.spec.names.kind);
        }
    }
}
