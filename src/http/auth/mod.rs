//! Both layers of auth.
//!
//! **Transport**: `Authorization: Bearer <CHRONOS_TOKEN>` on everything under `/v1`. Hashed, then compared in constant
//! time, so that neither content nor length of a secret leaks through timing.
//! **Principal**: an agent asks for a challenge, signs it with the key its DID names, and gets a token that it sends as
//! `X-Chronos-Agent`.

mod sign_in;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::Response,
};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::{Facade, problem::Problem};
use crate::{
    config,
    domain::access::{Did, Keyring},
};

pub use sign_in::{ChallengeBody, Proof, VerifyBody, challenge, verify};

const AGENT_HEADER: &str = "x-chronos-agent";

pub struct Auth {
    transport: Vec<[u8; 32]>,
    keyring: Keyring,
}

impl Auth {
    pub fn new(api: &config::Api) -> Self {
        let hash = |token: &secrecy::SecretString| Sha256::digest(token.expose_secret()).into();
        Self { transport: api.tokens.iter().map(hash).collect(), keyring: api.keyring.clone() }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let presented: [u8; 32] = Sha256::digest(bearer.unwrap_or_default()).into();
        // Every configured hash is compared, whichever matches.
        let any = self.transport.iter().fold(Choice::from(0), |any, known| any | known.ct_eq(&presented));
        bearer.is_some() && bool::from(any)
    }
}

/// The scheme's name is case-insensitive, the token is not.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

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
        let principal = token.and_then(|token| facade.auth.keyring.verify(token, facade.clock.now()));
        principal.map(|principal| Self { owner: principal.did }).ok_or_else(Problem::unauthorized)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn auth(tokens: &[&str]) -> Auth {
        let tokens = tokens.iter().map(|token| SecretString::from(*token)).collect();
        Auth::new(&config::Api { tokens, keyring: Keyring::new(["x"]).unwrap() })
    }

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn every_configured_bearer_is_admitted_and_nothing_else() {
        let auth = auth(&["new", "old"]);
        assert!(auth.admits(&with("Bearer new")) && auth.admits(&with("bearer old")));
        for wrong in ["Bearer", "Bearer ", "Bearer newer", "Bearer NEW", "Basic new", "new", ""] {
            assert!(!auth.admits(&with(wrong)), "{wrong:?}");
        }
        assert!(!auth.admits(&HeaderMap::new()));
    }
}
