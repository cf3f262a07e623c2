//! `chronosd finalizers release`, on a real API server.

use chronos::controller::{AGENT_FINALIZER, ALARM_FINALIZER};
use futures::{StreamExt, stream};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Ended, run};
use crate::support::{
    AgentKey, ControlPlane, Daemon, Namespace, World, cluster::OwnKubeconfig, daemon::command, eventually,
};

const FOREIGN: &str = "example.com/keep";

/// All that `chronosd finalizers release` needs, where its Deployments are and where the resources are.
const RIGHTS: &str = "
  - {apiGroups: [chronos.dev], resources: [alarms, agents], verbs: [list, patch]}
  - {apiGroups: [apps], resources: [deployments/scale], resourceNames: [chronos, not-there], verbs: [patch]}
  - {apiGroups: [''], resources: [pods], verbs: [list]}";

/// Somebody who may do this in these namespaces and nothing else anywhere.
async fn account(namespaces: &[&Namespace], rights: &str) -> OwnKubeconfig {
    let user = format!("releaser-of-{}", namespaces[0].name);
    for namespace in namespaces {
        let grant = format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: release}}\nrules:{rights}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: release}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: release}}\n\
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]\n"
        );
        namespace.apply(&grant).await.unwrap();
        eventually("the grant counts", || async {
            let user = format!("--as={user}");
            namespace.kubectl(&["auth", "can-i", "patch", "agents.chronos.dev", &user]).await.0.then_some(())
        })
        .await;
    }
    namespaces[0].kubeconfig_as(&user)
}

async fn release(kubeconfig: &std::path::Path, settings: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let all = [&["finalizers", "release", "--kubeconfig", kubeconfig.to_str().unwrap()], arguments].concat();
    run(command(settings), "", &all).await
}

fn alarm(name: &str, owner: &AgentKey, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": { "name": name, "finalizers": finalizers },
        "spec": { "owner": owner.did, "cronExpr": "@daily", "wakeMessage": "wake up" },
    })
}

fn agent(name: &str, key: &AgentKey, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "chronos.dev/v1alpha1", "kind": "Agent", "metadata": { "name": name, "finalizers": finalizers },
        "spec": { "did": key.did, "publicKey": key.public_key },
    })
}

/// An Alarm and an Agent that a controller has left behind.
async fn left_behind(namespace: &Namespace) {
    let ann = AgentKey::of("ann");
    namespace.post("agents", agent("ann", &ann, &[AGENT_FINALIZER]).to_string()).await;
    namespace.post("alarms", alarm("tea", &ann, &[ALARM_FINALIZER]).to_string()).await;
}

async fn finalizers(namespace: &Namespace) -> (Vec<String>, Vec<String>) {
    let (tea, ann) = (namespace.alarms().get("tea").await.unwrap(), namespace.agents().get("ann").await.unwrap());
    (tea.finalizers().to_vec(), ann.finalizers().to_vec())
}

fn held() -> (Vec<String>, Vec<String>) {
    (vec![ALARM_FINALIZER.to_owned()], vec![AGENT_FINALIZER.to_owned()])
}

async fn controller(world: &World, namespace: &Namespace) -> Daemon {
    let settings = [
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
        ("CHRONOS_ORPHAN_GRACE_SECONDS", "1"),
    ];
    world.chronosd_with("controller", &settings).await
}

/// Every column of both tables.
async fn rows(world: &World) -> Vec<Value> {
    let rows = "SELECT to_jsonb(alarms) FROM alarms UNION ALL SELECT to_jsonb(agents) FROM agents ORDER BY 1";
    sqlx::query_scalar(rows).fetch_all(&mut world.database.connect().await).await.unwrap()
}

#[tokio::test]
async fn resources_are_let_go_their_rows_stay_and_a_later_controller_goes_on_with_them() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let ann = AgentKey::of("ann");
    let daemon = controller(&world, &namespace).await;
    namespace.post("agents", agent("ann", &ann, &[]).to_string()).await;
    for name in ["tea", "cake", "bread"] {
        namespace.post("alarms", alarm(name, &ann, &[]).to_string()).await;
    }
    let stored = |name: &'static str| namespace.status(name, "is stored", |status| status.alarm_id.is_some());
    let before = (stored("tea").await.alarm_id, stored("cake").await.alarm_id);
    stored("bread").await;
    assert!(daemon.terminate().await.success());

    let alarms = namespace.alarms();
    let both = Patch::Merge(json!({ "metadata": { "finalizers": [FOREIGN, ALARM_FINALIZER] } }));
    alarms.patch("cake", &PatchParams::default(), &both).await.unwrap();
    alarms.delete("bread", &DeleteParams::default()).await.unwrap();
    assert!(alarms.get("bread").await.unwrap().metadata.deletion_timestamp.is_some(), "held, with nobody to let it go");
    let spec = alarms.get("tea").await.unwrap().metadata.generation;
    let kept = rows(&world).await;
    assert_eq!(kept.len(), 4);

    let account = account(&[&namespace], RIGHTS).await;
    let ended = release(&account.path, &[], &["--namespace", &namespace.name]).await;
    let told = format!(
        "Alarms: finalizer taken off 3 Alarms\nAgents: finalizer taken off 1 Agent\nbeing deleted, and let go: Alarm {}/bread. \
         Nobody has told the database: their alarms are still active, their agents still enrolled. The next controller of this \
         cluster clears them away; if there will be none, `chronosd cluster forget` does\n",
        namespace.name
    );
    assert_eq!((ended.code, ended.stdout, ended.stderr), (Some(0), told, String::new()));
    let (tea, ann_of) = finalizers(&namespace).await;
    assert_eq!((tea, ann_of), (vec![], vec![]));
    assert_eq!(alarms.get("cake").await.unwrap().finalizers(), [FOREIGN]);
    assert!(alarms.get_opt("bread").await.unwrap().is_none());
    assert_eq!(alarms.get("tea").await.unwrap().metadata.generation, spec, "nothing of the spec was written");
    assert_eq!(rows(&world).await, kept);

    let again = release(&account.path, &[], &["--namespace", &namespace.name]).await;
    let nothing =
        "Alarms: none has a finalizer of ours, nothing to do\nAgents: none has a finalizer of ours, nothing to do\n";
    assert_eq!((again.code, again.stdout.as_str(), again.stderr.as_str()), (Some(0), nothing, ""));

    let _daemon = controller(&world, &namespace).await;
    eventually("the finalizers are back", || async { (finalizers(&namespace).await == held()).then_some(()) }).await;
    eventually("also beside a foreign one", || async {
        let cake = alarms.get("cake").await.unwrap();
        (cake.finalizers() == [FOREIGN, ALARM_FINALIZER]).then_some(())
    })
    .await;
    assert_eq!((stored("tea").await.alarm_id, stored("cake").await.alarm_id), before, "the same alarms as before");
    eventually("what was let go while it was being deleted is cleared away", || async {
        let cancelled = "SELECT array_agg(resource_name || ' ' || status ORDER BY resource_name) FROM alarms";
        let all: Vec<String> =
            sqlx::query_scalar(cancelled).fetch_one(&mut world.database.connect().await).await.unwrap();
        (all == ["bread cancelled", "cake active", "tea active"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_finalizer_goes_before_the_last_pod_of_the_deployment() {
    let namespace = Namespace::fresh().await;
    left_behind(&namespace).await;
    // Nobody here makes pods of a Deployment: this one is as good.
    let labels = "{app.kubernetes.io/name: chronos, app.kubernetes.io/instance: here}";
    let pod = |name: &str, labels: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {labels}}}\nspec: {{containers: [{{name: c, image: c}}]}}\n"
        )
    };
    let deployment = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: chronos}}\nspec:\n  replicas: 2\n  selector: {{matchLabels: {labels}}}\n  \
         template:\n    metadata: {{labels: {labels}}}\n    spec: {{containers: [{{name: c, image: c}}]}}\n"
    );
    for object in [deployment, pod("chronos-1", labels), pod("chronos-over", labels), pod("hook", "{app: hook}")] {
        namespace.apply(&object).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(namespace.client(), &namespace.name);
    let over = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    pods.patch_status("chronos-over", &PatchParams::default(), &over).await.unwrap();
    let account = account(&[&namespace], RIGHTS).await;
    let settings = [("CHRONOS_NAMESPACE", namespace.name.as_str()), ("CHRONOS_WATCH_NAMESPACES", &namespace.name)];

    let named = ["--deployment", "chronos", "--deployment", "not-there"];
    let ended = release(&account.path, &settings, &[&named[..], &["--timeout", "2s"]].concat()).await;
    let told = "chronosd: not done within 2 s: Deployment chronos still has pods: chronos-1\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(1), "", told));
    assert_eq!(finalizers(&namespace).await, held());
    let deployments: Api<Deployment> = Api::namespaced(namespace.client(), &namespace.name);
    assert_eq!(deployments.get("chronos").await.unwrap().spec.unwrap().replicas, Some(0));

    pods.delete("chronos-1", &DeleteParams::default().grace_period(0)).await.unwrap();
    let ended = release(&account.path, &settings, &named).await;
    let told = "Deployment chronos: scaled to 0, no pod is left\nDeployment not-there: there is none\n\
                Alarms: finalizer taken off 1 Alarm\nAgents: finalizer taken off 1 Agent\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), told, ""));
    assert_eq!(finalizers(&namespace).await, (vec![], vec![]));
}

#[tokio::test]
async fn only_the_namespaces_that_are_watched_are_looked_into() {
    let (one, two, other) = tokio::join!(Namespace::fresh(), Namespace::fresh(), Namespace::fresh());
    for namespace in [&one, &two, &other] {
        left_behind(namespace).await;
    }
    // Rights in two namespaces, and in the cluster none: whoever asked for all would be refused.
    let account = account(&[&one, &two], RIGHTS).await;
    let watched = format!("{}, {}", one.name, two.name);
    let ended = release(&account.path, &[("CHRONOS_WATCH_NAMESPACES", &watched)], &[]).await;
    let told = "Alarms: finalizer taken off 2 Alarms\nAgents: finalizer taken off 2 Agents\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), told, ""));
    assert_eq!(finalizers(&one).await, (vec![], vec![]));
    assert_eq!(finalizers(&two).await, (vec![], vec![]));
    assert_eq!(finalizers(&other).await, held());

    let refused = release(&account.path, &[], &["--namespace", &other.name]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let told = format!("chronosd: listing Alarms of namespace {}: alarms.chronos.dev is forbidden: ", other.name);
    assert!(refused.stderr.starts_with(&told), "{}", refused.stderr);
    assert_eq!(finalizers(&other).await, held());
}

#[tokio::test]
async fn a_cluster_without_our_kinds_has_nothing_to_let_go_and_one_with_many_is_let_go_whole() {
    let plane = ControlPlane::start().await;
    let ended = release(plane.kubeconfig(), &[], &[]).await;
    let told = "Alarms: the cluster has no such resource, nothing to do\nAgents: the cluster has no such resource, nothing to do\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), told, ""));

    // More than the API server tells at once, in two namespaces, none of which is named.
    let (many, one) = (plane.namespace().await, plane.namespace().await);
    left_behind(&one).await;
    let ann = AgentKey::of("ann");
    let made = stream::iter(0..501).for_each_concurrent(16, |number| {
        let text = alarm(&format!("alarm-{number}"), &ann, &[ALARM_FINALIZER]).to_string();
        many.post("alarms", text)
    });
    made.await;
    let ended = release(plane.kubeconfig(), &[], &[]).await;
    let told = "Alarms: finalizer taken off 502 Alarms\nAgents: finalizer taken off 1 Agent\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), told, ""));
    let alarms = many.alarms().list(&kube::api::ListParams::default()).await.unwrap();
    assert!(alarms.items.iter().all(|alarm| alarm.finalizers().is_empty()));
}

#[tokio::test]
async fn a_controller_that_is_still_at_work_is_told_of() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    left_behind(&namespace).await;
    let _daemon = controller(&world, &namespace).await;
    // One that is slow to put them back may not be noticed.
    let ended = eventually("it is noticed", || async {
        let ended = release(&namespace.kubeconfig, &[], &["--namespace", &namespace.name]).await;
        (ended.code != Some(0)).then_some(ended)
    })
    .await;
    assert_eq!(ended.code, Some(1));
    let told = "is put back again and again: a controller is at work. Stop it first, or name its Deployment with --deployment\n";
    assert!(
        ended.stderr.starts_with("chronosd: the finalizer of A") && ended.stderr.ends_with(told),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn without_a_cluster_or_with_a_wrong_argument_nothing_is_done() {
    let ended = run(command(&[]), "", &["finalizers", "release"]).await;
    let told = "chronosd: finalizers are in a cluster: run this inside one, set KUBECONFIG or --kubeconfig\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(1), "", told));
    let ended = run(command(&[]), "", &["finalizers", "release", "--timeout", "soon"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("is no length of time; give one such as 90s, 2m or 1h30m"), "{}", ended.stderr);
}
