//! Who takes the wakes: a small HTTP server in a process of its own, which remembers how late each came.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use chrono::{DateTime, Utc};
use chronos::clock::{Clock, SystemClock};
use tokio::time::Instant;

/// What makes this program a sink; behind it, how many milliseconds it takes for each wake.
pub const WORD: &str = "sink";

/// Every wake since the last time somebody asked.
type Seen = Arc<Mutex<Vec<Arrival>>>;

/// Microseconds behind the nominal instant, that instant in microseconds, and the id.
pub type Arrival = (i64, i64, String);

/// Serves on one thread until killed, with whoever started it.
pub fn serve(takes: Option<&String>) -> anyhow::Result<()> {
    let takes = Duration::from_millis(takes.map_or(Ok(0), |text| text.parse())?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let app = Router::new()
            .route("/count", get(|State(seen): State<Seen>| async move { Json(seen.lock().expect("kept").len()) }))
            .route(
                "/take",
                post(|State(seen): State<Seen>| async move { Json(std::mem::take(&mut *seen.lock().expect("kept"))) }),
            )
            .route("/wake", post(move |State(seen): State<Seen>, headers, body| wake(seen, takes, headers, body)))
            .with_state(Seen::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        Ok(axum::serve(listener, app).await?)
    })
}

async fn wake(seen: Seen, takes: Duration, headers: HeaderMap, _body: Bytes) -> StatusCode {
    let now = SystemClock.now();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let due: Option<DateTime<Utc>> = text("ce-time").and_then(|text| text.parse().ok());
    let (Some(due), Some(id)) = (due, text("ce-id")) else { return StatusCode::BAD_REQUEST };
    let late = (now - due).num_microseconds().unwrap_or(i64::MAX);
    seen.lock().expect("kept").push((late, due.timestamp_micros(), id.to_owned()));
    if !takes.is_zero() {
        tokio::time::sleep(takes).await;
    }
    StatusCode::NO_CONTENT
}

/// A running sink.
pub struct Sink {
    child: Child,
    base: String,
    client: reqwest::Client,
}

impl Sink {
    pub fn start() -> anyhow::Result<Self> {
        Self::that_takes(Duration::ZERO)
    }

    /// One that answers each wake only after so long.
    pub fn that_takes(long: Duration) -> anyhow::Result<Self> {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--"])
            .arg(std::env::current_exe()?)
            .arg(WORD)
            .arg(long.as_millis().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the sink")?;
        let mut base = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut base)?;
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
        Ok(Self { child, base: base.trim().to_owned(), client })
    }

    pub fn url(&self) -> String {
        format!("{}/wake", self.base)
    }

    /// How many wakes have come.
    pub async fn count(&self) -> anyhow::Result<usize> {
        let text = self.client.get(format!("{}/count", self.base)).send().await?.text().await?;
        Ok(text.parse()?)
    }

    /// Returns as soon as so many wakes have come.
    pub async fn wait_for(&self, wakes: usize, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.count().await? < wakes {
            let seconds = patience.as_secs();
            ensure!(begun.elapsed() < patience, "{} of {wakes} wakes came in {seconds} s", self.count().await?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// What came since the last time.
    pub async fn take(&self) -> anyhow::Result<Vec<Arrival>> {
        let text = self.client.post(format!("{}/take", self.base)).send().await?.text().await?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
