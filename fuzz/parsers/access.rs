//! DIDs, challenges, principal tokens.

use chrono::{DateTime, Utc};
use chronos::{
    domain::access::{Did, DidError, Keyring, TOKEN_LIFETIME, challenge_text},
    http::read,
};

use super::{assert_readable, assert_told, text};

/// Tokens are tried at one instant; the seeds are signed for it.
const NOW: i64 = 1_800_000_000;
const LONGEST_ID: usize = 256;

/// The bytes are a DID.
pub fn did(data: &[u8]) -> bool {
    let written = text(data);
    match written.parse::<Did>() {
        Ok(did) => {
            assert_canonical(&did, &written);
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            assert_eq!(matches!(error, DidError::TooLong(_)), written.len() > LONGEST_ID, "{error}");
            false
        }
    }
}

fn assert_canonical(did: &Did, written: &str) {
    assert!(did.as_str().eq_ignore_ascii_case(written), "only the case may change: {written:?} became {did}");
    assert_eq!(did.to_string().parse().as_ref(), Ok(did), "what was read is written and read again");
    assert_eq!(format!("did:matrix:{}:{}", did.user_id(), did.fingerprint()), did.as_str());
    assert!(did.as_str().len() <= LONGEST_ID);
    assert!(did.fingerprint().len() == 16 && did.fingerprint().bytes().all(|b| b"0123456789abcdef".contains(&b)));
    assert!(did.user_id().bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
    // As serde prints it is as it is stored and compared.
    assert_eq!(serde_json::to_value(did).ok(), Some(did.as_str().into()));
}

/// Two pairs of a DID and a nonce, a line each part. Whoever signs the text for one pair has signed it for no other.
pub fn challenge(data: &[u8]) -> bool {
    let written = text(data);
    let mut lines = written.split('\n');
    let mut pair = || Some((lines.next()?.parse::<Did>().ok()?, lines.next().unwrap_or_default()));
    let pairs: Vec<_> = [pair(), pair()].into_iter().flatten().collect();
    for (did, nonce) in &pairs {
        let signed = challenge_text(did, nonce);
        // The pair can be read back from the text, so no two pairs have one text.
        let parts: Vec<_> = signed.splitn(6, ':').collect();
        assert_eq!(parts[0], "matrix-chronos-auth");
        assert_eq!((parts[1..5].join(":").as_str(), parts[5]), (did.as_str(), *nonce), "{signed:?}");
    }
    if let [(one, nonce), (other, other_nonce)] = &pairs[..] {
        let same = (one, nonce) == (other, other_nonce);
        assert_eq!(challenge_text(one, nonce) == challenge_text(other, other_nonce), same, "{written:?}");
    }
    !pairs.is_empty()
}

/// The bytes are the body of a request to sign in: what asks for a challenge, and what answers one.
pub fn verify_body(data: &[u8]) -> bool {
    let asked = read::challenge(data);
    match &asked {
        Ok(did) => assert_canonical(did, did.as_str()),
        Err(problem) => assert_told(problem),
    }
    match read::verify(data) {
        Ok(proof) => {
            assert_canonical(&proof.did, proof.did.as_str());
            // Nobody here holds a key; one seed is signed.
            let holds = proof.holds();
            assert!(!holds || proof.nonce == SIGNED_NONCE, "a signature was forged: {proof:?}");
            holds
        }
        Err(problem) => {
            assert_told(&problem);
            asked.is_ok()
        }
    }
}

/// The nonce of `fuzz/corpus/verify_body/signed.json`.
const SIGNED_NONCE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// The bytes are a token. Then they are a DID, whose token is changed at a place that they choose too.
pub fn principal_token(data: &[u8]) -> bool {
    let now: DateTime<Utc> = DateTime::from_timestamp(NOW, 0).expect("NOW is an instant");
    let ring = |secrets: &[&'static str]| Keyring::new(secrets.iter().copied()).expect("a secret makes a ring");
    let (both, old, stranger) = (ring(&["new", "old"]), ring(&["old"]), ring(&["somebody else's"]));
    let token = text(data);
    assert_eq!(stranger.verify(&token, now), None);
    let principal = both.verify(&token, now);
    if let Some(principal) = &principal {
        let signed = [&both, &old].map(|ring| ring.sign(&principal.did, now));
        assert!(signed.contains(&token.clone().into_owned()), "{token:?} holds, but nobody signed it");
    }
    if let Some((place, did)) = data.split_first()
        && let Ok(did) = text(did).parse::<Did>()
    {
        assert_sealed(&both, did, now, usize::from(*place));
    }
    principal.is_some()
}

fn assert_sealed(ring: &Keyring, did: Did, now: DateTime<Utc>, place: usize) {
    let signed = ring.sign(&did, now);
    assert_eq!(ring.verify(&signed, now).map(|principal| principal.did), Some(did));
    assert_eq!(ring.verify(&signed, now + TOKEN_LIFETIME), None, "it holds no longer than its time");
    let mut changed = signed.into_bytes();
    let place = place % changed.len();
    changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
    assert_eq!(ring.verify(&text(&changed), now), None, "a token changed at {place} still holds");
}
