//! Effects: what an agent wants done after an event. Each is recorded once, under a key that says when two are the same.

use sha2::{Digest, Sha256};

use super::SessionKey;
use crate::domain::{payload::Payload, words::words};

words! {
    /// What is to be done.
    EffectType(UnknownEffectType, "type of an effect") {
        /// To the connected client.
        SendMessage = "send_message",
        /// Done with the checkpoint itself.
        ScheduleTimer = "schedule_timer",
        /// To the router, after a timer was promoted. Only chronos makes one.
        Wake = "wake",
    }
}

words! {
    /// Where an effect stands.
    EffectStatus(UnknownEffectStatus, "status of an effect") {
        Pending = "pending",
        Executing = "executing",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
        Suppressed = "suppressed",
    }
}

words! {
    /// Why an effect was not carried out.
    Reason(UnknownReason, "reason of an effect") {
        /// The user spoke first.
        UserMessage = "user_message",
        /// Too many in a row without a word of the user.
        Cap = "cap",
        /// A newer one took its place while it waited for the end of the cooldown.
        Superseded = "superseded",
        /// A later one of the same checkpoint took its place.
        Replaced = "replaced",
    }
}

impl EffectStatus {
    /// Whether anything may still become of it.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Pending | Self::Executing => true,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Suppressed => false,
        }
    }
}

/// SHA-256, in hex, over session, checkpoint, type, position and payload. Each text is preceded by its length, so that no
/// two lists of texts read alike; the payload is canonical, so that spelling it differently does not make it another one.
pub fn dedupe_key(
    session: &SessionKey,
    checkpoint_id: &str,
    effect: EffectType,
    position: u32,
    payload: &Payload,
) -> String {
    let mut hash = Sha256::new();
    let position = position.to_string();
    for text in [session.as_str(), checkpoint_id, effect.as_str(), &position, &payload.canonical()] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(checkpoint_id: &str, position: u32, payload: &str) -> String {
        let session: SessionKey = "ann:agent:thread".parse().unwrap();
        let payload = Payload::parse(payload.to_owned()).unwrap();
        dedupe_key(&session, checkpoint_id, EffectType::SendMessage, position, &payload)
    }

    #[test]
    fn two_effects_are_the_same_when_only_the_spelling_of_their_payload_differs() {
        let first = key("c1", 0, r#"{"content":"hé","n":1}"#);
        assert_eq!(first, key("c1", 0, "{ \"n\": 1, \"content\": \"h\\u00e9\" }"));
        assert_ne!(first, key("c1", 1, r#"{"content":"hé","n":1}"#));
        assert_ne!(first, key("c2", 0, r#"{"content":"hé","n":1}"#));
        assert_ne!(first, key("c1", 0, r#"{"content":"he","n":1}"#));
        // Written down: such keys stand in tables.
        assert_eq!(key("c1", 0, "{}"), "e6d60f6748f9e4ba2bdc7063330917ae61c977cc4badaee2547c74d239ad1ef3");
    }

    #[test]
    fn texts_that_run_together_are_still_told_apart() {
        assert_ne!(key("c1", 11, "{}"), key("c11", 1, "{}"));
    }

    #[test]
    fn an_effect_is_open_until_something_has_become_of_it() {
        let open = |word: &str| EffectStatus::try_from(word.to_owned()).unwrap().is_open();
        assert!(open("pending") && open("executing"));
        assert!(!open("completed") && !open("failed") && !open("cancelled") && !open("suppressed"));
        assert_eq!(
            EffectStatus::try_from("done".to_owned()).unwrap_err().to_string(),
            "\"done\" is no status of an effect"
        );
    }
}
