//! graphile_worker at work: `migrate URI` and `work URI CONFIG SINK`, as ../../README.md has them.
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use graphile_worker::{IntoTaskHandlerResult, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions};
use serde::{Deserialize, Serialize};

/// What chronosd has: its speed is not to be the allocator's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Debug)]
struct Bench {
    worked: Arc<AtomicU64>,
    sink: Option<(reqwest::Client, String)>,
}

/// What the headers need; the body is the payload as it is.
#[derive(Deserialize, Serialize)]
struct Wake {
    delivery_id: String,
    scheduled_for: String,
}

impl TaskHandler for Wake {
    const IDENTIFIER: &'static str = "wake";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let bench = ctx.get_ext::<Bench>().expect("every worker has it");
        bench.worked.fetch_add(1, Relaxed);
        match &bench.sink {
            Some((client, url)) => self.post(client, url, ctx.payload()).await,
            None => Ok(()),
        }
    }
}

impl Wake {
    async fn post(&self, client: &reqwest::Client, url: &str, body: &serde_json::Value) -> Result<(), Box<dyn Error>> {
        let answer = client
            .post(url)
            .header("content-type", "application/json")
            .header("authorization", "Bearer bench-wake-token-0123456789")
            .header("idempotency-key", &self.delivery_id)
            .header("ce-id", &self.delivery_id)
            .header("ce-time", &self.scheduled_for)
            .body(serde_json::to_vec(body)?)
            .send()
            .await?
            .error_for_status()?;
        answer.bytes().await?; // to its end, or the connection cannot be used again
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let options = |uri| WorkerOptions::default().database_url(uri).define_job::<Wake>();
    let (options, sink) = match args[..] {
        ["migrate", uri] => {
            options(uri).init().await?; // the tables, and the task's name in them
            return Ok(());
        }
        ["work", uri, "default", sink] => (options(uri).concurrency(5), sink),
        ["work", uri, "fast", sink] => (
            options(uri)
                .concurrency(64)
                .poll_interval(Duration::from_millis(5))
                .complete_job_batch_delay(Duration::from_millis(5))
                .local_queue(LocalQueueConfig::default().with_size(500).with_queue_count(2)),
            sink,
        ),
        _ => return Err("usage: migrate URI | work URI fast|default SINK".into()),
    };
    let client = reqwest::Client::builder().pool_max_idle_per_host(1024).build()?;
    let bench = Bench { worked: Arc::default(), sink: (sink != "-").then(|| (client, sink.to_owned())) };

    let worker = options.add_extension(bench.clone()).init().await?;
    println!("ready"); // not by a hook: with any hook set, every job pays for all of them
    worker.run().await?; // SIGTERM ends it
    println!("worked {}", bench.worked.load(Relaxed));
    Ok(())
}
