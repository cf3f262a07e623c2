//! Why a schedule was refused: what was wrong, and what would be right.
//!
//! The message says what was wrong, [`Error::remedy`] what would be right. Both echo the user's text quoted and escaped, and only after its length was checked.

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
    #[error("the expression is empty")]
    ExpressionEmpty,
    #[error("the expression has {bytes} bytes")]
    ExpressionTooLong { bytes: usize },
    #[error("the expression contains a NUL byte")]
    ExpressionHasNul,
    #[error("a TZ= prefix is not supported")]
    ZonePrefix,
    #[error("five fields expected, got {got}{}", superfluous(*.got))]
    FieldCount { got: usize },
    #[error("unknown descriptor {got:?}")]
    UnknownDescriptor { got: String },

    #[error("the {part} field {got:?} has an empty item")]
    EmptyItem { part: Part, got: String },
    #[error("{got:?} is no valid {part}")]
    NotAValue { part: Part, got: String },
    #[error("{part} {got} is out of range")]
    OutOfRange { part: Part, got: String },
    #[error("{got:?} names a {belongs} in the {part} field")]
    NameOfOtherPart { part: Part, got: String, belongs: Part },
    #[error("the {part} range {got:?} runs backwards")]
    RangeInverted { part: Part, got: String },
    #[error("{got:?} is not a step for the {part} field")]
    BadStep { part: Part, got: String },
    #[error("{got:?} in the {part} field: L, W and # are not supported")]
    Extension { part: Part, got: String },

    #[error("{got:?} is not a duration")]
    BadDuration { got: String },
    #[error("{got:?} gives the unit {unit:?} twice")]
    RepeatedUnit { got: String, unit: char },
    #[error("an interval of {got:?} is out of range")]
    IntervalOutOfRange { got: String },

    /// For callers: parsing accepts such an expression, creation refuses it.
    #[error("the schedule has no future instant up to the year {LAST_YEAR}, where the calendar ends")]
    NoFutureInstant,

    #[error("the zone is empty")]
    ZoneEmpty,
    #[error("the zone has {bytes} bytes")]
    ZoneTooLong { bytes: usize },
    #[error("the zone contains a NUL byte")]
    ZoneHasNul,
    #[error("{got:?} is an offset, which knows no clock changes")]
    ZoneIsOffset { got: String },
    #[error("unknown zone {got:?}")]
    ZoneUnknown { got: String, meant: Option<&'static str> },
}

impl Error {
    /// What would be right, as an order: "write 0 to 59".
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::ExpressionEmpty => {
                "write five fields such as 0 9 * * MON-FRI, or a descriptor such as @daily".to_owned()
            }
            Self::ExpressionTooLong { .. } => format!("shorten it to at most {MAX_EXPRESSION_BYTES} bytes"),
            Self::ExpressionHasNul | Self::ZoneHasNul => "leave it out".to_owned(),
            Self::ZonePrefix => "leave it out, and give the zone as timezone".to_owned(),
            Self::FieldCount { .. } => {
                "write minute, hour, day of month, month and day of week, such as 0 9 * * MON-FRI".to_owned()
            }
            Self::UnknownDescriptor { .. } => {
                format!("use {} or @every with a duration such as 1h30m", known_descriptors())
            }
            Self::EmptyItem { .. } => "write one value, range or step between commas".to_owned(),
            Self::NotAValue { part, .. } | Self::OutOfRange { part, .. } | Self::NameOfOtherPart { part, .. } => {
                format!("write {}", part.expected())
            }
            Self::RangeInverted { part, .. } => format!("write it as two ascending ranges{}", part.range_advice()),
            Self::BadStep { part, .. } => format!("write a whole number from 1 to {} after the slash", part.max()),
            Self::Extension { .. } => "use values, ranges, lists and steps".to_owned(),
            Self::BadDuration { .. } => {
                "write hours, minutes and seconds in whole numbers, such as 90s, 5m or 1h30m".to_owned()
            }
            Self::RepeatedUnit { .. } => "use each of h, m and s at most once".to_owned(),
            Self::IntervalOutOfRange { .. } => "write 1s to 8760h".to_owned(),
            Self::NoFutureInstant => "give one that still has an instant ahead".to_owned(),
            Self::ZoneTooLong { .. } => {
                format!("use an IANA name such as Europe/Berlin, of at most {MAX_ZONE_BYTES} bytes")
            }
            Self::ZoneUnknown { meant: Some(name), .. } => format!("did you mean {name}?"),
            Self::ZoneIsOffset { got } if got == "Z" || got.ends_with("00:00") => "write UTC".to_owned(),
            Self::ZoneEmpty | Self::ZoneIsOffset { .. } | Self::ZoneUnknown { meant: None, .. } => {
                "use an IANA name such as Europe/Berlin".to_owned()
            }
        }
    }

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

/// Quartz and Spring put seconds first and a year last; those users need to hear which field to
/// drop.
fn superfluous(got: usize) -> &'static str {
    match got {
        6 => ": seconds are not supported",
        7 => ": seconds and years are not supported",
        _ => "",
    }
}

fn known_descriptors() -> String {
    let names: Vec<_> = DESCRIPTORS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::{Recurrence, Window, Zone};

    fn refusal(expression: &str) -> (String, String) {
        let window = Window::new(DateTime::UNIX_EPOCH, None, None);
        let error = Recurrence::parse(expression, Zone::utc(), window).expect_err(expression);
        assert_eq!(error.field().as_str(), "cron_expr", "{error}");
        (error.to_string(), error.remedy())
    }

    fn zone_refusal(name: &str) -> (String, String) {
        let error = Zone::parse(name).expect_err(name);
        assert_eq!(error.field().as_str(), "timezone", "{error}");
        (error.to_string(), error.remedy())
    }

    #[test]
    fn a_refusal_says_what_is_wrong_with_the_expression_and_what_would_be_right() {
        let five = "write minute, hour, day of month, month and day of week, such as 0 9 * * MON-FRI";
        for (expression, problem, remedy) in [
            (
                "",
                "the expression is empty",
                "write five fields such as 0 9 * * MON-FRI, or a descriptor such as @daily",
            ),
            ("0 0 9 * * *", "five fields expected, got 6: seconds are not supported", five),
            ("0 0 9 * * * 2026", "five fields expected, got 7: seconds and years are not supported", five),
            ("0 9 * *", "five fields expected, got 4", five),
            (
                "CRON_TZ=Asia/Tokyo 0 9 * * *",
                "a TZ= prefix is not supported",
                "leave it out, and give the zone as timezone",
            ),
            ("60 9 * * *", "minute 60 is out of range", "write 0 to 59"),
            ("0 9 0 * *", "day of month 0 is out of range", "write 1 to 31"),
            ("0 nine * * *", "\"nine\" is no valid hour", "write 0 to 23"),
            (
                "0 9 * * FRI-MON",
                "the day of week range \"FRI-MON\" runs backwards",
                "write it as two ascending ranges (Sunday ends a range as 7)",
            ),
            ("0 17-9 * * *", "the hour range \"17-9\" runs backwards", "write it as two ascending ranges"),
            ("MON 9 * * *", "\"MON\" names a day of week in the minute field", "write 0 to 59"),
            ("0 9 * MON *", "\"MON\" names a day of week in the month field", "write 1 to 12 or JAN to DEC"),
            (
                "*/60 9 * * *",
                "\"60\" is not a step for the minute field",
                "write a whole number from 1 to 59 after the slash",
            ),
            (
                "0 9 L * *",
                "\"L\" in the day of month field: L, W and # are not supported",
                "use values, ranges, lists and steps",
            ),
            (
                "0 9 1,,2 * *",
                "the day of month field \"1,,2\" has an empty item",
                "write one value, range or step between commas",
            ),
            ("@every 1h1h", "\"1h1h\" gives the unit 'h' twice", "use each of h, m and s at most once"),
            ("@every 0s", "an interval of \"0s\" is out of range", "write 1s to 8760h"),
            (
                "@every -5m",
                "\"-5m\" is not a duration",
                "write hours, minutes and seconds in whole numbers, such as 90s, 5m or 1h30m",
            ),
            (
                "@every 300y",
                "\"300y\" is not a duration",
                "write hours, minutes and seconds in whole numbers, such as 90s, 5m or 1h30m",
            ),
        ] {
            assert_eq!(refusal(expression), (problem.to_owned(), remedy.to_owned()));
        }
        assert!(refusal("@fortnightly").1.contains("@weekly"));
        let long = refusal(&"1,".repeat(200));
        assert_eq!(long, ("the expression has 400 bytes".to_owned(), "shorten it to at most 256 bytes".to_owned()));
        assert_eq!(refusal("0 9 * * *\0").0, "the expression contains a NUL byte");
    }

    #[test]
    fn a_refusal_says_what_is_wrong_with_the_zone_and_what_would_be_right() {
        let name_one = "use an IANA name such as Europe/Berlin";
        for (name, problem, remedy) in [
            ("", "the zone is empty", name_one),
            ("+02:00", "\"+02:00\" is an offset, which knows no clock changes", name_one),
            ("Z", "\"Z\" is an offset, which knows no clock changes", "write UTC"),
            ("europe/berlin", "unknown zone \"europe/berlin\"", "did you mean Europe/Berlin?"),
            ("Mars/Olympus", "unknown zone \"Mars/Olympus\"", name_one),
            ("UTC\0", "the zone contains a NUL byte", "leave it out"),
        ] {
            assert_eq!(zone_refusal(name), (problem.to_owned(), remedy.to_owned()));
        }
        assert_eq!(zone_refusal(&"x".repeat(65)).0, "the zone has 65 bytes");
    }
}
