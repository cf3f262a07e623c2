//! The secrets behind both layers: which bearers are admitted, and which key signs and verifies agent tokens. Renewed while
//! requests come in: each is judged by those that hold when it is looked at.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::{
    config,
    domain::access::{Did, Keyring, Principal},
    http::Facade,
};

pub struct Auth {
    secrets: RwLock<Arc<Secrets>>,
}

struct Secrets {
    transport: Vec<[u8; 32]>,
    keyring: Keyring,
}

impl Facade {
    /// Takes the secrets of a newer configuration, for this facade and all its clones.
    pub fn renew(&self, api: &config::Api) {
        self.auth.renew(api);
    }
}

impl Secrets {
    fn of(api: &config::Api) -> Arc<Self> {
        let hash = |token: &secrecy::SecretString| Sha256::digest(token.expose_secret()).into();
        Arc::new(Self { transport: api.tokens.iter().map(hash).collect(), keyring: api.keyring.clone() })
    }
}

impl Auth {
    pub fn new(api: &config::Api) -> Self {
        Self { secrets: RwLock::new(Secrets::of(api)) }
    }

    fn renew(&self, api: &config::Api) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = Secrets::of(api);
    }

    fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the request carries the transport bearer.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let presented: [u8; 32] = Sha256::digest(bearer.unwrap_or_default()).into();
        // Every configured hash is compared, whichever matches.
        let any = self.secrets().transport.iter().fold(Choice::from(0), |any, known| any | known.ct_eq(&presented));
        bearer.is_some() && bool::from(any)
    }

    /// Whom an agent token speaks for.
    pub fn principal(&self, token: &str, now: DateTime<Utc>) -> Option<Principal> {
        self.secrets().keyring.verify(token, now)
    }

    /// A token for an agent that has proved itself.
    pub fn sign(&self, did: &Did, now: DateTime<Utc>) -> String {
        self.secrets().keyring.sign(did, now)
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

    fn api(tokens: &[&str], secrets: &[&str]) -> config::Api {
        config::Api {
            tokens: tokens.iter().map(|token| SecretString::from(*token)).collect(),
            keyring: Keyring::new(secrets.iter().copied()).unwrap(),
            enrolment: config::Enrolment::Open,
            owner_rate: 0,
            tls: None,
        }
    }

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn every_configured_bearer_is_admitted_and_nothing_else() {
        let auth = Auth::new(&api(&["new", "old"], &["x"]));
        assert!(auth.admits(&with("Bearer new")) && auth.admits(&with("bearer old")));
        for wrong in ["Bearer", "Bearer ", "Bearer newer", "Bearer NEW", "Basic new", "new", ""] {
            assert!(!auth.admits(&with(wrong)), "{wrong:?}");
        }
        assert!(!auth.admits(&HeaderMap::new()));
    }

    #[test]
    fn renewed_secrets_hold_from_then_on() {
        let did: Did = "did:matrix:ann:d75a980182b10ab7".parse().unwrap();
        let auth = Auth::new(&api(&["old"], &["old"]));
        let token = auth.sign(&did, DateTime::UNIX_EPOCH);
        auth.renew(&api(&["new", "old"], &["new", "old"]));
        assert!(auth.admits(&with("Bearer old")) && auth.admits(&with("Bearer new")));
        assert!(auth.principal(&token, DateTime::UNIX_EPOCH).is_some());
        let newer = auth.sign(&did, DateTime::UNIX_EPOCH);
        auth.renew(&api(&["new"], &["new"]));
        assert!(!auth.admits(&with("Bearer old")) && auth.admits(&with("Bearer new")));
        assert!(auth.principal(&token, DateTime::UNIX_EPOCH).is_none());
        assert!(auth.principal(&newer, DateTime::UNIX_EPOCH).is_some());
    }
}
