//! One Postgres server with a disk of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::process::{Child, Command};

use super::super::{
    network,
    shell::{self, children, log_file, run, sh, signal, state, wait_for},
};

/// Postgres refuses to run as root; Debian's package brings this user along.
const USER: &str = "postgres";
pub const ROLE: &str = "chronos";
/// Much more than a run writes; small enough to be filled in a moment.
const DISK: &str = "1g";
const READY: Duration = Duration::from_secs(60);
/// Of one statement of the rig's own, and of a login.
const STATEMENT: Duration = Duration::from_secs(20);

/// Nothing here may lose what was committed. The log is kept short, so that a copy of a server and a recovery are quick.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "max_connections=200",
    "shared_buffers=64MB",
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "wal_level=replica",
    "max_wal_senders=5",
    "hot_standby=on",
    "max_wal_size=128MB",
    "min_wal_size=16MB",
    "wal_keep_size=64MB",
    "wal_retrieve_retry_interval=200ms",
    "wal_receiver_status_interval=1s",
    "jit=off",
    // With its data, not in /dev/shm: there it would outlive a server that is killed and thrown away.
    "dynamic_shared_memory_type=mmap",
    "log_line_prefix=%m [%p] ",
];

pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    disk: PathBuf,
    log: PathBuf,
    binaries: PathBuf,
    running: Option<Child>,
}

impl Server {
    /// An empty disk.
    pub async fn new(name: &'static str, logs: &Path, scratch: &Path, first_port: u16) -> anyhow::Result<Self> {
        let disk = scratch.join(name);
        std::fs::create_dir_all(&disk)?;
        let source = format!("{}{}", network::MOUNT, std::process::id());
        let place = disk.display();
        sh(&format!("mount -t tmpfs -o size={DISK},mode=755 {source} {place}")).await?;
        sh(&format!("chown {USER}: {place}")).await?;
        let host = Ipv4Addr::LOCALHOST.into();
        let address = SocketAddr::new(host, shell::free_port(host, first_port)?);
        let log = logs.join(format!("postgres-{name}.log"));
        Ok(Self { name, address, disk, log, binaries: binaries()?, running: None })
    }

    fn data(&self) -> PathBuf {
        self.disk.join("data")
    }

    pub fn ballast(&self) -> PathBuf {
        self.disk.join("ballast")
    }

    /// An empty database cluster.
    pub async fn initialise(&self) -> anyhow::Result<()> {
        let words = ["-U", ROLE, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--wal-segsize=4"];
        self.tool("initdb", &words).await
    }

    /// A copy of the server behind `source`, which will follow it.
    pub async fn copy_of(&self, source: SocketAddr) -> anyhow::Result<()> {
        if self.data().exists() {
            std::fs::remove_dir_all(self.data())?;
        }
        let connection = format!("host={} port={} user={ROLE} application_name=standby", source.ip(), source.port());
        self.tool("pg_basebackup", &["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &connection]).await
    }

    /// One of Postgres' own tools, on its data.
    async fn tool(&self, name: &str, words: &[&str]) -> anyhow::Result<()> {
        let (tool, data) = (self.binaries.join(name).display().to_string(), self.data().display().to_string());
        let all = [as_user(), &[&tool, "-D", &data], words].concat();
        run("setpriv", all).await?;
        Ok(())
    }

    /// Until it answers.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "Postgres {} runs already", self.name);
        let (out, err) = (log_file(&self.log)?, log_file(&self.log)?);
        let mut command = Command::new("setpriv");
        command.args(as_user()).arg(self.binaries.join("postgres")).arg("-D").arg(self.data());
        command.args(["-p", &self.address.port().to_string()]);
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        command.stdin(Stdio::null()).stdout(out).stderr(err).kill_on_drop(true).current_dir(&self.disk);
        self.running = Some(command.spawn().context("Postgres starts")?);
        self.answers().await
    }

    pub async fn answers(&self) -> anyhow::Result<()> {
        let answers = || async { self.connect("postgres").await.is_ok() };
        wait_for(&format!("Postgres {} answers", self.name), READY, answers).await
    }

    pub async fn connect(&self, database: &str) -> anyhow::Result<PgConnection> {
        let options = PgConnectOptions::new_without_pgpass()
            .host(&self.address.ip().to_string())
            .port(self.address.port())
            .username(ROLE)
            .database(database)
            .application_name("gauntlet")
            .options([("statement_timeout", "20s")]);
        Ok(tokio::time::timeout(STATEMENT, PgConnection::connect_with(&options)).await??)
    }

    /// One statement, outside of any transaction.
    pub async fn tell(&self, statement: &'static str) -> anyhow::Result<()> {
        let mut connection = self.connect("postgres").await?;
        let told = tokio::time::timeout(STATEMENT, sqlx::raw_sql(statement).execute(&mut connection)).await?;
        told.with_context(|| format!("{statement} at Postgres {}", self.name))?;
        Ok(())
    }

    /// Whether it says so.
    pub async fn says(&self, question: &'static str) -> bool {
        let Ok(mut connection) = self.connect("postgres").await else { return false };
        sqlx::query_scalar::<_, bool>(question).fetch_one(&mut connection).await.unwrap_or(false)
    }

    /// A place in its log, as a number.
    pub async fn place(&self, question: &'static str) -> anyhow::Result<i64> {
        let mut connection = self.connect("postgres").await?;
        Ok(sqlx::query_scalar::<_, i64>(question).fetch_one(&mut connection).await?)
    }

    fn pid(&self) -> Option<u32> {
        self.running.as_ref().and_then(Child::id)
    }

    /// The server and all that it has started.
    fn signal_all(&self, what: Signal) {
        let Some(postmaster) = self.pid() else { return };
        // It makes no more of them while we look.
        signal(postmaster, Signal::STOP);
        for child in children(postmaster) {
            signal(child, what);
        }
        signal(postmaster, what);
    }

    /// `kill -9`, every process of it at once.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal_all(Signal::KILL);
        self.ended().await?;
        Ok(())
    }

    /// As an administrator stops it.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.pid() {
            signal(pid, Signal::INT);
        }
        self.ended().await?;
        Ok(())
    }

    pub async fn freeze(&self) -> anyhow::Result<()> {
        self.signal_all(Signal::STOP);
        let pid = self.pid().context("it runs")?;
        wait_for("Postgres is stopped", STATEMENT, || async { state(pid) == Some('T') }).await
    }

    pub fn thaw(&self) {
        let Some(postmaster) = self.pid() else { return };
        for child in children(postmaster) {
            signal(child, Signal::CONT);
        }
        signal(postmaster, Signal::CONT);
    }

    async fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(mut child) = self.running.take() else { return Ok(None) };
        let ended = tokio::time::timeout(READY, child.wait()).await;
        Ok(Some(ended.with_context(|| format!("Postgres {} does not end", self.name))??))
    }

    /// Whether it has given up by itself; then it can be started again.
    pub fn has_ended(&mut self) -> bool {
        let ended = self.running.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        if ended {
            self.running = None;
        }
        ended
    }

    /// What is left on its disk is taken.
    pub async fn fill_disk(&self) -> anyhow::Result<()> {
        let place = self.disk.display().to_string();
        let free = run("df", ["--output=avail", "-k", &place]).await?;
        let free: u64 = free.lines().last().and_then(|line| line.trim().parse().ok()).context("df tells")?;
        let ballast = self.ballast();
        // Somebody may be faster with the last of it, by a segment of the log or two. What is left then is filled with log.
        for left in [0, 8 << 10, 32 << 10] {
            let size = format!("{}K", free.saturating_sub(left));
            if run("fallocate", ["-l".as_ref(), size.as_ref(), ballast.as_os_str()]).await.is_ok() {
                return Ok(());
            }
        }
        bail!("no ballast can be made of {free} kB");
    }

    pub fn clear_disk(&self) {
        std::fs::remove_file(self.ballast()).ok();
    }
}

/// The arguments of setpriv. The kernel forgets a parent-death signal when the user changes: it is asked for with it.
fn as_user() -> &'static [&'static str] {
    &["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "KILL", "--"]
}

/// Of the newest version that is installed.
fn binaries() -> anyhow::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("no Postgres on this machine")?;
    let versions = versions.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest = versions.max().context("no Postgres on this machine")?;
    Ok(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}
