//! `@every`: slots at whole intervals from an anchor, whatever the clocks on the wall do.

use chrono::{DateTime, Datelike, TimeDelta, Utc};

use super::calendar::LAST_YEAR;
use super::error::Error;

/// The units a duration may be written in, and their seconds.
const UNITS: [(char, i64); 3] = [('h', 3600), ('m', 60), ('s', 1)];

/// 8760 h, a year of 365 days: what recurs more rarely is a date, and belongs in the five fields.
const MAX_SECONDS: i64 = 8760 * 3600;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    seconds: i64,
}

/// Seconds in a length of time such as `1h30m`: each unit at most once, in any order.
pub fn seconds_in(text: &str) -> Result<i64, Error> {
    let malformed = || Error::BadDuration { got: text.to_owned() };
    let out_of_range = || Error::IntervalOutOfRange { got: text.to_owned() };
    let mut rest = text;
    let mut seen = String::new();
    let mut seconds: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let (number, unit_on) = rest.split_at(digits);
        let unit = UNITS.into_iter().find(|(unit, _)| unit_on.starts_with(*unit));
        let (unit, unit_seconds) = unit.filter(|_| digits > 0).ok_or_else(malformed)?;
        if seen.contains(unit) {
            return Err(Error::RepeatedUnit { got: text.to_owned(), unit });
        }
        seen.push(unit);
        // Digits that overflow are too many, not malformed.
        let number: i64 = number.parse().map_err(|_| out_of_range())?;
        let part = number.checked_mul(unit_seconds).ok_or_else(out_of_range)?;
        seconds = seconds.checked_add(part).ok_or_else(out_of_range)?;
        rest = &unit_on[unit.len_utf8()..];
    }
    if seen.is_empty() { Err(malformed()) } else { Ok(seconds) }
}

impl Interval {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let seconds = seconds_in(text)?;
        if !(1..=MAX_SECONDS).contains(&seconds) {
            return Err(Error::IntervalOutOfRange { got: text.to_owned() });
        }
        Ok(Self { seconds })
    }

    /// The first `anchor + k·interval`, `k ≥ 0`, later than `after`. Always counted from the
    /// anchor, so no error adds up.
    pub fn next_after(self, after: DateTime<Utc>, anchor: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let slot = if after < anchor {
            anchor
        } else {
            // Intervals have whole seconds: a fraction cut off here cannot hide a slot.
            let passed = (after - anchor).num_seconds() / self.seconds;
            let since_anchor = TimeDelta::try_seconds((passed + 1) * self.seconds)?;
            anchor.checked_add_signed(since_anchor)?
        };
        (slot.year() <= LAST_YEAR).then_some(slot)
    }

    /// How many slots lie after `after` and not after `until`.
    pub fn count(self, after: DateTime<Utc>, until: DateTime<Utc>, anchor: DateTime<Utc>) -> u64 {
        // Slots up to and including an instant; none before the anchor, which is the first.
        let up_to = |at: DateTime<Utc>| if at < anchor { 0 } else { (at - anchor).num_seconds() / self.seconds + 1 };
        u64::try_from(up_to(until) - up_to(after)).unwrap_or(0)
    }

    /// The interval in its largest whole unit: a count and the unit's name.
    pub fn in_words(self) -> (i64, &'static str) {
        match self.seconds {
            seconds if seconds % 3600 == 0 => (seconds / 3600, "hour"),
            seconds if seconds % 60 == 0 => (seconds / 60, "minute"),
            seconds => (seconds, "second"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::laws::at;
    use super::*;

    #[test]
    fn a_duration_adds_up_its_units() {
        for (text, seconds) in
            [("90s", 90), ("5m", 300), ("1h30m", 5400), ("30m1h", 5400), ("0h1s", 1), ("8760h", 31_536_000)]
        {
            assert_eq!(Interval::parse(text), Ok(Interval { seconds }), "{text}");
        }
    }

    #[test]
    fn a_malformed_duration_is_refused() {
        for text in ["", "5", "h", "1h30", "1hm", "1d", "5M", "1.5h", "-5m", "+5m", "1h 30m", "5 m", "1ms", "٣m"] {
            assert!(matches!(Interval::parse(text), Err(Error::BadDuration { .. })), "{text}");
        }
        let twice = Interval::parse("5m1h5m");
        assert!(matches!(twice, Err(Error::RepeatedUnit { unit: 'm', .. })));
    }

    #[test]
    fn an_interval_lasts_from_a_second_to_a_year() {
        for text in ["0s", "0h0m0s", "8760h1s", "525601m", "99999999999999999999h", "9223372036854775807h"] {
            assert!(matches!(Interval::parse(text), Err(Error::IntervalOutOfRange { .. })), "{text}");
        }
    }

    #[test]
    fn the_anchor_is_the_first_slot_for_those_who_ask_before_it() {
        let (minute, anchor) = (Interval { seconds: 60 }, at("2026-01-01T00:00:30Z"));
        assert_eq!(minute.next_after(at("2025-06-01T00:00:00Z"), anchor), Some(anchor));
        assert_eq!(minute.next_after(anchor, anchor), Some(at("2026-01-01T00:01:30Z")));
    }

    proptest! {
        #[test]
        fn an_interval_never_drifts(
            anchor in 0_i64..4_000_000_000,
            micros in 0_u32..1_000_000,
            seconds in 1_i64..=MAX_SECONDS,
            late_millis in 0_i64..100_000_000_000,
        ) {
            let anchor = DateTime::from_timestamp(anchor, micros * 1000).unwrap();
            let interval = TimeDelta::seconds(seconds);
            // However late the dispatcher asks, the answer is the closest multiple.
            let asked_at = anchor + TimeDelta::milliseconds(late_millis);
            match (Interval { seconds }).next_after(asked_at, anchor) {
                Some(slot) => {
                    prop_assert!(slot > asked_at && slot - asked_at <= interval);
                    let since_anchor = (slot - anchor).num_microseconds().unwrap();
                    prop_assert_eq!(since_anchor % (seconds * 1_000_000), 0);
                }
                None => prop_assert!((asked_at + interval).year() > LAST_YEAR),
            }
        }
    }
}
