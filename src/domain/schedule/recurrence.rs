//! A rule on a zone's clock: the one place where local readings meet instants.
//!
//! Most days local time is UTC plus a constant and nothing below matters. On the others:
//!
//! * A *fixed* rule names times of day ("at 02:30"). Each of its readings fires once, at
//!   [`Zone::first_reading`]: the first instant at which the clock shows it or a later one. So a
//!   reading that a gap skips fires when the gap ends, even if that is on the next local day; a
//!   repeated one fires on its first pass; readings that come to the same instant are one slot.
//! * Any other rule names a rhythm ("every ten minutes") and follows real time: it fires whenever
//!   the clock shows a match, in both passes of an overlap, and nothing makes up for what a gap
//!   skips.
//! * `@every` never looks at a clock on the wall: it counts from its anchor.
//!
//! The function is memoryless: the next slot depends on `after` alone, so a replica that starts
//! within an overlap goes on as the one before it would have.

use std::iter;

use chrono::{DateTime, TimeDelta, Utc};

use super::calendar::{Calendar, END};
use super::describe;
use super::error::Error;
use super::expression::{MAX_EXPRESSION_BYTES, Rule};
use super::window::{Window, without_leap_second};
use super::zone::Zone;

/// How many gaps [`Recurrence::smallest_gap`] compares: four days of an hourly alarm, eight years of
/// a monthly one. Enough to meet the short end of any field, and at 101 searches still cheap.
const GAPS_COMPARED: usize = 100;

/// The resolution of instants: the step from "later than" to "at or later than".
pub(super) const INSTANT: TimeDelta = TimeDelta::nanoseconds(1);

/// A cron expression, a descriptor or `@every`, in a zone and a window. Equal when text, zone and
/// window are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurrence {
    expression: Box<str>,
    pub(super) rule: Rule,
    pub(super) zone: Zone,
    pub(super) window: Window,
}

impl Recurrence {
    /// Outer white space does not count. That the result has a future slot is for the caller to
    /// check: [`Error::NoFutureInstant`].
    pub fn parse(expression: &str, zone: Zone, window: Window) -> Result<Self, Error> {
        if expression.len() > MAX_EXPRESSION_BYTES {
            return Err(Error::ExpressionTooLong { bytes: expression.len() });
        }
        let expression = expression.trim_ascii();
        Ok(Self { expression: expression.into(), rule: Rule::parse(expression)?, zone, window })
    }

    /// The expression as written, without outer white space.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Whether the rule names times of day; see the front page.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        matches!(self.rule, Rule::Calendar { fixed: true, .. })
    }

    /// Whether the rule counts real time from its anchor, whatever clocks show.
    #[must_use]
    pub fn is_interval(&self) -> bool {
        matches!(self.rule, Rule::Every(_))
    }

    /// The first slot strictly later than `after`; `None` when there is none within the window and
    /// before the end of [`super::LAST_YEAR`].
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let after = self.window.search_after(without_leap_second(after)).max(DateTime::UNIX_EPOCH - INSTANT);
        if after >= END {
            return None;
        }
        let slot = match &self.rule {
            Rule::Calendar { calendar, fixed: true } => self.next_time_of_day(calendar, after),
            Rule::Calendar { calendar, fixed: false } => self.next_in_real_time(calendar, after),
            Rule::Every(interval) => interval.next_after(after, self.window.anchor()),
        };
        slot.filter(|slot| !self.window.has_ended_at(*slot))
    }

    /// The smallest distance between neighbours among the slots after `after`; `None` when fewer
    /// than two are left. It bounds how far a slot may be moved without overtaking the next.
    #[must_use]
    pub fn smallest_gap(&self, after: DateTime<Utc>) -> Option<TimeDelta> {
        let slots = iter::successors(self.next_after(after), |slot| self.next_after(*slot));
        let slots: Vec<_> = slots.take(GAPS_COMPARED + 1).collect();
        slots.windows(2).map(|pair| pair[1] - pair[0]).min()
    }

    /// In words; see [`super::Schedule::describe`].
    #[must_use]
    pub fn describe(&self) -> String {
        describe::recurrence(&self.rule, &self.expression, &self.zone, &self.window)
    }

    fn next_time_of_day(&self, calendar: &Calendar, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // Readings up to the present one have been reached, so the search begins behind it. Those
        // of a second pass were reached on the first, and are passed over: at most the minutes of
        // the overlap.
        let mut from = self.zone.local(after).naive_local() + INSTANT;
        loop {
            let reading = calendar.first_from(from)?;
            let slot = self.zone.first_reading(reading);
            if slot > after {
                return Some(slot);
            }
            from = reading + INSTANT;
        }
    }

    fn next_in_real_time(&self, calendar: &Calendar, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // Within a span of one offset, local time and real time run alike. A match beyond its end
        // proves nothing, since the clock may be set back there; so span by span, some 300 at worst
        // up to the last year.
        let mut from = after + INSTANT;
        loop {
            let span = self.zone.span(from);
            let local = from.naive_utc() + span.offset;
            let slot = calendar.first_from(local).map(|reading| (reading - span.offset).and_utc());
            match (slot, span.ends_at) {
                (Some(slot), Some(end)) if slot < end => return Some(slot),
                (slot, None) => return slot,
                (_, Some(end)) if end < END => from = end,
                (_, Some(_)) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::Datelike;

    use super::super::laws::at;
    use super::*;

    const CREATED: &str = "2020-01-01T00:00:00Z";

    fn recurrence(expression: &str, zone: &str) -> Recurrence {
        windowed(expression, zone, Window::new(at(CREATED), None, None))
    }

    fn windowed(expression: &str, zone: &str, window: Window) -> Recurrence {
        Recurrence::parse(expression, Zone::parse(zone).unwrap(), window).unwrap()
    }

    fn slots(recurrence: &Recurrence, after: &str, n: usize) -> Vec<String> {
        let first = recurrence.next_after(at(after));
        let all = iter::successors(first, |slot| recurrence.next_after(*slot));
        all.take(n).map(|slot| slot.format("%m-%dT%H:%M").to_string()).collect()
    }

    #[test]
    fn a_fixed_time_in_a_gap_fires_when_the_gap_ends() {
        let berlin = recurrence("30 2 * * *", "Europe/Berlin");
        assert_eq!(slots(&berlin, "2026-03-28T00:00:00Z", 3), ["03-28T01:30", "03-29T01:00", "03-30T00:30"]);
    }

    #[test]
    fn a_gap_over_midnight_moves_a_fixed_time_to_the_next_local_day() {
        // Nuuk's clock goes from 22:59 on 28 March 2026 to 00:00 on the 29th.
        let nuuk = recurrence("30 22,23 * * *", "America/Nuuk");
        assert_eq!(
            slots(&nuuk, "2026-03-28T00:00:00Z", 6),
            ["03-28T00:30", "03-28T01:30", "03-29T00:30", "03-29T01:00", "03-29T23:30", "03-30T00:30"]
        );
    }

    #[test]
    fn fixed_times_that_a_gap_moves_together_are_one_slot() {
        let berlin = recurrence("0,15,30 2,3 * * *", "Europe/Berlin");
        assert_eq!(slots(&berlin, "2026-03-29T00:00:00Z", 3), ["03-29T01:00", "03-29T01:15", "03-29T01:30"]);
    }

    #[test]
    fn a_fixed_time_in_an_overlap_fires_on_the_first_pass_only() {
        let berlin = recurrence("0,30 2 * * *", "Europe/Berlin");
        assert_eq!(slots(&berlin, "2026-10-24T12:00:00Z", 3), ["10-25T00:00", "10-25T00:30", "10-26T01:00"]);
        // Also for a replica that starts in the second pass.
        assert_eq!(slots(&berlin, "2026-10-25T01:10:00Z", 1), ["10-26T01:00"]);
    }

    #[test]
    fn a_rhythm_fires_in_both_passes_of_an_overlap() {
        let berlin = recurrence("*/30 2 * * *", "Europe/Berlin");
        assert_eq!(
            slots(&berlin, "2026-10-24T12:00:00Z", 5),
            ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30", "10-26T01:00"]
        );
    }

    #[test]
    fn a_rhythm_loses_what_a_gap_skips() {
        let berlin = recurrence("*/30 2 * * *", "Europe/Berlin");
        assert_eq!(slots(&berlin, "2026-03-28T12:00:00Z", 2), ["03-30T00:00", "03-30T00:30"]);
    }

    #[test]
    fn the_last_match_of_all_is_repeated_if_the_clock_is_set_back() {
        // No later reading matches, but earlier ones come again: 31 October 2100 is a Sunday.
        let berlin = recurrence("* 2 31 10 *", "Europe/Berlin");
        assert_eq!(slots(&berlin, "2100-10-31T00:58:00Z", 2), ["10-31T00:59", "10-31T01:00"]);
        assert_eq!(slots(&berlin, "2100-10-31T01:58:00Z", 2), ["10-31T01:59"]);
    }

    #[test]
    fn a_skipped_day_gives_its_slot_to_the_end_of_the_gap() {
        // Apia crossed the date line: there was no 30 December 2011.
        let apia = recurrence("0 9 * * *", "Pacific/Apia");
        assert_eq!(
            slots(&apia, "2011-12-29T12:00:00Z", 4),
            ["12-29T19:00", "12-30T10:00", "12-30T19:00", "12-31T19:00"]
        );
    }

    #[test]
    fn the_start_is_inclusive_and_the_end_exclusive() {
        let (start, end) = (at("2026-01-02T09:00:00Z"), at("2026-01-04T09:00:00Z"));
        let daily = windowed("0 9 * * *", "UTC", Window::new(at(CREATED), Some(start), Some(end)));
        assert_eq!(slots(&daily, CREATED, 9), ["01-02T09:00", "01-03T09:00"]);
        // A start at the very end of a gap still catches what the gap moved there.
        let window = Window::new(at(CREATED), Some(at("2026-03-29T01:00:00Z")), None);
        assert_eq!(slots(&windowed("30 2 * * *", "Europe/Berlin", window), CREATED, 1), ["03-29T01:00"]);
    }

    #[test]
    fn every_counts_from_the_start_which_is_its_first_slot() {
        let every = windowed("@every 90m", "UTC", Window::new(at(CREATED), Some(at("2026-01-02T09:00:00Z")), None));
        assert_eq!(slots(&every, CREATED, 3), ["01-02T09:00", "01-02T10:30", "01-02T12:00"]);
        assert_eq!(slots(&recurrence("@every 90m", "UTC"), CREATED, 2), ["01-01T01:30", "01-01T03:00"]);
    }

    #[test]
    fn every_ignores_clock_changes() {
        let every = recurrence("@every 30m", "Europe/Berlin");
        assert_eq!(slots(&every, "2026-10-25T00:30:00Z", 3), ["10-25T01:00", "10-25T01:30", "10-25T02:00"]);
        assert!(!every.is_fixed());
    }

    #[test]
    fn a_leap_second_hides_no_slot() {
        let every = windowed("@every 60s", "UTC", Window::new(at("2016-12-31T23:59:00Z"), None, None));
        assert_eq!(every.next_after(at("2016-12-31T23:59:60.5Z")), Some(at("2017-01-01T00:00:00Z")));
    }

    #[test]
    fn no_slot_is_found_outside_the_years_of_slots() {
        for expression in ["* * * * *", "0 0 * * *", "@every 1h", "* * 30 2 *"] {
            let edge = windowed(expression, "America/New_York", Window::new(DateTime::UNIX_EPOCH, None, None));
            assert_eq!(edge.next_after(DateTime::<Utc>::MAX_UTC), None);
            assert_eq!(edge.next_after(END), None);
            let mut last = edge.next_after(at("2100-12-31T22:00:00Z"));
            while let Some(slot) = last {
                assert_eq!(edge.zone().local(slot).year(), 2100);
                last = edge.next_after(slot);
            }
        }
        assert_eq!(recurrence("0 0 * * *", "UTC").next_after(DateTime::<Utc>::MIN_UTC), Some(DateTime::UNIX_EPOCH));
        assert_eq!(recurrence("@every 1h", "UTC").next_after(DateTime::<Utc>::MIN_UTC), Some(at(CREATED)));
        let remote = Window::new(DateTime::<Utc>::MAX_UTC, None, None);
        assert_eq!(windowed("@every 1h", "UTC", remote).next_after(at(CREATED)), None);
        let first = Window::new(DateTime::<Utc>::MIN_UTC, Some(DateTime::<Utc>::MIN_UTC), None);
        assert!(windowed("@every 1h", "UTC", first).next_after(at(CREATED)).is_some());
    }

    #[test]
    fn the_smallest_gap_is_that_of_the_closest_neighbours() {
        let gap = |expression: &str, zone: &str, after: &str| recurrence(expression, zone).smallest_gap(at(after));
        assert_eq!(gap("0 9,17 * * *", "UTC", CREATED), Some(TimeDelta::hours(8)));
        assert_eq!(gap("*/7 * * * *", "UTC", CREATED), Some(TimeDelta::minutes(4)));
        assert_eq!(gap("@every 90s", "UTC", CREATED), Some(TimeDelta::seconds(90)));
        // Berlin's day of 23 hours, 29 March 2026, ends the hundredth gap, then the next one.
        let berlin = recurrence("0 9 * * *", "Europe/Berlin");
        assert_eq!(berlin.smallest_gap(at("2025-12-19T00:00:00Z")), Some(TimeDelta::hours(23)));
        assert_eq!(berlin.smallest_gap(at("2025-12-18T00:00:00Z")), Some(TimeDelta::hours(24)));
        assert_eq!(gap("0 0 29 2 *", "UTC", "2092-03-01T00:00:00Z"), None);
        assert_eq!(gap("0 0 30 2 *", "UTC", CREATED), None);
    }
}
