//! Labels on alarms, and selectors over them, in Kubernetes' syntax, so that one habit serves `kubectl` and the facade.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::invalid::{Invalid, quoted};

/// Kubernetes' own caps.
const NAME_CAP: usize = 63;
const PREFIX_CAP: usize = 253;
/// Enough for any hand-written selector, and a bound for the work per row.
pub const SELECTOR_CAP: usize = 1024;
/// More than anybody selects by; with the caps above they stay a few kilobytes.
pub const MOST_LABELS: usize = 64;
/// Each costs a look at every alarm of the owner.
const MOST_REQUIREMENTS: usize = 32;

pub type Labels = BTreeMap<String, String>;

/// One problem per label that Kubernetes would refuse too.
pub fn check(invalid: &mut Vec<Invalid>, labels: &Labels) {
    if labels.len() > MOST_LABELS {
        let remedy = format!("give at most {MOST_LABELS}");
        invalid.push(Invalid::new("labels", format!("has {} entries", labels.len()), remedy));
        return;
    }
    for (key, value) in labels {
        if !is_key(key) {
            let remedy = "a key is a name of up to 63 letters, digits, - _ and . that begins and ends with a letter or \
                          digit, with an optional prefix such as example.com/";
            invalid.push(Invalid::new("labels", format!("has the key {}", quoted(key)), remedy));
        }
        if !is_value(value) {
            let problem = format!("has the value {} under {}", quoted(value), quoted(key));
            let remedy = "a value is empty, or up to 63 letters, digits, - _ and . that begins and ends with a letter or \
                          digit";
            invalid.push(Invalid::new("labels", problem, remedy));
        }
    }
}

fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= NAME_CAP && text.chars().all(inner) && outer(text.chars().next()) && outer(text.chars().last())
}

fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let is_part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    is_name(name) && prefix.is_none_or(|prefix| prefix.len() <= PREFIX_CAP && prefix.split('.').all(is_part))
}

/// Which labels are meant: every requirement must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub test: Test,
}

/// As in Kubernetes, what is not there is also not one of the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectorError {
    #[error("is {0} bytes long; at most {SELECTOR_CAP} are read")]
    TooLong(usize),
    #[error("has more than {MOST_REQUIREMENTS} requirements; ask for fewer at once")]
    TooMany,
    #[error(
        "has {0} where a label's key belongs; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
    )]
    Key(String),
    #[error("has {0} where a label's value belongs; a value is empty, or up to 63 letters, digits, - _ and .")]
    Value(String),
    #[error(
        "has {0} after the key {1:?}; write =, ==, !=, in (…) or notin (…), or a comma before the next requirement"
    )]
    Operator(String, String),
    #[error("has no closing parenthesis after {0:?}; list values as in key in (a,b)")]
    Unclosed(String),
}

impl Selector {
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.test {
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }

    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > SELECTOR_CAP {
            return Err(SelectorError::TooLong(text.len()));
        }
        let mut rest = text.trim();
        let mut requirements = Vec::new();
        while !rest.is_empty() {
            let (requirement, after) = requirement(rest)?;
            if requirements.len() == MOST_REQUIREMENTS {
                return Err(SelectorError::TooMany);
            }
            requirements.push(requirement);
            rest = match after.strip_prefix(',') {
                // A comma promises another requirement.
                Some(more) if more.trim().is_empty() => return Err(SelectorError::Key("nothing".to_owned())),
                Some(more) => more.trim_start(),
                None => after,
            };
        }
        Ok(Self { requirements })
    }
}

/// One requirement, and what follows it: a comma or nothing.
fn requirement(whole: &str) -> Result<(Requirement, &str), SelectorError> {
    if let Some(negated) = whole.strip_prefix('!') {
        let (key, rest) = key(negated.trim_start())?;
        end_of_requirement(rest, &key)?;
        return Ok((Requirement { key, test: Test::Absent }, rest));
    }
    let (key, rest) = key(whole)?;
    let one = |value: &str| BTreeSet::from([value.to_owned()]);
    let (test, rest) = if let Some(rest) = rest.strip_prefix("!=") {
        let (value, rest) = value(rest)?;
        (Test::NotIn(one(value)), rest)
    } else if let Some(rest) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        let (value, rest) = value(rest)?;
        (Test::In(one(value)), rest)
    } else if let Some(list) = operator(rest, "notin") {
        let (values, rest) = values(list)?;
        (Test::NotIn(values), rest)
    } else if let Some(list) = operator(rest, "in") {
        let (values, rest) = values(list)?;
        (Test::In(values), rest)
    } else {
        (Test::Exists, rest)
    };
    end_of_requirement(rest, &key)?;
    Ok((Requirement { key, test }, rest))
}

fn end_of_requirement(rest: &str, key: &str) -> Result<(), SelectorError> {
    if rest.is_empty() || rest.starts_with(',') {
        return Ok(());
    }
    Err(SelectorError::Operator(quoted(word(rest).0), key.to_owned()))
}

/// Up to what cannot be part of a key or value, and the rest without leading white space.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_whitespace() || matches!(c, ',' | '=' | '!' | '(' | ')')).unwrap_or(text.len());
    // At least one character, so that an error has something to show.
    let shown = if end == 0 { text.chars().next().map_or(0, char::len_utf8) } else { end };
    (&text[..shown], text[end..].trim_start())
}

fn key(text: &str) -> Result<(String, &str), SelectorError> {
    let (word, rest) = word(text);
    if is_key(word) { Ok((word.to_owned(), rest)) } else { Err(SelectorError::Key(or_nothing(word))) }
}

fn value(text: &str) -> Result<(&str, &str), SelectorError> {
    let text = text.trim_start();
    if text.is_empty() || text.starts_with([',', ')']) {
        return Ok(("", text));
    }
    let (word, rest) = word(text);
    if is_value(word) { Ok((word, rest)) } else { Err(SelectorError::Value(or_nothing(word))) }
}

/// `in` and `notin` are words of their own: `inbox` is a key.
fn operator<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name).map(str::trim_start).filter(|rest| rest.starts_with('('))
}

fn values(text: &str) -> Result<(BTreeSet<String>, &str), SelectorError> {
    let mut values = BTreeSet::new();
    let mut rest = text.strip_prefix('(').unwrap_or(text);
    loop {
        let (found, after) = value(rest)?;
        values.insert(found.to_owned());
        if let Some(after) = after.strip_prefix(')') {
            return Ok((values, after.trim_start()));
        }
        rest = after.strip_prefix(',').ok_or_else(|| SelectorError::Unclosed(found.to_owned()))?;
    }
}

fn or_nothing(word: &str) -> String {
    if word.is_empty() { "nothing".to_owned() } else { quoted(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn matches(selector: &str, pairs: &[(&str, &str)]) -> bool {
        Selector::parse(selector).unwrap().matches(&labels(pairs))
    }

    #[test]
    fn labels_follow_kubernetes_syntax() {
        let mut invalid = Vec::new();
        check(&mut invalid, &labels(&[("team", "portfolio"), ("example.com/tier", ""), ("a", &"x".repeat(63))]));
        assert_eq!(invalid, []);
        for (key, value) in [("", "x"), ("-a", "x"), ("Ex.com/a", "x"), ("a/b/c", "x"), ("a", "b c"), ("a", "b-")] {
            let mut invalid = Vec::new();
            check(&mut invalid, &labels(&[(key, value)]));
            assert_eq!(invalid.len(), 1, "{key:?}: {value:?}");
        }
    }

    #[test]
    fn a_selector_means_what_kubectl_means_by_it() {
        let alarm = [("team", "portfolio"), ("tier", "2")];
        for selector in [
            "team=portfolio",
            "team == portfolio",
            "team = portfolio , tier!=1",
            "team in (portfolio, ops)",
            "tier notin (1,3)",
            "missing notin (1)",
            "missing!=1",
            "team",
            "!missing",
            "",
        ] {
            assert!(matches(selector, &alarm), "{selector}");
        }
        for selector in
            ["team=ops", "team!=portfolio", "tier in (1,3)", "missing", "!team", "missing=", "missing in ()"]
        {
            assert!(!matches(selector, &alarm), "{selector}");
        }
        assert!(matches("inbox,notin", &[("inbox", "1"), ("notin", "")]), "operators are words of their own");
    }

    #[test]
    fn a_broken_selector_is_told_where_it_breaks() {
        for (selector, says) in [
            (
                "=x",
                "has \"=\" where a label's key belongs; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
            ),
            (
                "a,",
                "has nothing where a label's key belongs; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
            ),
            (
                "a=b c",
                "has \"c\" after the key \"a\"; write =, ==, !=, in (…) or notin (…), or a comma before the next requirement",
            ),
            ("a in (b", "has no closing parenthesis after \"b\"; list values as in key in (a,b)"),
            (
                "a=b$",
                "has \"b$\" where a label's value belongs; a value is empty, or up to 63 letters, digits, - _ and .",
            ),
            (
                "a>3",
                "has \"a>3\" where a label's key belongs; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
            ),
        ] {
            assert_eq!(Selector::parse(selector).unwrap_err().to_string(), says, "{selector}");
        }
        assert_eq!(Selector::parse(&"a".repeat(1025)), Err(SelectorError::TooLong(1025)));
        assert_eq!(Selector::parse(&"a,".repeat(33)), Err(SelectorError::TooMany));
        assert!(Selector::parse(&vec!["a"; 32].join(",")).is_ok());
    }
}
