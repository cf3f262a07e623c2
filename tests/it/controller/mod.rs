//! Alarms and Agents as resources, on a real API server.
//!
//! | file | what it is about |
//! |---|---|
//! | here | an alarm from YAML to its status |
//! | [`agents`] | Agents mirrored, who may own what, and how much |
//! | [`edits`] | suspend, run now, edits that never fire backwards |
//! | [`told`] | conditions, attempts, events, and how often a status is written |
//! | [`faults`] | API server, etcd, Postgres and controllers that die, hang, forget or come back older |
//! | [`namespaced`] | an operator with rights in a few namespaces only |
//! | [`clusters`] | two clusters on one database, and one that was built anew |

mod agents;
mod clusters;
mod edits;
mod faults;
mod namespaced;
mod told;

use chronos::crd::{AgentStatus, AlarmStatus, FIRE_REQUESTED_AT, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use sqlx::Row;

use crate::support::{AgentKey, Daemon, Namespace, World, eventually};

struct Cluster {
    world: World,
    namespace: Namespace,
    ann: AgentKey,
    daemon: Daemon,
}

/// A controller and a dispatcher on a namespace in which Ann is enrolled.
async fn cluster() -> Cluster {
    let cluster = bare_cluster().await;
    cluster.enrol().await;
    cluster
}

async fn bare_cluster() -> Cluster {
    Cluster::with_roles("controller,dispatch").await
}

impl Cluster {
    async fn with_roles(roles: &str) -> Self {
        let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
        let daemon = serve(&world, &namespace, roles).await;
        Self { world, namespace, ann: AgentKey::of("ann"), daemon }
    }

    async fn enrol(&self) {
        enrol(&self.namespace, &self.ann, "").await;
    }

    fn alarm(&self, name: &str, spec: &str) -> String {
        format!(
            "apiVersion: chronos.dev/v1alpha1\nkind: Alarm\nmetadata: {{name: {name}}}\nspec:\n  owner: \"{}\"\n  wakeMessage: wake up\n{spec}\n",
            self.ann.did
        )
    }

    async fn apply(&self, name: &str, spec: &str) {
        self.namespace.apply(&self.alarm(name, spec)).await.expect("the Alarm is accepted");
    }

    async fn phase(&self, name: &str, phase: Phase) -> AlarmStatus {
        self.namespace.status(name, &format!("is {phase:?}"), |status| status.phase == Some(phase)).await
    }

    async fn delete(&self, name: &str) {
        self.namespace.alarms().delete(name, &DeleteParams::default()).await.unwrap();
        self.gone(name).await;
    }

    async fn gone(&self, name: &str) {
        let alarms = self.namespace.alarms();
        let gone = || async { alarms.get_opt(name).await.unwrap().is_none().then_some(()) };
        eventually(&format!("Alarm {name} is gone"), gone).await;
    }

    /// Asks for a wake now, by annotation.
    async fn request(&self, name: &str, token: &str) {
        let patch = json!({ "metadata": { "annotations": { FIRE_REQUESTED_AT: token } } });
        self.namespace.alarms().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// One value from the database.
    async fn ask<T>(&self, query: &'static str) -> T
    where
        T: Send + Unpin + sqlx::Type<sqlx::Postgres> + for<'r> sqlx::Decode<'r, sqlx::Postgres>,
    {
        sqlx::query_scalar(query).fetch_one(&mut self.world.database.connect().await).await.unwrap()
    }
}

/// `more`: further fields of the spec, each behind a comma.
async fn enrol(namespace: &Namespace, key: &AgentKey, more: &str) {
    let agent = format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Agent\nmetadata: {{name: ann}}\nspec: {{did: \"{}\", publicKey: \"{}\"{more}}}\n",
        key.did, key.public_key
    );
    namespace.apply(&agent).await.expect("the Agent is accepted");
}

/// The Agent's status once its Ready has this reason.
async fn agent_is(namespace: &Namespace, reason: &str) -> AgentStatus {
    let agents = namespace.agents();
    eventually(&format!("the Agent of {} is {reason}", namespace.name), || async {
        let status = agents.get_opt("ann").await.unwrap()?.status?;
        (ready(&status.conditions)?.reason == reason).then_some(status)
    })
    .await
}

fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|one| one.type_ == "Ready")
}

async fn serve(world: &World, namespace: &Namespace, roles: &str) -> Daemon {
    serve_electing_in(&namespace.name, world, namespace, roles).await
}

/// Its Leases are in a namespace that need not be the Alarms'.
async fn serve_electing_in(leases: &str, world: &World, namespace: &Namespace, roles: &str) -> Daemon {
    let settings = [
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", leases),
    ];
    world.chronosd_with(roles, &settings).await
}

/// Type, status and reason of every condition.
fn conditions(status: &AlarmStatus) -> Vec<(&str, &str, &str)> {
    status.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str())).collect()
}

#[tokio::test]
async fn an_alarm_applied_as_yaml_wakes_the_router_and_shows_it_in_its_status() {
    // The dispatcher comes later: until then everybody has time to look.
    let cluster = Cluster::with_roles("controller").await;
    cluster.enrol().await;
    cluster.apply("tea", "  delaySeconds: 1\n  label: tea\n  payloadJson: '{\"cup\": 1.50}'").await;
    let waiting = cluster.phase("tea", Phase::Active).await;
    assert_eq!(waiting.observed_generation, 1);
    assert_eq!(waiting.next_fire_time, waiting.schedule);
    assert_eq!((waiting.failure_count, waiting.last_error.as_str()), (0, ""));
    assert_eq!(conditions(&waiting), [("Ready", "True", "Scheduled")]);

    let _dispatcher = cluster.world.chronosd("dispatch").await;
    let wake = cluster.world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["alarm_id"].as_str(), waiting.alarm_id.as_deref());
    assert_eq!(wake.body["owner_did"], cluster.ann.did);
    assert!(String::from_utf8_lossy(&wake.bytes).contains(r#""payload":{"cup": 1.50},"#));

    let fired = cluster.phase("tea", Phase::Fired).await;
    assert_eq!(fired.next_fire_time, None);
    assert_eq!(fired.fired_count, 1);
    assert!(fired.last_fired_time.is_some());
    assert_eq!(conditions(&fired), [("Ready", "True", "Fired"), ("Delivering", "True", "Delivered")]);
}

#[tokio::test]
async fn a_deleted_resource_cancels_its_alarm() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    let id = cluster.phase("tea", Phase::Active).await.alarm_id.unwrap();

    let alarms = cluster.namespace.alarms();
    alarms.delete("tea", &DeleteParams::default()).await.unwrap();
    eventually("the resource is gone", || async { alarms.get_opt("tea").await.unwrap().is_none().then_some(()) }).await;
    // The finalizer let go only after the row was cancelled.
    let row = sqlx::query("SELECT status, cancelled_by FROM alarms WHERE id = $1::uuid")
        .bind(id)
        .fetch_one(&mut cluster.world.database.connect().await)
        .await
        .unwrap();
    assert_eq!((row.get::<&str, _>(0), row.get::<&str, _>(1)), ("cancelled", "resource"));
}

#[tokio::test]
async fn a_wake_that_is_not_taken_shows_its_class_and_not_the_routers_words() {
    let cluster = cluster().await;
    cluster.world.sink.reply([crate::support::Reply::Status(503)]);
    cluster.apply("tea", "  delaySeconds: 1\n  maxFailures: 0").await;
    let failed = cluster.phase("tea", Phase::Failed).await;
    assert_eq!(failed.last_error, "HTTP 503");
    assert_eq!(
        conditions(&failed),
        [("Ready", "True", "Failed"), ("Delivering", "False", "Exhausted")],
        "a router's trouble never blocks a sync"
    );
}

#[tokio::test]
async fn an_alarm_waits_for_the_agent_that_owns_it() {
    let cluster = bare_cluster().await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    let refused = cluster.phase("tea", Phase::Invalid).await;
    assert_eq!(conditions(&refused), [("Ready", "False", "OwnerNotAllowed"), ("Stalled", "True", "OwnerNotAllowed")]);
    assert!(refused.conditions[0].message.contains("no Agent with the DID"), "{}", refused.conditions[0].message);

    cluster.enrol().await;
    let stored = cluster.phase("tea", Phase::Active).await;
    assert_eq!(conditions(&stored), [("Ready", "True", "Scheduled")]);
}

#[tokio::test]
async fn a_typo_is_told_in_the_status_and_an_edit_recovers() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: 0 9 * * * *").await;
    let refused = cluster.phase("tea", Phase::Invalid).await;
    assert_eq!(conditions(&refused), [("Ready", "False", "InvalidSchedule"), ("Stalled", "True", "InvalidSchedule")]);
    let said = &refused.conditions[0].message;
    assert!(said.starts_with("spec.cronExpr: ") && said.contains("seconds are not supported"), "{said}");

    cluster.apply("tea", "  cronExpr: 0 9 * * *").await;
    let stored = cluster.phase("tea", Phase::Active).await;
    assert_eq!((stored.observed_generation, stored.schedule.as_deref()), (2, Some("0 9 * * *")));

    // A typo in an edit changes nothing but the status, which goes on telling what is stored.
    cluster.apply("tea", "  cronExpr: 0 25 * * *").await;
    let refused = cluster.phase("tea", Phase::Invalid).await;
    assert_eq!((&refused.alarm_id, &refused.schedule), (&stored.alarm_id, &stored.schedule));
    assert_eq!(refused.next_fire_time, stored.next_fire_time);
    assert!(
        refused.conditions[0].message.ends_with("what was stored before goes on"),
        "{}",
        refused.conditions[0].message
    );
}

#[tokio::test]
async fn one_object_that_other_parsers_give_up_on_stops_only_itself() {
    let cluster = cluster().await;
    // Deeper than serde_json descends.
    let deep = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    let alarm = serde_json::json!({
        "apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": { "name": "deep" },
        "spec": { "owner": cluster.ann.did, "wakeMessage": "m", "delaySeconds": 3600, "payload": "HERE" }
    });
    cluster.namespace.post("alarms", alarm.to_string().replace("\"HERE\"", &deep)).await;
    cluster.apply("before", "  cronExpr: '@daily'").await;
    cluster.phase("before", Phase::Active).await;

    // A controller that starts now has to list it.
    let Cluster { world, namespace, ann, daemon } = cluster;
    daemon.terminate().await;
    let daemon = serve(&world, &namespace, "controller,dispatch").await;
    let cluster = Cluster { world, namespace, ann, daemon };
    cluster.apply("after", "  cronExpr: '@daily'").await;
    cluster.phase("after", Phase::Active).await;
    let deep = cluster.phase("deep", Phase::Invalid).await;
    let said = &deep.conditions[0].message;
    assert!(said.starts_with("spec.payload: is nested 200 deep"), "{said}");
}

#[tokio::test]
async fn two_controllers_store_every_alarm_once() {
    const ALARMS: i64 = 20;
    let cluster = cluster().await;
    // Both lead, each somewhere else: that nothing is stored twice does not depend on the election.
    let elsewhere = Namespace::fresh().await;
    let _second = serve_electing_in(&elsewhere.name, &cluster.world, &cluster.namespace, "controller").await;
    for number in 0..ALARMS {
        cluster.apply(&format!("tea-{number}"), "  cronExpr: '@daily'").await;
    }
    for number in 0..ALARMS {
        cluster.phase(&format!("tea-{number}"), Phase::Active).await;
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM alarms WHERE status = 'active'")
        .fetch_one(&mut cluster.world.database.connect().await)
        .await
        .unwrap();
    assert_eq!(rows, ALARMS);
}

#[tokio::test]
async fn an_instant_before_the_resources_creation_is_missed_and_never_fires() {
    let cluster = cluster().await;
    cluster.apply("tea", "  fireAt: 2020-01-01T00:00:00Z").await;
    let missed = cluster.phase("tea", Phase::Failed).await;
    assert!(missed.last_error.starts_with("missed: due 2020-01-01T00:00:00Z, seen "), "{}", missed.last_error);
    assert_eq!(missed.missed_count, 1);
    assert_eq!(conditions(&missed), [("Ready", "True", "Failed")]);
    assert_eq!(cluster.world.sink.received().len(), 0);
    let recorded: i64 = sqlx::query_scalar("SELECT count(*) FROM attempts WHERE outcome = 'missed' AND slots = 1")
        .fetch_one(&mut cluster.world.database.connect().await)
        .await
        .unwrap();
    assert_eq!(recorded, 1);
}

#[tokio::test]
async fn an_edited_schedule_re_arms_an_alarm_that_has_fired() {
    let cluster = cluster().await;
    cluster.apply("tea", "  delaySeconds: 1").await;
    let fired = cluster.phase("tea", Phase::Fired).await;
    cluster.apply("tea", "  fireAt: 2099-01-01T00:00:00Z").await;
    let armed = cluster.phase("tea", Phase::Active).await;
    assert_eq!(armed.alarm_id, fired.alarm_id);
    assert_eq!(armed.next_fire_time.as_deref(), Some("2099-01-01T00:00:00Z"));
    assert_eq!(cluster.world.sink.received().len(), 1);
}

#[tokio::test]
async fn an_edited_message_leaves_the_occurrence_alone() {
    let cluster = cluster().await;
    cluster.apply("tea", "  delaySeconds: 3600\n  label: green").await;
    let before = cluster.phase("tea", Phase::Active).await;
    cluster.apply("tea", "  delaySeconds: 3600\n  label: black").await;
    let after = cluster.namespace.status("tea", "generation 2 is seen", |status| status.observed_generation == 2).await;
    assert_eq!((after.alarm_id, after.next_fire_time), (before.alarm_id, before.next_fire_time));
    let row = sqlx::query("SELECT label, schedule_epoch, revision FROM alarms")
        .fetch_one(&mut cluster.world.database.connect().await)
        .await
        .unwrap();
    assert_eq!((row.get::<&str, _>(0), row.get::<i64, _>(1), row.get::<i64, _>(2)), ("black", 0, 2));
}

#[tokio::test]
async fn the_api_server_refuses_what_it_can_see() {
    let cluster = bare_cluster().await;
    let cases = [
        ("", "give exactly one of fireAt, delaySeconds and cronExpr"),
        ("  delaySeconds: 5\n  cronExpr: '@daily'", "give exactly one of fireAt, delaySeconds and cronExpr"),
        ("  delaySeconds: 0", "spec.delaySeconds"),
        ("  delaySeconds: 5\n  timezone: Europe/Berlin", "timezone goes with cronExpr only"),
        ("  cronExpr: '@daily'\n  timezone: Mars/Olympus", "no such time zone"),
        ("  delaySeconds: 5\n  payload: {a: 1}\n  payloadJson: '{}'", "give payload or payloadJson, not both"),
        ("  delaySeconds: 5\n  maxFailures: 101", "spec.maxFailures"),
        ("  fireAt: tomorrow", "spec.fireAt"),
        ("  delaySeconds: 5\n  snooze: 1", "snooze"),
    ];
    for (spec, told) in cases {
        let refused = cluster.namespace.apply(&cluster.alarm("tea", spec)).await.unwrap_err().to_string();
        assert!(refused.contains(told), "{spec:?}: {refused}");
    }
    cluster.apply("tea", "  delaySeconds: 3600").await;
    let stolen = cluster.alarm("tea", "  delaySeconds: 3600").replace(&cluster.ann.did, &AgentKey::of("eve").did);
    let refused = cluster.namespace.apply(&stolen).await.unwrap_err().to_string();
    assert!(refused.contains("owner is immutable"), "{refused}");

    let mismatched = format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Agent\nmetadata: {{name: ann}}\nspec: {{did: \"{}\", publicKey: \"{}\"}}\n",
        cluster.ann.did,
        AgentKey::of("ann").public_key
    );
    let refused = cluster.namespace.apply(&mismatched).await.unwrap_err().to_string();
    assert!(refused.contains("first 16 hex digits of publicKey"), "{refused}");
}

#[tokio::test]
async fn alarms_fire_while_the_cluster_is_away() {
    let world = World::new().await;
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let body = serde_json::json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" });
    api.post("/v1/alarms", &body).await.data();

    // An address where nobody listens.
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let nowhere = "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], \
                   clusters: [{name: c, cluster: {server: 'https://127.0.0.1:9'}}], users: [{name: u, user: {token: t}}]}";
    std::fs::write(&kubeconfig, nowhere).unwrap();
    let settings = [("KUBECONFIG", kubeconfig.to_str().unwrap())];
    let daemon = Daemon::start_unready(&world, "controller,dispatch", &settings).await;
    world.sink.wakes(1).await;
    let (status, said) = daemon.readiness().await;
    assert_eq!((status, said.as_str()), (503, "the Alarm and Agent resources cannot be watched yet\n"));
}

#[tokio::test]
async fn a_resource_recreated_under_its_name_is_a_new_alarm() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    let first = cluster.phase("tea", Phase::Active).await.alarm_id;
    let alarms = cluster.namespace.alarms();
    alarms.delete("tea", &DeleteParams::default()).await.unwrap();
    eventually("the resource is gone", || async { alarms.get_opt("tea").await.unwrap().is_none().then_some(()) }).await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    let second = cluster.phase("tea", Phase::Active).await.alarm_id;
    assert_ne!(first, second);
    let active: i64 = sqlx::query_scalar("SELECT count(*) FROM alarms WHERE status = 'active'")
        .fetch_one(&mut cluster.world.database.connect().await)
        .await
        .unwrap();
    assert_eq!(active, 1);
}
