//! `did:matrix:<user id>:<fingerprint>`: an agent's name, which says whose agent it is and which key it holds.

use std::{fmt, str::FromStr};

use serde::Serialize;
use thiserror::Error;
use uuid::Uuid;

const PREFIX: &str = "did:matrix:";
/// 16 hex digits: the first 8 of a key's 32 bytes.
const FINGERPRINT_LENGTH: usize = 16;
/// Ids are capped at 256 bytes everywhere.
const LONGEST: usize = 256;

/// A well-formed, canonical DID: a UUID user id and the fingerprint are in lower case, so that equal names are
/// equal texts in every table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Did(String);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DidError {
    #[error("is {0} bytes long; a DID has at most {LONGEST}")]
    TooLong(usize),
    #[error("does not have the form did:matrix:<user id>:<16 hex digits>")]
    Form,
    #[error("has a user id with a character other than A-Z a-z 0-9 _ -")]
    UserId,
    #[error("does not end in 16 hex digits, the first 16 of the public key's hex")]
    Fingerprint,
}

impl Did {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The user the agent belongs to: where the router delivers its wakes.
    pub fn user_id(&self) -> &str {
        let end = self.0.len() - FINGERPRINT_LENGTH - 1;
        &self.0[PREFIX.len()..end]
    }

    pub fn fingerprint(&self) -> &str {
        &self.0[self.0.len() - FINGERPRINT_LENGTH..]
    }

    /// Whether `public_key` is the key this name speaks of.
    pub fn names_key(&self, public_key: &[u8; 32]) -> bool {
        hex::encode(&public_key[..FINGERPRINT_LENGTH / 2]) == self.fingerprint()
    }
}

impl FromStr for Did {
    type Err = DidError;

    fn from_str(text: &str) -> Result<Self, DidError> {
        if text.len() > LONGEST {
            return Err(DidError::TooLong(text.len()));
        }
        let (user_id, fingerprint) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).ok_or(DidError::Form)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if user_id.is_empty() || !user_id.chars().all(allowed) {
            return Err(DidError::UserId);
        }
        if fingerprint.len() != FINGERPRINT_LENGTH || !fingerprint.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(DidError::Fingerprint);
        }
        let user_id = if Uuid::try_parse(user_id).is_ok() { user_id.to_ascii_lowercase() } else { user_id.to_owned() };
        Ok(Self(format!("{PREFIX}{user_id}:{}", fingerprint.to_ascii_lowercase())))
    }
}

impl TryFrom<String> for Did {
    type Error = DidError;

    fn try_from(text: String) -> Result<Self, DidError> {
        text.parse()
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(text: &str) -> Result<Did, DidError> {
        text.parse()
    }

    #[test]
    fn a_did_says_whose_agent_it_is_and_which_key_it_holds() {
        let did = did("did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7").unwrap();
        assert_eq!(did.user_id(), "11111111-2222-3333-4444-555555555555");
        assert_eq!(did.fingerprint(), "d75a980182b10ab7");

        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&hex::decode("d75a980182b10ab7").unwrap());
        assert!(did.names_key(&key));
        key[7] ^= 1;
        assert!(!did.names_key(&key));
    }

    #[test]
    fn equal_names_become_equal_texts() {
        let upper = did("did:matrix:AAAAAAAA-2222-3333-4444-555555555555:D75A980182B10AB7").unwrap();
        let lower = did("did:matrix:aaaaaaaa-2222-3333-4444-555555555555:d75a980182b10ab7").unwrap();
        assert_eq!(upper, lower);
        // A user id that is no UUID keeps its case: `Ann` and `ann` may be two people.
        assert_ne!(did("did:matrix:Ann:d75a980182b10ab7"), did("did:matrix:ann:d75a980182b10ab7"));
    }

    #[test]
    fn a_malformed_did_is_refused_with_the_part_that_is_wrong() {
        assert_eq!(did(""), Err(DidError::Form));
        assert_eq!(did("did:web:example"), Err(DidError::Form));
        assert_eq!(did("did:matrix:ann"), Err(DidError::Form));
        assert_eq!(did("did:matrix::d75a980182b10ab7"), Err(DidError::UserId));
        assert_eq!(did("did:matrix:a n:d75a980182b10ab7"), Err(DidError::UserId));
        assert_eq!(did("did:matrix:ann:d75a980182b10ab"), Err(DidError::Fingerprint));
        assert_eq!(did("did:matrix:ann:d75a980182b10abg"), Err(DidError::Fingerprint));
        assert_eq!(did("did:matrix:ann:d75a980182b10ab7:x"), Err(DidError::Fingerprint));
        assert_eq!(did(&format!("did:matrix:{}:d75a980182b10ab7", "a".repeat(300))), Err(DidError::TooLong(328)));
    }
}
