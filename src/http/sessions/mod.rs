//! `/v1/sessions`: conversations that follow up by themselves. What happened goes in as events, what the agent made of each as a
//! checkpoint; what that asks for is seen as effects and timers.
//!
//! | file | routes, below `/v1/sessions/{key}` |
//! |---|---|
//! | here | `GET` |
//! | [`events`] | `POST` and `GET …/events` |
//! | [`checkpoints`] | `POST …/checkpoints` |
//! | [`effects`] | `GET …/effects`, `POST …/effects/{id}/ack` |
//! | [`timers`] | `GET …/timers`, `GET` and `DELETE …/timers/{timer_id}` |
//! | [`stream`] | `GET …/stream`, the WebSocket by which sends go out |
//! | [`body`] | what comes in |
//!
//! A session belongs to the DID that made it, by the first event. For all others it does not exist: whether it is unknown, somebody
//! else's, or its key no key at all, and whether it is the session that is missing or something in it, the answer is the same to the
//! byte. Only the route that makes sessions says what is wrong with a key.

pub mod body;
pub mod checkpoints;
pub mod effects;
pub mod events;
pub mod stream;
pub mod timers;

use axum::{
    extract::{FromRequestParts, Path, State},
    http::request::Parts,
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Facade,
    auth::Caller,
    envelope::Data,
    openapi::{fields, parameters},
    problem::Problem,
};
use crate::{
    domain::{ids::EffectId, invalid::KEY_CAP, payload::Payload, rfc3339, session::SessionKey},
    store,
};

/// The session in the path. A malformed key is an unknown one.
pub struct SessionPath(pub SessionKey);

impl FromRequestParts<Facade> for SessionPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, facade).await;
        path.ok().and_then(|Path(key)| key.parse().ok()).map(Self).ok_or_else(Problem::no_such_session)
    }
}

/// The session in the path, which may have to be made: whoever makes one must hear what a key looks like.
pub struct NewSessionPath(SessionKey);

impl FromRequestParts<Facade> for NewSessionPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let Ok(Path(key)) = Path::<String>::from_request_parts(parts, facade).await else {
            let told = "session_key in the path is not UTF-8, percent-encoded";
            return Err(Problem::invalid_field("session_key", told));
        };
        let key = key.parse().map_err(|error| Problem::invalid_field("session_key", format!("session_key {error}")))?;
        Ok(Self(key))
    }
}

/// An effect of a session. What is malformed is unknown.
pub struct EffectPath(SessionKey, EffectId);

impl FromRequestParts<Facade> for EffectPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let (key, id) = inside(parts, facade).await?;
        // As this service writes ids, and in no other spelling: one effect has one address.
        let id = id.parse().ok().filter(|parsed: &EffectId| parsed.to_string().eq_ignore_ascii_case(&id));
        Ok(Self(key, id.ok_or_else(Problem::no_such_session)?))
    }
}

/// A timer of a session. What cannot be one is unknown.
pub struct TimerPath(SessionKey, String);

impl FromRequestParts<Facade> for TimerPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let (key, timer_id) = inside(parts, facade).await?;
        // Postgres takes no NUL, not even to compare with.
        let possible = (1..=KEY_CAP).contains(&timer_id.len()) && !timer_id.contains('\0');
        if possible { Ok(Self(key, timer_id)) } else { Err(Problem::no_such_session()) }
    }
}

/// A session, and the name of something in it.
async fn inside(parts: &mut Parts, facade: &Facade) -> Result<(SessionKey, String), Problem> {
    let path = Path::<(String, String)>::from_request_parts(parts, facade).await;
    let found = path.ok().and_then(|Path((key, name))| Some((key.parse().ok()?, name)));
    found.ok_or_else(Problem::no_such_session)
}

/// A payload as it was written, to the byte.
fn verbatim(payload: &Payload) -> Box<RawValue> {
    RawValue::from_string(payload.as_str().to_owned()).expect("a payload is JSON")
}

/// A session as its owner sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub struct View {
    session_key: String,
    /// The newest event; 0 if there is none.
    #[schema(minimum = 0)]
    last_seq: i64,
    /// The newest event that a checkpoint has processed; 0 if there is none.
    #[schema(minimum = 0)]
    event_seq: i64,
    /// What the agent has said unasked since the user last spoke.
    #[schema(minimum = 0)]
    consecutive_autonomous_msgs: i32,
    #[schema(schema_with = fields::instant_or_null, required)]
    last_autonomous_at: Option<String>,
    #[schema(minimum = 0)]
    pending_timers: i64,
    #[schema(minimum = 0)]
    pending_effects: i64,
    #[schema(schema_with = fields::instant)]
    created_at: String,
}

impl View {
    fn of(key: &SessionKey, session: &store::sessions::Session) -> Self {
        Self {
            session_key: key.to_string(),
            last_seq: session.last_seq,
            event_seq: session.event_seq,
            consecutive_autonomous_msgs: session.consecutive_autonomous_msgs,
            last_autonomous_at: session.last_autonomous_at.map(rfc3339),
            pending_timers: session.pending_timers,
            pending_effects: session.pending_effects,
            created_at: rfc3339(session.created_at),
        }
    }
}

/// Get a session
///
/// How far it has come: the newest event, the newest that was processed, what is still to happen, and what the agent has said unasked.
#[utoipa::path(
    get, path = "/v1/sessions/{key}", tag = "sessions", operation_id = "getSession",
    params(parameters::SessionKey),
    responses((status = 200, description = "The session.", body = View)),
)]
pub async fn get(
    State(facade): State<Facade>,
    caller: Caller,
    SessionPath(key): SessionPath,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    let session = facade.store.find_session_if_owned(&caller.owner, &key).await?;
    session.map(|session| Data(View::of(&key, &session))).ok_or_else(Problem::no_such_session)
}
