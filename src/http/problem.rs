//! What a caller is told when something is wrong: always the envelope, one of a few stable codes, which field, and what
//! would be right.

use std::time::Duration;

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tracing::error;

use crate::{domain::invalid::Invalid, store};

/// In characters: a sentence about every field of a request fits.
const LONGEST: usize = 4000;

/// Alarms end, and quotas are raised, by the minute rather than by the second.
const QUOTA_PAUSE: Duration = Duration::from_secs(60);

/// Clients come and go, and a balancer may well pick another replica.
const CROWD_PAUSE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
    field: Option<String>,
    retryable: bool,
    /// Numbers and names that a program acts on.
    details: Option<Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    const fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message, field: None, retryable: false, details: None, retry_after: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", printable(&message.into()))
    }

    pub fn invalid_field(field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(printable(field)), ..Self::invalid(message) }
    }

    /// Everything that is wrong at once, so that nobody mends one only to meet the next; the field is the first one's.
    pub fn invalid_fields(problems: &[Self]) -> Self {
        let sentences: Vec<&str> = problems.iter().map(Self::message).collect();
        let field = problems.first().and_then(Self::field).unwrap_or_default();
        Self::invalid_field(field, sentences.join("; "))
    }

    /// What is wrong and what would be right, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// One text, whichever part was wrong: an answer that tells them apart helps to guess.
    pub fn unauthorized() -> Self {
        let message = "something that proves who you are is missing, wrong or expired: the transport token (Authorization: \
                       Bearer), the agent token (X-Chronos-Agent, from /v1/agent/auth/verify) or, when signing in, the \
                       nonce, the key or the signature";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message.to_owned())
    }

    /// The same to the byte for an unknown id, a malformed one and somebody else's.
    pub fn no_such_alarm() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such alarm of yours".to_owned())
    }

    /// The same to the byte for an unknown session, a malformed key, somebody else's session, and for an effect or a timer that is not
    /// in it.
    pub fn no_such_session() -> Self {
        let message = "there is no such session of yours, or nothing by that name in it".to_owned();
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn no_such_service_call() -> Self {
        let message =
            "there is no such service call of yours; register it first: PUT /v1/service-calls/{service_call_id}";
        Self::new(StatusCode::NOT_FOUND, "not_found", message.to_owned())
    }

    /// The same whether there is no such call, or it has none.
    pub fn no_such_timer() -> Self {
        let message = "there is no such service call of yours, or it has no timer";
        Self::new(StatusCode::NOT_FOUND, "not_found", message.to_owned())
    }

    /// Of a frame on a stream, whose session is known to be the caller's.
    pub fn no_such_effect() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such send in this session".to_owned())
    }

    pub fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is no such path; GET / says what this service is".to_owned(),
        )
    }

    pub fn wrong_method() -> Self {
        let message = "this path does not take that method; the Allow header lists those it takes".to_owned();
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request", message)
    }

    pub fn not_json() -> Self {
        let message = "the body's Content-Type is not JSON; send application/json".to_owned();
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request", message)
    }

    pub fn too_large(most: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!(
                "the body is larger than {most} bytes; shorten what is longest in it, such as a payload or a message"
            ),
        )
    }

    pub fn too_slow(most: Duration) -> Self {
        let message = format!("the body did not come whole within {} s; send it at once", most.as_secs());
        Self { retryable: true, ..Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request", message) }
    }

    pub fn rate_limited(wait: Duration, limit: u32, burst: u32) -> Self {
        let message = format!(
            "this owner makes more than {limit} requests a second, or more than {burst} at once; wait as long as Retry-After says"
        );
        Self {
            retryable: true,
            details: Some(json!({ "limit": limit, "burst": burst })),
            retry_after: Some(wait),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
        }
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message.into())
    }

    /// A conflict that time resolves: the same request works from `not_before` on.
    pub fn too_soon(message: impl Into<String>, not_before: &str) -> Self {
        let plain = Self::conflict(message);
        Self { retryable: true, details: Some(json!({ "not_before": not_before })), ..plain }
    }

    /// More than the agent may have. `retryable`: it may work later as it stands, when another alarm is over.
    pub fn quota_exceeded(message: String, details: Value, retryable: bool) -> Self {
        let plain = Self::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", message);
        Self { details: Some(details), retry_after: Some(QUOTA_PAUSE), retryable, ..plain }
    }

    /// This replica has as many streams as it takes; another may have room.
    pub fn crowded(most: usize) -> Self {
        let message = format!("this replica has {most} streams open, as many as it takes; connect again in a while");
        let plain = Self::new(StatusCode::SERVICE_UNAVAILABLE, "internal", message);
        Self { retryable: true, retry_after: Some(CROWD_PAUSE), ..plain }
    }

    /// The field that it is about.
    pub fn of_field(self, field: &str) -> Self {
        Self { field: Some(printable(field)), ..self }
    }

    /// What a program needs to go on.
    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    pub fn internal() -> Self {
        let message = "something went wrong on our side; nothing was lost, try again".to_owned();
        Self { retryable: true, ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message) }
    }

    /// Nobody knows what became of it.
    pub fn unavailable() -> Self {
        let message =
            "this takes longer than anybody waits; it may have been done or not: look, or try again with the same \
                       idempotency key"
                .to_owned();
        Self { retryable: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "internal", message) }
    }
}

/// What quotes the caller stays one line of bearable length: serde repeats an unknown field's name as it came, line breaks
/// and all 200 KB of it.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == LONGEST {
            shown.push('…');
            break;
        }
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    shown
}

impl From<Vec<Invalid>> for Problem {
    fn from(invalid: Vec<Invalid>) -> Self {
        let sentences: Vec<String> = invalid.iter().map(ToString::to_string).collect();
        let field = invalid.first().map_or("", |first| first.field);
        Self::invalid_field(field, sentences.join("; "))
    }
}

impl From<store::Error> for Problem {
    fn from(failure: store::Error) -> Self {
        error!(error = %crate::telemetry::chain(&failure), "a request failed on the database");
        Self::internal()
    }
}

impl Problem {
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// The answer's body, in its envelope.
    pub fn body(&self) -> Value {
        json!({ "ok": false, "error": self.error() })
    }

    /// What is wrong, for programs and people.
    pub fn error(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message, "retryable": self.retryable });
        if let Some(field) = &self.field {
            error["field"] = json!(field);
        }
        if let Some(details) = &self.details {
            error["details"] = details.clone();
        }
        error
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(wait) = self.retry_after {
            // Whole seconds, and never a moment too early.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if [StatusCode::REQUEST_TIMEOUT, StatusCode::PAYLOAD_TOO_LARGE].contains(&self.status) {
            // The rest of the body stands between this answer and the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_is_too_fast_is_told_when_to_come_back_and_what_would_do() {
        let waits = [(0, "1"), (1, "1"), (1000, "1"), (1001, "2"), (2000, "2")];
        for (milliseconds, told) in waits {
            let response = Problem::rate_limited(Duration::from_millis(milliseconds), 100, 200).into_response();
            assert_eq!(response.headers()[RETRY_AFTER], told, "{milliseconds} ms");
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let error = &body["error"];
            assert_eq!((&error["code"], &error["retryable"]), (&json!("rate_limited"), &json!(true)));
            assert_eq!(error["details"], json!({ "limit": 100, "burst": 200 }));
        }
    }

    #[test]
    fn what_quotes_the_caller_stays_one_line_of_bearable_length() {
        let problem = Problem::invalid_field("a\nb", "unknown field `a\n\u{1b}[2Jb`, é expected");
        assert_eq!(problem.field(), Some("a\\nb"));
        assert_eq!(problem.message(), "unknown field `a\\n\\u{1b}[2Jb`, é expected");
        let long = Problem::invalid("é".repeat(200_000));
        assert_eq!(long.message().chars().count(), LONGEST + 1);
        assert!(long.message().ends_with("é…"));
    }
}
