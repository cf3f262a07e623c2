//! An agent's key, and how it signs in.

use ed25519_dalek::{Signer, SigningKey};
use serde_json::json;

use super::{TOKEN, api::Api};

pub struct AgentKey {
    key: SigningKey,
    pub did: String,
    pub public_key: String,
}

impl AgentKey {
    /// A key of its own for this user.
    pub fn of(user: &str) -> Self {
        let key = SigningKey::from_bytes(&rand::random());
        let public_key = hex::encode(key.verifying_key().as_bytes());
        Self { did: format!("did:matrix:{user}:{}", &public_key[..16]), public_key, key }
    }

    pub fn sign(&self, text: &str) -> String {
        hex::encode(self.key.sign(text.as_bytes()).to_bytes())
    }

    /// The whole way, as an agent goes it.
    pub async fn sign_in(&self, base: &str) -> Api {
        self.sign_in_with(base, TOKEN).await
    }

    pub async fn sign_in_with(&self, base: &str, transport: &str) -> Api {
        let anonymous = Api::new(base).with_bearer(Some(transport));
        let challenge = anonymous.post("/v1/agent/auth/challenge", &json!({ "did": self.did })).await.data();
        let verified = anonymous
            .post(
                "/v1/agent/auth/verify",
                &json!({
                    "did": self.did,
                    "public_key": self.public_key,
                    "nonce": challenge["nonce"],
                    "signature": self.sign(challenge["message"].as_str().expect("a challenge has a message")),
                }),
            )
            .await
            .data();
        anonymous.with_agent(verified["token"].as_str().expect("a token"))
    }
}
