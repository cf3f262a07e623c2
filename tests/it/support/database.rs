//! A fresh database in milliseconds: a copy of a migrated template.

use std::sync::{
    LazyLock,
    atomic::{AtomicU32, Ordering},
};

use chronos::{config, store::Store};
use secrecy::SecretString;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use super::server;

/// One server per run.
static SERVER: LazyLock<String> = LazyLock::new(|| server::run("postgres.sh"));
static TEMPLATE: OnceCell<()> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Database {
    pub uri: String,
}

impl Database {
    pub async fn fresh() -> Self {
        TEMPLATE.get_or_init(make_template).await;
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        admin(&format!("CREATE DATABASE {name} TEMPLATE template_chronos")).await;
        Self { uri: uri(&name) }
    }

    /// A database without a schema.
    pub async fn empty() -> Self {
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        admin(&format!("CREATE DATABASE {name}")).await;
        Self { uri: uri(&name) }
    }

    pub fn config(&self) -> config::Database {
        config::Database {
            uri: SecretString::from(self.uri.clone()),
            allow_unsafe: true,
            api_pool: 4,
            dispatch_pool: 4,
            hints: None,
        }
    }

    pub async fn store(&self) -> Store {
        Store::connect(&self.config(), "test", 8).await.expect("the test's database answers")
    }

    /// A connection for what no store function asks.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.uri).await.expect("the test's database answers")
    }
}

fn uri(database: &str) -> String {
    format!("{}/{database}", *SERVER)
}

async fn make_template() {
    // The first to come starts the server, which blocks: not on a thread that others wait on.
    tokio::task::spawn_blocking(|| LazyLock::force(&SERVER)).await.expect("Postgres starts");
    admin("CREATE DATABASE template_chronos").await;
    let template = Database { uri: uri("template_chronos") };
    let store = template.store().await;
    store.migrate().await.expect("the migrations run");
    store.close().await; // a template must have no connections
}

async fn admin(statement: &str) {
    let mut connection = PgConnection::connect(&uri("postgres")).await.expect("Postgres answers");
    sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.expect(statement);
}
