//! What GitOps tools make of our resources: Flux, `helm --wait` and the like by kstatus, Argo CD by the scripts of `gitops/argocd`,
//! `kubectl wait` by itself. Each is asked about real objects of a real controller.

use std::{fs, path::Path, process::Stdio};

use kube::api::DeleteParams;
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    gauntlet::postgres::{Postgres, Stop},
    support::{AgentKey, Daemon, Database, Namespace, PATIENCE, Reply, Sink, World, eventually},
};

/// A namespace in which Ann is enrolled, and Postgres and a router for whoever serves it.
struct Site {
    world: World,
    namespace: Namespace,
    ann: AgentKey,
}

/// What is said of an object.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    kstatus: String,
    argocd: String,
    /// Of `kubectl wait --for=condition=Ready`.
    ready: bool,
}

impl Site {
    async fn new() -> Self {
        Self::on(World::new().await).await
    }

    async fn on(world: World) -> Self {
        let site = Self { world, namespace: Namespace::fresh().await, ann: AgentKey::of("ann") };
        site.namespace.apply(&agent("ann", &site.ann, "")).await.expect("the Agent is accepted");
        site
    }

    async fn serve(&self, roles: &str) -> Daemon {
        let settings = [
            ("KUBECONFIG", self.namespace.kubeconfig.to_str().unwrap()),
            ("CHRONOS_WATCH_NAMESPACES", self.namespace.name.as_str()),
            ("CHRONOS_NAMESPACE", self.namespace.name.as_str()),
        ];
        self.world.chronosd_with(roles, &settings).await
    }

    async fn apply(&self, name: &str, spec: &str) {
        let alarm = format!(
            "apiVersion: chronos.dev/v1alpha1\nkind: Alarm\nmetadata: {{name: {name}}}\nspec:\n  owner: \"{}\"\n  wakeMessage: wake up\n{spec}\n",
            self.ann.did
        );
        self.namespace.apply(&alarm).await.expect("the Alarm is accepted");
    }

    async fn object(&self, plural: &str, name: &str) -> Value {
        serde_json::from_str(&self.namespace.json(plural, name).await).unwrap()
    }

    /// The object once it is so.
    async fn once(&self, plural: &str, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{plural} {name}: {what}"), || async {
            Some(self.object(plural, name).await).filter(&wanted)
        })
        .await
    }

    async fn alarm_in(&self, name: &str, phase: &str) -> Value {
        self.once("alarms", name, phase, |alarm| alarm["status"]["phase"] == phase).await
    }

    async fn judged(&self, object: &Value) -> Judged {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let resource = format!("{kind}/{name}");
        let waits = ["wait", "--for=condition=Ready", &resource, "--timeout=1s"];
        Judged {
            kstatus: kstatus(object).await.0,
            argocd: health(object).await.0,
            ready: self.namespace.kubectl(&waits).await.0,
        }
    }

    /// Does what Argo CD does when somebody presses the button: what the script changed goes out as a merge patch.
    async fn press(&self, action: &str, name: &str) -> Value {
        let object = self.object("alarms", name).await;
        let buttons = argocd("alarm/actions/discovery.lua", &object).await;
        assert_eq!(buttons[action]["disabled"], false, "{action}: {buttons}");
        let changed = argocd(&format!("alarm/actions/{action}.lua"), &object).await;
        let patch = difference(&object, &changed);
        let (done, said) =
            self.namespace.kubectl(&["patch", "alarm", name, "--type=merge", "-p", &patch.to_string()]).await;
        assert!(done, "{said}");
        patch
    }
}

fn agent(name: &str, key: &AgentKey, more: &str) -> String {
    format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec: {{did: \"{}\", publicKey: \"{}\"{more}}}\n",
        key.did, key.public_key
    )
}

fn judged(kstatus: &str, argocd: &str, ready: bool) -> Judged {
    Judged { kstatus: kstatus.to_owned(), argocd: argocd.to_owned(), ready }
}

/// Status and message.
async fn kstatus(object: &Value) -> (String, String) {
    told(&tool("kstatus", &[], object).await)
}

async fn health(object: &Value) -> (String, String) {
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    told(&argocd(&format!("{kind}/health.lua"), object).await)
}

async fn argocd(script: &str, object: &Value) -> Value {
    let script = scripts().join(script);
    tool("argocd-lua", &[script.to_str().unwrap()], object).await
}

fn scripts() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/gitops/argocd"))
}

fn told(answer: &Value) -> (String, String) {
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// A program of the test bed, given an object on stdin.
async fn tool(name: &str, arguments: &[&str], object: &Value) -> Value {
    let assets = std::env::var("KUBEBUILDER_ASSETS").expect("make sets it");
    let mut child = Command::new(Path::new(&assets).join(name))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{assets} has no {name}: {error}"));
    child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).await.unwrap();
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{name} {arguments:?} says why above");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The JSON merge patch that makes the one from the other. Numbers are compared as numbers: Lua writes 1.0 as 1.
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let mut patch = Map::new();
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, new) in after {
        let old = before.get(name);
        let same = old == Some(new) || old.is_some_and(|old| old.is_number() && old.as_f64() == new.as_f64());
        if !same {
            patch.insert(name.clone(), difference(old.unwrap_or(&Value::Null), new));
        }
    }
    patch.retain(|_, value| value.as_object().is_none_or(|object| !object.is_empty()));
    Value::Object(patch)
}

#[tokio::test]
async fn what_no_controller_has_seen_is_waited_for() {
    let site = Site::new().await;
    site.apply("tea", "  cronExpr: '@daily'").await;
    for (plural, name) in [("alarms", "tea"), ("agents", "ann")] {
        let unseen = site.object(plural, name).await;
        assert_eq!(site.judged(&unseen).await, judged("InProgress", "Progressing", false), "{unseen}");
    }
}

#[tokio::test]
async fn an_alarm_that_waits_for_its_time_is_done() {
    let site = Site::new().await;
    let _daemon = site.serve("controller").await;
    site.apply("tea", "  cronExpr: '@daily'").await;
    let active = site.alarm_in("tea", "Active").await;
    assert_eq!(site.judged(&active).await, judged("Current", "Healthy", true));

    // An edit is waited for, until it is seen.
    let mut edited = active;
    edited["metadata"]["generation"] = json!(2);
    assert_eq!(
        (kstatus(&edited).await.0, health(&edited).await.0),
        ("InProgress".to_owned(), "Progressing".to_owned())
    );
}

#[tokio::test]
async fn a_paused_alarm_is_done_and_shown_as_suspended() {
    let site = Site::new().await;
    let _daemon = site.serve("controller").await;
    site.apply("tea", "  cronExpr: '@daily'\n  suspend: true").await;
    let paused = site.alarm_in("tea", "Paused").await;
    assert_eq!(site.judged(&paused).await, judged("Current", "Suspended", true));
}

#[tokio::test]
async fn an_alarm_that_is_over_is_done_however_it_ended() {
    let site = Site::new().await;
    let _daemon = site.serve("controller,dispatch").await;
    site.world.sink.reply_to("refused", [Reply::Status(503)]);
    site.apply("fired", "  delaySeconds: 1").await;
    site.apply("refused", "  delaySeconds: 1\n  maxFailures: 0\n  label: refused").await;
    site.apply("missed", "  fireAt: 2020-01-01T00:00:00Z").await;
    site.apply("cancelled", "  cronExpr: '@daily'").await;
    site.alarm_in("cancelled", "Active").await;
    // By somebody who tidies up in the database; the controller is told of it by a touch of the resource.
    sqlx::query("UPDATE alarms SET status = 'cancelled', cancelled_by = 'owner' WHERE resource_name = 'cancelled'")
        .execute(&mut site.world.database.connect().await)
        .await
        .unwrap();
    site.namespace.kubectl(&["annotate", "alarm", "cancelled", "touched=yes"]).await;

    for (name, phase) in [("fired", "Fired"), ("refused", "Failed"), ("missed", "Failed"), ("cancelled", "Cancelled")] {
        let over = site.alarm_in(name, phase).await;
        assert_eq!(site.judged(&over).await, judged("Current", "Healthy", true), "{name}: {over}");
    }
}

#[tokio::test]
async fn a_router_that_takes_nothing_is_told_of_and_holds_nothing_up() {
    let site = Site::new().await;
    let _daemon = site.serve("controller,dispatch").await;
    site.world.sink.always(Reply::Status(503));
    site.apply("tea", "  delaySeconds: 1").await;
    let delivering =
        |alarm: &Value| condition(alarm, "Delivering").is_some_and(|condition| condition["status"] == "False");
    let undelivered = site.once("alarms", "tea", "is not delivered", delivering).await;
    assert_eq!(site.judged(&undelivered).await, judged("Current", "Healthy", true));
    let (_, message) = health(&undelivered).await;
    assert!(message.starts_with("As specified, but the router does not take its wakes: "), "{message}");
    assert!(message.contains("503"), "{message}");
}

#[tokio::test]
async fn a_typo_fails_a_sync_with_the_sentence_that_tells_of_it() {
    let site = Site::new().await;
    let _daemon = site.serve("controller").await;
    site.apply("tea", "  cronExpr: 0 25 * * *").await;
    let invalid = site.alarm_in("tea", "Invalid").await;
    assert_eq!(site.judged(&invalid).await, judged("Failed", "Degraded", false));
    let sentence = condition(&invalid, "Stalled").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(sentence.starts_with("spec.cronExpr: "), "{sentence}");
    assert_eq!((kstatus(&invalid).await.1, health(&invalid).await.1), (sentence.clone(), sentence));
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for() {
    let postgres = Postgres::start().await;
    let site = site_on(&postgres).await;
    let _daemon = site.serve("controller").await;
    site.apply("tea", "  cronExpr: '@daily'").await;
    site.alarm_in("tea", "Active").await;

    postgres.stop(Stop::Fast).await;
    site.apply("tea", "  cronExpr: '@hourly'").await;
    let waiting =
        site.once("alarms", "tea", "waits for the database", |alarm| condition(alarm, "Reconciling").is_some()).await;
    assert_eq!(site.judged(&waiting).await, judged("InProgress", "Progressing", false), "{waiting}");
    let ready = condition(&waiting, "Ready").unwrap();
    assert_eq!((ready["status"].as_str(), ready["reason"].as_str()), (Some("False"), Some("DatabaseUnavailable")));

    postgres.start_again().await;
    let hourly = |alarm: &Value| alarm["status"]["schedule"] == "@hourly" && condition(alarm, "Reconciling").is_none();
    let stored = site.once("alarms", "tea", "is stored", hourly).await;
    assert_eq!(site.judged(&stored).await, judged("Current", "Healthy", true));
}

#[tokio::test]
async fn an_alarm_deleted_while_the_database_is_away_goes_when_it_is_back() {
    let postgres = Postgres::start().await;
    let site = site_on(&postgres).await;
    let _daemon = site.serve("controller").await;
    site.apply("tea", "  cronExpr: '@daily'").await;
    site.alarm_in("tea", "Active").await;

    postgres.stop(Stop::Fast).await;
    site.namespace.alarms().delete("tea", &DeleteParams::default()).await.unwrap();
    let told = |alarm: &Value| condition(alarm, "Reconciling").is_some();
    let leaving = site.once("alarms", "tea", "says what it waits for", told).await;
    assert!(leaving["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(kstatus(&leaving).await.0, "Terminating");
    let sentence = condition(&leaving, "Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert_eq!(health(&leaving).await, ("Progressing".to_owned(), sentence));
    // Nothing can be asked of it any more.
    let buttons = argocd("alarm/actions/discovery.lua", &leaving).await;
    assert!(buttons.as_object().unwrap().values().all(|button| button["disabled"] == true), "{buttons}");

    postgres.start_again().await;
    let (gone, said) = site.namespace.kubectl(&["wait", "--for=delete", "alarm/tea", "--timeout=60s"]).await;
    assert!(gone, "{said}");
}

#[tokio::test]
async fn an_agent_is_done_when_it_is_enrolled_and_fails_when_another_has_its_name() {
    let site = Site::new().await;
    let elsewhere = Namespace::fresh().await;
    let watched = format!("{},{}", site.namespace.name, elsewhere.name);
    let settings = [
        ("KUBECONFIG", site.namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", watched.as_str()),
        ("CHRONOS_NAMESPACE", site.namespace.name.as_str()),
    ];
    let _daemon = site.world.chronosd_with("controller", &settings).await;
    let with_reason = |reason: &'static str| {
        move |agent: &Value| condition(agent, "Ready").is_some_and(|ready| ready["reason"] == reason)
    };
    let enrolled = site.once("agents", "ann", "is enrolled", with_reason("Enrolled")).await;
    assert_eq!(site.judged(&enrolled).await, judged("Current", "Healthy", true));

    site.namespace.apply(&agent("ann", &site.ann, ", suspended: true")).await.unwrap();
    // Healthy, or a sync that comes to Agents first would never come to anything else.
    let suspended = site.once("agents", "ann", "is suspended", with_reason("Suspended")).await;
    assert_eq!(site.judged(&suspended).await, judged("Current", "Healthy", true));

    site.namespace.until_another_is_younger("ann").await;
    elsewhere.apply(&agent("second", &site.ann, "")).await.unwrap();
    let elsewhere = Site { namespace: elsewhere, ..site };
    let second = elsewhere.once("agents", "second", "is refused", with_reason("DuplicateDid")).await;
    assert_eq!(elsewhere.judged(&second).await, judged("Failed", "Degraded", false));
}

#[tokio::test]
async fn the_buttons_of_argo_cd_are_there_when_they_work_and_change_what_they_say() {
    let site = Site::new().await;
    let _daemon = site.serve("controller,dispatch").await;
    // An empty object, list and map of numbers: Lua knows only tables, and must give back what it got.
    site.apply("tea", "  cronExpr: '0 0 1 1 *'\n  payload: {none: {}, empty: [], list: [{}, {half: 0.5}], whole: 3}")
        .await;
    let offered = |buttons: &Value| {
        let buttons = buttons.as_object().unwrap().iter();
        let mut names: Vec<String> =
            buttons.filter(|(_, button)| button["disabled"] == false).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    };

    let active = site.alarm_in("tea", "Active").await;
    assert_eq!(offered(&argocd("alarm/actions/discovery.lua", &active).await), ["fire", "suspend"]);
    let patch = site.press("fire", "tea").await;
    let token = &patch["metadata"]["annotations"]["chronos.dev/fire-requested-at"];
    assert_eq!(patch, json!({ "metadata": { "annotations": { "chronos.dev/fire-requested-at": token } } }));
    assert!(token.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().is_ok(), "{token}");
    site.world.sink.wakes(1).await;
    site.once("alarms", "tea", "echoes the request", |alarm| alarm["status"]["fireRequestedAt"] == *token).await;

    assert_eq!(site.press("suspend", "tea").await, json!({ "spec": { "suspend": true } }));
    let paused = site.alarm_in("tea", "Paused").await;
    assert_eq!(offered(&argocd("alarm/actions/discovery.lua", &paused).await), ["resume"]);
    assert_eq!(site.press("resume", "tea").await, json!({ "spec": { "suspend": false } }));
    site.alarm_in("tea", "Active").await;

    site.apply("over", "  delaySeconds: 1").await;
    let fired = site.alarm_in("over", "Fired").await;
    assert_eq!(offered(&argocd("alarm/actions/discovery.lua", &fired).await), ["suspend"]);
}

#[tokio::test]
async fn the_config_map_brings_the_scripts_to_argo_cd_and_leaves_its_other_settings_alone() {
    let namespace = Namespace::fresh().await;
    let kubectl = async |arguments: &[&str]| {
        let (done, said) = namespace.kubectl(arguments).await;
        assert!(done, "{arguments:?}: {said}");
        said
    };
    kubectl(&["create", "configmap", "argocd-cm", "--from-literal=url=https://argocd.example.com"]).await;
    let file = scripts().join("argocd-cm.yaml");
    // As the first lines of the file say.
    kubectl(&["apply", "--server-side", "--field-manager=chronos", "-f", file.to_str().unwrap()]).await;
    let map: Value = serde_json::from_str(&kubectl(&["get", "configmap", "argocd-cm", "-o", "json"]).await).unwrap();
    let script = |name: &str| fs::read_to_string(scripts().join(name)).unwrap();
    let data = &map["data"];
    assert_eq!(data["url"], "https://argocd.example.com");
    assert_eq!(data["resource.customizations.health.chronos.dev_Alarm"], script("alarm/health.lua"));
    assert_eq!(data["resource.customizations.health.chronos.dev_Agent"], script("agent/health.lua"));
    let actions = data["resource.customizations.actions.chronos.dev_Alarm"].as_str().unwrap();
    let actions: Value = serde_saphyr::from_str(actions).unwrap();
    let action = |name: &str| json!({ "name": name, "action.lua": script(&format!("alarm/actions/{name}.lua")) });
    let definitions = ["fire", "suspend", "resume"].map(action);
    assert_eq!(actions, json!({ "discovery.lua": script("alarm/actions/discovery.lua"), "definitions": definitions }));
}

/// On a Postgres that can be stopped.
async fn site_on(postgres: &Postgres) -> Site {
    Site::on(World { database: Database { uri: postgres.uri.clone() }, sink: Sink::start().await }).await
}

fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}
