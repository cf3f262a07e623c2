//! What the chart grants against what the operator does: it lives a whole life under its own account, and the API server's audit log
//! tells what it asked for. Whatever it asked for is granted, and whatever is granted it asked for; in the whole cluster as in one that
//! it may see only one namespace of.

use std::{collections::BTreeSet, time::Duration};

use chronos::crd::{FIRE_REQUESTED_AT, Phase};
use k8s_openapi::api::{
    authorization::v1::ResourceAttributes,
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    chart,
    support::{AgentKey, ControlPlane, Daemon, Namespace, Reply, World, eventually},
};

const HOME: &str = "chronos-system";
const OPERATOR: &str = "system:serviceaccount:chronos-system:chronos";
const LEASES: [&str; 2] = ["chronos-dispatch", "chronos-controller"];

#[tokio::test]
async fn the_operator_uses_every_right_it_is_given_and_needs_no_other() {
    lives_by_its_rights(Watched::All).await;
}

/// The only right in the whole cluster is to read the namespace whose uid is the cluster's id.
#[tokio::test]
async fn an_operator_of_one_namespace_needs_rights_in_that_one_alone() {
    lives_by_its_rights(Watched::One).await;
}

#[derive(Clone, Copy, PartialEq)]
enum Watched {
    All,
    One,
}

async fn lives_by_its_rights(watched: Watched) {
    let audit = Audit::new();
    let plane = ControlPlane::start_with(&audit.flags()).await;
    let home = Namespace::named(plane.kubeconfig(), HOME).await;
    let stage = Stage { namespace: plane.bare_namespace().await, ann: AgentKey::of("ann") };
    let manifest = manifest(watched, &stage.namespace.name).await;
    let granted = granted(&manifest);
    if watched == Watched::One {
        let wide: Vec<_> = granted.iter().filter(|(_, wide)| *wide).map(|(right, _)| right.as_str()).collect();
        assert_eq!(wide, ["get namespaces kube-system"]);
    }
    grant(&home, &manifest, watched, &stage.namespace.name).await;
    tokio::select! {
        () = life(&plane, &home, &stage, watched) => {}
        // What is refused is tried again and again: nothing that the life waits for would come.
        refused = audit.refused() => panic!("the operator was refused: {refused}"),
    }
    let requests = audit.requests();
    let refused: Vec<_> = requests.iter().filter(|request| request.refused()).collect();
    assert!(refused.is_empty(), "the operator was refused: {refused:?}");
    let used: BTreeSet<_> = requests.iter().map(Request::right).collect();
    let granted: BTreeSet<_> = granted.into_iter().map(|(right, _)| right).collect();
    let (unused, missing): (Vec<_>, Vec<_>) =
        (granted.difference(&used).collect(), used.difference(&granted).collect());
    assert!(
        unused.is_empty() && missing.is_empty(),
        "granted and never used: {unused:#?}\nused and not granted as such: {missing:#?}"
    );
}

/// The account and its rights, as the chart has them.
async fn manifest(watched: Watched, stage: &str) -> String {
    let values = chart::variant("default");
    let namespaces = match watched {
        Watched::All => "watchNamespaces=[]".to_owned(),
        Watched::One => format!("watchNamespaces=[\"{stage}\"]"),
    };
    let shown = ["--show-only", "templates/serviceaccount.yaml", "--show-only", "templates/rbac.yaml"];
    chart::rendered(HOME, &[&["--values", &values, "--set-json", &namespaces], &shown[..]].concat()).await
}

/// Applies it, and waits until every binding counts.
async fn grant(home: &Namespace, manifest: &str, watched: Watched, stage: &str) {
    // Each object says itself in which namespace it is.
    let (_folder, path) = chart::file(manifest);
    for object in chart::objects(manifest) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(HOME);
        assert!([HOME, stage].contains(&namespace), "{object}");
    }
    let (applied, said) = home.kubectl_anywhere(&["apply", "-f", path.to_str().unwrap()]).await;
    assert!(applied, "{said}");
    let right = |verb: &str, group: &str, resource: &str, name: &str, namespace: &str| ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..Default::default()
    };
    for right in [
        right("get", "", "namespaces", "kube-system", ""),
        right("get", "coordination.k8s.io", "leases", "chronos-dispatch", HOME),
        right("list", "chronos.dev", "alarms", "", stage),
    ] {
        eventually(&format!("{right:?}"), || async { home.may(OPERATOR, right.clone()).await.then_some(()) }).await;
    }
    let everywhere = home.may(OPERATOR, right("list", "chronos.dev", "alarms", "", "")).await;
    assert_eq!(everywhere, watched == Watched::All);
}

/// Everything that an operator comes across.
async fn life(plane: &ControlPlane, home: &Namespace, stage: &Stage, watched: Watched) {
    let world = World::new().await;
    let (made, token) = home.kubectl(&["create", "token", "chronos"]).await;
    assert!(made, "{token}");
    let kubeconfig = home.kubeconfig_of(token.trim());
    let settings = [
        ("KUBECONFIG", kubeconfig.path.to_str().unwrap()),
        ("CHRONOS_NAMESPACE", HOME),
        ("CHRONOS_ORPHAN_GRACE_SECONDS", "1"),
        ("CHRONOS_WATCH_NAMESPACES", if watched == Watched::One { stage.namespace.name.as_str() } else { "" }),
    ];
    let start = || Daemon::start_unready(&world, "controller,dispatch", &settings);

    // It comes before its CRDs, and waits for them.
    let daemon = start().await;
    eventually("it misses the CRDs", || async { (daemon.said("cannot be watched yet") > 0).then_some(()) }).await;
    plane.install_crds().await;
    eventually("it is ready", || async { (daemon.readiness().await.0 == 200).then_some(()) }).await;

    stage.apply("early", "  cronExpr: '@daily'").await;
    stage.phase("early", Phase::Invalid).await; // and looks at the Agents themselves
    stage.enrol().await;
    stage.phase("early", Phase::Active).await;

    stage.apply("taken", "  delaySeconds: 1").await;
    stage.phase("taken", Phase::Fired).await;
    world.sink.reply_to("refused", [Reply::Status(503)]);
    stage.apply("refused", "  delaySeconds: 1\n  label: refused\n  maxFailures: 0").await;
    stage.phase("refused", Phase::Failed).await;
    stage.event("refused", "Exhausted", 1).await;

    stage.ask_for_wake("early", "now").await;
    world.sink.wakes(3).await;
    stage.apply("rests", "  cronExpr: '@daily'\n  suspend: true").await;
    stage.phase("rests", Phase::Paused).await;
    stage.ask_for_wake("rests", "now").await;
    stage.event("rests", "FireRefused", 1).await;
    stage.ask_for_wake("rests", "really").await;
    stage.event("rests", "FireRefused", 2).await; // the same event once more

    // Somebody removes a finalizer while the operator is away; the Leases were given back, and are taken again.
    assert!(daemon.terminate().await.success());
    let alarms = stage.namespace.alarms();
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    alarms.patch("early", &PatchParams::default(), &released).await.unwrap();
    alarms.delete("early", &DeleteParams::default()).await.unwrap();
    let daemon = start().await;
    eventually("the orphan is cancelled", || async {
        let cancelled = "SELECT EXISTS (SELECT FROM alarms WHERE resource_name = 'early' AND status = 'cancelled')";
        let connection = &mut world.database.connect().await;
        sqlx::query_scalar::<_, bool>(cancelled).fetch_one(connection).await.unwrap().then_some(())
    })
    .await;

    let gone = DeleteParams::default();
    alarms.delete("rests", &gone).await.unwrap();
    eventually("the Alarm is gone", || async { alarms.get_opt("rests").await.unwrap().is_none().then_some(()) }).await;
    let agents = stage.namespace.agents();
    agents.delete("ann", &gone).await.unwrap();
    eventually("the Agent is gone", || async { agents.get_opt("ann").await.unwrap().is_none().then_some(()) }).await;

    assert!(daemon.terminate().await.success());
    for lease in LEASES {
        let holder = home.leases().get(lease).await.unwrap().spec.unwrap().holder_identity;
        assert_eq!(holder.as_deref(), Some(""), "{lease} is given back");
    }
}

/// Where the life takes place: a namespace that is not the operator's.
struct Stage {
    namespace: Namespace,
    ann: AgentKey,
}

impl Stage {
    async fn enrol(&self) {
        let AgentKey { did, public_key, .. } = &self.ann;
        let agent = format!(
            "apiVersion: chronos.dev/v1alpha1\nkind: Agent\nmetadata: {{name: ann}}\nspec: {{did: \"{did}\", publicKey: \"{public_key}\"}}\n"
        );
        self.namespace.apply(&agent).await.unwrap();
    }

    async fn apply(&self, name: &str, spec: &str) {
        let alarm = format!(
            "apiVersion: chronos.dev/v1alpha1\nkind: Alarm\nmetadata: {{name: {name}}}\nspec:\n  owner: \"{}\"\n  wakeMessage: wake up\n{spec}\n",
            self.ann.did
        );
        self.namespace.apply(&alarm).await.unwrap();
    }

    async fn phase(&self, name: &str, phase: Phase) {
        self.namespace.status(name, &format!("is {phase:?}"), |status| status.phase == Some(phase)).await;
    }

    async fn ask_for_wake(&self, name: &str, token: &str) {
        let annotation = Patch::Merge(json!({ "metadata": { "annotations": { FIRE_REQUESTED_AT: token } } }));
        self.namespace.alarms().patch(name, &PatchParams::default(), &annotation).await.unwrap();
    }

    /// It is told for the `times`th time.
    async fn event(&self, name: &str, reason: &str, times: usize) {
        eventually(&format!("event {reason} of {name}, {times} times"), || async {
            let (listed, said) = self.namespace.kubectl(&["get", "events.events.k8s.io", "-o", "json"]).await;
            assert!(listed, "{said}");
            let events: Value = serde_json::from_str(&said).unwrap();
            let ours = |event: &&Value| event["regarding"]["name"] == name && event["reason"] == reason;
            (events["items"].as_array().unwrap().iter().filter(ours).count() == times).then_some(())
        })
        .await;
    }
}

/// What the API server writes down about every request: who, what, and what the answer was.
struct Audit {
    folder: TempDir,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    verb: String,
    user: User,
    #[serde(rename = "requestURI")]
    uri: String,
    object_ref: Option<Object>,
    response_status: Option<Answer>,
}

#[derive(Debug, Deserialize)]
struct User {
    /// Of somebody whose token is none, such as a client of a server that had this port before: nothing.
    #[serde(default)]
    username: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Object {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Answer {
    code: u16,
}

impl Audit {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Not what is only received: nobody has decided on it yet.
        let policy =
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
        std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        Self { folder }
    }

    fn flags(&self) -> [String; 2] {
        [("policy-file", "policy.yaml"), ("log-path", "audit.log")]
            .map(|(flag, file)| format!("--audit-{flag}={}", self.folder.path().join(file).display()))
    }

    /// The operator's, so far. A watch is there twice: begun and ended.
    fn requests(&self) -> Vec<Request> {
        let log = std::fs::read_to_string(self.folder.path().join("audit.log")).expect("the API server writes it");
        // It may be at the last line just now.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let requests = whole.lines().map(|line| serde_json::from_str::<Request>(line).expect(line));
        requests.filter(|request| request.user.username == OPERATOR).collect()
    }

    /// Returns when something is refused.
    async fn refused(&self) -> String {
        loop {
            if let Some(request) = self.requests().iter().find(|request| request.refused()) {
                return request.right();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

impl Request {
    fn refused(&self) -> bool {
        self.response_status.as_ref().is_some_and(|answer| [401, 403].contains(&answer.code))
    }

    /// What a rule must grant for it.
    fn right(&self) -> String {
        let Some(object) = &self.object_ref else { return format!("{} {}", self.verb, self.uri) };
        let resource = match object.subresource.as_str() {
            "" => object.resource.clone(),
            subresource => format!("{}/{subresource}", object.resource),
        };
        // Objects that are known by name beforehand: there is no reason to grant others.
        let known = object.resource == "namespaces" || object.resource == "leases" && self.verb != "create";
        let name = if known { &object.name } else { "" };
        right(&self.verb, &object.api_group, &resource, name, object.namespace == HOME)
    }
}

/// `update leases.coordination.k8s.io chronos-dispatch, at home`
fn right(verb: &str, group: &str, resource: &str, name: &str, at_home: bool) -> String {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let place = if at_home { ", at home" } else { "" };
    format!("{verb} {resource}{group}{name}{place}")
}

/// What the manifest grants, and whether in the whole cluster.
fn granted(manifest: &str) -> BTreeSet<(String, bool)> {
    let mut rights = BTreeSet::new();
    for object in chart::objects(manifest) {
        let wide = object["kind"] == "ClusterRole";
        let at_home = !wide && object["metadata"]["namespace"] == HOME;
        let rules = match object["kind"].as_str() {
            Some("ClusterRole") => serde_json::from_value::<ClusterRole>(object).unwrap().rules,
            Some("Role") => serde_json::from_value::<Role>(object).unwrap().rules,
            _ => continue,
        };
        for rule in rules.expect("a role without rules is not worth having") {
            rights.extend(rights_of(&rule, at_home).into_iter().map(|right| (right, wide)));
        }
    }
    rights
}

fn rights_of(rule: &PolicyRule, at_home: bool) -> Vec<String> {
    let one =
        |texts: &Option<Vec<String>>| texts.clone().filter(|texts| !texts.is_empty()).unwrap_or(vec![String::new()]);
    let mut rights = Vec::new();
    for verb in &rule.verbs {
        for group in one(&rule.api_groups) {
            for resource in one(&rule.resources) {
                for name in one(&rule.resource_names) {
                    rights.push(right(verb, &group, &resource, &name, at_home));
                }
            }
        }
    }
    rights
}
