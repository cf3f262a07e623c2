//! The only SQL. One file per table, one function per question, the precondition in the verb
//! (`cancel_if_owned`, `settle_under_token`). Longer statements stand in `sql/`.
//!
//! Postgres is the only truth: controller, dispatch and facade never call each other, they meet here. Each role has a
//! [`Store`] of its own, with its own connections, so that a flood of requests cannot delay a wake.
//!
//! | file | table, and who asks |
//! |---|---|
//! | [`alarms`], [`claims`], [`resources`] | `alarms`: owners, dispatchers, the controller |
//! | [`attempts`], [`partitions`] | `attempts`: what became of every try; its daily partitions |
//! | [`service_calls`] | `service_calls`, and of `alarms` the timers of such calls |
//! | [`sessions`], [`events`], [`checkpoints`], [`effects`] | sessions, what happened in them, what their agents made of it |
//! | [`session_timers`] | of `alarms` the timers of sessions |
//! | [`wakes`] | of `effects` what tells agents that a timer has come due |
//! | [`streams`] | of `sessions` and `effects`: what goes to a session's connected client |
//! | [`agents`], [`nonces`] | who is enrolled; who is signing in |
//! | [`dispatchers`], [`clusters`], [`settings`] | who is at work, and what all agree on |
//! | [`hints`] | no table: "look now", from whoever writes an alarm to the dispatchers |
//! | `kept` | no table: the one connection over which a dispatcher looks |
//! | `schema` | which version the schema has, and which binaries it puts up with |

pub mod agents;
pub mod alarms;
pub mod attempts;
pub mod checkpoints;
pub mod claims;
pub mod clusters;
pub mod dispatchers;
pub mod effects;
pub mod events;
pub mod hints;
mod interval;
mod kept;
pub mod nonces;
pub mod partitions;
pub mod resources;
mod schema;
pub mod service_calls;
pub mod session_timers;
pub mod sessions;
pub mod settings;
pub mod streams;
pub mod wakes;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures::{Stream, TryStreamExt as _};
use secrecy::ExposeSecret;
use sqlx::{
    Connection, Executor, PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use thiserror::Error;
use tokio::time::Instant;

pub use schema::ServerVersion;

use crate::config::Database;
use kept::Kept;

/// No statement of ours takes a second; one that takes ten waits for a lock or a dead host.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Planned for the values at hand: a plan for any LIMIT, or for any combination of filters, scans the table. Compiling statements
/// this short costs more than running them. Not as startup options, which a pgbouncer refuses; behind one that pools transactions
/// they hold for some connections only, which costs time and nothing else.
/// And the server gives up when we have: what nobody waits for any more must not be carried out later. A host that died in the middle
/// of an edit must not keep its rows locked until TCP notices, hours later.
const ON_CONNECT: &str = "SET plan_cache_mode = force_custom_plan; SET jit = off; SET statement_timeout = '10s'; \
                          SET idle_in_transaction_session_timeout = '15s'";
/// The facade's statements find one row by its key, or insert one: planning them each time costs more than running them. The few whose
/// plan depends on the values (lists, bulk, history) are not kept prepared, and so planned for the values at hand.
const ON_API_CONNECT: &str = "SET plan_cache_mode = auto";
/// The role whose connections those are.
pub const API: &str = "api";
/// A dispatcher's results come many at once. When somebody holds on to one of their rows the others must not wait for it: the batch is
/// refused soon, and written without it. Soon: well before the last second of a lease is over, which is all that a wake may leave that took
/// its whole time.
const ON_DISPATCH_CONNECT: &str = "SET lock_timeout = '500ms'";
/// The role whose connections those are.
pub const DISPATCH: &str = "dispatch";
/// The connection over which a dispatcher looks, all day long. Planning a look takes longer than running it when little is due, so it is planned
/// once, for any values, and again when the table has been analysed. A plan that is kept must do for a table that was empty when it was made,
/// and for one where a million are due: rows are found along an index, in its order, or one by one by their ids, and the planner is kept
/// from everything else (ADR 14).
pub const ON_LOOK_CONNECT: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; \
                                   SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; \
                                   SET enable_sort = off; SET enable_incremental_sort = off";
/// A connection that nobody used for this long may have been forgotten on the way; and for so long after trouble none is trusted.
const LONG_IDLE: Duration = Duration::from_secs(60);
/// The same for those who would have to tell somebody that it broke: dispatchers just try again.
const IDLE: Duration = Duration::from_secs(1);
/// A connection that stands answers within milliseconds, and several that do not are found within [`ACQUIRE_TIMEOUT`].
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that cannot be had in this time is reported, not waited for.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum Error {
    #[error("CHRONOS_POSTGRES_URI cannot be understood")]
    Uri(#[source] sqlx::Error),
    #[error("cannot connect to the database at {at}")]
    Connect {
        /// Host and port; the rest of the address holds a password.
        at: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot connect to the database at {at}: no answer within {} s", ACQUIRE_TIMEOUT.as_secs())]
    NoAnswer { at: String },
    #[error(
        "the database runs with {0} = off and may lose committed alarms in a crash; switch it on, or set CHRONOS_ALLOW_UNSAFE_POSTGRES=true where that does not matter"
    )]
    Unsafe(String),
    #[error(
        "CHRONOS_POSTGRES_URI names another server or database than at the start; that takes effect at the next one"
    )]
    Moved,
    #[error("migrating the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("the database has no chronos schema, or an older one; run `chronosd migrate` first")]
    SchemaMissing,
    #[error(
        "the database's schema needs chronosd {release} or later, which knows its version {needed}; this is chronosd {}, which knows version {known}",
        env!("CARGO_PKG_VERSION")
    )]
    LeftBehind { needed: i64, release: String, known: i64 },
    #[error("{doing}")]
    Query {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("{doing}: no answer within {} s", .within.as_secs())]
    Timeout { doing: &'static str, within: Duration },
}

impl Error {
    /// Whether there was no answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether somebody who has just started a database may get another answer in a moment. One that answers, and knows neither us nor
    /// our database, will say the same again.
    pub fn may_come_up(&self) -> bool {
        match self {
            Self::Connect { source, .. } => {
                let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
                // Nobody listens, the name is not known yet, or whoever listens is no Postgres so far.
                let unreached =
                    matches!(source, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut);
                unreached || code.is_some_and(|code| is_passing(&code))
            }
            Self::NoAnswer { .. } => true,
            Self::Query { .. } | Self::Timeout { .. } => self.is_away(),
            Self::Moved
            | Self::Uri(_)
            | Self::Unsafe(_)
            | Self::Migrate(_)
            | Self::SchemaMissing
            | Self::LeftBehind { .. } => false,
        }
    }

    /// Whether the database is away, as against having refused or not understood something.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::NoAnswer { .. } | Self::Timeout { .. } => true,
            Self::Moved
            | Self::Uri(_)
            | Self::Unsafe(_)
            | Self::Migrate(_)
            | Self::SchemaMissing
            | Self::LeftBehind { .. } => false,
            Self::Query { source, .. } => {
                let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
                let by_server = code.is_some_and(|code| is_passing(&code));
                // A connection that breaks off in the middle of an answer, or of a handshake, is told as one that talks nonsense.
                let broken = matches!(source, sqlx::Error::Io(_) | sqlx::Error::Protocol(_));
                by_server || broken || matches!(source, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)
            }
        }
    }
}

/// 08: no connection. 25006: a standby that was promoted a moment ago, or a primary that is none any more. 40: a deadlock, or another
/// order of things; 53: no disk, memory or connections left. 57P0: the server is shutting down, starting up, or ended the connection.
/// None of them is about what was asked.
fn is_passing(code: &str) -> bool {
    ["08", "25006", "40", "53", "57P0"].iter().any(|class| code.starts_with(class))
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Access to the database for one role.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    /// The connection over which a dispatcher looks.
    looks: Option<Arc<Kept>>,
    trouble: Trouble,
    word: Arc<Mutex<Word>>,
    horizon: hints::Horizon,
}

/// What was last heard of the database, or not.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    answered_at: Option<Instant>,
    away_at: Option<Instant>,
}

impl Word {
    /// Whether that is proof enough at this instant: an answer, so long ago at most, and no silence since.
    fn is_good(self, now: Instant, within: Duration) -> bool {
        let answered = self.answered_at.filter(|at| now.saturating_duration_since(*at) <= within);
        answered.is_some_and(|answered| self.away_at.is_none_or(|away| away < answered))
    }
}

/// When a question last got no answer. A pool asks each connection whether it still stands before it hands it out, which is a statement
/// more for each of ours; who has just used one, and a dispatcher, which asks all day, does without as long as all goes well. After
/// trouble the connections that broke with it are found that way, all but the first.
#[derive(Clone, Debug, Default)]
struct Trouble(Arc<Mutex<Option<Instant>>>);

impl Trouble {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_recent(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at.elapsed() < LONG_IDLE)
    }
}

impl Store {
    /// Connects, and refuses a database that may forget what it acknowledged.
    pub async fn connect(database: &Database, role: &'static str, connections: u32) -> Result<Self> {
        let options = options(database, &format!("chronos-{role}"))?;
        let at = format!("{}:{}", options.get_host(), options.get_port());
        // By itself first: a pool only says that it ran out of time, not why.
        match tokio::time::timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(&options)).await {
            Err(_elapsed) => return Err(Error::NoAnswer { at }),
            Ok(Err(source)) => return Err(Error::Connect { at, source }),
            Ok(Ok(connection)) => {
                connection.close().await.map_err(|source| Error::Connect { at: at.clone(), source })?;
            }
        }
        let trouble = Trouble::default();
        let recent = trouble.clone();
        // Not behind a pgbouncer that pools transactions, where hints are off: what this one is told would hold for whoever gets it next.
        let keeps_one = role == DISPATCH && database.hints.is_some() && connections > 1;
        let looks = keeps_one.then(|| Arc::new(Kept::new(&[ON_DISPATCH_CONNECT, ON_LOOK_CONNECT])));
        let pool = PgPoolOptions::new()
            .max_connections(connections - u32::from(keeps_one))
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(move |connection, idle| {
                let trusted = if role == DISPATCH { LONG_IDLE } else { IDLE };
                let doubtful = recent.is_recent() || idle.idle_for > trusted;
                Box::pin(async move {
                    if doubtful {
                        // One that was forgotten on the way says nothing: it is closed, and another taken in its place.
                        let answer = tokio::time::timeout(PING_TIMEOUT, connection.ping()).await;
                        answer.map_err(|_elapsed| sqlx::Error::PoolTimedOut)??;
                    }
                    Ok(true)
                })
            })
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    let also: &[&str] = match role {
                        API => &[ON_API_CONNECT],
                        DISPATCH => &[ON_DISPATCH_CONNECT],
                        _ => &[],
                    };
                    tell(connection, also).await
                })
            })
            .connect_with(options)
            .await
            .map_err(|source| Error::Connect { at, source })?;
        let word = Arc::new(Mutex::new(Word { answered_at: Some(Instant::now()), away_at: None }));
        let store = Self { pool, looks, trouble, word, horizon: hints::Horizon::new(database.hints) };
        if !database.allow_unsafe {
            store.refuse_unsafe().await?;
        }
        Ok(store)
    }

    /// From now on new connections are made with this address, another password as a rule. Those that stand stay: the server asks for a
    /// password once.
    pub fn renew(&self, database: &Database) -> Result<()> {
        let current = self.pool.connect_options();
        let name = current.get_application_name().unwrap_or("chronos");
        let renewed = options(database, name)?;
        let place = |options: &PgConnectOptions| {
            (options.get_host().to_owned(), options.get_port(), options.get_database().map(str::to_owned))
        };
        // Half of a pool here and half of it there would be two truths.
        if place(&current) != place(&renewed) {
            return Err(Error::Moved);
        }
        self.pool.set_connect_options(renewed);
        Ok(())
    }

    async fn refuse_unsafe(&self) -> Result<()> {
        let off: Option<String> = self
            .ask("checking the database's durability settings", async |db| {
                sqlx::query_scalar(
                    "SELECT name FROM pg_settings
                     WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' LIMIT 1",
                )
                .fetch_optional(db)
                .await
            })
            .await?;
        off.map_or(Ok(()), |name| Err(Error::Unsafe(name)))
    }

    /// The one clock that counts.
    pub async fn now(&self) -> Result<DateTime<Utc>> {
        self.ask("asking the database for the time", async |db| sqlx::query_scalar("SELECT now()").fetch_one(db).await)
            .await
    }

    /// A connection that hears hints. Hints only shorten a wait: nothing is lost with one.
    pub async fn listen(&self, channel: &'static str) -> Result<PgListener> {
        let doing = "listening for hints";
        let listen = async {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            listener.listen(channel).await?;
            Ok(listener)
        };
        match tokio::time::timeout(STATEMENT_TIMEOUT, listen).await {
            Ok(listening) => listening.map_err(|source| Error::Query { doing, source }),
            Err(_elapsed) => Err(Error::Timeout { doing, within: STATEMENT_TIMEOUT }),
        }
    }

    /// One question to the database, of one statement or one transaction, with a deadline on our side: a host that
    /// vanished answers nothing, not even an error. The connection of a question that was cut off is closed, not returned:
    /// whatever still comes over it would be taken for the answer to the next one, and returning it means waiting for it.
    async fn ask<T>(
        &self,
        doing: &'static str,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T> {
        self.ask_within(STATEMENT_TIMEOUT, doing, question).await
    }

    /// The same, of what a dispatcher asks all day: planned once, where it has a connection for that.
    async fn ask_always<T>(
        &self,
        doing: &'static str,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T> {
        let Some(looks) = &self.looks else { return self.ask(doing, question).await };
        let within = STATEMENT_TIMEOUT;
        let answer = looks.ask(&self.pool, within, question).await;
        self.noted(answer.map_or(Err(Error::Timeout { doing, within }), |answer| {
            answer.map_err(|source| Error::Query { doing, source })
        }))
    }

    /// The same, for the few that may take longer. The server gives up when it was told to on connecting: a question that may take
    /// longer tells it otherwise, for its own transaction.
    async fn ask_within<T>(
        &self,
        within: Duration,
        doing: &'static str,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T> {
        let mut connection = self
            .pool
            .acquire()
            .await
            .map_err(|source| Error::Query { doing, source })
            .inspect_err(|error| self.note(error))?;
        let mut guard = CloseUnlessDone { connection: &mut connection, done: false };
        let answer = match tokio::time::timeout(within, question(guard.connection)).await {
            Ok(answer) => {
                guard.done = true;
                answer.map_err(|source| Error::Query { doing, source })
            }
            Err(_elapsed) => Err(Error::Timeout { doing, within }),
        };
        self.noted(answer)
    }

    fn noted<T>(&self, answer: Result<T>) -> Result<T> {
        match &answer {
            Ok(_) => self.note_answer(),
            Err(error) => {
                if error.is_away() {
                    self.trouble.note();
                }
                self.note(error);
            }
        }
        answer
    }

    /// Whether the database has answered one of our questions in this time, and has not left one unanswered since.
    pub fn answered_within(&self, within: Duration) -> bool {
        self.word.lock().unwrap_or_else(PoisonError::into_inner).is_good(Instant::now(), within)
    }

    fn note(&self, error: &Error) {
        // A refusal is an answer, too.
        if error.is_away() {
            self.word.lock().unwrap_or_else(PoisonError::into_inner).away_at = Some(Instant::now());
        } else {
            self.note_answer();
        }
    }

    fn note_answer(&self) {
        self.word.lock().unwrap_or_else(PoisonError::into_inner).answered_at = Some(Instant::now());
    }

    /// How many connections there may be.
    pub fn most_connections(&self) -> u32 {
        self.pool.options().get_max_connections() + u32::from(self.looks.is_some())
    }

    /// How many connections are open: idle, and in use.
    pub fn connections(&self) -> (u32, u32) {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        let (kept, asking) = self.looks.as_ref().map_or((0, 0), |looks| looks.connections());
        (idle + kept, self.pool.size().saturating_sub(idle) + asking)
    }

    pub async fn close(&self) {
        if let Some(looks) = &self.looks {
            looks.close().await;
        }
        self.pool.close().await;
    }
}

/// What a new connection is told: what all are, and what only those of its kind are.
async fn tell(connection: &mut PgConnection, also: &[&'static str]) -> Result<(), sqlx::Error> {
    connection.execute(ON_CONNECT).await?;
    // Who hung up waits for nothing: its statement ends within a second, where the server's system can see that. Else
    // callers that hang up could have more statements running than the pool has connections.
    if let Err(error) = connection.execute("SET client_connection_check_interval = '1s'").await {
        tracing::debug!(%error, "the server cannot see whether we are still there");
    }
    for statement in also {
        connection.execute(*statement).await?;
    }
    Ok(())
}

fn options(database: &Database, name: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = database.uri.expose_secret().parse().map_err(Error::Uri)?;
    Ok(options.application_name(name))
}

/// Also when the question itself is dropped half way, as a handler is whose caller hung up.
struct CloseUnlessDone<'a> {
    connection: &'a mut PoolConnection<Postgres>,
    done: bool,
}

impl Drop for CloseUnlessDone<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.connection.close_on_drop();
        }
    }
}

/// A list ends with the row that brings texts and payloads to this many bytes: 500 of the largest would be 140 MB, and a few who ask for
/// them at once would be the end of the process.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Rows up to that weight.
async fn page<T>(
    mut rows: impl Stream<Item = Result<T, sqlx::Error>> + Unpin,
    weight: impl Fn(&T) -> usize,
) -> Result<Vec<T>, sqlx::Error> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.try_next().await?
    {
        bytes += weight(&row);
        page.push(row);
    }
    Ok(page)
}

/// For values that stand in a row and cannot be read.
fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_good_for_a_while_and_until_a_question_stays_unanswered() {
        const WITHIN: Duration = Duration::from_secs(5);
        let (answered, second) = (Instant::now(), Duration::from_secs(1));
        let good = Word { answered_at: Some(answered), away_at: None };
        assert!(good.is_good(answered, WITHIN) && good.is_good(answered + WITHIN, WITHIN));
        assert!(!good.is_good(answered + WITHIN + second, WITHIN));
        let silent = Word { away_at: Some(answered + second), ..good };
        assert!(!silent.is_good(answered + second, WITHIN));
        let back = Word { answered_at: Some(answered + second * 2), ..silent };
        assert!(back.is_good(answered + second * 2, WITHIN));
        assert!(!Word::default().is_good(answered, WITHIN));
    }

    #[test]
    fn a_database_that_nobody_can_reach_may_come_up_and_one_that_does_not_know_us_will_not() {
        let connect = |source| Error::Connect { at: "host:5432".to_owned(), source };
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(connect(sqlx::Error::Io(refused)).may_come_up());
        assert!(Error::NoAnswer { at: "host:5432".to_owned() }.may_come_up());
        assert!(!connect(sqlx::Error::Configuration("no such thing".into())).may_come_up());
        assert!(!Error::SchemaMissing.may_come_up() && !Error::Unsafe("fsync".to_owned()).may_come_up());
        assert!(is_passing("57P03"), "it is starting up");
        assert!(!is_passing("28P01") && !is_passing("3D000"), "a wrong password, a database that is not there");
    }
}
