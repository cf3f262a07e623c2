//! The schema's version, and which binaries it puts up with.
//!
//! A version is the number of a migration: what a binary knows is the highest number it brings along. Migrations only add,
//! so a database that is ahead of the binary is fine, and during a rolling update old and new run side by side. One day a
//! migration cannot be lived with by older binaries; it then raises `settings.min_compatible_version` to its own number,
//! and `min_compatible_release` to the release it comes with. Binaries that do not know that number refuse to start or to
//! migrate, and say which release they are and which is needed.

use std::{fmt, sync::LazyLock};

use sqlx::{PgConnection, migrate::Migrator};

use super::{Error, Result, Store};

static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = sqlx::migrate!("./migrations");
    // Those of a newer binary.
    migrations.set_ignore_missing(true);
    migrations
});

/// The version this binary knows.
fn known() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Which Postgres answers, as it numbers itself: 150004 is 15.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerVersion(i32);

/// The first with `NULLS NOT DISTINCT`, by which a settle may be sent again.
const LEAST_SERVER: i32 = 15;

impl ServerVersion {
    pub const fn is_enough(self) -> bool {
        self.0 / 10_000 >= LEAST_SERVER
    }

    /// The first version that is.
    pub const fn least() -> i32 {
        LEAST_SERVER
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10_000, self.0 % 10_000)
    }
}

impl Store {
    /// Which version the server has.
    pub async fn server_version(&self) -> Result<ServerVersion> {
        self.ask("asking the database for its version", async |db| {
            let number = sqlx::query_scalar("SELECT current_setting('server_version_num')::int").fetch_one(db).await?;
            Ok(ServerVersion(number))
        })
        .await
    }

    /// Brings the schema up to this binary's. Any number of processes may call it at once, of any versions: sqlx takes an
    /// advisory lock. No deadline: a migration takes what it takes.
    pub async fn migrate(&self) -> Result<()> {
        self.refuse_if_left_behind().await?;
        let doing = "taking a connection to migrate";
        let mut connection = self.pool.acquire().await.map_err(|source| Error::Query { doing, source })?;
        // A session of its own, closed afterwards: it may take its time, and if it fails it still holds the advisory lock.
        connection.close_on_drop();
        let patient = sqlx::query("SET statement_timeout = 0").execute(&mut *connection).await;
        patient.map_err(|source| Error::Query { doing, source })?;
        let migrated = MIGRATIONS.run(&mut *connection).await;
        drop(connection);
        migrated?;
        // Once more: a newer binary may have migrated while this one waited for the lock.
        self.refuse_if_left_behind().await
    }

    /// Whether this binary and the schema fit: the schema has what the binary needs, and puts up with it.
    pub async fn check_schema(&self) -> Result<()> {
        self.refuse_if_left_behind().await?;
        let applied: Option<i64> = self
            .ask("reading the schema's version", async |db| {
                if !exists(db, "_sqlx_migrations").await? {
                    return Ok(None);
                }
                sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations WHERE success").fetch_one(db).await
            })
            .await?;
        if applied.is_some_and(|version| version >= known()) { Ok(()) } else { Err(Error::SchemaMissing) }
    }

    async fn refuse_if_left_behind(&self) -> Result<()> {
        let least: Option<(i64, String)> = self
            .ask("reading which versions the schema puts up with", async |db| {
                if !exists(db, "settings").await? {
                    return Ok(None);
                }
                sqlx::query_as("SELECT min_compatible_version, min_compatible_release FROM settings")
                    .fetch_optional(db)
                    .await
            })
            .await?;
        match least {
            Some((needed, release)) if needed > known() => Err(Error::LeftBehind { needed, release, known: known() }),
            Some(_) | None => Ok(()),
        }
    }
}

async fn exists(db: &mut PgConnection, table: &'static str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(table).fetch_one(db).await
}
