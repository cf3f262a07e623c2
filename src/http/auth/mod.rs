//! Both layers of auth.
//!
//! **Transport**: `Authorization: Bearer <CHRONOS_TOKEN>` on everything under `/v1`. Hashed, then compared in constant
//! time, so that neither content nor length of a secret leaks through timing.
//! **Principal**: an agent asks for a challenge, signs it with the key its DID names, and gets a token that it sends as
//! `X-Chronos-Agent`.

mod secrets;
mod sign_in;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::request::Parts,
    middleware::Next,
    response::Response,
};

use super::{Facade, problem::Problem};
use crate::domain::access::Did;

pub use secrets::Auth;
pub use sign_in::{ChallengeBody, Proof, VerifyBody, challenge, verify};

const AGENT_HEADER: &str = "x-chronos-agent";

/// The first layer, in front of everything under `/v1`.
pub async fn transport(State(facade): State<Facade>, request: Request, next: Next) -> Result<Response, Problem> {
    if facade.auth.admits(request.headers()) { Ok(next.run(request).await) } else { Err(Problem::unauthorized()) }
}

/// The second layer: the owner on whose behalf a request is made. A handler that needs one takes one.
pub struct Caller {
    pub owner: Did,
}

impl FromRequestParts<Facade> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let token = parts.headers.get(AGENT_HEADER).and_then(|value| value.to_str().ok());
        let principal = token.and_then(|token| facade.auth.principal(token, facade.clock.now()));
        principal.map(|principal| Self { owner: principal.did }).ok_or_else(Problem::unauthorized)
    }
}
