//! `chronosd dev`: everything on one machine.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::support::{
    AgentKey, PATIENCE,
    api::Api,
    daemon::{PROMPT, command},
    eventually,
};

struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    ready: Value,
}

impl Dev {
    async fn start(data_dir: &Path) -> Self {
        let mut child = dev(data_dir).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut dev = Self { child, lines, ready: Value::Null };
        dev.ready = dev.line().await;
        assert_eq!(dev.ready["event"], "ready");
        dev
    }

    /// The next line it prints.
    async fn line(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("a line in time");
        serde_json::from_str(&line.unwrap().expect("it prints JSON lines until it is stopped")).unwrap()
    }

    async fn sign_in(&self, key: &AgentKey) -> Api {
        let base = self.ready["api_url"].as_str().unwrap();
        key.sign_in_with(base, self.ready["token"].as_str().unwrap()).await
    }

    async fn interrupt(mut self) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it stops in time");
        assert!(ended.unwrap().success());
    }
}

fn dev(data_dir: &Path) -> Command {
    let mut command = command(&[]);
    command.args(["dev", "--json", "--port", "0", "--metrics-port", "0", "--data-dir"]).arg(data_dir);
    command
}

/// A directory that Postgres' user can enter.
fn open_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn postgres_of(data_dir: &Path) -> String {
    let file = fs::read_to_string(data_dir.join("postgres/postmaster.pid")).unwrap();
    format!("/proc/{}/cmdline", file.lines().next().unwrap())
}

#[tokio::test]
async fn dev_wakes_keeps_everything_over_a_restart_and_takes_its_postgres_with_it() {
    let directory = open_directory();
    let ann = AgentKey::of("ann");

    let mut first = Dev::start(directory.path()).await;
    let api = first.sign_in(&ann).await;
    let soon = json!({ "kind": "once", "delay_seconds": 1, "wake_message": "soon", "payload": { "n": 1 } });
    let id = api.post("/v1/alarms", &soon).await.data()["id"].clone();
    let wake = first.line().await;
    assert_eq!((&wake["event"], &wake["body"]["alarm_id"]), (&json!("wake"), &id));
    assert_eq!(wake["headers"].get("authorization"), None, "secrets are not printed with a wake");
    api.post("/v1/alarms", &json!({ "kind": "cron", "cron_expr": "@yearly", "wake_message": "later" })).await.data();
    let (token, first_postgres) = (first.ready["token"].clone(), postgres_of(directory.path()));
    first.interrupt().await;
    assert!(!Path::new(&first_postgres).exists(), "its Postgres is gone");

    let mut second = Dev::start(directory.path()).await;
    assert_eq!(second.ready["token"], token);
    assert_eq!(second.sign_in(&ann).await.get("/v1/alarms").await.data()["count"], 2);

    // One at a time.
    let other = tokio::time::timeout(PROMPT, dev(directory.path()).output()).await.unwrap().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(!other.status.success() && said.contains("another chronosd dev uses the data directory"), "{said}");

    // Killed, it leaves nothing behind either.
    let postgres = postgres_of(directory.path());
    second.child.kill().await.unwrap();
    eventually("its Postgres is gone", || async {
        fs::read(&postgres).unwrap_or_default().is_empty().then_some(()) // a zombie has no command line
    })
    .await;
}

#[tokio::test]
async fn a_database_that_cannot_be_had_is_told_with_its_address_and_without_its_password() {
    let said = async |uri: &str| {
        let settings = [("CHRONOS_POSTGRES_URI", uri)];
        let output = tokio::time::timeout(PROMPT, command(&settings).arg("migrate").output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = said("postgres://chronos:hunter2@127.0.0.1:9/chronos").await;
    assert!(
        refused.contains("cannot connect to the database at 127.0.0.1:9") && refused.contains("refused"),
        "{refused}"
    );
    assert!(!refused.contains("hunter2"), "{refused}");
}
