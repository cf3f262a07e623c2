//! Who may speak, decided without asking anybody: the shape of a DID, the text an agent signs, the token it gets
//! for it. Whether a nonce is open and whether an agent is enrolled are the database's to say.

mod did;
mod key;
mod principal;

pub use did::{Did, DidError};
pub use key::{KeyError, parse_public_key};
pub use principal::{Keyring, Principal, TOKEN_LIFETIME};

/// The text an agent signs to prove that it holds the key of `did`.
pub fn challenge_text(did: &Did, nonce: &str) -> String {
    format!("matrix-chronos-auth:{did}:{nonce}")
}
