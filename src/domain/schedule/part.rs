//! One of the five fields of an expression: its range, its names, and how its text becomes a set.
//!
//! ```text
//! field = item *( "," item )        item = range [ "/" step ]
//! range = "*" / "?" / value / value "-" value      "?" means "*"
//! ```
//!
//! A value followed by a step runs to the end of the field: `20/15` is `20-59/15`. Sets are bit
//! masks: bit *n* is value *n*.

use std::fmt;

use super::error::Error;

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Sunday's second number. It is accepted and folded onto 0, so no mask ever has bit 7.
const SUNDAY_AGAIN: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
}

impl Part {
    /// In the order in which they are written.
    pub(super) const ALL: [Self; 5] = [Self::Minute, Self::Hour, Self::DayOfMonth, Self::Month, Self::DayOfWeek];

    /// Parses the text of this field. The set is never empty.
    pub(super) fn parse(self, text: &str) -> Result<u64, Error> {
        let mut set = 0;
        for item in text.split(',') {
            if item.is_empty() {
                return Err(Error::EmptyItem { part: self, got: text.to_owned() });
            }
            set |= self.parse_item(item)?;
        }
        Ok(set)
    }

    /// Every value of this field.
    pub(super) fn full(self) -> u64 {
        mask(self.min(), self.last(), 1)
    }

    fn parse_item(self, item: &str) -> Result<u64, Error> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.parse_step(step)?)),
            None => (item, None),
        };
        let (first, last) = if is_any(range) {
            (self.min(), self.last())
        } else if let Some((first, last)) = range.split_once('-') {
            let first = self.parse_value(first, range)?;
            let last = self.parse_value(last, range)?;
            if first > last {
                return Err(Error::RangeInverted { part: self, got: range.to_owned() });
            }
            (first, last)
        } else {
            let value = self.parse_value(range, range)?;
            match step {
                // `max` because 7 is a Sunday beyond the last day of the week.
                Some(_) => (value, self.last().max(value)),
                None => (value, value),
            }
        };
        let set = mask(first, last, step.unwrap_or(1));
        Ok(match self {
            Self::DayOfWeek => (set | set >> SUNDAY_AGAIN) & self.full(),
            Self::Minute | Self::Hour | Self::DayOfMonth | Self::Month => set,
        })
    }

    fn parse_step(self, text: &str) -> Result<u32, Error> {
        // A step above the maximum can only name the first value: a slip for another field, such as
        // `*/90` for 90 minutes.
        parse_number(text)
            .filter(|step| (1..=self.max()).contains(step))
            .ok_or_else(|| Error::BadStep { part: self, got: text.to_owned() })
    }

    /// `within` is the range the value stands in, for the message.
    fn parse_value(self, text: &str, within: &str) -> Result<u32, Error> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return parse_number(text)
                .filter(|value| (self.min()..=self.max()).contains(value))
                .ok_or_else(|| Error::OutOfRange { part: self, got: text.to_owned() });
        }
        if let Some(value) = self.named(text) {
            return Ok(value);
        }
        let got = within.to_owned();
        if let Some(belongs) = Self::ALL.into_iter().find(|other| other.named(text).is_some()) {
            return Err(Error::NameOfOtherPart { part: self, got: text.to_owned(), belongs });
        }
        if is_extension(within) {
            return Err(Error::Extension { part: self, got });
        }
        Err(Error::NotAValue { part: self, got })
    }

    fn named(self, text: &str) -> Option<u32> {
        let (names, first): (&[&str], u32) = match self {
            Self::Minute | Self::Hour | Self::DayOfMonth => return None,
            Self::Month => (&MONTHS, 1),
            Self::DayOfWeek => (&WEEKDAYS, 0),
        };
        (first..).zip(names).find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(value, _)| value)
    }

    fn min(self) -> u32 {
        match self {
            Self::Minute | Self::Hour | Self::DayOfWeek => 0,
            Self::DayOfMonth | Self::Month => 1,
        }
    }

    /// The largest number that may be written.
    pub(super) fn max(self) -> u32 {
        match self {
            Self::Minute => 59,
            Self::Hour => 23,
            Self::DayOfMonth => 31,
            Self::Month => 12,
            Self::DayOfWeek => SUNDAY_AGAIN,
        }
    }

    /// The last value of `*` and of an open step: `1/2` is Monday, Wednesday, Friday; the week ends
    /// on Saturday, it does not come round to a second Sunday.
    fn last(self) -> u32 {
        match self {
            Self::DayOfWeek => SUNDAY_AGAIN - 1,
            Self::Minute | Self::Hour | Self::DayOfMonth | Self::Month => self.max(),
        }
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Minute => "0 to 59",
            Self::Hour => "0 to 23",
            Self::DayOfMonth => "1 to 31",
            Self::Month => "1 to 12 or JAN to DEC",
            Self::DayOfWeek => "0 to 7 or SUN to SAT",
        }
    }

    pub(super) fn range_advice(self) -> &'static str {
        match self {
            Self::DayOfWeek => " (Sunday ends a range as 7)",
            Self::Minute | Self::Hour | Self::DayOfMonth | Self::Month => "",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
        })
    }
}

/// Whether the text says "any value" and nothing else.
pub(super) fn is_any(text: &str) -> bool {
    matches!(text, "*" | "?")
}

fn mask(first: u32, last: u32, step: u32) -> u64 {
    let mut set = 0;
    let mut value = first;
    while value <= last {
        set |= 1 << value;
        value += step;
    }
    set
}

/// Digits only: `u32::from_str` alone would let `+12` pass.
fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Whether the text looks like Quartz's `L`, `LW`, `15W`, `L-3`, `5L` or `5#2`.
fn is_extension(text: &str) -> bool {
    let letters = text.trim_matches(|c: char| c.is_ascii_digit() || c == '-');
    text.contains('#') || ["L", "W", "LW"].iter().any(|word| word.eq_ignore_ascii_case(letters))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(part: Part, text: &str) -> Vec<u32> {
        let set = part.parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (0..64).filter(|value| set >> value & 1 == 1).collect()
    }

    #[test]
    fn lists_ranges_and_steps_name_their_values() {
        assert_eq!(values(Part::Minute, "57,20/20,30/20,32-34/2,58"), [20, 30, 32, 34, 40, 50, 57, 58]);
        assert_eq!(values(Part::Minute, "*/35"), [0, 35]);
        assert_eq!(values(Part::Hour, "?/6"), [0, 6, 12, 18]);
        assert_eq!(values(Part::DayOfMonth, "*/10"), [1, 11, 21, 31]);
        assert_eq!(values(Part::Month, "jan-Aug/4,12"), [1, 5, 12]);
        assert_eq!(values(Part::Minute, "5-6/59"), [5]);
    }

    #[test]
    fn both_zero_and_seven_are_sunday() {
        assert_eq!(values(Part::DayOfWeek, "7"), [0]);
        assert_eq!(values(Part::DayOfWeek, "0"), [0]);
        assert_eq!(values(Part::DayOfWeek, "fri-7"), [0, 5, 6]);
        assert_eq!(values(Part::DayOfWeek, "0-7"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(values(Part::DayOfWeek, "7/2"), [0]);
    }

    #[test]
    fn an_open_step_over_weekdays_ends_on_saturday() {
        assert_eq!(values(Part::DayOfWeek, "MON/2"), [1, 3, 5]);
        assert_eq!(values(Part::DayOfWeek, "*/2"), [0, 2, 4, 6]);
        assert_eq!(values(Part::DayOfWeek, "*/7"), [0]);
    }

    #[test]
    fn only_the_bare_wildcards_are_any_value() {
        assert!(is_any("*") && is_any("?"));
        assert!(!is_any("*/1") && !is_any("*,5") && !is_any("1-31"));
    }

    #[test]
    fn quartz_extensions_are_refused_by_name() {
        for text in ["L", "l", "LW", "15W", "L-3", "5L", "5#2", "#2", "FRI#1"] {
            assert!(matches!(Part::DayOfMonth.parse(text), Err(Error::Extension { .. })), "{text}");
        }
    }

    #[test]
    fn a_number_too_long_for_any_integer_is_out_of_range() {
        assert!(matches!(Part::Minute.parse(&"9".repeat(100)), Err(Error::OutOfRange { .. })));
        assert!(matches!(Part::Minute.parse(&format!("*/{}", "9".repeat(100))), Err(Error::BadStep { .. })));
    }
}
