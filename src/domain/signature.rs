//! The signature of a wake, as Standard Webhooks has it: whoever knows a secret can tell that a wake is ours, unchanged
//! and fresh.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use thiserror::Error;

use super::ids::DeliveryId;

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// The lengths that the specification names.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Why a text is no signing secret. None of them quotes it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    #[error("is empty")]
    Empty,
    #[error("does not begin with {PREFIX}")]
    Prefix,
    #[error("is not base64 behind {PREFIX}")]
    Base64,
    #[error("has a key of {0} bytes; {least} to {most} will do", least = KEY_BYTES.start(), most = KEY_BYTES.end())]
    Length(usize),
}

/// One secret: `whsec_<base64 of 24 to 64 bytes>`. Shows nothing of itself.
#[derive(Clone, Debug)]
pub struct SigningKey(SecretSlice<u8>);

impl SigningKey {
    pub fn parse(text: &str) -> Result<Self, Unfit> {
        if text.is_empty() {
            return Err(Unfit::Empty);
        }
        let encoded = text.strip_prefix(PREFIX).ok_or(Unfit::Prefix)?;
        let key = STANDARD.decode(encoded).map_err(|_| Unfit::Base64)?;
        if !KEY_BYTES.contains(&key.len()) {
            return Err(Unfit::Length(key.len()));
        }
        Ok(Self(SecretSlice::from(key)))
    }

    /// `v1,<base64 of HMAC-SHA256 over id.timestamp.body>`.
    fn sign(&self, id: DeliveryId, timestamp: i64, body: &[u8]) -> String {
        let mut mac =
            <Hmac<Sha256> as KeyInit>::new_from_slice(self.0.expose_secret()).expect("HMAC takes a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The header `webhook-signature`: one signature per key, so that receivers may know the old secret or the new one while
/// it is being rotated. `None` without a key.
pub fn sign(keys: &[SigningKey], id: DeliveryId, timestamp: i64, body: &[u8]) -> Option<String> {
    let signatures: Vec<String> = keys.iter().map(|key| key.sign(id, timestamp, body)).collect();
    (!signatures.is_empty()).then(|| signatures.join(" "))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn secret(bytes: usize) -> String {
        format!("{PREFIX}{}", STANDARD.encode(vec![7; bytes]))
    }

    #[test]
    fn a_secret_is_24_to_64_bytes_in_base64() {
        assert!(SigningKey::parse(&secret(24)).is_ok() && SigningKey::parse(&secret(64)).is_ok());
        let why = |text: &str| SigningKey::parse(text).unwrap_err();
        assert_eq!(why(""), Unfit::Empty);
        assert_eq!(why("c2VjcmV0"), Unfit::Prefix);
        assert_eq!(why("whsec_not base64"), Unfit::Base64);
        assert_eq!(why(&secret(23)), Unfit::Length(23));
        assert_eq!(why(&secret(65)), Unfit::Length(65));
        assert_eq!(why(PREFIX), Unfit::Length(0));
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = SigningKey::parse(&secret(24)).unwrap();
        assert!(!format!("{key:?}").contains('7'), "{key:?}");
    }

    #[test]
    fn one_signature_per_key_in_their_order() {
        let keys = [24, 32].map(|bytes| SigningKey::parse(&secret(bytes)).unwrap());
        let id = DeliveryId::from_uuid(Uuid::from_u128(2));
        let alone = |key: usize| sign(&keys[key..=key], id, 1, b"{}").unwrap();
        assert_eq!(sign(&keys, id, 1, b"{}").unwrap(), format!("{} {}", alone(0), alone(1)));
        assert_ne!(alone(0), alone(1));
        assert_eq!(sign(&[], id, 1, b"{}"), None);
    }
}
