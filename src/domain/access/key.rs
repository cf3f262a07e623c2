//! An agent's public key, as somebody writes it down to enrol it.

use ed25519_dalek::VerifyingKey;
use thiserror::Error;

/// Why a text is no key that an agent may have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    #[error("is not 64 hex digits, the 32 bytes of an ed25519 public key in hex")]
    Hex,
    #[error("is no point of ed25519's curve; give the public key, not the secret one")]
    Point,
    /// Of small order: one signature would pass for many texts.
    #[error("is a weak key, for which anybody can make signatures; make another key")]
    Weak,
}

/// Hex in either case. What cannot sign in is refused here, where somebody can still do something about it.
pub fn parse_public_key(text: &str) -> Result<[u8; 32], KeyError> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| KeyError::Hex)?;
    let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::Point)?;
    if key.is_weak() { Err(KeyError::Weak) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    #[test]
    fn a_key_is_read_in_either_case() {
        assert_eq!(parse_public_key(GOOD).map(hex::encode).as_deref(), Ok(GOOD));
        assert_eq!(parse_public_key(&GOOD.to_uppercase()), parse_public_key(GOOD));
    }

    #[test]
    fn what_nobody_could_sign_in_with_is_refused_with_the_reason() {
        assert_eq!(parse_public_key(""), Err(KeyError::Hex));
        assert_eq!(parse_public_key(&GOOD[1..]), Err(KeyError::Hex));
        assert_eq!(parse_public_key(&GOOD.replace('d', "g")), Err(KeyError::Hex));
        // y = 2 is on no point of the curve; y = 1 is its neutral element.
        assert_eq!(parse_public_key(&format!("02{}", "0".repeat(62))), Err(KeyError::Point));
        assert_eq!(parse_public_key(&format!("01{}", "0".repeat(62))), Err(KeyError::Weak));
    }
}
