//! Slots that lie behind: how many, the first, the last, the newest few. Asked after an outage, a pause or a long ladder,
//! when a minute's alarm may have passed half a million slots; so nothing here walks from slot to slot.

use chrono::{DateTime, TimeDelta, Utc};

use super::calendar::{Calendar, END};
use super::expression::Rule;
use super::recurrence::{INSTANT, Recurrence};
use super::window::without_leap_second;

/// Consecutive slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: DateTime<Utc>,
    pub last: DateTime<Utc>,
    pub slots: u64,
}

/// No clock is set back by more than a day, so two days after a change the local clock reads later than ever before.
const LONGEST_OVERLAP: TimeDelta = TimeDelta::days(2);

impl Recurrence {
    /// The slots after `after` and not after `until`; `None` when there are none.
    #[must_use]
    pub fn run_between(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Run> {
        let first = self.next_after(after).filter(|first| *first <= until)?;
        Some(Run { first, last: self.nth_newest(1, after, until)?, slots: self.count_between(after, until) })
    }

    /// The slot with which the newest `n` of those begin; `None` when there are fewer.
    #[must_use]
    pub fn nth_newest(&self, n: u64, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if n == 0 || self.count_between(after, until) < n {
            return None;
        }
        // Bisected: n or more slots are later than `earlier`, fewer are later than `later`.
        let (mut earlier, mut later) = (after.timestamp_micros(), until.timestamp_micros() + 1);
        while later - earlier > 1 {
            let middle = earlier + (later - earlier) / 2;
            let at = DateTime::from_timestamp_micros(middle)?;
            if self.count_between(at, until) >= n {
                earlier = middle;
            } else {
                later = middle;
            }
        }
        // `earlier` may have been cut to the microsecond below `after`.
        self.next_after(DateTime::from_timestamp_micros(earlier)?.max(after))
    }

    /// How many slots lie after `after` and not after `until`.
    #[must_use]
    pub fn count_between(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        let after = self.window.search_after(without_leap_second(after)).max(DateTime::UNIX_EPOCH - INSTANT);
        let last = self.window.ends_at().map_or(END, |end| end - INSTANT);
        let until = without_leap_second(until).min(last).min(END);
        if until <= after {
            return 0;
        }
        match &self.rule {
            Rule::Calendar { calendar, fixed: true } => self.count_times_of_day(calendar, after, until),
            Rule::Calendar { calendar, fixed: false } => self.count_in_real_time(calendar, after, until),
            Rule::Every(interval) => interval.count(after, until.min(LAST_SLOT), self.window.anchor()),
        }
    }

    /// A fixed reading is a slot at the first instant that shows it or a later one: span by span those that no clock
    /// has shown before, and one for all that a gap leapt over, unless the reading behind the gap is one itself.
    fn count_times_of_day(&self, calendar: &Calendar, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        let stop = until + INSTANT;
        let mut from = after - LONGEST_OVERLAP;
        // What the clock has shown so far, exclusive.
        let mut reached = self.zone.local(from).naive_local();
        let mut slots = 0;
        while from < stop {
            let span = self.zone.span(from);
            let counts = from > after;
            let end = span.ends_at.unwrap_or(stop).min(if counts { stop } else { after + INSTANT });
            let (shows, shows_until) = (from.naive_utc() + span.offset, end.naive_utc() + span.offset);
            if counts {
                slots += calendar.count(shows.max(reached), shows_until);
                let leapt_over = calendar.count(reached, shows) > 0;
                slots += u64::from(leapt_over && calendar.count(shows, shows + INSTANT) == 0);
            }
            reached = reached.max(shows_until);
            from = end;
        }
        slots
    }

    fn count_in_real_time(&self, calendar: &Calendar, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        let stop = until + INSTANT;
        let mut from = after + INSTANT;
        let mut slots = 0;
        while from < stop {
            let span = self.zone.span(from);
            let end = span.ends_at.unwrap_or(stop).min(stop);
            slots += calendar.count(from.naive_utc() + span.offset, end.naive_utc() + span.offset);
            from = end;
        }
        slots
    }
}

/// The last instant of the last year: an interval has slots up to it, whatever the zone.
const LAST_SLOT: DateTime<Utc> =
    DateTime::from_timestamp(4_133_980_799, 999_999_999).expect("the last nanosecond of 2100 is an instant");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::laws::{at, daily_rule_text, near_a_change, rule_text, zones};
    use super::super::{Schedule, Window, Zone};
    use super::*;

    fn recurrence(expression: &str, zone: Zone) -> Recurrence {
        Recurrence::parse(expression, zone, Window::new(at("2020-01-01T00:00:00Z"), None, None)).unwrap()
    }

    #[test]
    fn a_year_of_minutes_is_counted_without_walking_it() {
        let minutes = recurrence("* * * * *", Zone::parse("Europe/Berlin").unwrap());
        let run = minutes.run_between(at("2025-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(run.slots, 365 * 24 * 60);
        assert_eq!((run.first, run.last), (at("2025-01-01T00:01:00Z"), at("2026-01-01T00:00:00Z")));
        let hundredth = minutes.nth_newest(100, at("2025-01-01T00:00:00Z"), at("2026-01-01T00:00:30Z"));
        assert_eq!(hundredth, Some(at("2025-12-31T22:21:00Z")));
    }

    #[test]
    fn what_a_gap_leaps_over_counts_as_the_one_slot_it_becomes() {
        let berlin = |expression| recurrence(expression, Zone::parse("Europe/Berlin").unwrap());
        let spring =
            |expression| berlin(expression).count_between(at("2026-03-28T12:00:00Z"), at("2026-03-29T12:00:00Z"));
        assert_eq!(spring("0,15,30 2 * * *"), 1);
        assert_eq!(spring("0,15,30 2,3 * * *"), 3);
        assert_eq!(spring("*/15 2 * * *"), 0);
        let autumn =
            |expression| berlin(expression).count_between(at("2026-10-24T12:00:00Z"), at("2026-10-25T12:00:00Z"));
        assert_eq!((autumn("0,30 2 * * *"), autumn("*/30 2 * * *")), (2, 4));
    }

    #[test]
    fn nothing_passed_is_no_run() {
        let daily = recurrence("0 9 * * *", Zone::utc());
        assert_eq!(daily.run_between(at("2026-01-01T09:00:00Z"), at("2026-01-02T08:59:59Z")), None);
        assert_eq!(daily.run_between(at("2026-01-02T09:00:00Z"), at("2026-01-01T09:00:00Z")), None);
        assert_eq!(daily.nth_newest(2, at("2026-01-01T09:00:00Z"), at("2026-01-02T09:00:00Z")), None);
    }

    /// Counting agrees with walking.
    fn check(recurrence: &Recurrence, after: DateTime<Utc>, until: DateTime<Utc>) -> Result<(), TestCaseError> {
        const FAR_ENOUGH: usize = 20_000;
        let walk = std::iter::successors(recurrence.next_after(after), |slot| recurrence.next_after(*slot));
        let walked: Vec<_> = walk.take_while(|slot| *slot <= until).take(FAR_ENOUGH + 1).collect();
        prop_assume!(walked.len() <= FAR_ENOUGH);
        let run = walked.first().map(|first| {
            let slots = u64::try_from(walked.len()).unwrap();
            Run { first: *first, last: walked[walked.len() - 1], slots }
        });
        let told = Schedule::Cron(recurrence.clone()).describe();
        prop_assert_eq!(recurrence.run_between(after, until), run, "{}, {} to {}", told, after, until);
        for n in [2, 7] {
            let expected = walked.len().checked_sub(n).map(|index| walked[index]);
            prop_assert_eq!(recurrence.nth_newest(n.try_into().unwrap(), after, until), expected);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn around_a_clock_change_the_count_is_what_a_walk_finds(
            rule in daily_rule_text(),
            (zone, after) in near_a_change(),
            minutes in 0_i64..6000,
        ) {
            check(&recurrence(&rule.text, zone), after, after + TimeDelta::minutes(minutes))?;
        }

        #[test]
        fn in_any_stretch_and_window_the_count_is_what_a_walk_finds(
            rule in rule_text(),
            zone in select(zones()),
            from in 1_577_836_800_i64..2_145_916_800,
            hours in 0_i64..2000,
            bounded in any::<bool>(),
            every in proptest::option::of(1_u32..20_000),
        ) {
            let after = DateTime::from_timestamp(from, 0).unwrap();
            let ends_at = bounded.then(|| after + TimeDelta::hours(hours / 2));
            let window = Window::new(at("2020-01-01T00:00:00.5Z"), None, ends_at);
            let text = every.map_or(rule.text, |seconds| format!("@every {seconds}s"));
            let recurrence = Recurrence::parse(&text, zone, window).unwrap();
            check(&recurrence, after, after + TimeDelta::hours(hours))?;
        }
    }
}
