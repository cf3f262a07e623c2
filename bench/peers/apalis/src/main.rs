//! Apalis at work: `migrate URI` and `work URI CONFIG SINK`, as ../../README.md has them.
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, interval};

/// What chronosd has: its speed is not to be the allocator's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone)]
struct Bench {
    worked: Arc<AtomicU64>,
    sink: Option<(reqwest::Client, String)>,
}

async fn wake(body: Value, bench: Data<Bench>) -> Result<(), BoxDynError> {
    bench.worked.fetch_add(1, Relaxed);
    let Some((client, url)) = &bench.sink else { return Ok(()) };
    let text = |name: &str| body[name].as_str().unwrap_or_default();
    let answer = client
        .post(url)
        .header("content-type", "application/json")
        .header("authorization", "Bearer bench-wake-token-0123456789")
        .header("idempotency-key", text("delivery_id"))
        .header("ce-id", text("delivery_id"))
        .header("ce-time", text("scheduled_for"))
        .body(serde_json::to_vec(&body)?)
        .send()
        .await?
        .error_for_status()?;
    answer.bytes().await?; // to its end, or the connection cannot be used again
    Ok(())
}

/// Apalis's own interval wakes nobody if it comes round again before a fetch is back that finds nothing: the worker then
/// sleeps until its next heartbeat, for up to 30 s. This one asks to be woken whenever it is asked.
struct Every(Interval);

impl PollStrategy for Every {
    fn poll_drive(&mut self, cx: &mut Context<'_>, _: &PollSnapshot) -> Poll<Option<()>> {
        while self.0.poll_tick(cx).is_ready() {}
        Poll::Pending
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (pool, config, sink) = match args[..] {
        ["migrate", uri] => return Ok(PostgresStorage::setup(&PgPool::connect(uri).await?).await?),
        ["work", uri, config @ ("fast" | "default"), sink] => (PgPool::connect(uri).await?, config, sink),
        _ => return Err("usage: migrate URI | work URI fast|default SINK".into()),
    };
    let client = reqwest::Client::builder().pool_max_idle_per_host(1024).build()?;
    let bench = Bench { worked: Arc::default(), sink: (sink != "-").then(|| (client, sink.to_owned())) };

    let queue = Config::default().queue("wakes");
    let storage = move |config: &Config| PostgresStorage::<Value>::new(&pool).with_config(config.clone());
    let data = bench.clone();
    let monitor = if config == "default" {
        Monitor::new().register(move |_| {
            WorkerBuilder::new(format!("default-{}", std::process::id()))
                .backend(storage(&queue))
                .data(data.clone())
                .build(wake)
        })
    } else {
        // Not locked once more when its function is called: the fetch has done that.
        let queue = queue.batch_size(500).lock_tasks(false);
        Monitor::new().register_n(4, move |index, _| {
            WorkerBuilder::new(format!("fast-{}-{index}", std::process::id()))
                .backend(storage(&queue).poll_with_strategy(Every(interval(Duration::from_millis(10)))))
                .concurrency(64)
                .data(data.clone())
                .build(wake)
        })
    };
    let mut terminated = signal(SignalKind::terminate())?;
    println!("ready");
    let run = monitor.run_with_signal(async move {
        terminated.recv().await;
        Ok(())
    });
    run.await?;
    println!("worked {}", bench.worked.load(Relaxed));
    Ok(())
}
