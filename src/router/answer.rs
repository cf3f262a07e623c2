//! What a response means. Pure.

use std::{error::Error as _, time::Duration};

use crate::domain::occurrence::Answer;

/// Error texts are cut to this many characters; enough for a person, too few to fill a table.
const ERROR_CAP: usize = 300;

/// Any 2xx is success; 410 says that nobody lives there any more; everything else is tried again.
pub fn answer(status: u16, retry_after: Option<&str>, body: &str) -> Answer {
    let why = || {
        let body = body.trim();
        tidy(&if body.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {body}") })
    };
    match status {
        200..=299 => Answer::Accepted { http_status: status },
        410 => Answer::Gone { why: why() },
        _ => Answer::Unavailable {
            why: why(),
            http_status: Some(status),
            retry_after: retry_after.and_then(parse_retry_after),
        },
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

/// Seconds. The other form of the header, a date, needs a clock that agrees with the router's; the ladder does without.
fn parse_retry_after(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Fit for a text column: no NUL, which Postgres refuses, and not too long.
fn tidy(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(ERROR_CAP).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable(why: &str, http_status: u16, retry_after: Option<u64>) -> Answer {
        Answer::Unavailable {
            why: why.to_owned(),
            http_status: Some(http_status),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn any_2xx_is_success_and_410_is_final() {
        assert_eq!(answer(200, None, ""), Answer::Accepted { http_status: 200 });
        assert_eq!(answer(204, None, ""), Answer::Accepted { http_status: 204 });
        assert_eq!(answer(410, None, "moved out"), Answer::Gone { why: "HTTP 410: moved out".into() });
    }

    #[test]
    fn everything_else_is_tried_again() {
        assert_eq!(answer(503, None, " busy \n"), unavailable("HTTP 503: busy", 503, None));
        assert_eq!(answer(429, Some("7"), ""), unavailable("HTTP 429", 429, Some(7)));
        assert_eq!(answer(302, Some("soon"), ""), unavailable("HTTP 302", 302, None));
        assert_eq!(answer(404, None, ""), unavailable("HTTP 404", 404, None));
    }

    #[test]
    fn error_texts_fit_their_column() {
        let Answer::Unavailable { why, .. } = answer(500, None, &"é\0".repeat(400)) else { panic!("is unavailable") };
        assert_eq!(why.chars().count(), 300);
        assert!(!why.contains('\0'));
    }
}
