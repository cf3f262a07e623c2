//! One occurrence of an alarm, from its claim to what comes after it. Two questions, each one total function without I/O:
//!
//! ```text
//! claimed ──judge──▶ Fire                    it goes out as it stands
//!                    Fold                    slots passed meanwhile: another one goes out, and counts the rest
//!                    Miss                    too late: nothing goes out
//!
//! answered ──next──▶ accepted:    once: Fired        cron: Advance to the next slot (none left: Fired)
//!                    unavailable: failures left: Retry on the ladder; none left: exhausted
//!                    gone:        exhausted at once
//!                    exhausted:   once: Failed       cron: Skip to the next slot (none left: Retired)
//! ```
//!
//! Timers of service calls and sessions are never given up: whatever goes wrong, they stay on the ladder. An alarm that is
//! over stays over, whatever is answered.

mod judge;
#[cfg(test)]
mod life;
mod next;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

pub use judge::{Missed, Verdict, judge, missed_error};
pub use next::{Next, Settled, next};

use super::{
    alarm::{Status, Subject, Timing},
    schedule::{Recurrence, Run, Schedule},
    words::words,
};

/// What the router said to one wake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Any 2xx.
    Accepted { http_status: u16 },
    /// 410: nobody lives there any more, and trying again will not help.
    Gone { why: String },
    /// Everything else: another status, a timeout, no connection.
    Unavailable { why: String, http_status: Option<u16>, retry_after: Option<Duration> },
}

impl Answer {
    pub fn http_status(&self) -> Option<u16> {
        match self {
            Self::Accepted { http_status } => Some(*http_status),
            Self::Gone { .. } => Some(410),
            Self::Unavailable { http_status, .. } => *http_status,
        }
    }

    /// Why the wake was not taken; empty when it was.
    pub fn error(&self) -> &str {
        match self {
            Self::Accepted { .. } => "",
            Self::Gone { why } | Self::Unavailable { why, .. } => why,
        }
    }
}

/// What may be told to people who are not the owner: the class of an error and the HTTP status, not the router's own
/// words, which may quote the wake.
pub fn error_class(error: &str) -> &str {
    // Our own sentences are whole; the router's words stand behind the first colon of `HTTP 503: …`.
    if error.starts_with("missed: ") { error } else { error.split(':').next().unwrap_or_default() }
}

/// The facts about an occurrence that decide what becomes of it.
#[derive(Clone, Debug)]
pub struct Occurrence<'a> {
    pub subject: Subject,
    pub status: Status,
    pub timing: &'a Timing,
    /// How far the effective instants lie behind the nominal ones.
    pub offset: TimeDelta,
    pub scheduled_for: DateTime<Utc>,
    /// Up to where the slots of the series are told. Normally `scheduled_for`; an occurrence that somebody fired by hand lies
    /// between two slots, and the one that stood then is still to come.
    pub series_at: DateTime<Utc>,
    /// How many other slots its wake tells of.
    pub missed: u64,
    /// Failed attempts at this occurrence so far.
    pub failure_count: u32,
    pub max_failures: u32,
}

impl Occurrence<'_> {
    /// The later slots whose effective instant has come.
    fn passed(&self, recurrence: &Recurrence, now: DateTime<Utc>) -> Option<Run> {
        recurrence.run_between(self.series_at, now - self.offset)
    }

    /// The first slot whose effective instant lies ahead: counted from the nominal slot, so that nothing drifts, then moved
    /// past now, so that an outage does not end in a burst.
    fn next_ahead(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match &self.timing.schedule {
            Schedule::Once { .. } => None,
            Schedule::Cron(recurrence) => recurrence.next_after(self.series_at.max(now - self.offset)),
        }
    }
}

words! {
    /// What became of an attempt, or of a slot that had none. The words of the `attempts` table.
    Outcome(UnknownOutcome, "outcome") {
        Delivered = "delivered",
        Retrying = "retrying",
        Exhausted = "exhausted",
        Missed = "missed",
        Skipped = "skipped",
        Cancelled = "cancelled",
        Fenced = "fenced",
    }
}

words! {
    /// Why slots passed without a try.
    Reason(UnknownReason, "reason") {
        /// A newer slot's wake stands for them.
        Folded = "folded",
        /// First claimed later than the alarm allows.
        Late = "late",
        /// An earlier occurrence was on its ladder.
        Retrying = "retrying",
        /// The alarm was paused.
        Paused = "paused",
        /// Had passed before anybody asked for them.
        Past = "past",
        /// The alarm was given another schedule before they were claimed, or while the wake was under way.
        Replanned = "replanned",
        /// Nothing could be done with the row.
        Parked = "parked",
    }
}

/// Slots that passed without a try: one row of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub run: Run,
    pub outcome: Outcome,
    pub reason: Reason,
}

impl Passed {
    /// A slot that had passed before anybody asked for it.
    pub const fn at_birth(slot: DateTime<Utc>) -> Self {
        Self::missed(single(slot), Reason::Past)
    }

    /// How many of them were missed, as against passed over by policy or pause.
    pub fn slots_missed(&self) -> u64 {
        if self.outcome == Outcome::Missed { self.run.slots } else { 0 }
    }

    pub(super) const fn missed(run: Run, reason: Reason) -> Self {
        Self { run, outcome: Outcome::Missed, reason }
    }

    pub(super) const fn skipped(run: Run, reason: Reason) -> Self {
        Self { run, outcome: Outcome::Skipped, reason }
    }

    /// An occurrence that was planned anew while its first wake was under way.
    pub(super) const fn overtaken(occurrence: DateTime<Utc>) -> Self {
        Self { run: single(occurrence), outcome: Outcome::Fenced, reason: Reason::Replanned }
    }

    /// Whether its slots count among those that passed without a wake. The wake of one that was overtaken may have arrived.
    pub fn counts(&self) -> bool {
        self.outcome != Outcome::Fenced
    }
}

/// A run of one.
pub(super) const fn single(slot: DateTime<Utc>) -> Run {
    Run { first: slot, last: slot, slots: 1 }
}

/// An occurrence and slots beside it, as one run. One fired by hand may lie behind or among them.
pub(super) fn together(occurrence: DateTime<Utc>, slots: Run) -> Run {
    Run { first: occurrence.min(slots.first), last: occurrence.max(slots.last), slots: slots.slots + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routers_words_are_the_owners_alone() {
        assert_eq!(error_class("HTTP 503: cannot wake ann: her secret is 7"), "HTTP 503");
        assert_eq!(error_class("cannot connect: Connection refused (os error 111)"), "cannot connect");
        assert_eq!(error_class("missed: due 2026-11-16T09:00:00Z, seen 2026-11-16T10:00:00Z").len(), 59);
        assert_eq!(error_class(""), "");
    }
}
