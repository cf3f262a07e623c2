//! What goes in and out: success inside `{ok, data}`, and bodies that are parsed with an eye on the person who wrote them.

use std::time::Duration;

use axum::{
    Json,
    body::{Bytes, HttpBody},
    extract::{FromRequest, Request},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::problem::Problem;

/// The largest body that is read.
pub const BODY_CAP: usize = 256 * 1024;
/// For a body from its first byte to its last: 256 KiB at the speed of a bad telephone.
pub const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// `{"ok": true, "data": …}`
pub struct Data<T>(pub T);

#[derive(Serialize)]
struct Envelope<T> {
    ok: bool,
    data: T,
}

impl<T: Serialize> IntoResponse for Data<T> {
    fn into_response(self) -> Response {
        Json(Envelope { ok: true, data: self.0 }).into_response()
    }
}

/// A JSON body. Whatever is wrong with it is told with the field's name.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        parse(&bytes(request, state).await?).map(Self)
    }
}

/// A JSON body, or none at all.
pub struct BodyIfAny<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for BodyIfAny<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = bytes(request, state).await?;
        if bytes.trim_ascii().is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

/// Nothing is to be said beside the path; an empty object says as much.
pub struct NoBody;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        BodyIfAny::<Nothing>::from_request(request, state).await.map(|_| Self)
    }
}

/// The whole body, if it is JSON by its Content-Type.
async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or("").to_owned());
    // What says by itself that it is too large need not be read.
    if request.body().size_hint().lower() > BODY_CAP as u64 {
        return Err(Problem::too_large(BODY_CAP));
    }
    let read = tokio::time::timeout(BODY_DEADLINE, Bytes::from_request(request, state)).await;
    let bytes = read.map_err(|_elapsed| Problem::too_slow(BODY_DEADLINE))?.map_err(|rejection| {
        if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
            Problem::too_large(BODY_CAP)
        } else {
            Problem::invalid("the body broke off; send it whole")
        }
    })?;
    // None counts as JSON: curl -d without a header should just work for those who delete its default. So does any for a body that is
    // not there, because `curl -d ''` names one.
    if !bytes.is_empty() && content_type.is_some_and(|value| !is_json(&value)) {
        return Err(Problem::not_json());
    }
    Ok(bytes)
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.trim_ascii().is_empty() {
        return Err(Problem::invalid("the body is empty; send a JSON object, {…}"));
    }
    // Without this an array of the right length would do: serde fills a struct from either.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'{') {
        return Err(Problem::invalid("the body is not a JSON object; send {…}"));
    }
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        let said = words(&cause);
        match named_field(&said) {
            Some(field) => Problem::invalid_field(field, format!("the body does not fit: {said}{}", remedy(&said))),
            None if path == "." || cause.is_eof() => {
                Problem::invalid(format!("the body is not the JSON object that was expected: {said}"))
            }
            None => Problem::invalid_field(&path, format!("{path}: {said}")),
        }
    })?;
    source.end().map_err(|error| Problem::invalid(format!("the body goes on after its end: {error}")))?;
    Ok(parsed)
}

/// An object inside a body that was kept as it came until it was known what it should be. Whatever is wrong with it is told with the
/// whole path, `place` and what is below it.
pub fn parse_at<T: DeserializeOwned>(place: &str, value: &RawValue) -> Result<T, Problem> {
    if !value.get().starts_with('{') {
        return Err(Problem::invalid_field(place, format!("{place}: is not a JSON object; give {{…}}")));
    }
    let mut source = serde_json::Deserializer::from_str(value.get());
    serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let path = error.path().to_string();
        let said = words(&error.into_inner());
        // Lines and columns would be counted from the middle of the body.
        let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
        match named_field(said) {
            Some(field) => {
                Problem::invalid_field(&format!("{place}.{field}"), format!("{place}: {said}{}", remedy(said)))
            }
            None if path == "." => Problem::invalid_field(place, format!("{place}: {said}")),
            None => Problem::invalid_field(&format!("{place}.{path}"), format!("{place}.{path}: {said}")),
        }
    })
}

/// Rust's names of types are ours, not the caller's.
fn words(cause: &serde_json::Error) -> String {
    cause.to_string().replace("expected i64", "expected a whole number")
}

fn remedy(said: &str) -> &'static str {
    if said.starts_with("duplicate") { "; give it once" } else { "" }
}

/// The field in serde's own sentences: ``missing field `nonce` ``, ``unknown field `snooze`, expected …``. Only at their
/// start: further on they may quote what the caller sent.
fn named_field(said: &str) -> Option<&str> {
    let starts = ["missing field `", "unknown field `", "duplicate field `"];
    starts.iter().find_map(|start| said.strip_prefix(start))?.split('`').next()
}

#[cfg(test)]
mod tests {
    use axum::{body::to_bytes, http::StatusCode};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Tea {
        minutes: Option<i64>,
    }

    async fn told(body: &str) -> (StatusCode, serde_json::Value) {
        let response = parse::<Tea>(body.as_bytes()).unwrap_err().into_response();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn a_body_that_does_not_fit_is_told_with_the_fields_name() {
        let (status, body) = told(r#"{"minutes": "five"}"#).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["field"], "minutes");
        let (_, body) = told(r#"{"sugar": 2}"#).await;
        assert_eq!(body["error"]["field"], "sugar");
        assert!(body["error"]["message"].as_str().unwrap().contains("unknown field `sugar`"), "{body}");
        let (_, body) = told(r#"{"minutes": 1, "minutes": 2}"#).await;
        assert!(body["error"]["message"].as_str().unwrap().contains("duplicate field `minutes`"), "{body}");
        let (_, body) = told(r#"{"minutes": "missing field `x`"}"#).await;
        assert_eq!(body["error"]["field"], "minutes");
        let (_, body) = told("[5]").await;
        assert!(body["error"]["message"].as_str().unwrap().contains("not a JSON object"), "{body}");
        let (_, body) = told(r#"{"minutes": 1} x"#).await;
        assert!(body["error"]["message"].as_str().unwrap().contains("after its end"), "{body}");
    }

    #[test]
    fn what_stands_inside_a_body_is_told_with_its_whole_path() {
        let told = |value: &str| {
            let value = RawValue::from_string(value.to_owned()).unwrap();
            let problem = parse_at::<Tea>("cups[2].tea", &value).unwrap_err();
            (problem.field().unwrap().to_owned(), problem.message().to_owned())
        };
        let said = |field: &str, message: &str| (field.to_owned(), message.to_owned());
        assert_eq!(
            told(r#"{"minutes": "five"}"#),
            said("cups[2].tea.minutes", r#"cups[2].tea.minutes: invalid type: string "five", expected a whole number"#)
        );
        assert_eq!(
            told(r#"{"sugar": 2}"#),
            said("cups[2].tea.sugar", "cups[2].tea: unknown field `sugar`, expected `minutes`")
        );
        assert_eq!(
            told(r#"{"minutes": 1, "minutes": 2}"#),
            said("cups[2].tea.minutes", "cups[2].tea: duplicate field `minutes`; give it once")
        );
        assert_eq!(told("[5]"), said("cups[2].tea", "cups[2].tea: is not a JSON object; give {…}"));
    }

    #[test]
    fn json_is_known_by_its_content_type() {
        assert!(is_json("application/json") && is_json("Application/JSON; charset=utf-8"));
        assert!(is_json("application/merge-patch+json"));
        assert!(!is_json("text/plain") && !is_json("application/x-www-form-urlencoded"));
    }
}
