use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{alarm::unseen, rule};

/// Whom to enrol, and how much it may ask for. The agent signs in over HTTP with this key, and Alarms of the same namespace may name its
/// DID as owner. One DID is held by one Agent, the oldest; deleting it stops all of its alarms.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "chronos.dev",
    version = "v1alpha1",
    kind = "Agent",
    doc = "Enrols one agent: binds the key of a DID to the user in it.",
    namespaced,
    category = "chronos",
    status = "AgentStatus",
    printcolumn = r#"{"name": "DID", "type": "string", "jsonPath": ".spec.did"}"#,
    printcolumn = r#"{"name": "ALARMS", "type": "integer", "jsonPath": ".status.activeAlarms"}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "STATUS", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rule::did_names_key(),
    validation = rule::immutable("did", "Agent"),
    validation = rule::immutable("publicKey", "Agent, because another key makes another DID")
)]
pub struct AgentSpec {
    /// The agent's name: did:matrix:<user id>:<first 16 hex digits of its public key>, in lower case. Immutable.
    #[schemars(length(max = 256))]
    #[x_kube(validation = rule::did())]
    pub did: String,

    /// The agent's whole ed25519 public key, 64 hex digits, in lower case. Immutable.
    // Longer than a key, so that the rule answers, and says what a key is.
    #[schemars(length(max = 128))]
    #[x_kube(validation = rule::key())]
    pub public_key: String,

    /// While true the agent is not let in over HTTP and none of its alarms fires, those of resources included. They go on by
    /// themselves when it is false again.
    #[serde(default)]
    pub suspended: bool,

    /// How many of its alarms may be active or paused at once, however they were made; one more is refused. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub max_active_alarms: Option<i32>,

    /// The least number of seconds between two slots of a series; a faster cronExpr is refused. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub min_interval_seconds: Option<i32>,
}

/// Whether it is enrolled. Written by the controller alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The generation this status speaks of; -1 until the controller has seen the resource.
    #[serde(default = "unseen")]
    pub observed_generation: i64,
    /// How many of its alarms are active or paused, however they were made. Counted once a minute.
    #[serde(default)]
    pub active_alarms: i64,
    /// Ready always: the DID is enrolled as specified. Reconciling (tried again by itself) and Stalled (waits for an edit) only
    /// when true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
