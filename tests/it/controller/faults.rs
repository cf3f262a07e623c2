//! What the controller does when the API server, etcd, Postgres or its own Lease dies, hangs, forgets or comes back older. Each test has
//! a control plane of its own to break.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chronos::{
    crd::{self, Phase},
    leader::LEASE,
};
use k8s_openapi::{
    api::coordination::v1::Lease, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Cluster, conditions, serve};
use crate::support::{AgentKey, ControlPlane, Daemon, Namespace, World, cluster::client, eventually};

/// Long enough to be seen waiting, short enough to wait for.
const GRACE: Duration = Duration::from_secs(6);

/// A cluster to break, in which Ann is enrolled.
async fn breakable(roles: &str) -> (ControlPlane, Cluster) {
    let (plane, world) = tokio::join!(ControlPlane::start(), World::new());
    let namespace = plane.namespace().await;
    let daemon = serve(&world, &namespace, roles).await;
    let cluster = Cluster { world, namespace, ann: AgentKey::of("ann"), daemon };
    cluster.enrol().await;
    (plane, cluster)
}

async fn serve_with_grace(world: &World, namespace: &Namespace) -> Daemon {
    let grace = GRACE.as_secs().to_string();
    let settings = [
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
        ("CHRONOS_ORPHAN_GRACE_SECONDS", &grace),
    ];
    world.chronosd_with("controller,dispatch", &settings).await
}

impl Cluster {
    /// Status of the row of that name, and by whom it was cancelled.
    async fn row(&self, name: &str) -> (String, Option<String>, DateTime<Utc>) {
        sqlx::query_as("SELECT status, cancelled_by, updated_at FROM alarms WHERE resource_name = $1")
            .bind(name)
            .fetch_one(&mut self.world.database.connect().await)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn alarms_fire_while_api_server_etcd_and_controller_are_dead_and_their_status_catches_up() {
    let (plane, cluster) = breakable("controller").await;
    let dispatcher = serve(&cluster.world, &cluster.namespace, "dispatch").await;
    cluster.apply("tea", "  delaySeconds: 6").await;
    cluster.phase("tea", Phase::Active).await;

    plane.kill_apiserver().await;
    plane.kill_etcd().await;
    let Cluster { world, namespace, ann, daemon } = cluster;
    daemon.kill().await;
    world.sink.wakes(1).await;

    plane.start_etcd().await;
    plane.start_apiserver().await;
    let daemon = serve(&world, &namespace, "controller").await;
    let cluster = Cluster { world, namespace, ann, daemon };
    let fired = cluster.phase("tea", Phase::Fired).await;
    assert_eq!((fired.fired_count, cluster.world.sink.received().len()), (1, 1));
    drop(dispatcher);
}

#[tokio::test]
async fn a_controller_outlives_an_api_server_that_is_killed_and_one_that_hangs() {
    let (plane, cluster) = breakable("controller,dispatch").await;
    cluster.apply("first", "  delaySeconds: 4").await;
    cluster.phase("first", Phase::Active).await;
    plane.kill_apiserver().await;
    cluster.world.sink.wakes(1).await;
    plane.start_apiserver().await;
    cluster.phase("first", Phase::Fired).await;

    cluster.apply("second", "  delaySeconds: 4").await;
    cluster.phase("second", Phase::Active).await;
    plane.freeze_apiserver().await;
    cluster.world.sink.wakes(2).await;
    plane.thaw_apiserver().await;
    cluster.phase("second", Phase::Fired).await;
    // And what is applied afterwards is seen.
    cluster.apply("third", "  cronExpr: '@daily'").await;
    cluster.phase("third", Phase::Active).await;
    cluster.delete("third").await;
    assert_eq!(cluster.world.sink.received().len(), 2);
}

#[tokio::test]
async fn a_watch_whose_history_was_compacted_away_begins_anew_and_misses_nothing() {
    let (plane, cluster) = breakable("controller,dispatch").await;
    cluster.apply("before", "  cronExpr: '@daily'").await;
    cluster.phase("before", Phase::Active).await;
    cluster.daemon.signal("STOP").await;
    cluster.apply("meanwhile", "  cronExpr: '@daily'").await;
    cluster.apply("before", "  cronExpr: '@hourly'").await;
    plane.compact().await;
    // It forgets, too: what the controller asks to go on from is gone everywhere.
    plane.kill_apiserver().await;
    plane.start_apiserver().await;
    cluster.apply("after", "  cronExpr: '@daily'").await;
    cluster.daemon.signal("CONT").await;
    cluster.phase("meanwhile", Phase::Active).await;
    cluster.phase("after", Phase::Active).await;
    let edited = |status: &crd::AlarmStatus| status.schedule.as_deref() == Some("@hourly");
    cluster.namespace.status("before", "is edited", edited).await;
}

#[tokio::test]
async fn a_cluster_restored_from_an_older_snapshot_arms_nothing_again_and_what_vanished_has_a_grace() {
    let (plane, world) = tokio::join!(ControlPlane::start(), World::new());
    let namespace = plane.namespace().await;
    let daemon = serve_with_grace(&world, &namespace).await;
    let cluster = Cluster { world, namespace, ann: AgentKey::of("ann"), daemon };
    cluster.enrol().await;
    cluster.apply("fires", "  fireAt: 2099-01-01T00:00:00Z").await;
    cluster.apply("deleted", "  cronExpr: '@daily'").await;
    cluster.apply("stays", "  cronExpr: '@daily'").await;
    for name in ["fires", "deleted", "stays"] {
        cluster.phase(name, Phase::Active).await;
    }
    plane.snapshot("old").await;

    // After the snapshot: one is edited and fires, one is deleted, one comes.
    cluster.apply("fires", "  fireAt: 2098-01-01T00:00:00Z").await;
    cluster.namespace.status("fires", "is edited", |status| status.observed_generation == 2).await;
    cluster.request("fires", "now").await;
    cluster.phase("fires", Phase::Fired).await;
    cluster.delete("deleted").await;
    cluster.apply("late", "  cronExpr: '@daily'").await;
    cluster.phase("late", Phase::Active).await;

    let restored_at: DateTime<Utc> = cluster.ask("SELECT now()").await;
    plane.restore("old").await;
    let fired = cluster.phase("fires", Phase::Fired).await;
    assert_eq!((fired.observed_generation, fired.next_fire_time), (1, None), "an instant ahead does not arm it again");
    let cancelled = cluster.phase("deleted", Phase::Cancelled).await;
    assert_eq!(conditions(&cancelled), [("Ready", "True", "Cancelled")]);
    assert!(
        cancelled.conditions[0].message.contains("delete it and apply it anew"),
        "{}",
        cancelled.conditions[0].message
    );
    let swept = eventually("the alarm whose resource vanished is cancelled", || async {
        let (status, by, at) = cluster.row("late").await;
        (status == "cancelled").then_some((by, at))
    })
    .await;
    assert_eq!(swept.0.as_deref(), Some("resource"));
    let waited = swept.1 - restored_at;
    assert!(waited.to_std().unwrap() >= GRACE, "after {waited}");
    assert_eq!(cluster.row("stays").await.0, "active");
    assert_eq!(cluster.world.sink.received().len(), 1);
}

#[tokio::test]
async fn the_alarm_of_a_resource_whose_finalizer_was_removed_by_force_is_cancelled_after_a_grace() {
    let cluster = super::cluster().await;
    cluster.apply("forced", "  cronExpr: '@daily'").await;
    cluster.apply("stays", "  cronExpr: '@daily'").await;
    cluster.phase("forced", Phase::Active).await;
    cluster.phase("stays", Phase::Active).await;
    // A row of another cluster, whose resource nobody here can see.
    let copied = "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, cron_expr, scheduled_for, next_fire_at, source, cluster_id,
                      resource_uid, resource_namespace, resource_name, resource_generation, definition_hash)
                  SELECT owner_did, user_id, 'x', kind, cron_expr, scheduled_for, next_fire_at, source, gen_random_uuid(),
                      resource_uid, resource_namespace, 'elsewhere', 1, definition_hash FROM alarms WHERE resource_name = 'stays'";
    sqlx::raw_sql(copied).execute(&mut cluster.world.database.connect().await).await.unwrap();
    let Cluster { world, namespace, ann, daemon } = cluster;
    daemon.terminate().await;
    let (alarms, none) = (namespace.alarms(), json!({ "metadata": { "finalizers": null } }));
    alarms.patch("forced", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    alarms.delete("forced", &DeleteParams::default()).await.unwrap();
    assert!(alarms.get_opt("forced").await.unwrap().is_none(), "nobody is there to hold it");

    let daemon = serve_with_grace(&world, &namespace).await;
    let cluster = Cluster { world, namespace, ann, daemon };
    eventually("it is cancelled", || async { (cluster.row("forced").await.0 == "cancelled").then_some(()) }).await;
    assert_eq!(cluster.row("forced").await.1.as_deref(), Some("resource"));
    assert_eq!(
        (cluster.row("stays").await.0, cluster.row("elsewhere").await.0),
        ("active".to_owned(), "active".to_owned())
    );
}

#[tokio::test]
async fn a_controller_waits_for_its_definitions_and_is_not_ready_until_then() {
    let (plane, world) = tokio::join!(ControlPlane::start(), World::new());
    let namespace = plane.bare_namespace().await;
    let settings = [
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
    ];
    let daemon = Daemon::start_unready(&world, "controller,dispatch", &settings).await;
    eventually("it says what it waits for", || async {
        (daemon.said("are the CRDs of `chronosd crd` installed?") > 0).then_some(())
    })
    .await;
    assert_eq!(daemon.readiness().await.0, 503);
    plane.install_crds().await;
    eventually("it is ready", || async { (daemon.readiness().await.0 == 200).then_some(()) }).await;
    let cluster = Cluster { world, namespace, ann: AgentKey::of("ann"), daemon };
    cluster.enrol().await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    cluster.phase("tea", Phase::Active).await;
}

#[tokio::test]
async fn an_object_that_cannot_be_read_stops_only_itself_and_recovers_by_an_edit() {
    let (plane, world) = tokio::join!(ControlPlane::start(), World::new());
    let namespace = plane.namespace().await;
    let crds: Api<CustomResourceDefinition> = Api::all(client(plane.kubeconfig()).await);
    // As if an older version of Chronos had let it pass.
    let mut careless = serde_json::to_value(crds.get("alarms.chronos.dev").await.unwrap()).unwrap();
    careless["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    // What selects and prints by fields that are not there any more is refused.
    careless["spec"]["versions"][0]["selectableFields"] = json!(null);
    let careless: CustomResourceDefinition = serde_json::from_value(careless).unwrap();
    crds.replace("alarms.chronos.dev", &PostParams::default(), &careless).await.unwrap();
    let ann = AgentKey::of("ann");
    let of = |name: &str, spec: serde_json::Value| {
        json!({ "apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": { "name": name }, "spec": spec })
            .to_string()
    };
    let odd = of("odd", json!({ "owner": ann.did, "wakeMessage": "m", "cronExpr": "@daily", "maxFailures": "three" }));
    eventually("the API server takes anything", || async { namespace.try_post("alarms", odd.clone()).await.ok() })
        .await;
    // Of this one the rules themselves cannot be judged, so that nothing of it can be changed, not even its status.
    namespace.post("alarms", of("odder", json!({ "owner": 7, "delaySeconds": "soon" }))).await;
    plane.install_crds().await;

    let daemon = serve(&world, &namespace, "controller,dispatch").await;
    let cluster = Cluster { world, namespace, ann, daemon };
    cluster.enrol().await;
    cluster.apply("even", "  cronExpr: '@daily'").await;
    cluster.phase("even", Phase::Active).await;
    let refused = eventually("the odd one is told about", || async {
        let odd = cluster.namespace.json("alarms", "odd").await;
        let odd: serde_json::Value = serde_json::from_str(&odd).unwrap();
        (odd["status"]["phase"] == "Invalid").then_some(odd)
    })
    .await;
    let said = refused["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(said.starts_with("the object cannot be read (") && said.contains("kubectl explain"), "{said}");
    assert_eq!(refused["status"]["conditions"][0]["reason"], "InvalidSpec");
    // As `kubectl apply` does: server-side apply would have to understand what is there.
    let edit = json!({ "spec": { "maxFailures": 3 } });
    let alarms = Api::<kube::core::DynamicObject>::namespaced_with(
        cluster.namespace.client(),
        &cluster.namespace.name,
        &kube::core::ApiResource::erase::<crd::Alarm>(&()),
    );
    alarms.patch("odd", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    cluster.phase("odd", Phase::Active).await;
    eventually("an event tells of the odder one", || async {
        let events = cluster.namespace.events_of("odder").await;
        events.into_iter().find(|(_, reason, note)| reason == "Invalid" && note.contains("cannot be read"))
    })
    .await;
    cluster.delete("odder").await;
}

#[tokio::test]
async fn a_controller_whose_lease_is_deleted_or_stolen_rests_and_leads_again() {
    let cluster = super::cluster().await;
    let leases = cluster.namespace.leases();
    cluster.apply("before", "  cronExpr: '@daily'").await;
    cluster.phase("before", Phase::Active).await;
    leases.delete("chronos-controller", &DeleteParams::default()).await.unwrap();
    eventually("the Lease is made again", || async { leases.get_opt("chronos-controller").await.unwrap() }).await;
    cluster.apply("after", "  cronExpr: '@daily'").await;
    cluster.phase("after", Phase::Active).await;

    // A stranger that takes it and never renews: it runs out.
    let stolen_at = eventually("the Lease is stolen", || async {
        let mut lease: Lease = leases.get("chronos-controller").await.unwrap();
        let spec = lease.spec.as_mut()?;
        spec.holder_identity = Some("stranger".to_owned());
        spec.lease_duration_seconds = Some(i32::try_from(LEASE.as_secs()).unwrap());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        leases
            .replace(&lease.name_any(), &PostParams::default(), &lease)
            .await
            .ok()
            .map(|_| tokio::time::Instant::now())
    })
    .await;
    eventually("the controller rests", || async { (cluster.daemon.said("the controller rests") > 0).then_some(()) })
        .await;
    cluster.apply("meanwhile", "  cronExpr: '@daily'").await;
    cluster.phase("meanwhile", Phase::Active).await;
    assert!(stolen_at.elapsed() >= LEASE, "not while the stranger's Lease holds");
}

#[tokio::test]
async fn two_controllers_that_both_lead_fire_a_request_once() {
    let cluster = super::cluster().await;
    let elsewhere = crate::support::Namespace::fresh().await;
    let _second = super::serve_electing_in(&elsewhere.name, &cluster.world, &cluster.namespace, "controller").await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    cluster.phase("tea", Phase::Active).await;
    for (number, token) in (1..=5).zip(["a", "b", "c", "d", "e"]) {
        cluster.request("tea", token).await;
        let fired = |status: &crd::AlarmStatus| status.fired_count == number;
        cluster.namespace.status("tea", &format!("has fired {number} times"), fired).await;
    }
    assert_eq!(cluster.world.sink.received().len(), 5);
}
