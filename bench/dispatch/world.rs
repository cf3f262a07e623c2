//! Where it all happens: a Postgres of its own with nothing unsafe about it, rows, `chronosd` as a process.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    config::Database,
    store::{self, Store},
};
use futures::StreamExt;
use sqlx::{Executor, PgPool, postgres::PgPoolOptions};
use tokio::time::Instant;

use crate::{
    process::{self, Process, TO_BEGIN},
    sink::Sink,
};

/// Far more than may be in flight at once, so that no owner's share is what is measured.
const OWNERS: i32 = 1000;
/// Rows of one INSERT.
pub const CHUNK: i64 = 50_000;
pub const WAKE_TOKEN: &str = "bench-wake-token-0123456789";

pub struct World {
    pub uri: String,
    pub pool: PgPool,
    postgres: Child,
}

/// Whose the rows of one batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// A thousand owners, in turn.
    All,
    /// The first of them.
    First,
    /// The others, in turn.
    Others,
}

/// When the rows of one batch are due.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// Weeks ahead, a millisecond apart: they are in the way, and nothing else.
    Pending,
    /// All at once.
    At(DateTime<Utc>),
    /// One after another, this far apart.
    Every(DateTime<Utc>, TimeDelta),
}

impl Due {
    /// When the first is due, and how far apart they are, in microseconds.
    pub fn steps(self, now: DateTime<Utc>) -> (DateTime<Utc>, i64) {
        let (first, step) = match self {
            Self::Pending => (now + TimeDelta::days(30), TimeDelta::milliseconds(1)),
            Self::At(at) => (at, TimeDelta::zero()),
            Self::Every(at, step) => (at, step),
        };
        (first, step.num_microseconds().unwrap_or(0))
    }
}

impl World {
    pub async fn start() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("chronos-bench-{}", std::process::id()));
        let mut postgres = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/postgres.sh"))
            .arg("bench")
            .arg(&directory)
            .env("TESTBED_PARENT", std::process::id().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting Postgres")?;
        let mut said = String::new();
        BufReader::new(postgres.stdout.take().expect("piped")).read_line(&mut said)?;
        let uri = said.trim().strip_prefix("ready ").context("Postgres did not start; its words are above")?;
        let uri = format!("{uri}/postgres");
        let pool = pool(&uri).await?;
        let world = Self { uri, pool, postgres };
        world.store(1).await?.migrate().await?;
        Ok(world)
    }

    pub async fn store(&self, connections: u32) -> anyhow::Result<Store> {
        let database = Database {
            uri: self.uri.clone().into(),
            allow_unsafe: false,
            api_pool: 1,
            dispatch_pool: connections,
            hints: Some(Duration::from_secs(1)),
        };
        Ok(Store::connect(&database, store::DISPATCH, connections).await?)
    }

    /// Another database of the same server, empty.
    pub async fn another(&self, name: &str) -> anyhow::Result<(String, PgPool)> {
        self.pool.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        let uri = self.uri.strip_suffix("/postgres").expect("the server's own database").to_owned();
        let uri = format!("{uri}/{name}");
        let pool = pool(&uri).await?;
        Ok((uri, pool))
    }

    pub async fn show(&self, setting: &str) -> anyhow::Result<String> {
        Ok(sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&self.pool).await?)
    }

    pub async fn add(&self, rows: i64, due: Due, payload_bytes: i32) -> anyhow::Result<()> {
        self.add_of(Owners::All, rows, due, payload_bytes).await
    }

    /// Adds rows, with ids as the front doors give them: of the time at which they are made. The payload is random hex: as compressible as text is.
    pub async fn add_of(&self, of: Owners, rows: i64, due: Due, payload_bytes: i32) -> anyhow::Result<()> {
        let (first, step) = due.steps(self.now().await?);
        let (owners, from_owner) = match of {
            Owners::All => (OWNERS, 0),
            Owners::First => (1, 0),
            Owners::Others => (OWNERS - 1, 1),
        };
        let chunks = (0..rows).step_by(usize::try_from(CHUNK)?).map(|from| {
            sqlx::query(
                "INSERT INTO alarms (id, owner_did, user_id, label, correlation_id, kind, fire_at, scheduled_for, next_fire_at, wake_message, payload)
                 SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
                        format('did:matrix:user%s:%s', owner, substr(md5(owner::text), 1, 16)), format('user%s', owner), 'bench', format('bench-%s', n),
                        'once', due, due, due, 'Look after what you were told to look after.',
                        json_build_object('text', substr((SELECT string_agg(md5(piece::text), '') FROM generate_series(0, 511) AS piece), 1 + (n * 31 % 7000)::int, $2))
                 FROM generate_series($3::bigint, $4) AS n, LATERAL (SELECT $5 + n * $6::bigint * interval '1 microsecond' AS due, n % $1 + $7 AS owner) AS instant",
            )
            .bind(owners)
            .bind(payload_bytes)
            .bind(from)
            .bind((from + CHUNK).min(rows) - 1)
            .bind(first)
            .bind(step)
            .bind(from_owner)
            .execute(&self.pool)
        });
        let mut inserts = futures::stream::iter(chunks).buffer_unordered(2);
        while let Some(inserted) = inserts.next().await {
            inserted?;
        }
        Ok(())
    }

    /// What was settled is gone, and the next round finds the table as the first did: fresh statistics, nothing left to write.
    pub async fn settle_down(&self) -> anyhow::Result<()> {
        for statement in
            ["DELETE FROM alarms WHERE status <> 'active'", "TRUNCATE attempts", "VACUUM ANALYZE alarms", "CHECKPOINT"]
        {
            self.pool.execute(statement).await?;
        }
        Ok(())
    }

    pub async fn now(&self) -> anyhow::Result<DateTime<Utc>> {
        Ok(sqlx::query_scalar("SELECT now()").fetch_one(&self.pool).await?)
    }

    /// Whether anything is due.
    pub async fn is_due(&self) -> anyhow::Result<bool> {
        let due = "SELECT EXISTS (SELECT FROM alarms WHERE status = 'active' AND next_fire_at <= now())";
        Ok(sqlx::query_scalar(due).fetch_one(&self.pool).await?)
    }

    /// What is due, or would be within the day, is gone: a round that was not ended leaves it behind.
    pub async fn forget(&self) -> anyhow::Result<()> {
        self.pool.execute("DELETE FROM alarms WHERE next_fire_at < now() + interval '1 day'").await?;
        self.settle_down().await
    }

    /// Returns when nothing is due any more.
    pub async fn until_drained(&self) -> anyhow::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(120);
        let begun = Instant::now();
        while self.is_due().await? {
            ensure!(begun.elapsed() < PATIENCE, "some are still due after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Every one of them delivered once.
    pub async fn check_delivered(&self, rows: i64) -> anyhow::Result<()> {
        let (all, alarms): (i64, i64) =
            sqlx::query_as("SELECT count(*), count(DISTINCT alarm_id) FROM attempts WHERE outcome = 'delivered'")
                .fetch_one(&self.pool)
                .await?;
        ensure!((all, alarms) == (rows, rows), "{rows} alarms, but {all} deliveries of {alarms} alarms");
        Ok(())
    }

    /// Bytes of the write-ahead log so far.
    pub async fn wal(&self) -> anyhow::Result<f64> {
        Ok(sqlx::query_scalar("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::double precision")
            .fetch_one(&self.pool)
            .await?)
    }

    /// Transactions so far, those that anybody made.
    pub async fn transactions(&self) -> anyhow::Result<i64> {
        // A backend reports what it did at most once a second, or when it goes.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        Ok(sqlx::query_scalar("SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database")
            .fetch_one(&self.pool)
            .await?)
    }

    /// Processor time of Postgres and all its children, those that have ended included, in seconds.
    pub fn postgres_cpu(&self) -> f64 {
        let mut all = 0.0;
        let mut open = vec![self.postgres.id()];
        while let Some(pid) = open.pop() {
            let Ok(children) = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) else { continue };
            open.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            // The script around Postgres looks every now and then whether it is still wanted: that is not Postgres.
            if pid != self.postgres.id() && process::is_postgres(pid) {
                all += process::cpu_with_ended(pid).unwrap_or(0.0);
            }
        }
        all
    }

    /// `chronosd run` with nothing but the dispatcher, at its default settings.
    pub async fn dispatcher(&self, sink: &Sink) -> anyhow::Result<Daemon> {
        let url = sink.url();
        let settings =
            [("CHRONOS_ROLES", "dispatch"), ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN), ("CHRONOS_ROUTER_WAKE_URL", &url)];
        self.chronosd(&settings).await
    }

    /// `chronosd run` on this database, with these settings and the defaults of all others.
    pub async fn chronosd(&self, settings: &[(&str, &str)]) -> anyhow::Result<Daemon> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", env!("CARGO_BIN_EXE_chronosd"), "run"]);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CHRONOS_") || name.starts_with("OTEL_"))
        {
            command.env_remove(name);
        }
        let child = command
            .env_remove("KUBECONFIG")
            .env("CHRONOS_POSTGRES_URI", &self.uri)
            .env("CHRONOS_METRICS_PORT", "0")
            .env("CHRONOS_LOG", "warn,chronos=info")
            .envs(settings.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting chronosd")?;
        let mut process = Process { child, name: "chronosd".to_owned() };
        let mut lines = BufReader::new(process.child.stderr.take().expect("piped")).lines();
        let listening = tokio::task::spawn_blocking(move || {
            let listening = lines.by_ref().map_while(Result::ok).find(|line| line.contains("\"probes\""));
            // It goes on talking, and somebody has to listen.
            let worth_reading = |line: &String| !line.contains("\"INFO\"");
            std::thread::spawn(move || {
                lines.map_while(Result::ok).filter(worth_reading).for_each(|line| eprintln!("chronosd: {line}"));
            });
            listening
        });
        let said = tokio::time::timeout(TO_BEGIN, listening).await.context("chronosd did not start in time")??;
        let said = said.context("chronosd did not start")?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        let address = |name: &str| said[name].as_str().map(str::to_owned);
        Ok(Daemon { process, api: address("api"), probes: address("probes").context("it says where")? })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // TERM, so that it cleans up behind itself.
        drop(Command::new("kill").arg(self.postgres.id().to_string()).status());
        drop(self.postgres.wait());
    }
}

pub struct Daemon {
    pub process: Process,
    /// The facade's address, if it serves one.
    pub api: Option<String>,
    /// Where `/readyz` and `/metrics` are.
    probes: String,
}

/// Between two looks at a process that is to come to rest, and the share of a core under which it rests.
const LOOK: Duration = Duration::from_millis(250);
const AT_REST: f64 = 0.05;
/// So many looks in a row.
const LOOKS: u32 = 8;

impl Daemon {
    pub fn cpu(&self) -> anyhow::Result<f64> {
        self.process.cpu()
    }

    pub fn memory(&self) -> anyhow::Result<f64> {
        self.process.memory()
    }

    pub fn peak_memory(&self) -> anyhow::Result<f64> {
        self.process.peak_memory()
    }

    pub async fn until_ready(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while reqwest::get(format!("http://{}/readyz", self.probes)).await?.status() != 200 {
            ensure!(begun.elapsed() < TO_BEGIN, "chronosd is not ready after {} s", TO_BEGIN.as_secs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// A metric, over all its labels; one that was never touched is 0.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let page = reqwest::get(format!("http://{}/metrics", self.probes)).await?.text().await?;
        let lines =
            page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// Waits until it has nothing to do any more; since when.
    pub async fn until_idle(&self) -> anyhow::Result<Instant> {
        let (mut since, mut spent, mut looks) = (Instant::now(), self.cpu()?, 0);
        while looks < LOOKS {
            tokio::time::sleep(LOOK).await;
            let now = self.cpu()?;
            if now - spent > LOOK.as_secs_f64() * AT_REST {
                (since, looks) = (Instant::now(), 0);
            } else {
                looks += 1;
            }
            spent = now;
        }
        Ok(since)
    }
}

/// With what the dispatchers' pools do, so that the ideal is not handicapped.
async fn pool(uri: &str) -> anyhow::Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(8).after_connect(|db, _| {
        Box::pin(async move { db.execute("SET plan_cache_mode = force_custom_plan; SET jit = off").await.map(|_| ()) })
    });
    Ok(options.connect(uri).await?)
}
