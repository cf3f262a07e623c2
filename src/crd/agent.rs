use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Enrols one agent: binds the key of a DID to the user in it. Alarms may name an owner only if an Agent with that DID
/// stands in their own namespace.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "chronos.dev",
    version = "v1alpha1",
    kind = "Agent",
    doc = "Enrols one agent: binds the key of a DID to the user in it.",
    namespaced,
    category = "chronos",
    printcolumn = r#"{"name": "DID", "type": "string", "jsonPath": ".spec.did"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.did.endsWith(':' + self.publicKey.substring(0, 16))")
        .message("the DID's last part must be the first 16 hex digits of publicKey")
        .field_path(".did"),
    validation = Rule::new("self.did == oldSelf.did").message("did is immutable: create another Agent").field_path(".did"),
    validation = Rule::new("self.publicKey == oldSelf.publicKey")
        .message("publicKey is immutable: another key makes another DID, so create another Agent")
        .field_path(".publicKey")
)]
pub struct AgentSpec {
    /// The agent's name: did:matrix:<user id>:<first 16 hex digits of its public key>, in lower case.
    #[schemars(length(max = 256), regex(pattern = r"^did:matrix:[A-Za-z0-9_-]+:[0-9a-f]{16}$"))]
    pub did: String,

    /// The agent's whole ed25519 public key, 64 lower-case hex digits.
    #[schemars(length(min = 64, max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub public_key: String,
}
