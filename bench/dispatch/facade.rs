//! What the HTTP facade costs beside the bare INSERT that it ends in, and how long a read takes while others create.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use chronos::{
    clock,
    domain::access::{Did, Keyring},
};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sqlx::{Executor, PgPool, postgres::PgPoolOptions};
use tokio::time::Instant;

use crate::{
    report::{Report, all, grouped, median, percentile},
    world::{Daemon, Due, World},
};

const TOKEN: &str = "bench-transport-token-0123456789";
const SECRET: &str = "bench-agent-auth-secret-01234567";
/// Connections of the facade at its default settings, and of the bare INSERT.
const POOL: u32 = 10;
/// Callers at once: enough that no connection of the pool has to wait for one.
const CALLERS: i64 = 32;
const CREATED: i64 = 10_000;
const ROUNDS: usize = 3;
const READS: usize = 500;
const PENDING: i64 = 100_000;

/// `performance.md` 4 point 8.
pub async fn facade(world: &World, report: &mut Report) -> anyhow::Result<()> {
    report.title("facade: creates over HTTP beside the bare INSERT on a pool of the same size; reads meanwhile");
    world.add(PENDING, Due::Pending, 1024).await?;
    let daemon = world
        .chronosd(&[
            ("CHRONOS_ROLES", "api"),
            ("CHRONOS_PORT", "0"),
            ("CHRONOS_TOKEN", TOKEN),
            ("CHRONOS_AGENT_AUTH_SECRET", SECRET),
            ("CHRONOS_ENROLMENT", "open"),
            ("CHRONOS_DEV", "true"),
            // What one owner may ask for is not what is measured.
            ("CHRONOS_OWNER_RATE", "0"),
        ])
        .await?;
    let callers = Callers::new(&daemon)?;
    let bare = PgPoolOptions::new().max_connections(POOL).test_before_acquire(false).connect(&world.uri).await?;
    insert_all(&bare, CALLERS).await?;
    callers.create_all(CALLERS).await?;

    let (mut inserts, mut creates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        world.pool.execute("CHECKPOINT").await?;
        inserts.push(insert_all(&bare, CREATED).await?);
        world.pool.execute("CHECKPOINT").await?;
        creates.push(callers.create_all(CREATED).await?);
    }
    report.line("bare INSERT, rows/s", &all(&inserts));
    report.line("POST /v1/alarms, creates/s", &all(&creates));
    report.at_least("8 creates over HTTP / bare INSERT", median(&creates) / median(&inserts), 0.6);

    let idle = callers.reads(READS).await?;
    let (under_load, meanwhile) = callers.reads_while_creating().await?;
    report.line(
        "GET /v1/alarms/{id}, idle: p50, p99 in us",
        &format!("{}, {}", grouped(percentile(&idle, 50.0)), grouped(percentile(&idle, 99.0))),
    );
    report.line(
        "the same while others create: p50, p99 in us",
        &format!(
            "{}, {} ({} created meanwhile)",
            grouped(percentile(&under_load, 50.0)),
            grouped(percentile(&under_load, 99.0)),
            grouped(precise(meanwhile))
        ),
    );
    report.at_most("8 p99 of a read under load / idle", percentile(&under_load, 99.0) / percentile(&idle, 99.0), 5.0);
    let stored: i64 =
        sqlx::query_scalar("SELECT count(*) FROM alarms WHERE label = 'over HTTP'").fetch_one(&bare).await?;
    let answered = CALLERS + CREATED * i64::try_from(ROUNDS)? + meanwhile + 1;
    ensure!(stored == answered, "{answered} creates were answered, and {stored} are there");
    Ok(())
}

/// One row after another by each of them, `count` in all; rows per second.
async fn insert_all(pool: &PgPool, count: i64) -> anyhow::Result<f64> {
    let left = AtomicI64::new(count);
    let started = Instant::now();
    let payload = payload().to_string();
    try_join_all((0..CALLERS).map(async |number| {
        while left.fetch_sub(1, Ordering::Relaxed) > 0 {
            sqlx::query(
                "INSERT INTO alarms (owner_did, user_id, label, correlation_id, kind, fire_at, scheduled_for, next_fire_at, wake_message, payload)
                 VALUES ($1, $2, 'bare', 'bench', 'once', now() + interval '30 days', now() + interval '30 days', now() + interval '30 days', $3, $4::json)",
            )
            .bind(did(number).as_str())
            .bind(did(number).user_id())
            .bind(MESSAGE)
            .bind(&payload)
            .execute(pool)
            .await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(precise(count) / started.elapsed().as_secs_f64())
}

const MESSAGE: &str = "Look after what you were told to look after.";

fn payload() -> Value {
    json!({ "text": "0123456789abcdef".repeat(64) })
}

fn did(number: i64) -> Did {
    format!("did:matrix:caller{number}:{number:016x}").parse().expect("a DID")
}

#[expect(clippy::cast_precision_loss, reason = "a few million at most")]
const fn precise(count: i64) -> f64 {
    count as f64
}

/// Agents that have signed in.
struct Callers {
    client: reqwest::Client,
    base: String,
    tokens: Vec<String>,
    body: String,
}

impl Callers {
    fn new(daemon: &Daemon) -> anyhow::Result<Self> {
        let keyring = Keyring::new([SECRET]).context("a secret")?;
        let now = clock::system().now();
        let tokens = (0..CALLERS).map(|number| keyring.sign(&did(number), now)).collect();
        let body = json!({ "kind": "once", "delay_seconds": 2_592_000, "label": "over HTTP", "wake_message": MESSAGE, "payload": payload() });
        let base = format!("http://{}", daemon.api.as_ref().context("role api runs")?);
        Ok(Self { client: reqwest::Client::builder().no_proxy().build()?, base, tokens, body: body.to_string() })
    }

    fn request(&self, method: reqwest::Method, path: &str, caller: usize) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        request.header("authorization", format!("Bearer {TOKEN}")).header("x-chronos-agent", &self.tokens[caller])
    }

    /// The id of a new alarm.
    async fn create(&self, caller: usize) -> anyhow::Result<String> {
        let request = self.request(reqwest::Method::POST, "/v1/alarms", caller);
        let answer = request.header("content-type", "application/json").body(self.body.clone()).send().await?;
        let (status, body) = (answer.status(), answer.bytes().await?);
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
        let body: Value = serde_json::from_slice(&body)?;
        Ok(body["data"]["id"].as_str().context("an id")?.to_owned())
    }

    /// `count` in all; creates per second.
    async fn create_all(&self, count: i64) -> anyhow::Result<f64> {
        let left = AtomicI64::new(count);
        let started = Instant::now();
        try_join_all((0..self.tokens.len()).map(async |caller| {
            while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                self.create(caller).await?;
            }
            anyhow::Ok(())
        }))
        .await?;
        Ok(precise(count) / started.elapsed().as_secs_f64())
    }

    /// How long each took, in microseconds, sorted.
    async fn reads(&self, count: usize) -> anyhow::Result<Vec<i64>> {
        let id = self.create(0).await?;
        self.read(&id, count).await
    }

    async fn read(&self, id: &str, count: usize) -> anyhow::Result<Vec<i64>> {
        let mut took = Vec::new();
        for _ in 0..count {
            let asked = Instant::now();
            let answer = self.request(reqwest::Method::GET, &format!("/v1/alarms/{id}"), 0).send().await?;
            ensure!(answer.status() == 200, "a read is answered");
            answer.bytes().await?;
            took.push(i64::try_from(asked.elapsed().as_micros())?);
            // A reader, not a load.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        took.sort_unstable();
        Ok(took)
    }

    /// The reads, and how many were created meanwhile. As many callers as fill the pool.
    async fn reads_while_creating(&self) -> anyhow::Result<(Vec<i64>, i64)> {
        let done = Arc::new(AtomicBool::new(false));
        let created = AtomicI64::new(0);
        let id = self.create(0).await?;
        created.fetch_add(1, Ordering::Relaxed);
        let creating = try_join_all((1..=usize::try_from(POOL)?).map(async |caller| {
            while !done.load(Ordering::Relaxed) {
                self.create(caller).await?;
                created.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }));
        let reading = async {
            let took = self.read(&id, READS).await;
            done.store(true, Ordering::Relaxed);
            took
        };
        let (_, took) = tokio::try_join!(creating, reading)?;
        Ok((took, created.load(Ordering::Relaxed)))
    }
}
