//! What cannot stand as somebody wrote it: which field, what is wrong with it, what to write instead. Every front door
//! tells it in these words: the facade, the controller, `chronosd explain`.

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

/// Caps in bytes, as the schema's CHECKs have them.
pub const KEY_CAP: usize = 256;

/// A field that cannot stand as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field's name over HTTP, `snake_case`.
    pub field: &'static str,
    /// What is wrong, to be read after the field's name: "is 101".
    pub problem: String,
    /// What to do about it: "give a number from 0 to 100".
    pub remedy: String,
}

impl Invalid {
    pub fn new(field: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field, problem: problem.into(), remedy: remedy.into() }
    }

    /// Problem and remedy in one sentence.
    pub fn sentence(&self) -> String {
        format!("{}; {}", self.problem, self.remedy)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.sentence())
    }
}

/// What somebody wrote, in quotes, as far as a sentence can bear.
pub fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    let short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{text:?}") }
}

pub fn check_text(invalid: &mut Vec<Invalid>, field: &'static str, text: &str, cap: usize) {
    if text.len() > cap {
        let problem = format!("is {} bytes long", text.len());
        invalid.push(Invalid::new(field, problem, format!("shorten it to at most {cap} bytes")));
    }
    if text.contains('\0') {
        invalid.push(Invalid::new(field, "holds a NUL character, which Postgres cannot keep", "leave it out"));
    }
}

/// A caller's key or id.
pub fn check_key(invalid: &mut Vec<Invalid>, field: &'static str, text: &str) {
    check_text(invalid, field, text, KEY_CAP);
}

/// Correlation ids travel in headers and logs, so they are printable ASCII.
pub fn check_correlation_id(invalid: &mut Vec<Invalid>, text: &str) {
    check_text(invalid, "correlation_id", text, KEY_CAP);
    if !text.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
        invalid.push(Invalid::new(
            "correlation_id",
            "holds a character that is not printable ASCII",
            "use letters, digits and punctuation, because it travels in headers and logs",
        ));
    }
}

/// `number` if it lies in the range; else what is wrong, and 0 to go on with.
pub fn check_range(
    invalid: &mut Vec<Invalid>,
    field: &'static str,
    number: i64,
    range: std::ops::RangeInclusive<i64>,
) -> i64 {
    if range.contains(&number) {
        return number;
    }
    let remedy = format!("give a whole number from {} to {}", range.start(), range.end());
    invalid.push(Invalid::new(field, format!("is {number}"), remedy));
    0
}

/// An instant as RFC 3339 has it, with what is wrong about it if it is none: people leave out the seconds, the offset or its
/// colon.
pub fn parse_instant(field: &'static str, text: &str) -> Result<DateTime<Utc>, Invalid> {
    // chrono also takes a space for the T, which the API server and other readers do not.
    let parsed = DateTime::parse_from_rfc3339(text).ok().filter(|_| text.get(10..11).is_some_and(|t| "Tt".contains(t)));
    if let Some(instant) = parsed {
        return Ok(instant.with_timezone(&Utc));
    }
    let reads = |format: &str| DateTime::parse_from_str(text, format).is_ok();
    let reads_bare = |format: &str| NaiveDateTime::parse_from_str(text, format).is_ok();
    let with_t = text.replacen(' ', "T", 1);
    let (problem, remedy) = if with_t != text && DateTime::parse_from_rfc3339(&with_t).is_ok() {
        (", with a space between date and time", "write a T there")
    } else if reads("%Y-%m-%dT%H:%M%#z")
        || text.strip_suffix('Z').is_some_and(|bare| NaiveDateTime::parse_from_str(bare, "%Y-%m-%dT%H:%M").is_ok())
    {
        (", without seconds", "append them, as in 09:00:00")
    } else if reads("%Y-%m-%dT%H:%M:%S%.f%#z") {
        (", with an incomplete offset", "write hours and minutes with a colon, such as +02:00")
    } else if reads_bare("%Y-%m-%dT%H:%M:%S%.f") || reads_bare("%Y-%m-%dT%H:%M") || reads_bare("%Y-%m-%d %H:%M:%S%.f") {
        (", without an offset", "give date, time and offset, such as 2026-11-16T09:00:00Z or 2026-11-16T09:00:00+01:00")
    } else if NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok() {
        (", which is a date without a time", "give date, time and offset, such as 2026-11-16T09:00:00Z")
    } else {
        (", which is no instant", "give date, time and offset, such as 2026-11-16T09:00:00Z")
    };
    Err(Invalid::new(field, format!("is {}{problem}", quoted(text)), remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_stays_short_and_on_one_line() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"é".repeat(65)), format!("\"{}\"…", "é".repeat(64)));
        assert_eq!(quoted(&"é".repeat(64)), format!("\"{}\"", "é".repeat(64)));
    }

    #[test]
    fn an_instant_that_is_none_is_told_what_it_lacks() {
        let refused = |text: &str| parse_instant("fire_at", text).unwrap_err().problem;
        for (text, problem) in [
            ("2027-01-01 09:00:00Z", ", with a space between date and time"),
            ("2027-01-01T09:00Z", ", without seconds"),
            ("2027-01-01T09:00+02:00", ", without seconds"),
            ("2027-01-01T09:00:00+0200", ", with an incomplete offset"),
            ("2027-01-01T09:00:00", ", without an offset"),
            ("2027-01-01 09:00:00", ", without an offset"),
            ("2027-01-01", ", which is a date without a time"),
            ("2027-02-30T09:00:00Z", ", which is no instant"),
            ("1794000000", ", which is no instant"),
            ("", ", which is no instant"),
            ("é27-01-01T09:00:00Z", ", which is no instant"),
        ] {
            assert_eq!(refused(text), format!("is {text:?}{problem}"));
        }
        assert!(parse_instant("fire_at", "2027-01-01t09:00:00.5+02:00").is_ok());
    }

    #[test]
    fn a_refusal_reads_as_field_problem_and_remedy() {
        let mut invalid = Vec::new();
        check_text(&mut invalid, "label", "a\0b", 2);
        check_correlation_id(&mut invalid, "é");
        check_range(&mut invalid, "max_failures", 101, 0..=100);
        let said: Vec<_> = invalid.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "label: is 3 bytes long; shorten it to at most 2 bytes",
                "label: holds a NUL character, which Postgres cannot keep; leave it out",
                "correlation_id: holds a character that is not printable ASCII; use letters, digits and punctuation, \
                 because it travels in headers and logs",
                "max_failures: is 101; give a whole number from 0 to 100",
            ]
        );
    }
}
