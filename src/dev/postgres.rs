//! A Postgres server of our own, from the binaries on this machine. It ends with us, also when we are killed: `setpriv`
//! asks the kernel to stop it when its parent dies.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// Postgres refuses to run as root; Debian's package brings this user along.
const UNPRIVILEGED: &str = "postgres";
const ROLE: &str = "chronos";
/// A start after a crash replays the log; more than this and somebody should look.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// A fast shutdown writes one checkpoint.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Server {
    child: Child,
    binaries: PathBuf,
    data: PathBuf,
    port: u16,
    password: String,
}

impl Server {
    pub async fn start(data_dir: &Path, password: &str) -> anyhow::Result<Self> {
        let binaries = find_binaries()?;
        let data = data_dir.join("postgres");
        if !data.join("PG_VERSION").exists() {
            initialise(&binaries, data_dir, &data, password).await?;
        }
        wait_for_predecessor(&data).await?;
        let log_path = data_dir.join("postgres.log");
        let log = fs::File::create(&log_path).context("creating Postgres' log")?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let child = unprivileged(&binaries.join("postgres"))
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", &format!("port={port}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting Postgres (setpriv of util-linux is needed for it)")?;
        let mut server = Self { child, binaries, data, port, password: password.to_owned() };
        server.await_ready(&log_path).await?;
        server.create_database().await?;
        Ok(server)
    }

    pub fn uri(&self) -> String {
        format!("postgres://{ROLE}:{}@127.0.0.1:{}/{ROLE}", self.password, self.port)
    }

    async fn await_ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let ready = Command::new(self.binaries.join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status()
                .await?;
            if ready.success() {
                return Ok(());
            }
            let said = || fs::read_to_string(log).unwrap_or_default();
            if let Some(status) = self.child.try_wait()? {
                bail!("Postgres ended with {status}:\n{}", said());
            }
            if started.elapsed() > START_PATIENCE {
                bail!("Postgres did not get ready within {} s:\n{}", START_PATIENCE.as_secs(), said());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn create_database(&self) -> anyhow::Result<()> {
        let created = Command::new(self.binaries.join("createdb"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", ROLE, ROLE])
            .env("PGPASSWORD", &self.password)
            .output()
            .await?;
        let said = String::from_utf8_lossy(&created.stderr);
        if created.status.success() || said.contains("already exists") {
            return Ok(());
        }
        bail!("creating the database: {said}")
    }

    /// Waits until it ends without having been asked to, which is an error.
    pub async fn ended(&mut self) -> anyhow::Error {
        let log = self.data.with_file_name("postgres.log");
        match self.child.wait().await {
            Ok(status) => anyhow!("Postgres ended ({status}); {} may say why", log.display()),
            Err(error) => anyhow!("Postgres cannot be watched: {error}"),
        }
    }

    /// Orderly: the next start has nothing to replay.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let stopped = unprivileged(&self.binaries.join("pg_ctl"))
            .arg("-D")
            .arg(&self.data)
            .args(["-m", "fast", "-s", "stop"])
            .output()
            .await
            .context("stopping Postgres")?;
        if !stopped.status.success() {
            bail!("stopping Postgres: {}", String::from_utf8_lossy(&stopped.stderr));
        }
        self.child.wait().await?;
        Ok(())
    }
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0)
}

/// A command that ends when we do, and that does not run as root.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args([&format!("--reuid={UNPRIVILEGED}"), &format!("--regid={UNPRIVILEGED}"), "--init-groups"]);
    }
    // INT is Postgres' fast shutdown: connections are closed, nothing is lost.
    command.arg("--pdeathsig=INT").arg("--").arg(program);
    // Ctrl-C goes to the whole group of the terminal; Postgres is stopped by us, after the last settle.
    command.process_group(0);
    // Not where the caller happens to stand: that may be closed to the other user.
    command.current_dir("/");
    command
}

async fn initialise(binaries: &Path, data_dir: &Path, data: &Path, password: &str) -> anyhow::Result<()> {
    // Whatever stands there without PG_VERSION is an initdb that was cut off.
    if data.exists() {
        fs::remove_dir_all(data).with_context(|| format!("clearing {}", data.display()))?;
    }
    fs::create_dir(data).with_context(|| format!("creating {}", data.display()))?;
    let password_file = data_dir.join("postgres.password");
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&password_file)?
        .write_all(password.as_bytes())?;
    if is_root() {
        for path in [data, password_file.as_path()] {
            let done = Command::new("chown").arg(format!("{UNPRIVILEGED}:")).arg(path).output().await?;
            if !done.status.success() {
                bail!(
                    "Postgres will not run as root and there is no user {UNPRIVILEGED} to run it as (install Debian's \
                     postgresql package), or run chronosd as another user: {}",
                    String::from_utf8_lossy(&done.stderr)
                );
            }
        }
    }
    let made = unprivileged(&binaries.join("initdb"))
        .arg("-D")
        .arg(data)
        .args(["-U", ROLE, "-A", "scram-sha-256", "-E", "UTF8", "--no-locale"])
        .arg(format!("--pwfile={}", password_file.display()))
        .output()
        .await
        .context("running initdb (setpriv of util-linux is needed for it)")?;
    fs::remove_file(&password_file)?;
    if !made.status.success() {
        bail!(
            "initdb failed in {}; if user {UNPRIVILEGED} cannot enter that directory, give another --data-dir:\n{}",
            data.display(),
            String::from_utf8_lossy(&made.stderr)
        );
    }
    Ok(())
}

/// A server that is still shutting down after its chronosd was killed is waited for.
async fn wait_for_predecessor(data: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    while let Some(pid) = running(data) {
        // We hold the directory's lock, so no chronosd has started it.
        if started.elapsed() > STOP_PATIENCE {
            bail!("a Postgres (pid {pid}) that no chronosd dev started runs in {}; stop it first", data.display());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

fn running(data: &Path) -> Option<u32> {
    let pid: u32 = fs::read_to_string(data.join("postmaster.pid")).ok()?.lines().next()?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A zombie has no command line left; its file stays behind and Postgres clears it away itself.
    let living = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    (living && name.trim() == "postgres").then_some(pid)
}

/// The newest version installed, or the one on the PATH.
fn find_binaries() -> anyhow::Result<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    versions.sort();
    if let Some((_, newest)) = versions.pop() {
        return Ok(newest);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find(|directory| directory.join("initdb").exists()).context(
        "no Postgres found on this machine: install it (apt-get install postgresql), or set CHRONOS_POSTGRES_URI to a server",
    )
}
