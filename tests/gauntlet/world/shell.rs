//! Other programs, and signals to them.

use std::{ffi::OsStr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use rustix::process::{Pid, Signal};
use tokio::time::Instant;

/// Of one command that sets something up. Seconds on a busy machine, never minutes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine's time of day, by which every line of the log is written.
#[expect(
    clippy::disallowed_methods,
    reason = "the log is written by the machine's clock, which is Postgres' clock, too"
)]
pub fn now() -> DateTime<Utc> {
    Utc::now()
}

/// `ip -n NS link …`: the words, without quotes. An error holds what it said.
pub async fn sh(words: &str) -> anyhow::Result<String> {
    let mut all = words.split_whitespace();
    let program = all.next().context("a command has a name")?;
    run(program, all).await
}

pub async fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> anyhow::Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output.with_context(|| format!("{command:?} does not end"))?;
    let output = output.with_context(|| format!("{command:?} does not start"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same where nobody can wait, such as in a drop. Failures are of no interest there.
pub fn sh_now(words: &str) -> String {
    let mut all = words.split_whitespace();
    let Some(program) = all.next() else { return String::new() };
    let output = std::process::Command::new(program).args(all).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// To a process that may have ended: that is no error.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        rustix::process::kill_process(pid, signal).ok();
    }
}

/// What the kernel says it is doing: R, S, D, T (stopped), Z. `None`: it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind its name, which may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Those that this process started and that are still there.
pub fn children(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_of = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parent_of == Some(parent)
    };
    pids.filter(is_child).collect()
}

/// Until `look` finds it, or time is up.
pub async fn wait_for<F: Future<Output = bool>>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    loop {
        if tokio::time::timeout_at(deadline, look()).await.unwrap_or(false) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "waited {within:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A port of this address on which nobody listens, below those that the kernel gives to outgoing connections.
pub fn free_port(address: std::net::IpAddr, first: u16) -> anyhow::Result<u16> {
    let mut ports = (first..32_000).chain(12_000..first);
    ports.find(|port| std::net::TcpListener::bind((address, *port)).is_ok()).context("no port is free")
}

/// A file that grows by what a process says.
pub fn log_file(path: &Path) -> anyhow::Result<std::fs::File> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}
