//! The text of a recurrence becomes a rule: five fields, a descriptor, or `@every`.

use super::calendar::Calendar;
use super::error::Error;
use super::interval::Interval;
use super::part::{Part, is_any};

/// The column and the HTTP body allow as much; the longest sensible expression, all minutes listed,
/// has 169 bytes.
pub const MAX_EXPRESSION_BYTES: usize = 256;

/// Names for common expressions.
pub(super) const DESCRIPTORS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

const EVERY: &str = "@every";
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    Calendar {
        calendar: Calendar,
        /// Neither minute nor hour starts with a wildcard: the rule names times of day, which a
        /// clock change must not swallow or double. Others name a rhythm, which follows real time.
        fixed: bool,
    },
    Every(Interval),
}

impl Rule {
    /// `text` carries no outer white space.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.contains('\0') {
            return Err(Error::ExpressionHasNul);
        }
        if let Some(descriptor) = text.strip_prefix('@') {
            return parse_descriptor(text, descriptor);
        }
        parse_fields(text)
    }
}

fn parse_descriptor(text: &str, descriptor: &str) -> Result<Rule, Error> {
    let mut words = text.split_ascii_whitespace();
    if words.next().is_some_and(|word| word.eq_ignore_ascii_case(EVERY)) {
        // More than one word after it is no duration: `1h 30m` would leave open whether a comma was
        // meant.
        let duration = text[EVERY.len()..].trim_ascii();
        return Interval::parse(duration).map(Rule::Every);
    }
    let known = DESCRIPTORS.iter().find(|(name, _)| name[1..].eq_ignore_ascii_case(descriptor));
    let (_, fields) = known.ok_or_else(|| Error::UnknownDescriptor { got: text.to_owned() })?;
    parse_fields(fields)
}

fn parse_fields(text: &str) -> Result<Rule, Error> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    if fields.first().is_some_and(|first| is_zone_prefix(first)) {
        return Err(Error::ZonePrefix);
    }
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(match fields.len() {
            0 => Error::ExpressionEmpty,
            got => Error::FieldCount { got },
        });
    };
    let calendar = Calendar {
        minutes: Part::Minute.parse(minute)?,
        hours: Part::Hour.parse(hour)?,
        days: Part::DayOfMonth.parse(day)?,
        months: Part::Month.parse(month)?,
        weekdays: Part::DayOfWeek.parse(weekday)?,
        // A step such as `*/2` restricts too.
        either_day: !is_any(day) && !is_any(weekday),
    };
    let fixed = ![minute, hour].iter().any(|field| field.starts_with(['*', '?']));
    Ok(Rule::Calendar { calendar, fixed })
}

/// `TZ=` and `CRON_TZ=` as other crons have them, in any case.
fn is_zone_prefix(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| name.eq_ignore_ascii_case("TZ") || name.eq_ignore_ascii_case("CRON_TZ"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_fixed(text: &str) -> bool {
        matches!(Rule::parse(text).unwrap(), Rule::Calendar { fixed: true, .. })
    }

    #[test]
    fn descriptors_stand_for_their_fields_in_any_case() {
        for (name, fields) in DESCRIPTORS {
            assert_eq!(Rule::parse(name), Rule::parse(fields));
            assert_eq!(Rule::parse(&name.to_uppercase()), Rule::parse(fields));
        }
    }

    #[test]
    fn an_expression_is_fixed_when_neither_minute_nor_hour_starts_with_a_wildcard() {
        assert!(
            is_fixed("30 2 * * *") && is_fixed("0,30 0-23/2 * * *") && is_fixed("0/30 1 * * *") && is_fixed("@daily")
        );
        assert!(
            !is_fixed("*/30 2 * * *") && !is_fixed("0 */2 * * *") && !is_fixed("? 2 * * *") && !is_fixed("@hourly")
        );
        // The first character decides, as in Vixie cron.
        assert!(is_fixed("0,*/30 2 * * *") && !is_fixed("*,0 2 * * *"));
    }

    #[test]
    fn a_step_over_all_days_restricts_and_a_question_mark_does_not() {
        let either = |text| {
            let rule = Rule::parse(text).unwrap();
            matches!(rule, Rule::Calendar { calendar, .. } if calendar.either_day)
        };
        assert!(either("0 0 1 * MON") && either("0 0 */2 * MON") && either("0 0 1 * */2"));
        assert!(!either("0 0 ? * MON") && !either("0 0 1 * ?") && !either("0 0 * * */2"));
    }

    #[test]
    fn zone_prefixes_are_refused() {
        for text in ["TZ=UTC 0 9 * * *", "CRON_TZ=Asia/Tokyo 0 9 * * *", "tz=UTC", "TZ=UTC @daily"] {
            assert_eq!(Rule::parse(text), Err(Error::ZonePrefix), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_panic(
            text in any::<String>(),
            near in "[@*?0-9,/A-Za-z# \\-\0٣=]{0,40}",
            every in "@every [0-9hmsd ]{0,30}",
        ) {
            for text in [text, near, every] {
                if let Err(error) = Rule::parse(text.trim_ascii()) {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
