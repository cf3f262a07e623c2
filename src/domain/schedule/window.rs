//! The stretch of time in which a recurrence has slots, and the point from which `@every` counts.

use chrono::{DateTime, TimeDelta, Timelike, Utc};

const NANOS_PER_SECOND: u32 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    anchor: DateTime<Utc>,
    starts_at: Option<DateTime<Utc>>,
    ends_at: Option<DateTime<Utc>>,
}

impl Window {
    /// `starts_at` is inclusive, `ends_at` exclusive. `@every` counts from `starts_at`, else from
    /// `created_at`; a preview, which has no creation, passes the instant it looks from.
    #[must_use]
    pub fn new(created_at: DateTime<Utc>, starts_at: Option<DateTime<Utc>>, ends_at: Option<DateTime<Utc>>) -> Self {
        let starts_at = starts_at.map(without_leap_second);
        Self {
            anchor: starts_at.unwrap_or_else(|| without_leap_second(created_at)),
            starts_at,
            ends_at: ends_at.map(without_leap_second),
        }
    }

    #[must_use]
    pub fn anchor(&self) -> DateTime<Utc> {
        self.anchor
    }

    #[must_use]
    pub fn starts_at(&self) -> Option<DateTime<Utc>> {
        self.starts_at
    }

    #[must_use]
    pub fn ends_at(&self) -> Option<DateTime<Utc>> {
        self.ends_at
    }

    /// The instant after which to search, so that nothing before the start is found and the start
    /// itself is.
    pub(super) fn search_after(&self, after: DateTime<Utc>) -> DateTime<Utc> {
        match self.starts_at.and_then(|start| start.checked_sub_signed(TimeDelta::nanoseconds(1))) {
            Some(before_start) => after.max(before_start),
            None => after,
        }
    }

    pub(super) fn has_ended_at(&self, slot: DateTime<Utc>) -> bool {
        self.ends_at.is_some_and(|end| slot >= end)
    }
}

/// chrono writes 23:59:60.5 as second 59 with 1.5 s of nanoseconds, and its differences then count
/// a second that no slot knows. The last nanosecond before the leap is the same point to every
/// slot, since none lies inside.
pub(super) fn without_leap_second(at: DateTime<Utc>) -> DateTime<Utc> {
    if at.nanosecond() < NANOS_PER_SECOND {
        return at;
    }
    at.with_nanosecond(NANOS_PER_SECOND - 1).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn the_anchor_is_the_start_if_there_is_one() {
        let (created, start) = (at("2026-01-01T00:00:00Z"), at("2026-02-01T00:00:00Z"));
        assert_eq!(Window::new(created, None, None).anchor(), created);
        assert_eq!(Window::new(created, Some(start), None).anchor(), start);
    }

    #[test]
    fn a_leap_second_becomes_the_nanosecond_before_it() {
        assert_eq!(without_leap_second(at("2016-12-31T23:59:60.5Z")), at("2016-12-31T23:59:59.999999999Z"));
        assert_eq!(without_leap_second(at("2016-12-31T23:59:59.5Z")), at("2016-12-31T23:59:59.5Z"));
    }
}
