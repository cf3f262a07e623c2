//! The state an agent stashes and gets back: any JSON value, kept to the byte.

use serde_json::value::RawValue;
use thiserror::Error;

/// Deeper nesting serves nobody and trips receivers.
pub const DEEPEST: usize = 64;
/// A request's body is capped at this, so no payload is longer.
pub const LONGEST: usize = 256 * 1024;

/// JSON text as it was written: key order, number spelling, escapes and white space included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(String);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    #[error("is not JSON: {0}")]
    NotJson(String),
    #[error("is {0} bytes long")]
    TooLong(usize),
    #[error("is nested {0} deep")]
    TooDeep(usize),
    #[error("holds a NUL character (\\u0000), which Postgres cannot keep")]
    Nul,
}

impl Error {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotJson(_) => "give one JSON value".to_owned(),
            Self::TooLong(_) => format!("shorten it to at most {LONGEST} bytes"),
            Self::TooDeep(_) => format!("flatten it to at most {DEEPEST} levels"),
            Self::Nul => "leave it out".to_owned(),
        }
    }
}

impl Payload {
    pub fn parse(text: String) -> Result<Self, Error> {
        if text.len() > LONGEST {
            return Err(Error::TooLong(text.len()));
        }
        // Before the parser, whose own recursion limit would answer with a vaguer sentence.
        scan(&text)?;
        serde_json::from_str::<&RawValue>(&text).map_err(|error| Error::NotJson(error.to_string()))?;
        Ok(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value behind the spelling: no white space, keys in order, the last of equal keys. For comparing, never for
    /// handing back: numbers beyond double precision are rounded.
    pub fn canonical(&self) -> String {
        serde_json::from_str(&self.0).map_or_else(|_| self.0.clone(), |value: serde_json::Value| value.to_string())
    }

    /// Whether it says nothing: the wake leaves it out then.
    pub fn is_empty(&self) -> bool {
        let inner = self.0.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        inner.is_some_and(|inner| inner.trim().is_empty())
    }
}

impl TryFrom<String> for Payload {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

/// Depth and NULs, by one pass that knows strings from structure.
fn scan(text: &str) -> Result<(), Error> {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut bytes = text.bytes().enumerate();
    let mut in_string = false;
    while let Some((at, byte)) = bytes.next() {
        match (in_string, byte) {
            (_, 0) => return Err(Error::Nul),
            (true, b'\\') => {
                if text[at + 1..].starts_with("u0000") {
                    return Err(Error::Nul);
                }
                bytes.next(); // what is escaped can neither end the string nor escape again
            }
            (true, b'"') => in_string = false,
            (false, b'"') => in_string = true,
            (false, b'{' | b'[') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (true | false, _) => {}
        }
    }
    if deepest > DEEPEST { Err(Error::TooDeep(deepest)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Payload, Error> {
        Payload::parse(text.to_owned())
    }

    #[test]
    fn a_payload_keeps_its_spelling() {
        let text = "{\"b\": 1e2,\t\"a\":1.0, \"big\":12345678901234567890, \"s\":\"\\u00e9\\\\u0000 \u{1f600}\"}";
        assert_eq!(parse(text).unwrap().as_str(), text);
        assert_eq!(parse("null").unwrap().as_str(), "null");
    }

    #[test]
    fn one_number_has_one_canonical_spelling() {
        let canonical = |text: &str| parse(text).unwrap().canonical();
        // Found by fuzzing: serde_json's quick way to read a number is off by one in the last place.
        let first = canonical("[123456789.123456789e-30]");
        assert_eq!(first, canonical(&first));
        assert_eq!(canonical("[1.0, 10E-1, 0.1e1]"), "[1.0,1.0,1.0]");
    }

    #[test]
    fn only_an_empty_object_is_empty() {
        assert!(Payload::default().is_empty());
        assert!(parse(" { \n } ").unwrap().is_empty());
        for text in ["[]", "null", "0", "\"{}\"", "{\"a\":{}}"] {
            assert!(!parse(text).unwrap().is_empty(), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_too_deep_or_holds_a_nul_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(64)).is_ok());
        assert_eq!(parse(&nested(65)), Err(Error::TooDeep(65)));
        assert_eq!(parse(&nested(100_000)), Err(Error::TooDeep(100_000)));
        assert!(parse(&format!("\"{}\"", "[".repeat(100))).is_ok(), "brackets in a string are no nesting");
        assert_eq!(parse(r#"{"a":"\u0000"}"#), Err(Error::Nul));
        assert_eq!(parse("\"\0\""), Err(Error::Nul));
        assert!(parse(r#""\ud800""#).is_ok(), "any JSON value, also one that others stumble over");
        assert!(matches!(parse(r#""\u+123""#), Err(Error::NotJson(_))));
        assert!(matches!(parse("{\"a\":}"), Err(Error::NotJson(_))));
        assert!(matches!(parse("\"\\"), Err(Error::NotJson(_))));
        assert!(matches!(parse(""), Err(Error::NotJson(_))));
    }
}
