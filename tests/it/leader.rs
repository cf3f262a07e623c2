//! Which replica does what only one should, on a real API server and with real processes.

use std::{collections::BTreeSet, path::Path, time::Duration};

use chronos::leader::{LEASE, PATIENCE, RETRY};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    support::{AgentKey, Daemon, Namespace, Proxy, Reply, World, api::Api, eventually},
    telemetry::scrape::count,
};

const DISPATCH: &str = "chronos-dispatch";
const CONTROLLER: &str = "chronos-controller";
/// What two busy cores add to anything.
const SLACK: Duration = Duration::from_secs(6);
/// From a SIGTERM to another leader: a look of the other's, and the calls.
const HANDED_OVER: Duration = RETRY.saturating_add(SLACK);
/// From a SIGKILL to another leader: the Lease runs out, and a look finds it so.
const RUN_OUT: Duration = LEASE.saturating_add(RETRY).saturating_add(SLACK);
/// Room of a dispatcher that a test fills.
const ROOM: usize = 5;

/// A database, a namespace, and somebody who makes alarms.
struct Stage {
    world: World,
    namespace: Namespace,
    api: Api,
    _facade: Daemon,
}

impl Stage {
    async fn set() -> Self {
        let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
        let facade = world.chronosd("api").await;
        let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
        Self { world, namespace, api, _facade: facade }
    }

    async fn replica(&self, roles: &str, kubeconfig: &Path, more: &[(&str, &str)]) -> Daemon {
        let (room, namespace) = (ROOM.to_string(), self.namespace.name.as_str());
        let settings = [
            ("KUBECONFIG", kubeconfig.to_str().unwrap()),
            ("CHRONOS_NAMESPACE", namespace),
            ("CHRONOS_WATCH_NAMESPACES", namespace),
            ("CHRONOS_CONCURRENCY", &room),
        ];
        let settings: Vec<_> = settings.into_iter().chain(more.iter().copied()).collect();
        self.world.chronosd_with(roles, &settings).await
    }

    /// One that has the Lease, and one that has found it taken.
    async fn leader_and_follower(&self, roles: &str, lease: &str) -> [(Daemon, Uuid); 2] {
        let config = &self.namespace.kubeconfig;
        let leader = self.replica(roles, config, &[]).await;
        let leads = self.held(lease, |_| true).await;
        let follower = self.replica(roles, config, &[]).await;
        let follows = eventually("the other follows", || async { follower.identity(lease) }).await;
        [(leader, leads), (follower, follows)]
    }

    /// The process that holds the Lease, once it is as `wanted`.
    async fn held(&self, lease: &str, wanted: impl Fn(Uuid) -> bool) -> Uuid {
        eventually(&format!("Lease {lease} has the holder we want"), || async {
            holder(&self.spec(lease).await?).filter(|holder| wanted(*holder))
        })
        .await
    }

    async fn spec(&self, lease: &str) -> Option<LeaseSpec> {
        self.namespace.leases().get_opt(lease).await.unwrap()?.spec
    }

    /// Makes alarms that are due and waits until they have fired; says which processes delivered them.
    async fn deliver(&self, alarms: usize) -> BTreeSet<Uuid> {
        let before = self.world.sink.received().len();
        let ids = self.due(alarms).await;
        self.world.sink.wakes(before + alarms).await;
        self.workers(&ids).await
    }

    async fn due(&self, alarms: usize) -> Vec<Uuid> {
        let past = chronos::domain::rfc3339(chronos::clock::system().now() - chrono::TimeDelta::seconds(1));
        let body = json!({ "kind": "once", "fire_at": past, "wake_message": "m" });
        let posts = (0..alarms).map(|_| async {
            let made = self.api.post("/v1/alarms", &body).await.data();
            made["id"].as_str().unwrap().parse().unwrap()
        });
        futures::future::join_all(posts).await
    }

    async fn workers(&self, ids: &[Uuid]) -> BTreeSet<Uuid> {
        let attempts: Vec<Uuid> = eventually("all are settled", || async {
            let question = sqlx::query_scalar("SELECT worker FROM attempts WHERE alarm_id = ANY($1)").bind(ids);
            let attempts = question.fetch_all(&mut self.world.database.connect().await).await.unwrap();
            (attempts.len() >= ids.len()).then_some(attempts)
        })
        .await;
        attempts.into_iter().collect()
    }

    /// Holds every wake until both replicas are full: only if both claim does the last one arrive.
    async fn both_deliver(&self) -> BTreeSet<Uuid> {
        let before = self.world.sink.received().len();
        self.world.sink.reply((0..2 * ROOM).map(|_| Reply::Hold));
        let ids = self.due(2 * ROOM).await;
        self.world.sink.wakes(before + 2 * ROOM).await;
        self.world.sink.release();
        self.workers(&ids).await
    }
}

fn holder(spec: &LeaseSpec) -> Option<Uuid> {
    spec.holder_identity.as_deref()?.rsplit_once('_')?.1.parse().ok()
}

#[tokio::test]
async fn only_the_leader_delivers_and_when_it_is_told_to_stop_the_other_does_at_once() {
    let stage = Stage::set().await;
    let [(first, leads), (second, follows)] = stage.leader_and_follower("dispatch", DISPATCH).await;
    assert_eq!(stage.deliver(20).await, BTreeSet::from([leads]));
    let metric = async |replica: &Daemon| count(replica, "chronos_leader", &[("lease", DISPATCH)]).await;
    assert_eq!((metric(&first).await, metric(&second).await), (1, 0));

    let told = Instant::now();
    let stopped = tokio::spawn(first.terminate());
    stage.held(DISPATCH, |holder| holder == follows).await;
    assert!(told.elapsed() < HANDED_OVER, "{:?}", told.elapsed());
    assert!(stopped.await.unwrap().success());
    assert_eq!(stage.deliver(20).await, BTreeSet::from([follows]));
    assert_eq!(metric(&second).await, 1);

    let spec = stage.spec(DISPATCH).await.unwrap();
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(1), Some(15)));
    assert!(spec.acquire_time.unwrap().0 <= spec.renew_time.unwrap().0);
}

#[tokio::test]
async fn a_leader_that_was_killed_is_followed_when_its_lease_has_run_out() {
    let stage = Stage::set().await;
    let [(first, leads), (_second, follows)] = stage.leader_and_follower("dispatch", DISPATCH).await;
    assert_eq!(stage.deliver(5).await, BTreeSet::from([leads]));

    let killed = Instant::now();
    first.kill().await;
    assert_eq!(stage.deliver(5).await, BTreeSet::from([follows]));
    assert!(killed.elapsed() < RUN_OUT, "{:?}", killed.elapsed());
    assert_eq!(stage.held(DISPATCH, |_| true).await, follows);
}

#[tokio::test]
async fn a_leader_that_was_frozen_past_its_lease_wakes_up_deposed_and_may_lead_again() {
    let stage = Stage::set().await;
    let roles = "controller,dispatch";
    let [(first, leads), (second, follows)] = stage.leader_and_follower(roles, DISPATCH).await;
    assert_eq!(stage.held(CONTROLLER, |_| true).await, leads);
    first.signal("STOP").await;
    for lease in [DISPATCH, CONTROLLER] {
        stage.held(lease, |holder| holder == follows).await;
    }
    // Due while it sleeps and still there when it wakes up: it would claim if it still believed.
    stage.world.sink.reply((0..ROOM).map(|_| Reply::Hold));
    let before = stage.world.sink.received().len();
    let ids = stage.due(4 * ROOM).await;
    stage.world.sink.wakes(before + ROOM).await;
    first.signal("CONT").await;
    eventually("it is deposed", || async { (first.said("\"follows ") >= 2).then_some(()) }).await;
    eventually("its controller ends", || async { (first.said("the controller rests") == 1).then_some(()) }).await;
    stage.world.sink.release();
    assert_eq!(stage.workers(&ids).await, BTreeSet::from([follows]));
    eventually("a follower is ready", || async { (first.readiness().await.0 == 200).then_some(()) }).await;

    assert!(second.terminate().await.success());
    for lease in [DISPATCH, CONTROLLER] {
        stage.held(lease, |holder| holder == leads).await;
    }
    assert_eq!(stage.deliver(5).await, BTreeSet::from([leads]));
    the_controller_works(&stage).await;
}

/// It tells an Alarm without an Agent what is wrong.
async fn the_controller_works(stage: &Stage) {
    let name = format!("tea-{}", Uuid::new_v4());
    let alarm = format!(
        "apiVersion: chronos.dev/v1alpha1\nkind: Alarm\nmetadata: {{name: {name}}}\nspec: {{owner: \"{}\", wakeMessage: m, \
         cronExpr: '@daily'}}\n",
        AgentKey::of("ann").did
    );
    stage.namespace.apply(&alarm).await.unwrap();
    stage.namespace.status(&name, "is told", |status| status.phase.is_some()).await;
}

#[tokio::test]
async fn the_controller_runs_where_it_leads_and_its_follower_is_ready() {
    let stage = Stage::set().await;
    // Both have been waited for until they were ready.
    let [(first, leads), (_second, follows)] = stage.leader_and_follower("controller", CONTROLLER).await;
    assert_eq!(stage.held(CONTROLLER, |_| true).await, leads);
    the_controller_works(&stage).await;
    assert_eq!(stage.spec(DISPATCH).await, None, "nobody dispatches");

    assert!(first.terminate().await.success());
    stage.held(CONTROLLER, |holder| holder == follows).await;
    the_controller_works(&stage).await;
}

#[tokio::test]
async fn in_active_mode_all_deliver_and_there_is_no_lease() {
    let stage = Stage::set().await;
    let (config, active) = (&stage.namespace.kubeconfig, [("CHRONOS_DISPATCH_MODE", "active")]);
    let _both = tokio::join!(stage.replica("dispatch", config, &active), stage.replica("dispatch", config, &active));
    assert_eq!(stage.both_deliver().await.len(), 2);
    assert_eq!(stage.spec(DISPATCH).await, None);
}

#[tokio::test]
async fn while_the_api_server_is_away_all_deliver_and_when_it_is_back_they_obey() {
    let stage = Stage::set().await;
    let proxy = Proxy::to(&stage.namespace.server()).await;
    let config = stage.namespace.kubeconfig_through(proxy.address);
    let first = stage.replica("dispatch", &config.path, &[]).await;
    let leads = stage.held(DISPATCH, |_| true).await;
    let second = stage.replica("dispatch", &config.path, &[]).await;
    eventually("the other follows", || async { second.identity(DISPATCH) }).await;

    let cut = Instant::now();
    proxy.cut();
    assert_eq!(stage.both_deliver().await.len(), 2);
    assert!(cut.elapsed() > PATIENCE.saturating_sub(2 * RETRY), "only the leader did at first: {:?}", cut.elapsed());

    proxy.mend();
    let obeys = |replica: &Daemon| replica.said("\"leads by") + replica.said("\"follows ") >= 2;
    eventually("both obey", || async { (obeys(&first) && obeys(&second)).then_some(()) }).await;
    let now_leads = stage.held(DISPATCH, |_| true).await;
    assert_eq!(stage.deliver(20).await, BTreeSet::from([now_leads]));
    assert!([&first, &second].iter().any(|replica| replica.identity(DISPATCH) == Some(leads)));
}

#[tokio::test]
async fn a_leader_that_has_lost_the_database_steps_down_and_may_lead_again() {
    /// It knows after two beats, sees to it with its next turn, and the other takes over with its own.
    const NOTICED: Duration = Duration::from_secs(2);
    const BEAT: (&str, &str) = ("CHRONOS_BEAT_MS", "1000");
    let stage = Stage::set().await;
    let (config, proxy) = (&stage.namespace.kubeconfig, Proxy::in_front_of(&stage.world.database).await);
    let first = stage.replica("dispatch", config, &[BEAT, ("CHRONOS_POSTGRES_URI", &proxy.uri)]).await;
    let leads = stage.held(DISPATCH, |_| true).await;
    let second = stage.replica("dispatch", config, &[BEAT]).await;
    let follows = eventually("the other follows", || async { second.identity(DISPATCH) }).await;
    assert_eq!(stage.deliver(5).await, BTreeSet::from([leads]));

    let cut = Instant::now();
    proxy.cut();
    stage.held(DISPATCH, |holder| holder == follows).await;
    assert!(cut.elapsed() < NOTICED + RETRY + HANDED_OVER, "{:?}", cut.elapsed());
    assert_eq!(stage.deliver(5).await, BTreeSet::from([follows]));

    proxy.mend();
    eventually("it follows", || async { (first.said("\"follows ") == 1).then_some(()) }).await;
    assert_eq!(stage.deliver(5).await, BTreeSet::from([follows]));
    assert!(second.terminate().await.success());
    assert_eq!(stage.deliver(5).await, BTreeSet::from([leads]));
}

#[tokio::test]
async fn connections_that_have_died_in_silence_cost_no_leadership() {
    let stage = Stage::set().await;
    let proxy = Proxy::to(&stage.namespace.server()).await;
    let config = stage.namespace.kubeconfig_through(proxy.address);
    let replica = stage.replica("dispatch", &config.path, &[]).await;
    let leads = stage.held(DISPATCH, |_| true).await;
    proxy.freeze();
    let frozen = stage.spec(DISPATCH).await.unwrap();
    let renewed = eventually("it is renewed over a new connection", || async {
        stage.spec(DISPATCH).await.filter(|spec| spec.renew_time > frozen.renew_time)
    })
    .await;
    assert_eq!((holder(&renewed), renewed.acquire_time), (Some(leads), frozen.acquire_time));
    assert_eq!((replica.said("no longer leads"), replica.said("going on without")), (0, 0));
}

#[tokio::test]
async fn a_lease_that_somebody_deleted_is_made_again_by_its_leader() {
    let stage = Stage::set().await;
    let [(first, leads), (_second, _)] = stage.leader_and_follower("dispatch", DISPATCH).await;
    stage.namespace.leases().delete(DISPATCH, &DeleteParams::default()).await.unwrap();
    assert_eq!(stage.held(DISPATCH, |_| true).await, leads);
    assert_eq!((first.said("no longer leads"), first.said("\"follows ")), (0, 0));
}

#[tokio::test]
async fn get_create_and_update_on_leases_are_all_the_rights_a_dispatcher_needs() {
    let stage = Stage::set().await;
    let user = format!("dispatcher-{}", stage.namespace.name);
    let config = stage.namespace.kubeconfig_as(&user);
    let started = Instant::now();
    let without = stage.replica("dispatch", &config.path, &[]).await;
    // Without any: it delivers all the same, and says once what is missing.
    stage.deliver(1).await;
    assert!(started.elapsed() > PATIENCE, "not as if there were no election: {:?}", started.elapsed());
    assert_eq!(without.said("needs the verbs get, create and update on leases"), 1);
    assert_eq!(stage.spec(DISPATCH).await, None);

    let rights = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: leases}}\nrules: [{{apiGroups: \
         [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}}]\n---\napiVersion: \
         rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: leases}}\nroleRef: {{apiGroup: \
         rbac.authorization.k8s.io, kind: Role, name: leases}}\nsubjects: [{{apiGroup: rbac.authorization.k8s.io, kind: \
         User, name: {user}}}]\n"
    );
    stage.namespace.apply(&rights).await.unwrap();
    let leads = stage.held(DISPATCH, |_| true).await;
    assert_eq!(stage.deliver(5).await, BTreeSet::from([leads]));
    assert!(without.terminate().await.success());
    assert_eq!(stage.spec(DISPATCH).await.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_told_and_stops_no_wake() {
    let stage = Stage::set().await;
    let elsewhere = [("CHRONOS_NAMESPACE", "no-such-namespace")];
    let replica = stage.replica("dispatch", &stage.namespace.kubeconfig, &elsewhere).await;
    stage.deliver(1).await;
    assert_eq!(replica.said("its namespace does not exist; create it, or set CHRONOS_NAMESPACE"), 1);
}
