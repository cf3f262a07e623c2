//! Secrets that change in their files while the process runs.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use sqlx::Connection;
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet};

use crate::support::{AgentKey, Daemon, World, alarms::execute, api::Api, eventually};

const OLD: &str = "the-old-secret-of-the-tests-00001";
const NEW: &str = "the-new-secret-of-the-tests-00001";

/// Files of secrets, as a Secret that is mounted.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Whole or not at all, as Kubernetes does it.
    fn put(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// And until it holds, for the `times`th time.
    async fn rotate(&self, daemon: &Daemon, name: &str, text: &str, times: usize) {
        self.put(name, text);
        let told = format!("{name} was renewed");
        eventually(&told, || async { (daemon.said(&told) == times).then_some(()) }).await;
    }
}

#[tokio::test]
async fn both_secrets_of_the_facade_are_rotated_under_load_and_nobody_is_turned_away() {
    const BEARER: &str = "CHRONOS_TOKEN";
    const SIGNER: &str = "CHRONOS_AGENT_AUTH_SECRET";
    let (world, files) = (World::new().await, Files::new());
    let (bearer, signer) = (files.put(BEARER, OLD), files.put(SIGNER, OLD));
    let settings =
        [("CHRONOS_TOKEN_FILE", &*bearer), ("CHRONOS_AGENT_AUTH_SECRET_FILE", &signer), ("CHRONOS_OWNER_RATE", "0")];
    let daemon = world.chronosd_with("api", &settings).await;
    let ann = AgentKey::of("ann");
    let with_old = ann.sign_in_with(&daemon.api_url(), OLD).await;

    // Each client goes on with whatever it was told to use last.
    let (used, moved) = (watch::Sender::new(Some(with_old.clone())), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (mut used, moved) = (used.subscribe(), Arc::clone(&moved));
        clients.spawn(async move {
            let mut requests = 0;
            loop {
                let Some(api) = used.borrow_and_update().clone() else { return requests };
                moved.fetch_add(1, Ordering::SeqCst);
                while !used.has_changed().unwrap() {
                    let answer = api.get("/v1/alarms").await;
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    requests += 1;
                }
            }
        });
    }

    let both = format!("{NEW},{OLD}");
    files.rotate(&daemon, SIGNER, &both, 1).await;
    files.rotate(&daemon, BEARER, &both, 1).await;
    let with_new: Api = ann.sign_in_with(&daemon.api_url(), NEW).await;
    used.send_replace(Some(with_new.clone()));
    eventually("all have moved", || async { (moved.load(Ordering::SeqCst) == 8).then_some(()) }).await;
    files.rotate(&daemon, SIGNER, NEW, 2).await;
    files.rotate(&daemon, BEARER, NEW, 2).await;
    used.send_replace(None);
    let requests = clients.join_all().await;
    assert!(requests.iter().all(|requests| *requests > 10), "{requests:?}");

    assert_eq!(with_new.get("/v1/alarms").await.status, 200);
    assert_eq!(with_new.with_bearer(Some(OLD)).get("/v1/alarms").await.status, 401, "the old bearer");
    assert_eq!(with_old.with_bearer(Some(NEW)).get("/v1/alarms").await.status, 401, "a token of the old secret");
    assert_eq!(daemon.said(OLD) + daemon.said(NEW), 0, "a secret in the log");
}

#[tokio::test]
async fn a_wrong_secret_in_a_file_is_told_by_name_and_the_one_before_stays() {
    let (world, files) = (World::new().await, Files::new());
    let bearer = files.put("CHRONOS_TOKEN", OLD);
    let daemon = world.chronosd_with("api", &[("CHRONOS_TOKEN_FILE", &bearer)]).await;
    files.put("CHRONOS_TOKEN", &format!("{NEW},"));
    let told = "CHRONOS_TOKEN has an empty entry in its list; remove the stray comma; what was read before stays";
    eventually("it is told", || async { (daemon.said(told) == 1).then_some(()) }).await;
    let api = AgentKey::of("ann").sign_in_with(&daemon.api_url(), OLD).await;
    assert_eq!(api.with_bearer(Some(NEW)).get("/v1/alarms").await.status, 401);
    files.rotate(&daemon, "CHRONOS_TOKEN", NEW, 1).await;
    assert_eq!(api.with_bearer(Some(NEW)).get("/v1/alarms").await.status, 200);
}

#[tokio::test]
async fn wakes_carry_the_newest_bearer_and_signatures() {
    const KEY: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    const OTHER: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI0";
    let (world, files) = (World::new().await, Files::new());
    let (bearer, signer) = (files.put("CHRONOS_WAKE_TOKEN", OLD), files.put("CHRONOS_WAKE_SIGNING_SECRET", KEY));
    let settings = [("CHRONOS_WAKE_TOKEN_FILE", &*bearer), ("CHRONOS_WAKE_SIGNING_SECRET_FILE", &signer)];
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let woken = async |count: usize| {
        let now = json!({ "kind": "once", "delay_seconds": 1, "wake_message": "wake up" });
        api.post("/v1/alarms", &now).await.data();
        let wake = world.sink.wakes(count).await.pop().unwrap();
        let text = |name: &str| wake.headers[name].to_str().unwrap().to_owned();
        (text("authorization"), text("webhook-signature").split(' ').count())
    };
    assert_eq!(woken(1).await, (format!("Bearer {OLD}"), 1));
    files.rotate(&daemon, "CHRONOS_WAKE_TOKEN", NEW, 1).await;
    files.rotate(&daemon, "CHRONOS_WAKE_SIGNING_SECRET", &format!("{OTHER},{KEY}"), 1).await;
    assert_eq!(woken(2).await, (format!("Bearer {NEW}"), 2));
    assert_eq!(daemon.said(OLD) + daemon.said(NEW) + daemon.said("whsec_"), 0, "a secret in the log");
}

#[tokio::test]
async fn the_database_is_asked_with_the_newest_password() {
    let (world, files) = (World::new().await, Files::new());
    let mut admin = world.database.connect().await;
    let role = format!("rotated_{}", std::process::id());
    execute(&mut admin, &format!("CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{OLD}'")).await;
    let (_, place) = world.database.uri.split_once('@').unwrap();
    let uri = |password: &str| format!("postgres://{role}:{password}@{place}");
    let path = files.put("CHRONOS_POSTGRES_URI", &uri(OLD));
    let daemon = world.chronosd_with("api", &[("CHRONOS_POSTGRES_URI_FILE", &path)]).await;

    execute(&mut admin, &format!("ALTER ROLE {role} PASSWORD '{NEW}'")).await;
    files.rotate(&daemon, "CHRONOS_POSTGRES_URI", &uri(NEW), 1).await;
    assert!(sqlx::PgConnection::connect(&uri(OLD)).await.is_err(), "the old one does not do any more");
    let away = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    execute(&mut admin, &away).await;
    let healthy = async || Api::new(&daemon.api_url()).get("/healthz").await;
    eventually("it is back", || async { (healthy().await.status == 200).then_some(()) }).await;
    // Health has a connection of its own; this takes one of the facade's.
    AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let names: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT application_name FROM pg_stat_activity WHERE usename = $1")
            .bind(&role)
            .fetch_all(&mut admin)
            .await
            .unwrap();
    assert!(names.contains(&"chronos-api".to_owned()), "{names:?}");
    assert_eq!(daemon.said(OLD) + daemon.said(NEW), 0, "a password in the log");
}
