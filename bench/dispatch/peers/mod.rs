//! The peers: other schedulers on Postgres, each a folder of `bench/peers` with a script that knows how to install, fill and run it (its
//! README has the words).

mod compare;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicI64, Ordering},
};

use anyhow::{Context, ensure};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt};
use sqlx::{AssertSqlSafe, Executor, PgPool};
use tokio::{sync::mpsc, time::timeout};

pub use compare::{compare, screen};

use crate::{
    process::{Process, TO_BEGIN, TO_END},
    report::Report,
    sink::Sink,
    world::{CHUNK, Due, World},
};

/// The folder of what is no peer.
pub const CRON: &str = "pg-cron";

/// How a peer is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// As its documentation advises where speed counts.
    Fast,
    /// As it is, with nothing set that need not be.
    Default,
}

impl Config {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
        }
    }
}

/// A folder of `bench/peers`.
pub struct Peer {
    pub name: String,
    folder: PathBuf,
}

impl Peer {
    /// All there are, in the order of their names.
    pub fn all() -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(root())? {
            let entry = entry?;
            if entry.path().join("peer").is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    pub fn named(name: &str) -> anyhow::Result<Self> {
        let all = Self::all()?;
        ensure!(all.iter().any(|known| known == name), "there is no peer {name}: choose among {}", all.join(", "));
        Ok(Self { name: name.to_owned(), folder: root().join(name) })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(self.folder.join("peer")).args(words);
        command
    }

    /// What it says, when it has ended well.
    async fn call(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command(words);
        let output = tokio::task::spawn_blocking(move || command.stderr(Stdio::inherit()).output()).await??;
        ensure!(output.status.success(), "{} {}: {}", self.name, words.first().unwrap_or(&""), output.status);
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    pub async fn install(&self) -> anyhow::Result<()> {
        self.call(&["install"]).await.map(drop)
    }

    pub async fn version(&self) -> anyhow::Result<String> {
        self.call(&["version"]).await
    }

    pub async fn says_of(&self, config: Config) -> anyhow::Result<String> {
        self.call(&["config", config.as_str()]).await
    }

    fn sql(&self, file: &str) -> anyhow::Result<String> {
        let path = self.folder.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/peers")
}

/// What `pg_cron` can be measured by, with a server of its own: it has no queue, and is no peer. As its script prints it.
pub async fn cron(report: &mut Report) -> anyhow::Result<()> {
    report.scenario(CRON);
    report.title("pg_cron: commands that begin with the minute, and its launcher at rest");
    let mut command = Command::new(root().join(CRON).join("measure"));
    let output = tokio::task::spawn_blocking(move || command.stderr(Stdio::inherit()).output()).await??;
    ensure!(output.status.success(), "{CRON}: {}", output.status);
    for line in String::from_utf8(output.stdout)?.lines() {
        let (what, figures) = line.split_once(": ").unwrap_or((line, ""));
        report.line(what, figures);
    }
    Ok(())
}

/// The database of a peer.
fn database(name: &str) -> String {
    format!("peer_{}", name.replace('-', "_"))
}

/// Takes a peer's database away, if there is one.
async fn remove(world: &World, name: &str) -> anyhow::Result<()> {
    let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database(name));
    world.pool.execute(AssertSqlSafe(drop)).await?;
    Ok(())
}

/// A peer on a database of its own.
pub struct Rival {
    pub peer: Peer,
    pub uri: String,
    pub pool: PgPool,
    left: String,
    done: String,
    clear: String,
    forget: String,
    /// What adding a row took the last time, in microseconds.
    row_takes: AtomicI64,
}

impl Rival {
    pub async fn new(world: &World, peer: Peer) -> anyhow::Result<Self> {
        let (uri, pool) = world.another(&database(&peer.name)).await?;
        peer.call(&["migrate", &uri]).await?;
        let (left, done) = (peer.sql("left.sql")?, peer.sql("done.sql")?);
        let (clear, forget) = (peer.sql("clear.sql")?, peer.sql("forget.sql")?);
        Ok(Self { peer, uri, pool, left, done, clear, forget, row_takes: AtomicI64::new(200) })
    }

    pub async fn add(
        &self,
        rows: i64,
        (first, step): (DateTime<Utc>, i64),
        payload: i32,
        due: Due,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        let first = first.to_rfc3339_opts(SecondsFormat::Micros, true);
        let pending = if matches!(due, Due::Pending) { "t" } else { "f" };
        let chunks =
            (0..rows).step_by(usize::try_from(CHUNK)?).map(|from| {
                let (from, to) = (from.to_string(), ((from + CHUNK).min(rows) - 1).to_string());
                let (first, step, payload) = (first.clone(), step.to_string(), payload.to_string());
                async move {
                    self.peer.call(&["fill", &self.uri, &from, &to, &first, &step, &payload, pending]).await.map(drop)
                }
            });
        futures::stream::iter(chunks).buffer_unordered(2).try_collect::<Vec<()>>().await?;
        let micros = i64::try_from(begun.elapsed().as_micros())? / rows.max(1);
        if rows >= CHUNK {
            self.row_takes.store(micros, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes its database away.
    pub async fn remove(self, world: &World) -> anyhow::Result<()> {
        self.pool.close().await;
        remove(world, &self.peer.name).await
    }

    /// How long it takes to add so many, with something to spare.
    pub fn takes_to_add(&self, rows: i64) -> TimeDelta {
        TimeDelta::seconds(2) + TimeDelta::microseconds(self.row_takes.load(Ordering::Relaxed) * rows * 5 / 4)
    }

    pub async fn is_due(&self) -> anyhow::Result<bool> {
        Ok(sqlx::query_scalar(AssertSqlSafe(self.left.clone())).fetch_one(&self.pool).await?)
    }

    pub async fn left(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar(AssertSqlSafe(self.done.clone())).fetch_one(&self.pool).await?)
    }

    pub async fn clear(&self) -> anyhow::Result<()> {
        self.execute(&self.clear).await
    }

    pub async fn forget(&self) -> anyhow::Result<()> {
        self.execute(&self.forget).await
    }

    /// Each statement by itself: VACUUM will have no others beside it.
    async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        let text: String =
            statements.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
        for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            self.pool.execute(AssertSqlSafe(statement.to_owned())).await?;
        }
        Ok(())
    }

    /// Starts it; it takes jobs when this returns.
    pub async fn work(&self, config: Config, sink: Option<&Sink>) -> anyhow::Result<Working> {
        let sink = sink.map_or("-".to_owned(), Sink::url);
        let mut command = self.peer.command(&["work", &self.uri, config.as_str(), &sink]);
        let name = self.peer.name.clone();
        // From here: it is to end with the thread that started it, and those that may block come and go.
        let mut process = Process { child: command.stdout(Stdio::piped()).spawn()?, name };
        let stdout = BufReader::new(process.child.stdout.take().expect("piped"));
        let (said, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        let mut working = Working { process, lines };
        let ready = timeout(TO_BEGIN, working.says("ready")).await;
        let name = &self.peer.name;
        ready
            .with_context(|| format!("{name} was not ready in {} s", TO_BEGIN.as_secs()))?
            .with_context(|| format!("{name} ended before it was ready"))?;
        Ok(working)
    }
}

/// A peer at work.
pub struct Working {
    pub process: Process,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Working {
    /// What is behind this word, as soon as it has said it; `None` if it has ended without.
    async fn says(&mut self, word: &str) -> Option<String> {
        while let Some(line) = self.lines.recv().await {
            if let Some(rest) = line.strip_prefix(word) {
                return Some(rest.trim().to_owned());
            }
        }
        None
    }

    /// How many jobs it says it has worked on; nothing if it has to be killed.
    pub async fn stop(mut self) -> Option<i64> {
        self.process.terminate();
        match timeout(TO_END, self.says("worked ")).await {
            Ok(worked) => worked?.parse().ok(),
            Err(_) => {
                self.process.kill();
                None
            }
        }
    }
}
