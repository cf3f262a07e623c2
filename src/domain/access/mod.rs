//! Who may speak, decided without asking anybody: the shape of a DID, the text an agent signs, the token it gets
//! for it. Whether a nonce is open and whether an agent is enrolled are the database's to say.

mod did;
mod key;
mod principal;

pub use did::{Did, DidError};
pub use key::{KeyError, parse_public_key};
pub use principal::{Keyring, Principal, TOKEN_LIFETIME};

/// Whether an owner may speak. `suspended` is what its agent's row says, `None` that there is none; `unenrolled`: whether those may who have
/// none. Asked when a request comes and once more where it writes.
pub const fn is_let_in(suspended: Option<bool>, unenrolled: bool) -> bool {
    match suspended {
        Some(suspended) => !suspended,
        None => unenrolled,
    }
}

/// The text an agent signs to prove that it holds the key of `did`.
pub fn challenge_text(did: &Did, nonce: &str) -> String {
    format!("matrix-chronos-auth:{did}:{nonce}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_enrolled_speaks_unless_suspended_and_others_only_where_anybody_may() {
        for unenrolled in [false, true] {
            assert!(is_let_in(Some(false), unenrolled) && !is_let_in(Some(true), unenrolled));
            assert_eq!(is_let_in(None, unenrolled), unenrolled);
        }
    }
}
