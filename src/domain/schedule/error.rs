//! Why a schedule was refused: what was wrong, and what would be right.
//!
//! Messages echo the user's text quoted and escaped, and only after its length was checked.

use super::calendar::LAST_YEAR;
use super::expression::{DESCRIPTORS, MAX_EXPRESSION_BYTES};
use super::part::Part;
use super::zone::MAX_ZONE_BYTES;

/// The input an error concerns. Front ends spell it their way: `cron_expr` over HTTP, a path below
/// `.spec` in a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    CronExpr,
    Timezone,
}

impl Field {
    /// The name in the HTTP interface and in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CronExpr => "cron_expr",
            Self::Timezone => "timezone",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the expression is empty: five fields or a descriptor such as @daily expected")]
    ExpressionEmpty,
    #[error("the expression has {bytes} bytes: at most {MAX_EXPRESSION_BYTES} are allowed")]
    ExpressionTooLong { bytes: usize },
    #[error("the expression contains a NUL byte")]
    ExpressionHasNul,
    #[error("a TZ= prefix is not supported: name the zone in the time zone field")]
    ZonePrefix,
    #[error("five fields expected, got {got}: {}", field_count_advice(*.got))]
    FieldCount { got: usize },
    #[error("unknown descriptor {got:?}: {} or @every with a duration such as 1h30m expected", known_descriptors())]
    UnknownDescriptor { got: String },

    #[error("the {part} field {got:?} has an empty item: one value, range or step between commas expected")]
    EmptyItem { part: Part, got: String },
    #[error("{got:?} is no valid {part}: {} expected", .part.expected())]
    NotAValue { part: Part, got: String },
    #[error("{part} {got} is out of range: {} expected", .part.expected())]
    OutOfRange { part: Part, got: String },
    #[error("{got:?} names a {belongs} in the {part} field: {} expected", .part.expected())]
    NameOfOtherPart { part: Part, got: String, belongs: Part },
    #[error("the {part} range {got:?} runs backwards: write it as two ascending ranges{}", .part.range_advice())]
    RangeInverted { part: Part, got: String },
    #[error("{got:?} is not a step for the {part} field: a whole number from 1 to {} expected", .part.max())]
    BadStep { part: Part, got: String },
    #[error("{got:?} in the {part} field: L, W and # are not supported; values, ranges, lists and steps are")]
    Extension { part: Part, got: String },

    #[error("{got:?} is not a duration: hours, minutes and seconds in whole numbers such as 90s, 5m or 1h30m expected")]
    BadDuration { got: String },
    #[error("{got:?} gives the unit {unit:?} twice: each of h, m and s may appear once")]
    RepeatedUnit { got: String, unit: char },
    #[error("an interval of {got:?} is out of range: 1s to 8760h expected")]
    IntervalOutOfRange { got: String },

    /// For callers: parsing accepts such an expression, creation refuses it.
    #[error("the schedule has no future instant (slots end with the year {LAST_YEAR})")]
    NoFutureInstant,

    #[error("the zone is empty: an IANA name such as Europe/Berlin expected")]
    ZoneEmpty,
    #[error("the zone has {bytes} bytes: at most {MAX_ZONE_BYTES} are allowed")]
    ZoneTooLong { bytes: usize },
    #[error("the zone contains a NUL byte")]
    ZoneHasNul,
    #[error("{got:?} is an offset, which knows no clock changes: use an IANA name such as Europe/Berlin")]
    ZoneIsOffset { got: String },
    #[error("unknown zone {got:?}: {}", zone_advice(*.meant))]
    ZoneUnknown { got: String, meant: Option<&'static str> },
}

impl Error {
    #[must_use]
    pub fn field(&self) -> Field {
        match self {
            Self::ExpressionEmpty
            | Self::ExpressionTooLong { .. }
            | Self::ExpressionHasNul
            | Self::ZonePrefix
            | Self::FieldCount { .. }
            | Self::UnknownDescriptor { .. }
            | Self::EmptyItem { .. }
            | Self::NotAValue { .. }
            | Self::OutOfRange { .. }
            | Self::NameOfOtherPart { .. }
            | Self::RangeInverted { .. }
            | Self::BadStep { .. }
            | Self::Extension { .. }
            | Self::BadDuration { .. }
            | Self::RepeatedUnit { .. }
            | Self::IntervalOutOfRange { .. }
            | Self::NoFutureInstant => Field::CronExpr,
            Self::ZoneEmpty
            | Self::ZoneTooLong { .. }
            | Self::ZoneHasNul
            | Self::ZoneIsOffset { .. }
            | Self::ZoneUnknown { .. } => Field::Timezone,
        }
    }
}

fn field_count_advice(got: usize) -> &'static str {
    // Quartz and Spring put seconds first and a year last; those users need to hear which field to
    // drop.
    match got {
        6 => "seconds are not supported",
        7 => "seconds and years are not supported",
        _ => "minute, hour, day of month, month, day of week",
    }
}

fn known_descriptors() -> String {
    let names: Vec<_> = DESCRIPTORS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn zone_advice(meant: Option<&'static str>) -> String {
    match meant {
        Some(name) => format!("did you mean {name}?"),
        None => "an IANA name such as Europe/Berlin expected".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::{Recurrence, Window, Zone};

    fn refusal(expression: &str) -> String {
        let window = Window::new(DateTime::UNIX_EPOCH, None, None);
        let error = Recurrence::parse(expression, Zone::utc(), window).expect_err(expression);
        assert_eq!(error.field().as_str(), "cron_expr", "{error}");
        error.to_string()
    }

    fn zone_refusal(name: &str) -> String {
        let error = Zone::parse(name).expect_err(name);
        assert_eq!(error.field().as_str(), "timezone", "{error}");
        error.to_string()
    }

    #[test]
    fn a_refusal_says_what_is_wrong_with_the_expression_and_what_would_be_right() {
        for (expression, says) in [
            ("", "the expression is empty: five fields or a descriptor such as @daily expected"),
            ("0 0 9 * * *", "five fields expected, got 6: seconds are not supported"),
            ("0 0 9 * * * 2026", "five fields expected, got 7: seconds and years are not supported"),
            ("0 9 * *", "five fields expected, got 4: minute, hour, day of month, month, day of week"),
            ("CRON_TZ=Asia/Tokyo 0 9 * * *", "a TZ= prefix is not supported: name the zone in the time zone field"),
            ("60 9 * * *", "minute 60 is out of range: 0 to 59 expected"),
            ("0 9 0 * *", "day of month 0 is out of range: 1 to 31 expected"),
            ("0 nine * * *", "\"nine\" is no valid hour: 0 to 23 expected"),
            (
                "0 9 * * FRI-MON",
                "the day of week range \"FRI-MON\" runs backwards: write it as two ascending ranges (Sunday ends a range as 7)",
            ),
            ("0 17-9 * * *", "the hour range \"17-9\" runs backwards: write it as two ascending ranges"),
            ("MON 9 * * *", "\"MON\" names a day of week in the minute field: 0 to 59 expected"),
            ("0 9 * MON *", "\"MON\" names a day of week in the month field: 1 to 12 or JAN to DEC expected"),
            ("*/60 9 * * *", "\"60\" is not a step for the minute field: a whole number from 1 to 59 expected"),
            (
                "0 9 L * *",
                "\"L\" in the day of month field: L, W and # are not supported; values, ranges, lists and steps are",
            ),
            (
                "0 9 1,,2 * *",
                "the day of month field \"1,,2\" has an empty item: one value, range or step between commas expected",
            ),
            ("@every 1h1h", "\"1h1h\" gives the unit 'h' twice: each of h, m and s may appear once"),
            ("@every 9000h", "an interval of \"9000h\" is out of range: 1s to 8760h expected"),
        ] {
            assert_eq!(refusal(expression), says);
        }
        assert!(refusal("@fortnightly").contains("@weekly"));
        assert_eq!(refusal(&"1,".repeat(200)), "the expression has 400 bytes: at most 256 are allowed");
        assert_eq!(refusal("0 9 * * *\0"), "the expression contains a NUL byte");
    }

    #[test]
    fn a_refusal_says_what_is_wrong_with_the_zone_and_what_would_be_right() {
        for (name, says) in [
            ("", "the zone is empty: an IANA name such as Europe/Berlin expected"),
            ("+02:00", "\"+02:00\" is an offset, which knows no clock changes: use an IANA name such as Europe/Berlin"),
            ("europe/berlin", "unknown zone \"europe/berlin\": did you mean Europe/Berlin?"),
            ("Mars/Olympus", "unknown zone \"Mars/Olympus\": an IANA name such as Europe/Berlin expected"),
            ("UTC\0", "the zone contains a NUL byte"),
        ] {
            assert_eq!(zone_refusal(name), says);
        }
        assert_eq!(zone_refusal(&"x".repeat(65)), "the zone has 65 bytes: at most 64 are allowed");
    }
}
