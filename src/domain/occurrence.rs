//! What becomes of an occurrence once the router has answered: one total function, no I/O.
//!
//! ```text
//!              accepted ──► once: Fired          cron: Advance to the next slot (none left: Fired)
//!  attempt ──► unavailable ► failures left: Retry on the ladder; none left: exhausted
//!              gone ──────► exhausted at once
//!  exhausted:               once: Failed          cron: Skip to the next slot (none left: Retired)
//! ```

use std::time::Duration;

use chrono::{DateTime, Utc};
use thiserror::Error;

use super::{ladder::Ladder, schedule::Schedule};

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

/// The facts about an occurrence that decide what comes next.
#[derive(Clone, Debug)]
pub struct Occurrence<'a> {
    pub schedule: &'a Schedule,
    pub scheduled_for: DateTime<Utc>,
    /// Failed attempts at this occurrence so far.
    pub failure_count: u32,
    pub max_failures: u32,
}

/// What the alarm does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Delivered, and nothing is left to fire.
    Fired,
    /// Delivered; the series goes on.
    Advance { scheduled_for: DateTime<Utc> },
    /// Not delivered; the same occurrence again, later.
    Retry { at: DateTime<Utc>, why: String },
    /// Given up; there was only this one.
    Failed { why: String },
    /// Given up on this occurrence; the series goes on.
    Skip { scheduled_for: DateTime<Utc>, why: String },
    /// Given up on the last occurrence of a series.
    Retired { why: String },
}

/// What became of an attempt, or of a slot that had none. The words of the `attempts` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    Retrying,
    Exhausted,
    Missed,
    Skipped,
    Cancelled,
    Fenced,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retrying => "retrying",
            Self::Exhausted => "exhausted",
            Self::Missed => "missed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Fenced => "fenced",
        }
    }
}

/// A word that is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no outcome")]
pub struct UnknownOutcome(String);

impl TryFrom<String> for Outcome {
    type Error = UnknownOutcome;

    fn try_from(text: String) -> Result<Self, UnknownOutcome> {
        use Outcome::{Cancelled, Delivered, Exhausted, Fenced, Missed, Retrying, Skipped};
        let all = [Delivered, Retrying, Exhausted, Missed, Skipped, Cancelled, Fenced];
        all.into_iter().find(|outcome| outcome.as_str() == text).ok_or(UnknownOutcome(text))
    }
}

impl Next {
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Fired | Self::Advance { .. } => Outcome::Delivered,
            Self::Retry { .. } => Outcome::Retrying,
            Self::Failed { .. } | Self::Skip { .. } | Self::Retired { .. } => Outcome::Exhausted,
        }
    }
}

impl Next {
    /// When the alarm wants attention again; `None`: never.
    pub const fn at(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Advance { scheduled_for } | Self::Skip { scheduled_for, .. } => Some(*scheduled_for),
            Self::Retry { at, .. } => Some(*at),
            Self::Fired | Self::Failed { .. } | Self::Retired { .. } => None,
        }
    }
}

/// Decides. `chance` is uniform in 0..1 and spreads retries.
pub fn next(occurrence: &Occurrence<'_>, answer: &Answer, ladder: &Ladder, now: DateTime<Utc>, chance: f64) -> Next {
    match answer {
        Answer::Accepted { .. } => match following(occurrence, now) {
            Some(scheduled_for) => Next::Advance { scheduled_for },
            None => Next::Fired,
        },
        Answer::Gone { why } => exhausted(occurrence, now, why),
        Answer::Unavailable { why, retry_after, .. } if occurrence.failure_count < occurrence.max_failures => {
            let wait = ladder.wait(occurrence.failure_count, *retry_after, chance);
            Next::Retry { at: now + wait, why: why.clone() }
        }
        Answer::Unavailable { why, .. } => exhausted(occurrence, now, why),
    }
}

fn exhausted(occurrence: &Occurrence<'_>, now: DateTime<Utc>, why: &str) -> Next {
    let why = why.to_owned();
    match (occurrence.schedule, following(occurrence, now)) {
        (Schedule::Once { .. }, _) => Next::Failed { why },
        (Schedule::Cron(_), Some(scheduled_for)) => Next::Skip { scheduled_for, why },
        (Schedule::Cron(_), None) => Next::Retired { why },
    }
}

/// The slot after this one: counted from the nominal slot, so that nothing drifts, then moved past now, so that an
/// outage does not end in a burst.
fn following(occurrence: &Occurrence<'_>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    match occurrence.schedule {
        Schedule::Once { .. } => None,
        Schedule::Cron(recurrence) => recurrence.next_after(occurrence.scheduled_for.max(now)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::domain::schedule::{Recurrence, Window, Zone};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn once() -> Schedule {
        Schedule::Once { fire_at: at("2026-11-16T09:00:00Z") }
    }

    fn cron(expr: &str, ends_at: Option<&str>) -> Schedule {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, ends_at.map(at));
        Schedule::Cron(Recurrence::parse(expr, Zone::utc(), window).unwrap())
    }

    fn after(schedule: &Schedule, failure_count: u32, answer: &Answer) -> Next {
        let ladder = Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 };
        let occurrence =
            Occurrence { schedule, scheduled_for: at("2026-11-16T09:00:00Z"), failure_count, max_failures: 2 };
        next(&occurrence, answer, &ladder, at("2026-11-16T09:00:01Z"), 0.5)
    }

    const ACCEPTED: Answer = Answer::Accepted { http_status: 202 };

    fn unavailable() -> Answer {
        Answer::Unavailable { why: "HTTP 503".into(), http_status: Some(503), retry_after: None }
    }

    fn gone() -> Answer {
        Answer::Gone { why: "HTTP 410".into() }
    }

    #[test]
    fn a_delivered_once_alarm_is_fired_and_a_delivered_cron_goes_on_to_its_next_slot() {
        assert_eq!(after(&once(), 0, &ACCEPTED), Next::Fired);
        assert_eq!(
            after(&cron("0 9 * * *", None), 1, &ACCEPTED),
            Next::Advance { scheduled_for: at("2026-11-17T09:00:00Z") }
        );
    }

    #[test]
    fn a_failure_climbs_the_ladder_until_max_failures_and_then_gives_up() {
        let why = "HTTP 503".to_owned();
        let retry =
            |seconds| Next::Retry { at: at("2026-11-16T09:00:01Z") + TimeDelta::seconds(seconds), why: why.clone() };
        assert_eq!(after(&once(), 0, &unavailable()), retry(30));
        assert_eq!(after(&once(), 1, &unavailable()), retry(60));
        assert_eq!(after(&once(), 2, &unavailable()), Next::Failed { why: why.clone() });
        assert_eq!(
            after(&cron("0 9 * * *", None), 2, &unavailable()),
            Next::Skip { scheduled_for: at("2026-11-17T09:00:00Z"), why }
        );
    }

    #[test]
    fn an_agent_that_is_gone_is_not_tried_again() {
        let why = "HTTP 410".to_owned();
        assert_eq!(after(&once(), 0, &gone()), Next::Failed { why: why.clone() });
        assert_eq!(
            after(&cron("0 9 * * *", None), 0, &gone()),
            Next::Skip { scheduled_for: at("2026-11-17T09:00:00Z"), why }
        );
    }

    #[test]
    fn a_series_that_has_run_out_is_retired() {
        let last = cron("0 9 * * *", Some("2026-11-17T00:00:00Z"));
        assert_eq!(after(&last, 0, &ACCEPTED), Next::Fired);
        assert_eq!(after(&last, 0, &gone()), Next::Retired { why: "HTTP 410".into() });
    }

    #[test]
    fn slots_that_passed_meanwhile_are_not_fired_in_a_burst() {
        let every_second = cron("@every 1s", None);
        let Next::Advance { scheduled_for } = after(&every_second, 0, &ACCEPTED) else { panic!("goes on") };
        assert_eq!(scheduled_for, at("2026-11-16T09:00:02Z"));
    }

    #[test]
    fn the_routers_words_are_the_owners_alone() {
        assert_eq!(error_class("HTTP 503: cannot wake ann: her secret is 7"), "HTTP 503");
        assert_eq!(error_class("cannot connect: Connection refused (os error 111)"), "cannot connect");
        assert_eq!(error_class("missed: due 2026-11-16T09:00:00Z, seen 2026-11-16T10:00:00Z").len(), 59);
        assert_eq!(error_class(""), "");
    }
}
