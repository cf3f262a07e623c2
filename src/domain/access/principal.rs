//! Principal tokens: `base64url(<did>|<owner>|<exp>).base64url(HMAC-SHA256)`. Any replica that knows the secret can
//! check one without asking the database.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::Did;

/// How long a principal token holds: a day, as the contract says.
pub const TOKEN_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// The verified owner behind a request. Made by [`Keyring::verify`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub did: Did,
    /// From then on its token says nothing.
    pub expires_at: DateTime<Utc>,
}

/// The secrets that sign tokens. The first signs, all verify: a rotation adds the new one in front and drops the
/// old one a token's lifetime later.
#[derive(Clone)]
pub struct Keyring {
    keys: Vec<[u8; 32]>,
}

impl Keyring {
    /// `None` for an empty list: a keyring that accepts nothing is a configuration error.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let keys: Vec<[u8; 32]> = secrets.into_iter().map(|secret| Sha256::digest(secret).into()).collect();
        (!keys.is_empty()).then_some(Self { keys })
    }

    pub fn sign(&self, did: &Did, now: DateTime<Utc>) -> String {
        let expires = (now + TOKEN_LIFETIME).timestamp();
        let body = URL_SAFE_NO_PAD.encode(format!("{did}|{}|{expires}", did.user_id()));
        let mac = URL_SAFE_NO_PAD.encode(mac(&self.keys[0], &body).finalize().into_bytes());
        format!("{body}.{mac}")
    }

    /// The principal a token speaks for, or `None`: why it does not hold is nobody's business but the log's.
    pub fn verify(&self, token: &str, now: DateTime<Utc>) -> Option<Principal> {
        let (body, tag) = token.split_once('.')?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        // `verify_slice` compares in constant time.
        if !self.keys.iter().any(|key| mac(key, body).verify_slice(&tag).is_ok()) {
            return None;
        }
        let body = String::from_utf8(URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        let mut parts = body.split('|');
        let (did, owner, expires) = (parts.next()?, parts.next()?, parts.next()?);
        let did: Did = did.parse().ok()?;
        let expires_at = DateTime::from_timestamp(expires.parse().ok()?, 0)?;
        let holds = parts.next().is_none() && owner == did.user_id() && now < expires_at;
        holds.then_some(Principal { did, expires_at })
    }
}

fn mac(key: &[u8; 32], body: &str) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(body.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did() -> Did {
        "did:matrix:ann:d75a980182b10ab7".parse().unwrap()
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn a_token_holds_for_a_day_and_not_a_second_longer() {
        let ring = Keyring::new(["first"]).unwrap();
        let token = ring.sign(&did(), at(1000));
        let principal = Principal { did: did(), expires_at: at(1000 + 86_400) };
        assert_eq!(ring.verify(&token, at(1000)), Some(principal.clone()));
        assert_eq!(ring.verify(&token, at(1000 + 86_399)), Some(principal));
        assert_eq!(ring.verify(&token, at(1000 + 86_400)), None);
    }

    #[test]
    fn during_a_rotation_old_tokens_hold_and_new_ones_carry_the_new_secret() {
        let (old, both, new) = (Keyring::new(["old"]), Keyring::new(["new", "old"]), Keyring::new(["new"]));
        let (old, both, new) = (old.unwrap(), both.unwrap(), new.unwrap());
        assert!(both.verify(&old.sign(&did(), at(0)), at(1)).is_some());
        assert!(new.verify(&both.sign(&did(), at(0)), at(1)).is_some());
        assert!(new.verify(&old.sign(&did(), at(0)), at(1)).is_none());
    }

    #[test]
    fn a_token_with_one_character_changed_is_refused() {
        let ring = Keyring::new(["secret"]).unwrap();
        let token = ring.sign(&did(), at(0));
        for index in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(ring.verify(&changed, at(1)), None, "changed at {index}: {changed}");
        }
        assert_eq!(ring.verify("", at(1)), None);
        assert_eq!(ring.verify("a.b.c", at(1)), None);
    }

    #[test]
    fn an_empty_keyring_cannot_be_had() {
        assert!(Keyring::new([]).is_none());
    }
}
