//! The world a test runs in. No assertions here.
//!
//! One Postgres server and one API server serve the whole run; they end with this process however it ends ([`server`]).
//! Tests that break an API server have a [`ControlPlane`] of their own.
//! Each [`World`] has a database of its own, copied from a migrated template, and a [`Sink`] that plays the router.
//! `chronosd` runs as the real binary ([`daemon`]), killed when its handle is dropped, also by a panicking test.

pub mod agent;
pub mod alarms;
pub mod api;
pub mod cluster;
pub mod controlplane;
pub mod daemon;
pub mod database;
pub mod proxy;
pub mod raw;
pub mod script;
pub mod server;
pub mod socket;

use std::{sync::LazyLock, time::Duration};

use tokio::time::{Instant, sleep};

pub use agent::AgentKey;
pub use cluster::Namespace;
pub use controlplane::ControlPlane;
pub use daemon::Daemon;
pub use database::Database;
pub use proxy::Proxy;

pub use crate::gauntlet::sink::{Reply, Sink};

/// Bearer of the facade in every test.
pub const TOKEN: &str = "transport-token-of-the-tests-0001";
pub const AGENT_AUTH_SECRET: &str = "agent-auth-secret-of-the-tests-01";
pub const WAKE_TOKEN: &str = "wake-token-of-the-tests-000000001";

/// How long anything awaited may take on two busy cores. Never waited for in full unless the test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    pub database: Database,
    pub sink: Sink,
}

impl World {
    pub async fn new() -> Self {
        let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
        Self { database, sink }
    }

    /// Starts `chronosd run` with these roles.
    pub async fn chronosd(&self, roles: &str) -> Daemon {
        Daemon::start(self, roles, &[]).await
    }

    pub async fn chronosd_with(&self, roles: &str, settings: &[(&str, &str)]) -> Daemon {
        Daemon::start(self, roles, settings).await
    }
}

/// The binary sets its TLS provider in main; the tests' own clients need one too, whichever test comes first.
pub fn with_tls() {
    static PROVIDER: LazyLock<()> = LazyLock::new(|| {
        rustls::crypto::ring::default_provider().install_default().expect("nobody else sets one");
    });
    LazyLock::force(&PROVIDER);
}

/// Waits until `look` finds what it looks for. Polling is for what cannot be awaited, such as a row in a table.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(25)).await;
    }
}
