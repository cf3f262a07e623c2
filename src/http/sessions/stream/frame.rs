//! Frames: what a client's means, what a send looks like, and how many are too many.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    domain::{ids::EffectId, rfc3339},
    http::problem::Problem,
    store::streams::Outgoing,
};

/// An acknowledgement has about fifty bytes.
pub const LARGEST: usize = 4 * 1024;

/// Frames other than the acknowledgement that is awaited, all at once,
const BURST: u32 = 20;
/// and one more after each of these.
const REFILL: Duration = Duration::from_secs(1);

const RIGHT: &str = r#"send a text frame {"ack": "<effect_id>"} for each send that has arrived, and nothing else"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ack {
    ack: String,
}

/// Which effect a text frame acknowledges.
pub fn acknowledges(text: &str) -> Result<EffectId, Problem> {
    // Without this an array of one text would do: serde fills a struct from either.
    if !text.trim_start().starts_with('{') {
        return Err(Problem::invalid(format!("the frame is not a JSON object; {RIGHT}")));
    }
    let Ack { ack } = serde_json::from_str(text)
        .map_err(|error| Problem::invalid(format!("the frame does not fit: {error}; {RIGHT}")))?;
    // As this service writes ids, and in no other spelling.
    let id = ack.parse().ok().filter(|id: &EffectId| id.to_string().eq_ignore_ascii_case(&ack));
    id.ok_or_else(|| {
        Problem::invalid_field("ack", format!("ack is not the effect_id of a send, which is a UUID; {RIGHT}"))
    })
}

pub fn binary() -> Problem {
    Problem::invalid(format!("the frame is binary; {RIGHT}"))
}

#[derive(Serialize)]
struct Send<'a> {
    effect_id: EffectId,
    dedupe_key: &'a str,
    seq: i64,
    content: &'a str,
    created_at: String,
}

/// A send as the client reads it: to the byte the same, however often it is sent.
pub fn of(outgoing: &Outgoing) -> String {
    let Outgoing { id, dedupe_key, seq, content, created_at, .. } = outgoing;
    let send = Send { effect_id: *id, dedupe_key, seq: *seq, content, created_at: rfc3339(*created_at) };
    serde_json::to_string(&send).expect("texts and numbers have a JSON")
}

/// How much a client may say beside what it is asked for.
pub struct Budget {
    /// From then on all of it is there again.
    whole_at: Instant,
}

impl Budget {
    pub fn new(now: Instant) -> Self {
        Self { whole_at: now }
    }

    /// Counts one frame; `false`: it is one too many.
    pub fn spend(&mut self, now: Instant) -> bool {
        let whole_at = self.whole_at.max(now) + REFILL;
        let within = whole_at - now <= REFILL * BURST;
        if within {
            self.whole_at = whole_at;
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::ClaimToken;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    #[test]
    fn an_acknowledgement_is_an_object_with_the_effects_id() {
        let expected: EffectId = ID.parse().unwrap();
        for text in [format!(r#"{{"ack":"{ID}"}}"#), format!(" {{ \"ack\" : \"{}\" }}\n", ID.to_uppercase())] {
            assert_eq!(acknowledges(&text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn any_other_frame_is_told_what_would_be_right() {
        let simple = ID.replace('-', "");
        for text in [
            "",
            "hello",
            "{",
            "[]",
            r#"["01890a5d-ac96-774b-bcce-b302099a8057"]"#,
            "{}",
            r#"{"ack":7}"#,
            r#"{"ack":null}"#,
            r#"{"ack":"1"}"#,
            &format!(r#"{{"ack":"{simple}"}}"#),
            &format!(r#"{{"ack":"{ID}","ack":"{ID}"}}"#),
            &format!(r#"{{"ack":"{ID}","nack":1}}"#),
            &format!(r#"{{"ack":"{ID}"}} x"#),
        ] {
            let problem = acknowledges(text).unwrap_err();
            assert_eq!(problem.code(), "invalid_request", "{text}");
            assert!(problem.message().contains(r#"{"ack": "<effect_id>"}"#), "{text}: {}", problem.message());
        }
    }

    #[test]
    fn a_send_has_the_contracts_fields() {
        let outgoing = Outgoing {
            id: ID.parse().unwrap(),
            token: ClaimToken::from_uuid(Uuid::nil()),
            dedupe_key: "k".to_owned(),
            seq: 7,
            content: "tea \"is\"\nready é".to_owned(),
            created_at: DateTime::from_timestamp_micros(1_800_000_000_500_000).unwrap(),
        };
        assert_eq!(
            of(&outgoing),
            format!(
                r#"{{"effect_id":"{ID}","dedupe_key":"k","seq":7,"content":"tea \"is\"\nready é","created_at":"2027-01-15T08:00:00.500Z"}}"#
            )
        );
    }

    #[test]
    fn a_client_may_say_twenty_things_at_once_and_one_more_a_second() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert!((0..BURST).all(|_| budget.spend(start)));
        assert!(!budget.spend(start) && !budget.spend(start), "and what is refused does not count");
        assert!(budget.spend(start + REFILL) && !budget.spend(start + REFILL));
        let later = start + REFILL * 1000;
        assert_eq!((0..100).filter(|_| budget.spend(later)).count(), 20, "no more than that is saved up");
    }
}
