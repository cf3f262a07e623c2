//! Every function that reads text from outside, and what must hold for whatever it is given. ONE list, [`PARSERS`], for all
//! who try them: the fuzz targets (`make fuzz`) link this as a crate, `tests/it/parsers.rs` includes it, replays
//! `fuzz/corpus` and lets proptest loose on the same functions.
//!
//! Nothing here reads a clock, a file or the network.
//!
//! | file | reads |
//! |---|---|
//! | [`schedule`] | cron expressions, `@every`, zones |
//! | [`access`] | DIDs, challenges, principal tokens |
//! | [`words`] | session keys, service call ids, cursors, label selectors, `Retry-After`, page sizes |
//! | [`documents`] | payloads, bodies of requests, resources |

pub mod access;
pub mod documents;
pub mod schedule;
pub mod words;

use std::borrow::Cow;

use chronos::http::Problem;

/// Tries any bytes; says whether they were taken, and panics when a property is broken.
pub type Parser = fn(&[u8]) -> bool;

/// Name of the fuzz target and of its directory in `fuzz/corpus`, and what it tries.
pub const PARSERS: &[(&str, Parser)] = &[
    ("agent_resource", documents::agent_resource),
    ("alarm_resource", documents::alarm_resource),
    ("alarm_yaml", documents::alarm_yaml),
    ("bulk_body", documents::bulk_body),
    ("challenge", access::challenge),
    ("checkpoint_body", documents::checkpoint_body),
    ("create_body", documents::create_body),
    ("cron", schedule::cron),
    ("cursor", words::cursor),
    ("did", access::did),
    ("event_body", documents::event_body),
    ("every", schedule::every),
    ("page_size", words::page_size),
    ("patch_body", documents::patch_body),
    ("payload", documents::payload),
    ("preview_body", documents::preview_body),
    ("principal_token", access::principal_token),
    ("retry_after", words::retry_after),
    ("selector", words::selector),
    ("service_call_id", words::service_call_id),
    ("session_key", words::session_key),
    ("timer_body", documents::timer_body),
    ("verify_body", access::verify_body),
    ("zone", schedule::zone),
];

/// Tries the parser of that name.
pub fn run(name: &str, data: &[u8]) -> bool {
    let known = PARSERS.iter().find(|(known, _)| *known == name);
    let (_, parser) = known.unwrap_or_else(|| panic!("{name} is not in PARSERS"));
    parser(data)
}

/// What is no text is made one: parsers of text are never handed anything else.
fn text(data: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(data)
}

/// A refusal is a sentence that can go to a terminal and into a log line.
fn assert_readable(refusal: &str) {
    assert!(!refusal.trim().is_empty(), "a refusal says nothing");
    assert!(!refusal.chars().any(char::is_control), "a refusal holds a control character: {refusal:?}");
}

/// So is a refusal over HTTP, and so is the name of the field that it gives.
fn assert_told(problem: &Problem) {
    assert_readable(problem.message());
    assert!(problem.message().chars().count() <= 4001, "a refusal goes on and on");
    assert!(problem.field().is_none_or(|field| !field.chars().any(char::is_control)), "{problem:?}");
}
