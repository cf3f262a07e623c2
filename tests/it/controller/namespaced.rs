//! An operator that may look into a few namespaces and no further: `CHRONOS_WATCH_NAMESPACES` with Roles in those, and of the cluster
//! itself nothing but its id.

use chronos::{controller::ALARM_FINALIZER, crd::Phase};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{agent_is, enrol};
use crate::support::{AgentKey, Daemon, Namespace, World, eventually};

/// In each namespace that is watched.
const WATCHED: &str = "
  - {apiGroups: [chronos.dev], resources: [alarms, agents], verbs: [list, watch, patch]}
  - {apiGroups: [chronos.dev], resources: [alarms], verbs: [get]}
  - {apiGroups: [chronos.dev], resources: [alarms/status, agents/status], verbs: [patch]}
  - {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}";
/// Where the operator is.
const HOME: &str = "
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [chronos-dispatch, chronos-controller], verbs: [get, update]}";

async fn grant(namespace: &Namespace, user: &str, rules: &str) {
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: chronos}}\nrules:{rules}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: chronos}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: chronos}}\n\
         subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]\n"
    );
    namespace.apply(&role).await.unwrap();
}

/// The cluster's id, which is the uid of a namespace.
async fn grant_id(namespace: &Namespace, user: &str) {
    let name = format!("chronos-of-{user}");
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": name },
        "rules": [{ "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"] }],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    }))
    .unwrap();
    Api::all(namespace.client()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(namespace.client()).create(&PostParams::default(), &binding).await.unwrap();
}

fn alarm(name: &str, owner: &AgentKey, schedule: &str) -> String {
    format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Alarm\nmetadata: {{name: {name}}}\nspec: {{owner: \"{}\", wakeMessage: wake up, {schedule}}}\n",
        owner.did
    )
}

#[tokio::test]
async fn with_roles_in_the_watched_namespaces_alone_all_goes_on_in_them_and_nothing_elsewhere() {
    let (world, home, one, two) =
        tokio::join!(World::new(), Namespace::fresh(), Namespace::fresh(), Namespace::fresh());
    let user = format!("operator-of-{}", home.name);
    grant_id(&home, &user).await;
    grant(&home, &user, HOME).await;
    grant(&one, &user, WATCHED).await;
    grant(&two, &user, WATCHED).await;
    let (kubeconfig, watched) = (home.kubeconfig_as(&user), format!("{},{}", one.name, two.name));
    let settings = [
        ("KUBECONFIG", kubeconfig.path.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", watched.as_str()),
        ("CHRONOS_NAMESPACE", home.name.as_str()),
        ("CHRONOS_ORPHAN_GRACE_SECONDS", "1"),
    ];
    let daemon = Daemon::start(&world, "controller,dispatch", &settings).await;

    // Each namespace has its own; the operator's is not watched.
    for namespace in [&home, &one, &two] {
        let ann = AgentKey::of("ann");
        enrol(namespace, &ann, "").await;
        namespace.apply(&alarm("soon", &ann, "delaySeconds: 1")).await.unwrap();
        namespace.apply(&alarm("daily", &ann, "cronExpr: '@daily'")).await.unwrap();
    }
    for namespace in [&one, &two] {
        agent_is(namespace, "Enrolled").await;
        namespace.status("soon", "is fired", |status| status.phase == Some(Phase::Fired)).await;
        namespace.status("daily", "is active", |status| status.phase == Some(Phase::Active)).await;
        eventually("it is told as an event", || async {
            namespace.events_of("daily").await.iter().any(|(_, reason, _)| reason == "Scheduled").then_some(())
        })
        .await;
    }
    world.sink.wakes(2).await;

    // A deletion in one, and in the other one without a word.
    one.alarms().delete("daily", &DeleteParams::default()).await.unwrap();
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    two.alarms().patch("daily", &PatchParams::default(), &released).await.unwrap();
    two.alarms().delete("daily", &DeleteParams::default()).await.unwrap();
    eventually("both are cancelled", || async {
        let cancelled = "SELECT count(*) FROM alarms WHERE resource_name = 'daily' AND status = 'cancelled'";
        let connection = &mut world.database.connect().await;
        (sqlx::query_scalar::<_, i64>(cancelled).fetch_one(connection).await.unwrap() == 2).then_some(())
    })
    .await;

    let elsewhere = home.alarms().get("daily").await.unwrap();
    assert!(!elsewhere.finalizers().contains(&ALARM_FINALIZER.to_owned()), "nobody has looked at it");
    assert_eq!(elsewhere.status.and_then(|status| status.alarm_id), None);
    assert_eq!(world.sink.received().len(), 2);
    assert_eq!(daemon.said("forbidden"), 0, "it asks for nothing that it may not");
    assert!(daemon.terminate().await.success());
}
