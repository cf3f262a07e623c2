//! `docs/guides/alarms.md`, `install.md`, `operate.md` and `troubleshoot.md`: what needs no more than chronosd, Postgres and an API server is typed as it
//! stands there. What needs nodes, `helm` or a second cluster says so in its block; `make e2e` has those.

use std::{collections::HashMap, fmt::Write, path::Path};

use super::{
    page::{Block, Page, Role},
    terminal::Folder,
};
use crate::support::{AGENT_AUTH_SECRET, Daemon, Namespace, Reply, TOKEN, WAKE_TOKEN, World, alarms::execute};

/// What the pages show: alarms that are well, one whose router answers 503, and three with mistakes.
const SHOWN: &str = include_str!("operators.yaml");
const ALARMS: &str = "alarms.md";
const INSTALL: &str = "install.md";
const OPERATE: &str = "operate.md";
const TROUBLESHOOT: &str = "troubleshoot.md";

#[tokio::test]
async fn who_writes_alarms_by_the_guide_sees_what_it_shows() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let daemon = installed(&world, &namespace).await;
    follow(ALARMS, &world, &namespace, &daemon).await;
}

#[tokio::test]
async fn who_installs_by_the_guide_sees_what_it_shows() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let daemon = installed(&world, &namespace).await;
    follow(INSTALL, &world, &namespace, &daemon).await;
}

#[tokio::test]
async fn who_operates_by_the_guide_sees_what_it_shows() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let daemon = shown(&world, &namespace).await;
    // A cluster that is gone, with one alarm and no agents.
    let lost = "INSERT INTO clusters (cluster_id, name, last_seen)
                VALUES ('0b7c4a5e-3c1f-4d52-9a39-6d0f3a1f7f10', 'blue', now() - interval '3 h')";
    let its = "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, cron_expr, timezone, wake_message, next_fire_at, scheduled_for,
                                   source, cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash)
               SELECT owner_did, user_id, correlation_id, kind, cron_expr, timezone, wake_message, next_fire_at, scheduled_for,
                      source, '0b7c4a5e-3c1f-4d52-9a39-6d0f3a1f7f10', gen_random_uuid(), resource_namespace, resource_name, 1, definition_hash
               FROM alarms WHERE resource_name = 'daily-summary'";
    let (made, said) =
        namespace.kubectl(&["create", "secret", "generic", "chronos", "--from-literal=token=as-it-was"]).await;
    assert!(made, "{said}");
    let mut database = world.database.connect().await;
    execute(&mut database, lost).await;
    execute(&mut database, its).await;
    follow(OPERATE, &world, &namespace, &daemon).await;
}

#[tokio::test]
async fn who_is_in_trouble_sees_what_the_guide_shows() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let daemon = shown(&world, &namespace).await;
    follow(TROUBLESHOOT, &world, &namespace, &daemon).await;
}

/// A Chronos as it runs in a cluster.
async fn installed(world: &World, namespace: &Namespace) -> Daemon {
    let kubeconfig = namespace.kubeconfig_here();
    let settings = [
        ("KUBECONFIG", kubeconfig.path.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
        ("CHRONOS_ENROLMENT", "registered"),
        ("CHRONOS_DEV", "false"),
    ];
    world.chronosd_with("controller,dispatch,api", &settings).await
}

/// The same, with what the pages show applied and told.
async fn shown(world: &World, namespace: &Namespace) -> Daemon {
    let daemon = installed(world, namespace).await;
    world.sink.reply_to("invoice", std::iter::repeat_n(Reply::Status(503), 20));
    namespace.apply(SHOWN).await.unwrap();
    namespace.status("daily-summary", "is stored", |status| status.alarm_id.is_some()).await;
    namespace.status("invoice", "has been tried", |status| status.failure_count > 0).await;
    for refused in ["typo", "stranger", "too-often"] {
        namespace.status(refused, "is refused", |status| !status.conditions.is_empty()).await;
    }
    daemon
}

async fn follow(page: &str, world: &World, namespace: &Namespace, daemon: &Daemon) {
    let kubeconfig = namespace.kubeconfig_here();
    let folder = Folder::new();
    // The test bed's, whatever else the machine has.
    let assets = std::env::var("KUBEBUILDER_ASSETS").expect("make sets it");
    folder.install(&Path::new(&assets).join("kubectl"));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    for given in ["crds", "examples"] {
        folder.link(given, &checkout.join(given));
    }
    let settings = HashMap::from([
        ("KUBECONFIG", kubeconfig.path.to_str().unwrap().to_owned()),
        ("CHRONOS_NAMESPACE", namespace.name.clone()),
        ("CHRONOS_POSTGRES_URI", world.database.uri.clone()),
        ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true".to_owned()),
        ("CHRONOS_ROUTER_WAKE_URL", world.sink.url.clone()),
        ("CHRONOS_TOKEN", TOKEN.to_owned()),
        ("CHRONOS_AGENT_AUTH_SECRET", AGENT_AUTH_SECRET.to_owned()),
        ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN.to_owned()),
        ("RELEASE", namespace.name.clone()),
        ("FACADE", daemon.api_url()),
        ("METRICS", format!("http://{}", daemon.probes)),
    ]);
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut terminal = folder.terminal(&settings).await;
    let (mut printed, mut wrong) = (String::new(), String::new());
    for block in Page::read(page).blocks {
        eprintln!("{}: {:?}", block.place, block.role);
        match &block.role {
            Role::Run => printed = terminal.run(&block.text).await,
            // All of a page at once: one that has changed has changed in more than one place.
            Role::Output if super::page::alike(&block.text, &printed) => {}
            Role::Output => {
                writeln!(wrong, "docs/guides/{} shows\n{}\nand what is seen is\n{printed}", block.place, block.text)
                    .unwrap();
            }
            // The values are those that the terminal has from the start.
            Role::Set | Role::NotRun => {}
            Role::Applied | Role::Serve(_) | Role::Program(_) | Role::Wake | Role::Woken => unused(&block),
            Role::Alarm | Role::Headers | Role::Body => unused(&block),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn unused(block: &Block) {
    panic!("{}: a block {:?} has no place in this guide", block.place, block.role);
}
