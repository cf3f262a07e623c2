//! A world in which things break, and the means to say afterwards whether every promise was kept.
//!
//! ```text
//! driver ── facade ──► Postgres ──► replicas ──► sink
//!    │                    ▲            ▲          │
//!    │                    └── nemesis ─┴──────────┤
//!    ▼                          ▼                 ▼
//! operations                 faults             wakes      ──► checker ◄── alarms, attempts
//! ```
//!
//! A test opens a [`Gauntlet`], has the [`driver`] make alarms, starts replicas of the real binary, lets the [`nemesis`]
//! loose on them, on Postgres or on the router (the [`sink`]), waits until all is said and done and closes. What comes out
//! is a list of broken promises ([`checker`]), which had better be empty.

pub mod checker;
pub mod dead_end;
pub mod driver;
pub mod history;
pub mod nemesis;
pub mod postgres;
pub mod sink;

use chronos::clock;
use sqlx::{PgPool, postgres::PgPoolOptions};
use uuid::Uuid;

use crate::support::{Daemon, Database, World, eventually};
pub use driver::Driver;
use history::History;
pub use nemesis::Nemesis;
use postgres::Postgres;
use sink::Sink;

/// Everything a test on faults needs.
pub struct Gauntlet {
    pub postgres: Postgres,
    pub world: World,
    pub nemesis: Nemesis,
    pub driver: Driver,
    /// For what no store function asks.
    pub database: PgPool,
    facade: Daemon,
}

/// A dispatcher under a name by which the sink and the nemesis know it.
pub struct Replica {
    pub name: String,
    pub daemon: Daemon,
}

impl Gauntlet {
    /// A Postgres server that keeps what it commits, a router, and a facade that no test breaks.
    pub async fn open() -> Self {
        let (postgres, sink) = tokio::join!(Postgres::start(), Sink::start());
        let world = World { database: Database { uri: postgres.uri.clone() }, sink };
        let facade = world.chronosd_with("api", DURABLE).await;
        let driver = Driver::new(&facade.api_url()).await;
        let database = PgPoolOptions::new().max_connections(4).connect(&postgres.uri).await.expect("Postgres answers");
        Self { postgres, world, nemesis: Nemesis::default(), driver, database, facade }
    }

    /// Starts a dispatcher.
    pub async fn replica(&self, name: &str, settings: &[(&str, &str)]) -> Replica {
        let url = self.world.sink.url_of(name);
        let ours = DURABLE.iter().copied().chain([("CHRONOS_ROUTER_WAKE_URL", url.as_str())]);
        let settings: Vec<_> = ours.chain(settings.iter().copied()).collect();
        Replica { name: name.to_owned(), daemon: self.world.chronosd_with("dispatch", &settings).await }
    }

    pub fn sink(&self) -> &Sink {
        &self.world.sink
    }

    /// Waits until all these alarms have this status.
    pub async fn settled(&self, alarms: &[Uuid], status: &str) {
        let those = || async {
            let query = sqlx::query_scalar("SELECT count(*) FROM alarms WHERE id = ANY($1) AND status = $2");
            let found: i64 = query.bind(alarms).bind(status).fetch_one(&self.database).await.unwrap();
            (usize::try_from(found) == Ok(alarms.len())).then_some(())
        };
        eventually(&format!("all {} alarms are {status}", alarms.len()), those).await;
    }

    /// Waits until this many rows are claimed.
    pub async fn claimed(&self, count: i64) {
        eventually(&format!("{count} rows are claimed"), || async {
            let query = sqlx::query_scalar("SELECT count(*) FROM alarms WHERE claim_token IS NOT NULL");
            let claimed: i64 = query.fetch_one(&self.database).await.unwrap();
            (claimed == count).then_some(())
        })
        .await;
    }

    /// Waits until a dispatcher waits for a lock that the test holds.
    pub async fn blocked(&self) {
        eventually("a dispatcher waits for a lock", || async {
            let query = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'chronos-dispatch' AND wait_event_type = 'Lock'",
            );
            let waiting: i64 = query.fetch_one(&self.database).await.unwrap();
            (waiting > 0).then_some(())
        })
        .await;
    }

    /// What the table says about one alarm's tries, as number, outcome and HTTP status.
    pub async fn tries(&self, alarm: Uuid) -> Vec<(i32, String, Option<i32>)> {
        let query = sqlx::query_as(
            "SELECT attempt, outcome, http_status FROM attempts WHERE alarm_id = $1 AND attempt > 0
             ORDER BY attempt, outcome",
        );
        query.bind(alarm).fetch_all(&self.database).await.unwrap()
    }

    /// Stops the replicas as Kubernetes does, so that nothing can happen any more, and returns what was broken.
    pub async fn close(self, replicas: impl IntoIterator<Item = Replica>) -> Vec<String> {
        let stops = replicas.into_iter().map(|replica| async move {
            let ended = replica.daemon.terminate().await;
            (!ended.success()).then(|| format!("replica {} did not stop cleanly: {ended}", replica.name))
        });
        let mut violations: Vec<String> = futures::future::join_all(stops).await.into_iter().flatten().collect();
        let history = History {
            operations: self.driver.operations(),
            wakes: self.sink().log(),
            faults: self.nemesis.faults(),
            alarms: history::alarms(&self.database).await,
            attempts: history::attempts(&self.database).await,
            read_at: clock::system().now(),
        };
        violations.extend(checker::violations(&history));
        drop(self.facade);
        violations
    }
}

/// As in production: this Postgres has nothing unsafe about it.
const DURABLE: &[(&str, &str)] = &[("CHRONOS_ALLOW_UNSAFE_POSTGRES", "false")];
