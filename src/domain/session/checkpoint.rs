//! A checkpoint: what an agent made of one event, and the effects it asks for. What is born of them is decided here.

use sha2::{Digest, Sha256};

use super::effect::{EffectStatus, EffectType, Reason};
use crate::domain::payload::Payload;

/// What the log says about a checkpoint's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether what is sent for it is the agent's own idea.
    pub autonomous: bool,
    /// Whether the user has spoken since.
    pub user_spoke_since: bool,
}

/// An effect that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    Send,
    Timer { timer_id: &'a str },
}

/// As what an effect is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    pub status: EffectStatus,
    pub reason: Option<Reason>,
}

impl Fate {
    const fn of(status: EffectStatus) -> Self {
        Self { status, reason: None }
    }

    const fn cancelled(reason: Reason) -> Self {
        Self { status: EffectStatus::Cancelled, reason: Some(reason) }
    }
}

/// What becomes of each wish. Once the user has spoken again, whatever is not an answer to the user is too late.
pub fn fates(wishes: &[Wish<'_>], facts: Facts) -> Vec<Fate> {
    let is_replaced = |place: usize| match wishes[place] {
        Wish::Send => false,
        timer @ Wish::Timer { .. } => wishes[place + 1..].contains(&timer),
    };
    let fate = |(place, wish): (usize, &Wish<'_>)| match wish {
        Wish::Send if facts.autonomous && facts.user_spoke_since => Fate::cancelled(Reason::UserMessage),
        Wish::Send => Fate::of(EffectStatus::Pending),
        Wish::Timer { .. } if facts.user_spoke_since => Fate::cancelled(Reason::UserMessage),
        Wish::Timer { .. } if is_replaced(place) => Fate::cancelled(Reason::Replaced),
        Wish::Timer { .. } => Fate::of(EffectStatus::Completed),
    };
    wishes.iter().enumerate().map(fate).collect()
}

/// Timers of which an earlier wish gives way to a later one, each once.
pub fn replaced_timers(wishes: &[Wish<'_>]) -> Vec<String> {
    let mut replaced = Vec::new();
    for (place, wish) in wishes.iter().enumerate() {
        let Wish::Timer { timer_id } = wish else { continue };
        let name = (*timer_id).to_owned();
        if wishes[place + 1..].contains(wish) && !replaced.contains(&name) {
            replaced.push(name);
        }
    }
    replaced
}

/// By which a repeated request is known: SHA-256 over the event and its effects, each text preceded by its length, payloads
/// canonical. As for [dedupe keys](super::effect::dedupe_key): another spelling is not another request.
pub fn request_hash<'a>(event_seq: i64, effects: impl Iterator<Item = (EffectType, &'a Payload)>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(event_seq.to_be_bytes());
    for (effect, payload) in effects {
        for text in [effect.as_str(), &payload.canonical()] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEA: Wish = Wish::Timer { timer_id: "tea" };
    const CAKE: Wish = Wish::Timer { timer_id: "cake" };

    fn told(
        wishes: &[Wish<'_>],
        autonomous: bool,
        user_spoke_since: bool,
    ) -> Vec<(&'static str, Option<&'static str>)> {
        let facts = Facts { autonomous, user_spoke_since };
        fates(wishes, facts).into_iter().map(|fate| (fate.status.as_str(), fate.reason.map(Reason::as_str))).collect()
    }

    #[test]
    fn a_send_waits_for_its_client_and_a_timer_is_set_at_once() {
        for autonomous in [false, true] {
            assert_eq!(told(&[Wish::Send, TEA], autonomous, false), [("pending", None), ("completed", None)]);
        }
    }

    #[test]
    fn once_the_user_has_spoken_again_only_an_answer_to_the_user_is_sent() {
        let late = ("cancelled", Some("user_message"));
        assert_eq!(told(&[Wish::Send, TEA], true, true), [late, late]);
        assert_eq!(told(&[Wish::Send, TEA], false, true), [("pending", None), late]);
    }

    #[test]
    fn of_two_timers_with_one_key_the_last_stands() {
        let wishes = [TEA, CAKE, TEA, Wish::Send, TEA];
        let (set, replaced) = (("completed", None), ("cancelled", Some("replaced")));
        assert_eq!(told(&wishes, true, false), [replaced, set, replaced, ("pending", None), set]);
        assert_eq!(replaced_timers(&wishes), ["tea"]);
        assert!(replaced_timers(&[TEA, CAKE, Wish::Send, Wish::Send]).is_empty());
    }

    #[test]
    fn a_request_is_known_by_what_it_asks_for_however_it_is_spelt() {
        let hash = |event_seq, effect, payload: &str| {
            let payload = Payload::parse(payload.to_owned()).unwrap();
            request_hash(event_seq, [(effect, &payload)].into_iter())
        };
        let first = hash(1, EffectType::SendMessage, r#"{"content":"a", "n": 1}"#);
        assert_eq!(first, hash(1, EffectType::SendMessage, r#"{"n":1,"content":"\u0061"}"#));
        assert_ne!(first, hash(2, EffectType::SendMessage, r#"{"content":"a", "n": 1}"#));
        assert_ne!(first, hash(1, EffectType::ScheduleTimer, r#"{"content":"a", "n": 1}"#));
        assert_ne!(first, hash(1, EffectType::SendMessage, r#"{"content":"b", "n": 1}"#));
        assert_ne!(first, request_hash(1, std::iter::empty()));
    }
}
