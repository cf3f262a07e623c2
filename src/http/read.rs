//! Bytes of a request as what they mean, without the shell around them: the very functions the handlers call, in a row.
//! For `fuzz/parsers`, which tries everything that reads text from outside.

use axum::http::HeaderMap;
use chrono::{DateTime, Utc};

use super::{alarms, auth, envelope, problem::Problem, schedules, service_calls, sessions};
use crate::domain::{
    access::Did,
    alarm::{Defaults, Definition},
    schedule::Fire,
    timer::Timer,
};

pub use auth::Proof;

/// `POST /v1/alarms`
pub fn create(body: &[u8], defaults: Defaults) -> Result<Definition, Problem> {
    let body: alarms::body::CreateBody = envelope::parse(body)?;
    let key = alarms::body::idempotency_key(&HeaderMap::new(), body.idempotency_key.as_deref())?;
    body.define(&key, defaults)
}

/// `PATCH /v1/alarms/{id}` of an alarm that is defined so
pub fn patch(body: &[u8], definition: &Definition, defaults: Defaults) -> Result<Definition, Problem> {
    let changes = envelope::parse::<alarms::body::PatchBody>(body)?.changes()?;
    Ok(changes.onto(definition).define(defaults)?)
}

/// `POST /v1/alarms/bulk`
pub fn bulk(body: &[u8]) -> Result<alarms::bulk::Meant, Problem> {
    envelope::parse::<alarms::bulk::BulkBody>(body)?.meant()
}

/// `POST /v1/schedules/preview`
pub fn preview(body: &[u8], now: DateTime<Utc>) -> Result<Vec<Fire>, Problem> {
    Ok(envelope::parse::<schedules::PreviewBody>(body)?.fires(None, now)?.1)
}

/// `POST /v1/sessions/{key}/events`
pub fn event(body: &[u8]) -> Result<sessions::body::NewEvent, Problem> {
    envelope::parse::<sessions::body::EventBody>(body)?.event()
}

/// `POST /v1/sessions/{key}/checkpoints`
pub fn checkpoint(body: &[u8]) -> Result<sessions::body::Checkpoint, Problem> {
    envelope::parse::<sessions::body::CheckpointBody>(body)?.checkpoint()
}

/// `PUT /v1/service-calls/{service_call_id}/timer`
pub fn timer(body: &[u8]) -> Result<Timer, Problem> {
    envelope::parse::<service_calls::TimerBody>(body)?.define()
}

/// `POST /v1/agent/auth/challenge`
pub fn challenge(body: &[u8]) -> Result<Did, Problem> {
    envelope::parse::<auth::ChallengeBody>(body)?.did()
}

/// `POST /v1/agent/auth/verify`
pub fn verify(body: &[u8]) -> Result<Proof, Problem> {
    envelope::parse::<auth::VerifyBody>(body)?.proof()
}

/// `GET /v1/alarms?…`
pub fn page_size(query: &str) -> Result<i64, Problem> {
    Ok(alarms::read::Asked::parse(query)?.page.limit)
}
