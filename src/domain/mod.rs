//! What chronos decides, and nothing else: no I/O, no clock, no async. The instant and the randomness a decision
//! needs are arguments; the decision is the return value. A test in `tests/it/architecture.rs` keeps it so.
//!
//! | file | answers |
//! |---|---|
//! | [`ids`] | which alarm, which claim, which delivery |
//! | [`access`] | who may speak: DIDs, challenges, principal tokens |
//! | [`alarm`] | what an alarm is; what its fields may hold |
//! | [`invalid`] | what is wrong with a field, and what to write instead |
//! | [`cluster`] | which cluster takes the place of one that is gone, and what becomes of its alarms |
//! | [`labels`] | which alarms a selector means |
//! | [`quota`] | how much an agent may ask for |
//! | [`resource`] | whether a resource says anything new to its row |
//! | [`cursor`] | where a page of a list ended |
//! | [`payload`] | JSON that must come back byte for byte |
//! | [`schedule`] | when it fires |
//! | [`occurrence`] | what becomes of one occurrence after the router's answer |
//! | [`ladder`] | how long to wait between attempts |
//! | [`wake`] | what the router is told |
//! | [`signature`], [`trace`] | how it knows that the wake is ours; under which trace it is found |
//! | [`timer`] | what a service call may ask for |
//! | [`session`] | which conversation, and when its agent may speak unasked |

pub mod access;
pub mod alarm;
pub mod cluster;
pub mod cursor;
pub mod ids;
pub mod invalid;
pub mod labels;
pub mod ladder;
pub mod occurrence;
pub mod payload;
pub mod peers;
pub mod quota;
pub mod resource;
pub mod schedule;
pub mod session;
pub mod signature;
pub mod timer;
pub mod trace;
pub mod wake;
mod words;

use chrono::{DateTime, SecondsFormat, Utc};

/// An instant as it is written everywhere: RFC 3339 in UTC, a fraction only when there is one.
pub fn rfc3339(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// An instant as the timers of service calls spell it: three digits of a second, always.
pub fn rfc3339_millis(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Millis, true)
}
