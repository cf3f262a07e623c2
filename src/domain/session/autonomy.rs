//! When an agent may speak unasked: at most so many times in a row, and not too soon after the last time. A message of
//! the user sets both back.

use chrono::{DateTime, TimeDelta, Utc};

use super::effect::Reason;
use crate::domain::words::words;

words! {
    /// What an event in a session's log is.
    EventType(UnknownEventType, "event type (user_message, timer and tool_result are)") {
        UserMessage = "user_message",
        /// A timer came due. Only chronos writes one.
        Timer = "timer",
        ToolResult = "tool_result",
    }
}

/// Whether a send is the agent's own idea. `newest_first` are the events at or before the send's `event_seq`: what a tool
/// said is part of whatever went on before, so the last of the others decides. A send that answers nothing is autonomous.
pub fn is_autonomous(newest_first: impl IntoIterator<Item = EventType>) -> bool {
    for event in newest_first {
        match event {
            EventType::ToolResult => {}
            EventType::UserMessage => return false,
            EventType::Timer => return true,
        }
    }
    true
}

/// How much a session's agent may say unasked. The numbers are configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restraint {
    pub max_consecutive: u32,
    pub cooldown: TimeDelta,
}

/// What a session's agent has said unasked since the user last spoke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub consecutive: u32,
    pub last_at: Option<DateTime<Utc>>,
}

/// What becomes of an autonomous send that wants to go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It goes out, and this is the tally then.
    Send(Tally),
    /// Too soon: it waits, unless a newer one supersedes it.
    Defer { until: DateTime<Utc> },
    /// Too many: it is never sent.
    Suppress,
}

impl Restraint {
    pub fn admit(&self, tally: Tally, now: DateTime<Utc>) -> Admission {
        // The cap first: what will never go out must not wait for a cooldown.
        if tally.consecutive >= self.max_consecutive {
            return Admission::Suppress;
        }
        match tally.last_at.and_then(|last| last.checked_add_signed(self.cooldown)) {
            Some(until) if now < until => Admission::Defer { until },
            Some(_) | None => Admission::Send(Tally { consecutive: tally.consecutive + 1, last_at: Some(now) }),
        }
    }
}

/// A send that has not reached its client yet, as far as it decides about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The agent's own idea, and not counted yet: the cap and the cooldown are asked.
    pub is_restrained: bool,
}

/// What a session does with the sends that wait in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Those that are never sent, by their place in the queue, and why.
    pub suppressed: Vec<(usize, Reason)>,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// This one goes out; if it is restrained, this is the tally then.
    Send { place: usize, tally: Option<Tally> },
    /// This one waits for the end of the cooldown.
    Defer { place: usize, until: DateTime<Utc> },
    /// There is none.
    Rest,
}

impl Restraint {
    /// Which of the sends that wait, oldest first, goes out now. None overtakes another.
    pub fn outlook(&self, waiting: &[Waiting], tally: Tally, now: DateTime<Utc>) -> Outlook {
        let newest = waiting.iter().rposition(|send| send.is_restrained);
        let mut suppressed = Vec::new();
        for (place, send) in waiting.iter().enumerate() {
            let then = if send.is_restrained {
                match self.admit(tally, now) {
                    Admission::Send(tally) => Then::Send { place, tally: Some(tally) },
                    Admission::Suppress => {
                        suppressed.push((place, Reason::Cap));
                        continue;
                    }
                    Admission::Defer { until } if newest == Some(place) => Then::Defer { place, until },
                    Admission::Defer { .. } => {
                        suppressed.push((place, Reason::Superseded));
                        continue;
                    }
                }
            } else {
                Then::Send { place, tally: None }
            };
            return Outlook { suppressed, then };
        }
        Outlook { suppressed, then: Then::Rest }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESTRAINT: Restraint = Restraint { max_consecutive: 3, cooldown: TimeDelta::seconds(15) };

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    #[test]
    fn an_answer_to_the_user_is_not_autonomous_and_tools_do_not_make_it_so() {
        use EventType::{Timer, ToolResult, UserMessage};
        assert!(!is_autonomous([UserMessage, Timer]));
        assert!(!is_autonomous([ToolResult, ToolResult, UserMessage]));
        assert!(is_autonomous([Timer, UserMessage]));
        assert!(is_autonomous([ToolResult, Timer, UserMessage]));
        assert!(is_autonomous([]) && is_autonomous([ToolResult]));
    }

    #[test]
    fn a_send_waits_for_the_end_of_the_cooldown_and_goes_out_at_it() {
        let tally = Tally { consecutive: 1, last_at: Some(at(0)) };
        assert_eq!(RESTRAINT.admit(tally, at(14)), Admission::Defer { until: at(15) });
        assert_eq!(RESTRAINT.admit(tally, at(15)), Admission::Send(Tally { consecutive: 2, last_at: Some(at(15)) }));
    }

    #[test]
    fn beyond_the_cap_a_send_is_suppressed_however_long_it_waited() {
        let tally = Tally { consecutive: 3, last_at: Some(at(0)) };
        assert_eq!(RESTRAINT.admit(tally, at(1)), Admission::Suppress);
        assert_eq!(RESTRAINT.admit(tally, at(100_000)), Admission::Suppress);
        let silent = Restraint { max_consecutive: 0, ..RESTRAINT };
        assert_eq!(silent.admit(Tally::default(), at(0)), Admission::Suppress);
    }

    const REPLY: Waiting = Waiting { is_restrained: false };
    const UNASKED: Waiting = Waiting { is_restrained: true };

    fn outlook(waiting: &[Waiting], consecutive: u32, last_at: Option<i64>, now: i64) -> Outlook {
        RESTRAINT.outlook(waiting, Tally { consecutive, last_at: last_at.map(at) }, at(now))
    }

    #[test]
    fn sends_go_out_in_order_and_a_reply_is_never_counted() {
        let reply = Outlook { suppressed: vec![], then: Then::Send { place: 0, tally: None } };
        assert_eq!(outlook(&[REPLY, UNASKED], 3, Some(0), 1), reply);
        let tally = Tally { consecutive: 1, last_at: Some(at(1)) };
        let unasked = Outlook { suppressed: vec![], then: Then::Send { place: 0, tally: Some(tally) } };
        assert_eq!(outlook(&[UNASKED, REPLY], 0, None, 1), unasked);
        assert_eq!(outlook(&[], 0, None, 1), Outlook { suppressed: vec![], then: Then::Rest });
    }

    #[test]
    fn in_the_cooldown_the_newest_waits_and_supersedes_the_others() {
        let deferred = |suppressed, place| Outlook { suppressed, then: Then::Defer { place, until: at(15) } };
        assert_eq!(outlook(&[UNASKED], 1, Some(0), 1), deferred(vec![], 0));
        let superseded = vec![(0, Reason::Superseded), (1, Reason::Superseded)];
        assert_eq!(outlook(&[UNASKED, UNASKED, UNASKED], 1, Some(0), 1), deferred(superseded.clone(), 2));
        // Nobody overtakes the one that waits; but one that is superseded is in nobody's way.
        assert_eq!(outlook(&[UNASKED, REPLY], 1, Some(0), 1), deferred(vec![], 0));
        let then = Then::Send { place: 1, tally: None };
        assert_eq!(
            outlook(&[UNASKED, REPLY, UNASKED], 1, Some(0), 1),
            Outlook { suppressed: superseded[..1].to_vec(), then }
        );
    }

    #[test]
    fn over_the_cap_all_that_is_unasked_is_suppressed_and_replies_go_out() {
        let suppressed = vec![(0, Reason::Cap), (1, Reason::Cap)];
        let then = Then::Send { place: 2, tally: None };
        assert_eq!(outlook(&[UNASKED, UNASKED, REPLY], 3, Some(0), 100), Outlook { suppressed, then });
    }

    proptest! {
        /// Whatever is asked for and whenever: never more than the cap in a row, never closer than the cooldown.
        #[test]
        fn cap_and_cooldown_hold_over_any_sequence_of_sends(waits in prop::collection::vec(0_i64..40, 0..40)) {
            let (mut tally, mut now, mut sent) = (Tally::default(), at(0), Vec::new());
            for wait in waits {
                now += TimeDelta::seconds(wait);
                if let Admission::Send(next) = RESTRAINT.admit(tally, now) {
                    sent.push(now);
                    tally = next;
                }
            }
            prop_assert!(sent.len() <= 3);
            prop_assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= RESTRAINT.cooldown));
        }
    }
}
