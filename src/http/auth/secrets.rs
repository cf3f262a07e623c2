//! The secrets behind both layers: which bearers are admitted, and which key signs and verifies agent tokens.

use axum::http::{HeaderMap, header::AUTHORIZATION};
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::{
    config,
    domain::access::{Did, Keyring, Principal},
};

pub struct Auth {
    transport: Vec<[u8; 32]>,
    keyring: Keyring,
}

impl Auth {
    pub fn new(api: &config::Api) -> Self {
        let hash = |token: &secrecy::SecretString| Sha256::digest(token.expose_secret()).into();
        Self { transport: api.tokens.iter().map(hash).collect(), keyring: api.keyring.clone() }
    }

    /// Whether the request carries the transport bearer.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let presented: [u8; 32] = Sha256::digest(bearer.unwrap_or_default()).into();
        // Every configured hash is compared, whichever matches.
        let any = self.transport.iter().fold(Choice::from(0), |any, known| any | known.ct_eq(&presented));
        bearer.is_some() && bool::from(any)
    }

    /// Whom an agent token speaks for.
    pub fn principal(&self, token: &str, now: DateTime<Utc>) -> Option<Principal> {
        self.keyring.verify(token, now)
    }

    /// A token for an agent that has proved itself.
    pub fn sign(&self, did: &Did, now: DateTime<Utc>) -> String {
        self.keyring.sign(did, now)
    }
}

/// The scheme's name is case-insensitive, the token is not.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn auth(tokens: &[&str]) -> Auth {
        let tokens = tokens.iter().map(|token| SecretString::from(*token)).collect();
        Auth::new(&config::Api { tokens, keyring: Keyring::new(["x"]).unwrap(), enrolment: config::Enrolment::Open })
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
