//! What cannot stand as somebody wrote it: which field, what is wrong with it, what to write instead. Every front door
//! tells it in these words: the facade, the controller, `chronosd explain`.

use std::fmt;

/// Caps in bytes, as the schema's CHECKs have them.
const KEY_CAP: usize = 256;

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

#[cfg(test)]
mod tests {
    use super::*;

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
