//! `chronosd run` as the process it is in production.

use std::{
    net::SocketAddr,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};
use uuid::Uuid;

use super::{AGENT_AUTH_SECRET, PATIENCE, TOKEN, WAKE_TOKEN, World, eventually, with_tls};

/// A running `chronosd`. Dropping it kills it.
pub struct Daemon {
    child: Child,
    pub api: Option<SocketAddr>,
    pub probes: SocketAddr,
    /// When it began to listen, by its own clock.
    pub listening_since: DateTime<Utc>,
    said: Arc<Mutex<Vec<String>>>,
    logs: JoinHandle<()>,
}

/// Where a process would find a cluster that the test did not give it.
const CLUSTER: &[&str] = &["KUBECONFIG", "KUBERNETES_SERVICE_HOST"];

/// The binary, with the environment of the tests and nothing else of the caller's that could reach it.
pub fn command(settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new("setpriv");
    // Killed with the test run, too, however that ends.
    command.args(["--pdeathsig=KILL", "--", env!("CARGO_BIN_EXE_chronosd")]);
    let ours = |name: &str| name.starts_with("CHRONOS_") || name.starts_with("OTEL_") || CLUSTER.contains(&name);
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command.envs(settings.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

impl Daemon {
    pub async fn start(world: &World, roles: &str, settings: &[(&str, &str)]) -> Self {
        let daemon = Self::start_unready(world, roles, settings).await;
        eventually("chronosd is ready", || async { (daemon.readiness().await.0 == 200).then_some(()) }).await;
        daemon
    }

    /// Starts one that need not get ready.
    pub async fn start_unready(world: &World, roles: &str, settings: &[(&str, &str)]) -> Self {
        let defaults = [
            ("CHRONOS_ROLES", roles),
            ("CHRONOS_POSTGRES_URI", &world.database.uri),
            ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true"),
            ("CHRONOS_PORT", "0"),
            ("CHRONOS_METRICS_PORT", "0"),
            ("CHRONOS_TOKEN", TOKEN),
            ("CHRONOS_AGENT_AUTH_SECRET", AGENT_AUTH_SECRET),
            ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN),
            ("CHRONOS_ROUTER_WAKE_URL", &world.sink.url),
            ("CHRONOS_ENROLMENT", "open"),
            ("CHRONOS_DEV", "true"),
            // Tests ask as fast as they can.
            ("CHRONOS_OWNER_RATE", "0"),
            // Tests look at behaviour, not at how long a heartbeat is.
            ("CHRONOS_TICK_MS", "50"),
            ("CHRONOS_LOG", "warn,chronos=info"),
        ];
        let from_file = |name: &str| settings.iter().any(|(given, _)| given.strip_suffix("_FILE") == Some(name));
        let defaults = defaults.into_iter().filter(|(name, _)| !from_file(name));
        let settings: Vec<(&str, &str)> = defaults.chain(settings.iter().copied()).collect();
        let mut child = command(&settings)
            .arg("run")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("chronosd starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let hear = move |line: &str| {
            eprintln!("chronosd: {line}");
            heard.lock().unwrap().push(line.to_owned());
        };
        let listening = async {
            while let Some(line) = lines.next_line().await.expect("stderr is text") {
                hear(&line);
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                let address = |name: &str| entry[name].as_str().and_then(|text| text.parse().ok());
                if let Some(probes) = address("probes") {
                    let since = entry["timestamp"].as_str().and_then(|text| text.parse().ok());
                    return (address("api"), probes, since.expect("a line says when it was written"));
                }
            }
            panic!("chronosd ended before it listened; its words are above");
        };
        let (api, probes, listening_since) =
            tokio::time::timeout(PATIENCE, listening).await.expect("chronosd listens in time");
        let logs = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hear(&line);
            }
        });
        Self { child, api, probes, listening_since, said, logs }
    }

    /// Status and words of `/readyz`.
    pub async fn readiness(&self) -> (u16, String) {
        self.probe("/readyz").await
    }

    /// Status and words of a page beside the facade.
    pub async fn probe(&self, path: &str) -> (u16, String) {
        with_tls();
        let response = reqwest::get(format!("http://{}{path}", self.probes)).await.expect("probes are served");
        (response.status().as_u16(), response.text().await.expect("it says something"))
    }

    pub fn api_url(&self) -> String {
        format!("http://{}", self.api.expect("role api runs"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// What the kernel says it is doing: R, S, D, T (stopped), Z.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        // Behind its name, which may hold anything.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("the kernel says so")
    }

    /// How often it has logged a line with this text.
    pub fn said(&self, text: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    /// The id by which it goes in a Lease, once it has told what it is there.
    pub fn identity(&self, lease: &str) -> Option<Uuid> {
        let lines = self.said.lock().unwrap();
        let told = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut told = told.filter(|entry| entry["lease"] == lease);
        told.find_map(|entry| entry["identity"].as_str()?.rsplit_once('_')?.1.parse().ok())
    }

    /// Freezes it (`STOP`), wakes it up (`CONT`).
    pub async fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        Command::new("kill").args(["-s", signal, &pid]).status().await.expect("kill runs");
    }

    /// Asks it to stop, as Kubernetes does, and waits for it.
    pub async fn terminate(mut self) -> ExitStatus {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Waits for it to end, for whatever reason.
    pub async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it stops in time").expect("it is ours")
    }

    /// As if the machine had lost power.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it is ours");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.logs.abort();
    }
}

/// How long a process may take that only prints something.
pub const PROMPT: Duration = Duration::from_secs(20);
