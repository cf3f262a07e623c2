//! A wake, read.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::log::Wake;

const ALARM: &str = "dev.chronos.alarm.fired";
const TIMER: &str = "dev.chronos.timer.due-time-reached";
const SESSION: &str = "dev.chronos.session.timer-promoted";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Agent,
    ServiceCall,
    Session,
}

/// Whatever a body may say; which of it must be there is seen below.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    user_id: Option<String>,
    #[serde(rename = "conversation_id")]
    _conversation_id: Option<String>,
    message: Option<String>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    alarm_id: Option<Uuid>,
    #[serde(rename = "origin")]
    _origin: Option<String>,
    delivery_id: Uuid,
    scheduled_for: Option<DateTime<Utc>>,
    attempt: Option<i64>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    label: Option<String>,
    owner_did: Option<String>,
    #[serde(rename = "correlation_id")]
    _correlation_id: Option<String>,
    #[serde(rename = "missed")]
    _missed: Option<u64>,
    session_key: Option<String>,
    timer_id: Option<String>,
    event_seq: Option<i64>,
    tenant_id: Option<String>,
    service_call_id: Option<String>,
    due_at: Option<DateTime<Utc>>,
    #[serde(rename = "reached_at")]
    _reached_at: Option<DateTime<Utc>>,
}

pub struct Sent<'a> {
    pub wake: &'a Wake,
    pub to: To,
    pub owner: String,
    /// `None`: a service call's says nothing of alarms.
    pub alarm: Option<Uuid>,
    pub delivery: Uuid,
    /// Of a service call cut to the millisecond.
    pub scheduled_for: DateTime<Utc>,
    /// `None`: a service call's says nothing of attempts.
    pub number: Option<i64>,
    pub user: Option<String>,
    pub label: String,
    pub message: String,
    /// The very bytes; `None`: left out.
    pub payload: Option<String>,
    pub call: Option<String>,
    pub session: Option<(String, String, i64)>,
}

impl<'a> Sent<'a> {
    /// The error says what is wrong with it.
    pub fn read(wake: &'a Wake) -> Result<Self, String> {
        let body: Body<'_> = serde_json::from_str(&wake.body).map_err(|error| error.to_string())?;
        let (to, owner, scheduled_for) = match wake.kind.as_str() {
            ALARM => (To::Agent, body.owner_did, body.scheduled_for),
            SESSION => (To::Session, body.owner_did, body.scheduled_for),
            TIMER => (To::ServiceCall, body.tenant_id, body.due_at),
            other => return Err(format!("nobody knows the type {other:?}")),
        };
        let session = body.session_key.zip(body.timer_id).zip(body.event_seq);
        let sent = Self {
            wake,
            to,
            owner: owner.ok_or("it is for nobody")?,
            alarm: body.alarm_id,
            delivery: body.delivery_id,
            scheduled_for: scheduled_for.ok_or("it says of no instant")?,
            number: body.attempt,
            user: body.user_id,
            label: body.label.unwrap_or_default(),
            message: body.message.unwrap_or_default(),
            payload: body.payload.map(|raw| raw.get().to_owned()),
            call: body.service_call_id,
            session: session.map(|((session, timer), seq)| (session, timer, seq)),
        };
        match to {
            To::Agent if sent.alarm.is_none() || sent.number.is_none() => {
                Err("it names no alarm or no attempt".to_owned())
            }
            To::Session if sent.session.is_none() || sent.alarm.is_none() => Err("it names no session".to_owned()),
            To::ServiceCall if sent.call.is_none() => Err("it names no service call".to_owned()),
            To::Agent | To::Session | To::ServiceCall => Ok(sent),
        }
    }

    pub fn at(&self) -> DateTime<Utc> {
        self.wake.arrived_at
    }

    pub fn was_taken(&self) -> bool {
        self.wake.was_taken()
    }

    pub fn sender(&self) -> &'a str {
        &self.wake.replica
    }
}
