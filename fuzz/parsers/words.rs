//! Session keys, service call ids, cursors, label selectors, `Retry-After`, page sizes.

use std::{collections::BTreeSet, time::Duration};

use chrono::{Datelike, TimeDelta};
use chronos::{
    domain::{
        cursor::Cursor,
        ids::ServiceCallId,
        labels::{self, Labels, Requirement, Selector, Test},
        ladder::{self, Ladder},
        session::SessionKey,
    },
    http::read,
};

use super::{assert_readable, assert_told, text};

/// The bytes are a session key.
pub fn session_key(data: &[u8]) -> bool {
    let written = text(data);
    match written.parse::<SessionKey>() {
        Ok(key) => {
            assert_eq!(key.as_str(), written, "nothing of it is changed");
            assert_eq!(key.to_string().parse().as_ref(), Ok(&key));
            let parts = [key.user_id(), key.agent_id(), key.thread_id()];
            assert_eq!(parts.join(":"), written);
            assert!(parts.iter().all(|part| !part.is_empty() && part.is_ascii()));
            assert!(written.len() <= 256);
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            false
        }
    }
}

/// The bytes are a service call's id.
pub fn service_call_id(data: &[u8]) -> bool {
    let written = text(data);
    match written.parse::<ServiceCallId>() {
        Ok(id) => {
            assert_eq!(id.as_str(), written, "nothing of it is changed");
            assert_eq!(id.to_string().parse().as_ref(), Ok(&id));
            assert!((1..=128).contains(&written.len()) && written.bytes().all(|byte| byte.is_ascii_graphic()));
            // It stands in paths and in logs as it is.
            assert!(!written.contains(['/', '?', '#', '%', '"', '\\']));
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            false
        }
    }
}

/// The bytes are a cursor.
pub fn cursor(data: &[u8]) -> bool {
    let written = text(data);
    match written.parse::<Cursor>() {
        Ok(cursor) => {
            assert_eq!(cursor.to_string(), written, "one spelling per place");
            assert!((1970..=2100).contains(&cursor.at.year()), "{} is no instant of a row", cursor.at);
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            false
        }
    }
}

/// The bytes are a selector over labels.
pub fn selector(data: &[u8]) -> bool {
    let written = text(data);
    match Selector::parse(&written) {
        Ok(selector) => {
            assert_eq!(selector.is_empty(), written.trim().is_empty());
            for requirement in &selector.requirements {
                let value = match &requirement.test {
                    Test::In(values) | Test::NotIn(values) => values.first().cloned().unwrap_or_default(),
                    Test::Exists | Test::Absent => String::new(),
                };
                let (carried, mut refused) = (Labels::from([(requirement.key.clone(), value)]), Vec::new());
                labels::check(&mut refused, &carried);
                assert!(refused.is_empty(), "what {written:?} selects nobody can carry: {refused:?}");
                // Alone, it tells the label it names from none at all.
                let alone = Selector { requirements: vec![requirement.clone()] };
                assert_eq!(Selector::parse(&printed(requirement)).as_ref(), Ok(&alone), "{written:?}");
                assert_ne!(alone.matches(&carried), alone.matches(&Labels::new()), "{requirement:?}");
            }
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            false
        }
    }
}

/// A requirement in the longest of its spellings.
fn printed(requirement: &Requirement) -> String {
    let key = &requirement.key;
    let list = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
    match &requirement.test {
        Test::In(values) => format!("{key} in ({})", list(values)),
        Test::NotIn(values) => format!("{key} notin ({})", list(values)),
        Test::Exists => key.clone(),
        Test::Absent => format!("!{key}"),
    }
}

/// A `Retry-After`, and on a line below it the answer's `Date`.
pub fn retry_after(data: &[u8]) -> bool {
    let written = text(data);
    let (header, dated) = written.split_once('\n').unwrap_or((&written, ""));
    let answered_at = ladder::http_date(dated);
    let wait = ladder::retry_after(header, answered_at);
    let digits = !header.trim_ascii().is_empty() && header.trim_ascii().bytes().all(|byte| byte.is_ascii_digit());
    match (wait, ladder::http_date(header), answered_at) {
        (Some(wait), None, _) => {
            assert!(digits, "{header:?} is neither seconds nor a date");
            let shown = wait.as_secs().to_string();
            let meant = header.trim_ascii().trim_start_matches('0');
            assert!(wait == Duration::MAX || shown.trim_start_matches('0') == meant, "{header:?} became {wait:?}");
        }
        (Some(wait), Some(until), Some(answered_at)) => {
            let ahead = (until - answered_at).max(TimeDelta::zero());
            assert_eq!(TimeDelta::from_std(wait), Ok(ahead));
        }
        (None, Some(_), None) => {}
        (None, None, _) => assert!(!digits, "{header:?} are seconds"),
        (wait, until, answered_at) => panic!("{header:?} is {wait:?}, {until:?} by {answered_at:?}"),
    }
    if let Some(at) = answered_at {
        let printed = at.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        assert_eq!(ladder::http_date(&printed), Some(at), "what was read is written and read again");
    }
    // Whatever is asked for, the next attempt comes, and not before its rung.
    let ladder = Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 };
    for failures in [0, 1, 5, u32::MAX] {
        let waited = ladder.wait(failures, wait, 0.5);
        assert!(waited >= ladder.rung(failures, 0.5) && waited <= ladder.cap, "{waited:?}");
    }
    wait.is_some()
}

/// The bytes are the query of a list.
pub fn page_size(data: &[u8]) -> bool {
    match read::page_size(&text(data)) {
        Ok(size) => {
            assert!((1..=500).contains(&size), "{size} alarms are no page");
            true
        }
        Err(problem) => {
            assert_told(&problem);
            assert!(problem.field().is_some(), "the parameter is named");
            false
        }
    }
}
