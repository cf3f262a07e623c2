//! `GET /v1/sessions/{key}/stream`: the WebSocket over which a session's sends go to the connected client.
//!
//! ```text
//! server  {"effect_id", "dedupe_key", "seq", "content", "created_at"}      one at a time, in the session's order
//! client  {"ack": "<effect_id>"}                                           then the next one follows
//! server  {"error": {code, message, …}}                                    to any other frame; nothing is lost
//! ```
//!
//! The socket holds no truth. What goes out is claimed in the database, for the one connection that the session's row names; whatever way
//! that ends, what the client has not acknowledged is sent again, over the next one, on whichever replica. So a client may see a send
//! twice, and knows it by its `effect_id`.
//!
//! | file | answers |
//! |---|---|
//! | [`seats`] | whether there is room for one more |
//! | [`hub`] | when to look into the database: hints |
//! | [`talk`] | what is said, from the upgrade to the end |
//! | [`frame`] | what a frame means, and how many of them are too many |
//! | [`ending`] | every way in which it ends, and what the client is told then |

mod ending;
mod frame;
mod hub;
mod seats;
mod talk;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{
        Path, State,
        rejection::PathRejection,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    domain::session::SessionKey,
    http::{Facade, auth::Caller, problem::Problem, server::Tether},
    store::Store,
};

use hub::Hub;
use seats::Seats;
use talk::Terms;

/// Without a hint a stream looks whether there is something to send: what was lost with one is found so.
const LOOK: Duration = Duration::from_secs(60);
/// The same where there are no hints at all, and this is how long a send waits.
const LOOK_WITHOUT_HINTS: Duration = Duration::from_secs(2);
/// Read whole, so that who sends too much can be told so in peace. As much as is read ahead of a request.
const MOST_READ: usize = 64 * 1024;
/// At first, and for as long as a client sends what it should.
const READ_BUFFER: usize = 4 * 1024;
/// Nothing waits in it: each frame is awaited until it is written. A send is as large as what a checkpoint may bring, and its JSON up to six
/// times that, when all of it has to be escaped.
const WRITE_BUFFER: usize = 2 * 1024 * 1024;

/// The streams of this process.
pub struct Streams {
    hub: Arc<Hub>,
    seats: Arc<Seats>,
    look: Duration,
}

impl Streams {
    /// `hints`: whether somebody listens for them ([`Self::listen`]). `most_connections`: those of the whole facade.
    pub fn new(hints: bool, most_connections: usize) -> Self {
        let look = if hints { LOOK } else { LOOK_WITHOUT_HINTS };
        Self { hub: Arc::default(), seats: Arc::new(Seats::new(most_connections)), look }
    }

    /// Hears hints until told to stop, through every outage of the database.
    pub async fn listen(&self, store: &Store, stop: CancellationToken) {
        self.hub.listen(store, stop).await;
    }
}

/// Whatever is wrong is told before the upgrade, as everywhere.
pub async fn open(
    State(facade): State<Facade>,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
    Extension(tether): Extension<Tether>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let key: Option<SessionKey> = key.ok().and_then(|Path(key)| key.parse().ok());
    let key = key.ok_or_else(Problem::no_such_session)?;
    let turn = caller.turn().await;
    // Made the session's stream only once there is a socket: until then the one before it serves.
    let session = facade.store.find_session_if_owned(&caller.owner, &key).await?;
    drop(turn);
    session.ok_or_else(Problem::no_such_session)?;
    let upgrade = upgrade.map_err(|rejection| not_an_upgrade(&rejection))?;
    let seat = facade.streams.seats.take(&caller.owner)?;
    let terms = Terms {
        ear: facade.streams.hub.hear(&key),
        store: facade.store,
        key,
        caller,
        restraint: facade.autonomy.restraint,
        ack_within: facade.autonomy.ack,
        look: facade.streams.look,
        tether,
        seat,
    };
    let span = tracing::Span::current();
    Ok(upgrade
        .max_frame_size(MOST_READ)
        .max_message_size(MOST_READ)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER)
        .on_upgrade(move |socket| talk::run(terms, socket).instrument(span)))
}

fn not_an_upgrade(why: &WebSocketUpgradeRejection) -> Problem {
    Problem::invalid(format!(
        "this path is a WebSocket, and the request does not ask for one: {why}; send GET with Connection: Upgrade, Upgrade: \
         websocket, Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key, as any WebSocket client does"
    ))
}
