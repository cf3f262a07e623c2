//! Bytes of a request as what they mean, without the shell around them: the very functions the handlers call, in a row.
//! For `fuzz/parsers`, which tries everything that reads text from outside.

use axum::http::HeaderMap;

use super::{alarms, auth, envelope, problem::Problem};
use crate::domain::{
    access::Did,
    alarm::{Defaults, Definition},
};

pub use auth::Proof;

/// `POST /v1/alarms`
pub fn create(body: &[u8], defaults: Defaults) -> Result<Definition, Problem> {
    let body: alarms::body::CreateBody = envelope::parse(body)?;
    let key = alarms::body::idempotency_key(&HeaderMap::new(), body.idempotency_key.as_deref())?;
    body.define(&key, defaults)
}

/// `POST /v1/agent/auth/challenge`
pub fn challenge(body: &[u8]) -> Result<Did, Problem> {
    envelope::parse::<auth::ChallengeBody>(body)?.did()
}

/// `POST /v1/agent/auth/verify`
pub fn verify(body: &[u8]) -> Result<Proof, Problem> {
    envelope::parse::<auth::VerifyBody>(body)?.proof()
}

/// `GET /v1/alarms?…`
pub fn page_size(query: &str) -> Result<i64, Problem> {
    Ok(alarms::read::Asked::parse(query)?.page.limit)
}
