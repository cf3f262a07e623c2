//! What happened in a session: told by clients, in order, never changed.

use axum::extract::{RawQuery, State};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{NewSessionPath, SessionPath, body::EventBody, verbatim};
use crate::{
    domain::{ids::EventId, rfc3339},
    http::{
        Facade,
        auth::Caller,
        envelope::{Body, Data},
        openapi::{fields, parameters},
        problem::Problem,
        query::Query,
    },
    store::events::{Appended, Event, Happening},
};

/// Something that happened in a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionEvent)]
pub struct EventView {
    #[schema(value_type = Uuid)]
    id: EventId,
    /// Counts the session's events, from 1 and without gaps.
    #[schema(minimum = 1)]
    seq: i64,
    #[serde(rename = "type")]
    #[schema(schema_with = fields::event_type)]
    event_type: &'static str,
    #[schema(schema_with = fields::seen_payload)]
    payload: Box<RawValue>,
    #[schema(schema_with = fields::instant)]
    created_at: String,
}

impl EventView {
    fn of(event: &Event) -> Self {
        Self {
            id: event.id,
            seq: event.seq,
            event_type: event.event_type.as_str(),
            payload: verbatim(&event.payload),
            created_at: rfc3339(event.created_at),
        }
    }
}

/// The answer to an event that was told.
#[derive(Serialize, ToSchema)]
#[schema(as = AppendedSessionEvent)]
pub struct AppendedView {
    #[serde(flatten)]
    event: EventView,
    /// Whether the session had it already.
    deduped: bool,
}

/// Tell of an event
///
/// Appends it to the session; the first one makes the session. With an `id` of the client's own a repeated request finds the event that
/// the first one appended (`deduped: true`), so that nothing happens twice. A `user_message` cancels what the agent was about to say or to do
/// by itself: the session's pending timers and autonomous effects. A `timer` event cannot be posted.
#[utoipa::path(
    post, path = "/v1/sessions/{key}/events", tag = "sessions", operation_id = "appendSessionEvent",
    params(parameters::SessionKey),
    request_body = EventBody,
    responses(
        (status = 200, description = "The event is in the session's log.", body = AppendedView),
        (status = 409, description = "The `id` stands for another event of this session."),
    ),
)]
pub async fn append(
    State(facade): State<Facade>,
    caller: Caller,
    NewSessionPath(key): NewSessionPath,
    Body(body): Body<EventBody>,
) -> Result<Data<AppendedView>, Problem> {
    let _turn = caller.turn().await;
    let event = body.event()?;
    let happening = Happening { id: event.id, event_type: event.event_type, payload: &event.payload };
    match facade.store.append_event_if_owned(&caller.owner, &key, &happening).await? {
        Appended::New(event) => Ok(Data(AppendedView { event: EventView::of(&event), deduped: false })),
        Appended::Known(event) => Ok(Data(AppendedView { event: EventView::of(&event), deduped: true })),
        Appended::Conflict => Err(Problem::conflict(
            "id stands for another event of this session; give another id, or the very event that it stands for",
        )),
        Appended::NotOwned => Err(Problem::no_such_session()),
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = SessionEventList)]
pub struct List {
    events: Vec<EventView>,
    /// How many there are in this answer.
    count: usize,
}

/// List a session's events
///
/// In order. The next ones are behind the `seq` of the last one, until none comes.
#[utoipa::path(
    get, path = "/v1/sessions/{key}/events", tag = "sessions", operation_id = "listSessionEvents",
    params(parameters::SessionKey, parameters::EventsAsked),
    responses(
        (status = 200, description = "Events of the session.", body = List),
        (status = 400, description = "A parameter is unknown, given twice or not what it should be."),
    ),
)]
pub async fn list(
    State(facade): State<Facade>,
    caller: Caller,
    SessionPath(key): SessionPath,
    RawQuery(query): RawQuery,
) -> Result<Data<List>, Problem> {
    let _turn = caller.turn().await;
    let query = Query::parse(query.as_deref().unwrap_or_default(), &["after", "limit"])?;
    let after = query.whole("after", 0, "give the seq of an event, or 0 for all")?.unwrap_or(0);
    let found = facade.store.events_after_if_owned(&caller.owner, &key, after, query.limit()?).await?;
    let events: Vec<EventView> = found.ok_or_else(Problem::no_such_session)?.iter().map(EventView::of).collect();
    Ok(Data(List { count: events.len(), events }))
}
