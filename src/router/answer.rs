//! What a response means. Pure.

use std::{error::Error as _, time::Duration};

use crate::domain::{ladder, occurrence::Answer};

/// Error texts are cut to this many characters; enough for a person, too few to fill a table.
const ERROR_CAP: usize = 300;

/// What the headers of a response say about the next attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    pub retry_after: Option<&'a str>,
    /// When the answer was given, by the clock of whoever gave it.
    pub date: Option<&'a str>,
}

impl Headers<'_> {
    fn wait(self) -> Option<Duration> {
        ladder::retry_after(self.retry_after?, self.date.and_then(ladder::http_date))
    }
}

/// Any 2xx is success; 410 says that nobody lives there any more; everything else is tried again.
pub fn answer(status: u16, headers: Headers<'_>, body: &str) -> Answer {
    let why = || {
        let body = body.trim();
        tidy(&if body.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {body}") })
    };
    match status {
        200..=299 => Answer::Accepted { http_status: status },
        410 => Answer::Gone { why: why() },
        _ => Answer::Unavailable { why: why(), http_status: Some(status), retry_after: headers.wait() },
    }
}

pub fn timed_out(after: Duration) -> Answer {
    unavailable(&format!("no answer within {} s", after.as_secs()))
}

pub fn unreachable(error: &reqwest::Error) -> Answer {
    let mut why = if error.is_connect() { "cannot connect".to_owned() } else { "the exchange broke off".to_owned() };
    // The innermost cause ("connection refused") says more than the layers around it.
    let mut source = error.source();
    while let Some(cause) = source {
        source = cause.source();
        if source.is_none() {
            why = format!("{why}: {cause}");
        }
    }
    unavailable(&why)
}

fn unavailable(why: &str) -> Answer {
    Answer::Unavailable { why: tidy(why), http_status: None, retry_after: None }
}

/// Fit for a text column: no NUL, which Postgres refuses, and not too long.
fn tidy(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(ERROR_CAP).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Headers = Headers { retry_after: None, date: None };

    fn after(retry_after: &str) -> Headers<'_> {
        Headers { retry_after: Some(retry_after), ..NONE }
    }

    fn unavailable(why: &str, http_status: u16, retry_after: Option<u64>) -> Answer {
        Answer::Unavailable {
            why: why.to_owned(),
            http_status: Some(http_status),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn any_2xx_is_success_and_410_is_final() {
        assert_eq!(answer(200, NONE, ""), Answer::Accepted { http_status: 200 });
        assert_eq!(answer(204, NONE, ""), Answer::Accepted { http_status: 204 });
        assert_eq!(answer(410, NONE, "moved out"), Answer::Gone { why: "HTTP 410: moved out".into() });
    }

    #[test]
    fn everything_else_is_tried_again() {
        assert_eq!(answer(503, NONE, " busy \n"), unavailable("HTTP 503: busy", 503, None));
        assert_eq!(answer(429, after("7"), ""), unavailable("HTTP 429", 429, Some(7)));
        assert_eq!(answer(302, after("soon"), ""), unavailable("HTTP 302", 302, None));
        assert_eq!(answer(404, NONE, ""), unavailable("HTTP 404", 404, None));
    }

    #[test]
    fn a_date_to_come_back_at_is_measured_by_the_clock_that_named_it() {
        let headers = Headers { date: Some("Mon, 16 Nov 2026 09:00:00 GMT"), ..after("Mon, 16 Nov 2026 09:01:30 GMT") };
        assert_eq!(answer(503, headers, ""), unavailable("HTTP 503", 503, Some(90)));
        assert_eq!(answer(503, Headers { date: None, ..headers }, ""), unavailable("HTTP 503", 503, None));
        assert_eq!(answer(503, Headers { date: Some("today"), ..headers }, ""), unavailable("HTTP 503", 503, None));
    }

    #[test]
    fn error_texts_fit_their_column() {
        let Answer::Unavailable { why, .. } = answer(500, NONE, &"é\0".repeat(400)) else { panic!("is unavailable") };
        assert_eq!(why.chars().count(), 300);
        assert!(!why.contains('\0'));
    }
}
