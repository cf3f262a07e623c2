//! The only SQL. One file per table, one function per question, the precondition in the verb
//! (`cancel_if_owned`, `settle_under_token`). Longer statements stand in `sql/`.
//!
//! Postgres is the only truth: controller, dispatch and facade never call each other, they meet here. Each role has a
//! [`Store`] of its own, with its own connections, so that a flood of requests cannot delay a wake.

pub mod alarms;
pub mod attempts;
pub mod claims;
pub mod nonces;
pub mod resources;

use std::time::Duration;

use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use sqlx::{
    PgPool,
    migrate::Migrator,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use thiserror::Error;

use crate::config::Database;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// No statement of ours takes a second; one that takes ten waits for a lock or a dead host.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that cannot be had in this time is reported, not waited for.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum Error {
    #[error("CHRONOS_POSTGRES_URI cannot be understood")]
    Uri(#[source] sqlx::Error),
    #[error("the database cannot be reached")]
    Connect(#[source] sqlx::Error),
    #[error(
        "the database runs with {0} = off and may lose committed alarms in a crash; switch it on, or set CHRONOS_ALLOW_UNSAFE_POSTGRES=true where that does not matter"
    )]
    Unsafe(String),
    #[error("migrating the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("the database has no chronos schema, or an older one; run `chronosd migrate` first")]
    SchemaMissing,
    #[error("{doing}")]
    Query {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("{doing}: no answer within {} s", STATEMENT_TIMEOUT.as_secs())]
    Timeout { doing: &'static str },
    #[error("{doing}: the stored {what} cannot be read: {why}")]
    Unreadable { doing: &'static str, what: &'static str, why: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Access to the database for one role.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
}

impl Store {
    /// Connects, and refuses a database that may forget what it acknowledged.
    pub async fn connect(database: &Database, role: &'static str, connections: u32) -> Result<Self> {
        let options: PgConnectOptions = database.uri.expose_secret().parse().map_err(Error::Uri)?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_with(options.application_name(&format!("chronos-{role}")))
            .await
            .map_err(Error::Connect)?;
        let store = Self { pool };
        if !database.allow_unsafe {
            store.refuse_unsafe().await?;
        }
        Ok(store)
    }

    async fn refuse_unsafe(&self) -> Result<()> {
        let off: Option<String> = ask(
            "checking the database's durability settings",
            sqlx::query_scalar(
                "SELECT name FROM pg_settings
                 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' LIMIT 1",
            )
            .fetch_optional(&self.pool),
        )
        .await?;
        off.map_or(Ok(()), |name| Err(Error::Unsafe(name)))
    }

    /// Brings the schema up to this binary's. Any number of processes may call it at once: sqlx takes an advisory lock.
    pub async fn migrate(&self) -> Result<()> {
        Ok(MIGRATIONS.run(&self.pool).await?)
    }

    /// Whether the schema is at least this binary's. A newer one is fine: migrations only add.
    pub async fn check_schema(&self) -> Result<()> {
        let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
        let doing = "reading the schema's version";
        let known = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&self.pool);
        if !ask(doing, known).await? {
            return Err(Error::SchemaMissing);
        }
        let applied =
            sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations WHERE success").fetch_one(&self.pool);
        let applied: Option<i64> = ask(doing, applied).await?;
        if applied.is_some_and(|version| version >= newest) { Ok(()) } else { Err(Error::SchemaMissing) }
    }

    /// The one clock that counts.
    pub async fn now(&self) -> Result<DateTime<Utc>> {
        ask("asking the database for the time", sqlx::query_scalar("SELECT now()").fetch_one(&self.pool)).await
    }

    /// A connection that hears hints. Hints only shorten a wait: nothing is lost with one.
    pub async fn listen(&self, channel: &'static str) -> Result<PgListener> {
        let doing = "listening for hints";
        let listen = async {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            listener.listen(channel).await?;
            Ok(listener)
        };
        ask(doing, listen).await
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Every database call has a deadline on our side: a host that vanished answers nothing, not even an error.
async fn ask<T>(doing: &'static str, query: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, query).await {
        Ok(answer) => answer.map_err(|source| Error::Query { doing, source }),
        Err(_elapsed) => Err(Error::Timeout { doing }),
    }
}
