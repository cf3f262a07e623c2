//! How an agent signs in: a challenge, then proof that it holds the key its DID names.

use std::time::Duration;

use axum::{extract::State, response::IntoResponse};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, VerifyingKey};
use serde::Deserialize;
use serde_json::json;

use crate::{
    domain::access::{Did, TOKEN_LIFETIME, challenge_text},
    http::{
        Facade,
        envelope::{Body, Data},
        problem::Problem,
    },
};

const CHALLENGE_LIFETIME: Duration = Duration::from_secs(120);
/// One agent may have this many challenges open; one more replaces its oldest.
const MOST_OPEN: i64 = 20;
const NONCE_BYTES: usize = 24;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeBody {
    did: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyBody {
    did: String,
    public_key: String,
    nonce: String,
    signature: String,
}

/// What a caller says to prove who it is: well-formed, not yet believed.
#[derive(Clone, Debug)]
pub struct Proof {
    pub did: Did,
    pub nonce: String,
    public_key: [u8; 32],
    signature: [u8; 64],
}

/// The answer is alike for known and unknown DIDs: it tells nobody who is enrolled.
pub async fn challenge(
    State(facade): State<Facade>,
    Body(body): Body<ChallengeBody>,
) -> Result<impl IntoResponse, Problem> {
    let did = body.did()?;
    let nonce = URL_SAFE_NO_PAD.encode(rand::random::<[u8; NONCE_BYTES]>());
    facade.store.open_challenge(&did, &nonce, CHALLENGE_LIFETIME, MOST_OPEN).await?;
    let message = challenge_text(&did, &nonce);
    Ok(Data(json!({ "did": did, "nonce": nonce, "message": message, "expires_in": CHALLENGE_LIFETIME.as_secs() })))
}

pub async fn verify(State(facade): State<Facade>, Body(body): Body<VerifyBody>) -> Result<impl IntoResponse, Problem> {
    // What is malformed is told before the nonce is consumed: the caller can mend it and try again.
    let proof = body.proof()?;
    // Everything after this line is one answer, 401, and the nonce is gone whatever it is.
    let open = is_nonce(&proof.nonce) && facade.store.consume_challenge(&proof.did, &proof.nonce).await?;
    if !(open && proof.holds() && is_enrolled(&facade, &proof).await?) {
        return Err(Problem::unauthorized());
    }
    let did = proof.did;
    let token = facade.auth.sign(&did, facade.clock.now());
    Ok(Data(json!({ "token": token, "owner_user_id": did.user_id(), "expires_in": TOKEN_LIFETIME.num_seconds() })))
}

/// The whole key counts: the DID holds a quarter of it, which others could match by search.
async fn is_enrolled(facade: &Facade, proof: &Proof) -> Result<bool, Problem> {
    let agent = facade.store.presence(&proof.did).await?.agent;
    let other_key = agent.as_ref().is_some_and(|agent| agent.public_key != proof.public_key);
    Ok(!other_key && facade.enrolment.admits(agent.as_ref()))
}

impl ChallengeBody {
    pub fn did(&self) -> Result<Did, Problem> {
        parse_did(&self.did)
    }
}

impl VerifyBody {
    pub fn proof(self) -> Result<Proof, Problem> {
        Ok(Proof {
            did: parse_did(&self.did)?,
            public_key: parse_hex("public_key", &self.public_key)?,
            signature: parse_hex("signature", &self.signature)?,
            nonce: self.nonce,
        })
    }
}

impl Proof {
    /// Strict: weak keys and non-canonical signatures, which let one signature pass for several texts, do not count.
    pub fn holds(&self) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&self.public_key) else { return false };
        let text = challenge_text(&self.did, &self.nonce);
        let signed = key.verify_strict(text.as_bytes(), &Signature::from_bytes(&self.signature));
        self.did.names_key(&self.public_key) && signed.is_ok()
    }
}

/// Whether it can be one of ours; anything else is not worth a look into the database.
fn is_nonce(text: &str) -> bool {
    URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == NONCE_BYTES)
}

fn parse_did(text: &str) -> Result<Did, Problem> {
    text.parse().map_err(|error| Problem::invalid_field("did", format!("did {error}")))
}

fn parse_hex<const N: usize>(field: &'static str, text: &str) -> Result<[u8; N], Problem> {
    let mut bytes = [0u8; N];
    hex::decode_to_slice(text, &mut bytes).map(|()| bytes).map_err(|_| {
        Problem::invalid_field(field, format!("{field} is not {} hex digits, the {N} bytes in hex", 2 * N))
    })
}
