//! How an agent signs in: a challenge, then proof that it holds the key its DID names.

use std::time::Duration;

use axum::extract::State;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    domain::access::{Did, TOKEN_LIFETIME, challenge_text},
    http::{
        Facade,
        envelope::{Body, Data},
        openapi::fields,
        problem::Problem,
    },
};

const CHALLENGE_LIFETIME: Duration = Duration::from_secs(120);
/// One agent may have this many challenges open; one more replaces its oldest.
const MOST_OPEN: i64 = 20;
const NONCE_BYTES: usize = 24;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChallengeRequest)]
pub struct ChallengeBody {
    #[schema(schema_with = fields::did)]
    did: String,
}

#[derive(Serialize, ToSchema)]
pub struct Challenge {
    #[schema(schema_with = fields::did)]
    did: Did,
    nonce: String,
    /// The text to sign, in UTF-8.
    message: String,
    /// In seconds.
    expires_in: u64,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProofOfKey)]
pub struct VerifyBody {
    #[schema(schema_with = fields::did)]
    did: String,
    #[schema(schema_with = fields::public_key)]
    public_key: String,
    /// That of the challenge.
    nonce: String,
    #[schema(schema_with = fields::signature)]
    signature: String,
}

#[derive(Serialize, ToSchema)]
pub struct Token {
    /// To be sent as `X-Chronos-Agent`.
    token: String,
    /// The user whose agent it is.
    owner_user_id: String,
    /// In seconds.
    expires_in: i64,
}

/// What a caller says to prove who it is: well-formed, not yet believed.
#[derive(Clone, Debug)]
pub struct Proof {
    pub did: Did,
    pub nonce: String,
    public_key: [u8; 32],
    signature: [u8; 64],
}

/// Ask for a challenge
///
/// The first step of signing in: a text to sign with the key that the DID names, within two minutes. An agent has at most 20 open
/// challenges; one more replaces its oldest. The answer is alike for known and unknown DIDs: it tells nobody who is enrolled.
#[utoipa::path(
    post, path = "/v1/agent/auth/challenge", tag = "sign in", operation_id = "challenge",
    request_body = ChallengeBody,
    responses((status = 200, description = "The text to sign.", body = Challenge)),
)]
pub async fn challenge(
    State(facade): State<Facade>,
    Body(body): Body<ChallengeBody>,
) -> Result<Data<Challenge>, Problem> {
    let did = body.did()?;
    let nonce = URL_SAFE_NO_PAD.encode(rand::random::<[u8; NONCE_BYTES]>());
    facade.store.open_challenge(&did, &nonce, CHALLENGE_LIFETIME, MOST_OPEN).await?;
    let message = challenge_text(&did, &nonce);
    Ok(Data(Challenge { did, nonce, message, expires_in: CHALLENGE_LIFETIME.as_secs() }))
}

/// Sign in
///
/// Proves with a signature of the challenge that the agent holds its DID's key, and gives it a token for a day. Each challenge works
/// once.
#[utoipa::path(
    post, path = "/v1/agent/auth/verify", tag = "sign in", operation_id = "verify",
    request_body = VerifyBody,
    responses(
        (status = 200, description = "The agent's token.", body = Token),
        (status = 401, description = "The transport token is missing or wrong; or the challenge is unknown, expired or used, the key is not the DID's, the signature is not the key's, or the agent is not enrolled. One answer for all of them."),
    ),
)]
pub async fn verify(State(facade): State<Facade>, Body(body): Body<VerifyBody>) -> Result<Data<Token>, Problem> {
    // What is malformed is told before the nonce is consumed: the caller can mend it and try again.
    let proof = body.proof()?;
    // Everything after this line is one answer, 401, and the nonce is gone whatever it is.
    let open = is_nonce(&proof.nonce) && facade.store.consume_challenge(&proof.did, &proof.nonce).await?;
    if !(open && proof.holds() && is_enrolled(&facade, &proof).await?) {
        return Err(Problem::unauthorized());
    }
    let did = proof.did;
    let token = facade.auth.sign(&did, facade.clock.now());
    Ok(Data(Token { token, owner_user_id: did.user_id().to_owned(), expires_in: TOKEN_LIFETIME.num_seconds() }))
}

/// The whole key counts: the DID holds a quarter of it, which others could match by search.
async fn is_enrolled(facade: &Facade, proof: &Proof) -> Result<bool, Problem> {
    let agent = facade.store.presence(&proof.did).await?.agent;
    if agent.is_none() && facade.enrolment.admits(None) {
        // Where anybody may come in, one that was removed has come back.
        facade.store.let_in_unless_enrolled(&proof.did).await?;
    }
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
