//! Two clusters on one database, and one that was built anew.

use chronos::crd::Phase;

use super::{Cluster, agent_is, conditions, enrol, serve};
use crate::support::{AgentKey, ControlPlane, Namespace, World, daemon, eventually};

async fn chronosd(world: &World, arguments: &[&str]) -> String {
    let settings = [("CHRONOS_POSTGRES_URI", world.database.uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    let output = daemon::command(&settings).args(arguments).output().await.unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

#[tokio::test]
async fn two_clusters_on_one_database_leave_each_other_alone() {
    let (plane, here) = tokio::join!(ControlPlane::start(), super::cluster());
    here.apply("tea", "  cronExpr: '@daily'").await;
    let ours = here.phase("tea", Phase::Active).await;
    // The same names in the other cluster.
    plane.install_crds().await;
    let there = Namespace::named(plane.kubeconfig(), &here.namespace.name).await;
    let controller = serve(&here.world, &there, "controller").await;
    enrol(&there, &here.ann, "").await;
    let stalled = agent_is(&there, "DuplicateDid").await;
    assert!(stalled.conditions[0].message.contains("`chronosd cluster adopt "), "{}", stalled.conditions[0].message);
    there.apply(&here.alarm("tea", "  cronExpr: '@daily'")).await.unwrap();
    there.status("tea", "is refused", |status| status.phase == Some(Phase::Invalid)).await;

    // With an agent of its own it has alarms of its own.
    let bob = AgentKey::of("bob");
    let agent = format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Agent\nmetadata: {{name: bob}}\nspec: {{did: \"{}\", publicKey: \"{}\"}}\n",
        bob.did, bob.public_key
    );
    there.apply(&agent).await.unwrap();
    let alarm = here.alarm("cake", "  cronExpr: '@daily'").replace(&here.ann.did, &bob.did);
    there.apply(&alarm).await.unwrap();
    there.status("cake", "is stored", |status| status.phase == Some(Phase::Active)).await;
    there.alarms().delete("tea", &kube::api::DeleteParams::default()).await.unwrap();
    let alarms = there.alarms();
    eventually("theirs is gone", || async { alarms.get_opt("tea").await.unwrap().is_none().then_some(()) }).await;
    controller.terminate().await;
    let still = here.phase("tea", Phase::Active).await;
    assert_eq!(still.alarm_id, ours.alarm_id);
    let clusters = chronosd(&here.world, &["cluster", "list"]).await;
    assert_eq!(here.ask::<i64>("SELECT count(*) FROM clusters").await, 2, "{clusters}");
}

#[tokio::test]
async fn a_cluster_that_was_built_anew_adopts_its_alarms_with_their_history() {
    let (plane, world) = tokio::join!(ControlPlane::start(), World::new());
    let namespace = plane.namespace().await;
    let daemon = serve(&world, &namespace, "controller,dispatch").await;
    let old = Cluster { world, namespace, ann: AgentKey::of("ann"), daemon };
    old.enrol().await;
    old.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    old.phase("tea", Phase::Active).await;
    old.request("tea", "now").await;
    let before = old.namespace.status("tea", "has fired", |status| status.fired_count == 1).await;
    let id: uuid::Uuid = old.ask("SELECT cluster_id FROM clusters").await;
    let Cluster { world, namespace, ann, daemon } = old;
    daemon.kill().await;
    drop(plane);

    let rebuilt = ControlPlane::start().await;
    rebuilt.install_crds().await;
    let namespace = Namespace::named(rebuilt.kubeconfig(), &namespace.name).await;
    let daemon = serve(&world, &namespace, "controller,dispatch").await;
    let new = Cluster { world, namespace, ann, daemon };
    new.enrol().await;
    new.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    agent_is(&new.namespace, "DuplicateDid").await;
    // As if it had been gone for a while.
    sqlx::query("UPDATE clusters SET last_seen = now() - interval '1 h' WHERE cluster_id = $1")
        .bind(id)
        .execute(&mut new.world.database.connect().await)
        .await
        .unwrap();
    let said = chronosd(&new.world, &["cluster", "adopt", &id.to_string()]).await;
    assert!(said.contains("1 alarm"), "{said}");
    agent_is(&new.namespace, "Enrolled").await;
    let after = new.phase("tea", Phase::Active).await;
    assert_eq!((&after.alarm_id, after.fired_count), (&before.alarm_id, 1));
    assert_eq!(after.attempts, before.attempts);
    assert_eq!(conditions(&after), [("Ready", "True", "Scheduled"), ("Delivering", "True", "Delivered")]);
    assert_eq!(new.ask::<i64>("SELECT count(*) FROM alarms").await, 1);
}

#[tokio::test]
async fn an_alarm_that_another_cluster_has_too_says_so_until_that_cluster_is_forgotten() {
    let cluster = super::cluster().await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    cluster.phase("tea", Phase::Active).await;
    let gone = uuid::Uuid::new_v4();
    let mut db = cluster.world.database.connect().await;
    sqlx::query("INSERT INTO clusters (cluster_id, name, last_seen) VALUES ($1, 'gone', now() - interval '1 day')")
        .bind(gone)
        .execute(&mut db)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, cron_expr, scheduled_for, next_fire_at, source, cluster_id,
             resource_uid, resource_namespace, resource_name, resource_generation, definition_hash)
         SELECT owner_did, user_id, 'x', kind, cron_expr, scheduled_for, next_fire_at, source, $1, gen_random_uuid(),
             resource_namespace, resource_name, 1, definition_hash FROM alarms",
    )
    .bind(gone)
    .execute(&mut db)
    .await
    .unwrap();
    cluster.apply("tea", "  cronExpr: '0 0 2 1 *'").await;
    let told = cluster.namespace.status("tea", "tells of the other", |status| status.conditions.len() == 2).await;
    assert_eq!(conditions(&told), [("Ready", "True", "Scheduled"), ("Duplicate", "True", "OtherCluster")]);
    assert!(told.conditions[1].message.contains(&format!("`chronosd cluster adopt {gone}`")));
    chronosd(&cluster.world, &["cluster", "forget", &gone.to_string()]).await;
    cluster.apply("tea", "  cronExpr: '0 0 3 1 *'").await;
    cluster.namespace.status("tea", "is alone", |status| status.conditions.len() == 1).await;
    let by: Option<String> = cluster.ask("SELECT max(cancelled_by) FROM alarms WHERE status = 'cancelled'").await;
    assert_eq!(by.as_deref(), Some("cluster"));
}
