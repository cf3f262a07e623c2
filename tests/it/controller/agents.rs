//! Agents mirrored into Postgres: who is let in, who may own Alarms, and how many.

use chronos::crd::Phase;
use kube::api::DeleteParams;

use super::{Cluster, agent_is, bare_cluster, cluster, conditions, enrol, ready, serve};
use crate::support::{AgentKey, Daemon, Namespace, api::Api, daemon, eventually};

impl Cluster {
    /// A facade that lets in whom Agents enrol, and nobody else.
    async fn registered_facade(&self) -> Daemon {
        self.world.chronosd_with("api", &[("CHRONOS_ENROLMENT", "registered"), ("CHRONOS_DEV", "false")]).await
    }

    async fn delete_agent(&self) {
        let agents = self.namespace.agents();
        agents.delete("ann", &DeleteParams::default()).await.unwrap();
        eventually("the Agent is gone", || async { agents.get_opt("ann").await.unwrap().is_none().then_some(()) })
            .await;
    }
}

/// Whether a request with this principal is let in.
async fn is_let_in(api: &Api) -> bool {
    api.get("/v1/alarms").await.status == 200
}

#[tokio::test]
async fn an_agent_resource_lets_its_agent_in_and_its_suspension_shuts_it_out() {
    let cluster = cluster().await;
    let status = agent_is(&cluster.namespace, "Enrolled").await;
    assert_eq!((status.observed_generation, status.active_alarms), (1, 0));
    let facade = cluster.registered_facade().await;
    let api = cluster.ann.sign_in(&facade.api_url()).await;
    assert!(is_let_in(&api).await);
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    cluster.phase("tea", Phase::Active).await;

    enrol(&cluster.namespace, &cluster.ann, ", suspended: true").await;
    let suspended = agent_is(&cluster.namespace, "Suspended").await;
    assert_eq!(ready(&suspended.conditions).unwrap().status, "True", "it is as specified");
    assert!(!is_let_in(&api).await);
    let paused = cluster.phase("tea", Phase::Paused).await;
    assert_eq!(conditions(&paused), [("Ready", "True", "Paused")]);
    assert_eq!(paused.conditions[0].message, "paused: its agent is suspended or not enrolled");

    enrol(&cluster.namespace, &cluster.ann, "").await;
    cluster.phase("tea", Phase::Active).await;
    assert!(is_let_in(&api).await);
}

#[tokio::test]
async fn a_deleted_agent_is_not_let_in_and_none_of_its_alarms_fires_until_it_is_back() {
    let cluster = cluster().await;
    let facade = cluster.registered_facade().await;
    agent_is(&cluster.namespace, "Enrolled").await;
    let api = cluster.ann.sign_in(&facade.api_url()).await;
    cluster.apply("tea", "  cronExpr: '@every 1s'").await;
    cluster.world.sink.wakes(1).await;

    cluster.delete_agent().await;
    // From the moment in which `kubectl delete` has returned.
    assert!(!is_let_in(&api).await);
    assert_eq!(cluster.ask::<i64>("SELECT count(*) FROM alarms WHERE status = 'active'").await, 0);
    let refused = cluster.phase("tea", Phase::Invalid).await;
    assert_eq!(
        conditions(&refused)[..2],
        [("Ready", "False", "OwnerNotAllowed"), ("Stalled", "True", "OwnerNotAllowed")]
    );
    let said = &refused.conditions[0].message;
    assert!(said.contains("no Agent with the DID") && said.ends_with("what was stored before does not fire"), "{said}");

    cluster.enrol().await;
    cluster.phase("tea", Phase::Active).await;
    assert!(is_let_in(&api).await);
    let before = cluster.world.sink.received().len();
    cluster.world.sink.wakes(before + 1).await;
}

#[tokio::test]
async fn of_two_agents_with_one_did_the_older_holds_it_and_the_newer_is_next() {
    let cluster = cluster().await;
    agent_is(&cluster.namespace, "Enrolled").await;
    cluster.namespace.until_another_is_younger("ann").await;
    // Another namespace, served by the same controller's twin: what counts is the database.
    let other = Namespace::fresh().await;
    let _controller = serve(&cluster.world, &other, "controller").await;
    enrol(&other, &cluster.ann, "").await;
    let stalled = agent_is(&other, "DuplicateDid").await;
    assert!(stalled.conditions.iter().any(|one| one.type_ == "Stalled" && one.status == "True"));
    let said = &stalled.conditions[0].message;
    let holder = format!("is held by Agent {}/ann, which is older; delete one of the two", cluster.namespace.name);
    assert!(said.starts_with("spec.did: ") && said.ends_with(&holder), "{said}");

    other.apply(&cluster.alarm("stolen", "  delaySeconds: 1")).await.unwrap();
    let refused = other.status("stolen", "is refused", |status| status.phase == Some(Phase::Invalid)).await;
    assert_eq!(conditions(&refused), [("Ready", "False", "OwnerNotAllowed"), ("Stalled", "True", "OwnerNotAllowed")]);
    assert!(refused.conditions[0].message.contains("does not hold the DID"), "{}", refused.conditions[0].message);
    assert_eq!(cluster.ask::<i64>("SELECT count(*) FROM alarms").await, 0, "nothing of it is stored");

    cluster.delete_agent().await;
    agent_is(&other, "Enrolled").await;
    other.status("stolen", "is stored", |status| status.alarm_id.is_some()).await;
}

#[tokio::test]
async fn who_is_enrolled_on_the_command_line_cannot_own_resources_until_the_agent_takes_its_place() {
    let cluster = bare_cluster().await;
    let uri = cluster.world.database.uri.clone();
    let chronosd = |arguments: Vec<String>| {
        let settings = [("CHRONOS_POSTGRES_URI", uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
        let mut command = daemon::command(&settings);
        command.args(arguments);
        async move { assert!(command.output().await.unwrap().status.success()) }
    };
    let AgentKey { did, public_key, .. } = &cluster.ann;
    chronosd(["agent", "add", did, "--public-key", public_key].map(str::to_owned).to_vec()).await;
    cluster.apply("tea", "  cronExpr: '@daily'").await;
    let refused = cluster.phase("tea", Phase::Invalid).await;
    assert!(
        refused.conditions[0].message.contains("enrolled on the command line"),
        "{}",
        refused.conditions[0].message
    );

    cluster.enrol().await;
    let stalled = agent_is(&cluster.namespace, "DuplicateDid").await;
    assert!(stalled.conditions[0].message.contains("chronosd agent remove"), "{}", stalled.conditions[0].message);
    chronosd(["agent", "remove", did].map(str::to_owned).to_vec()).await;
    agent_is(&cluster.namespace, "Enrolled").await;
    cluster.phase("tea", Phase::Active).await;
}

#[tokio::test]
async fn quotas_hold_for_resources_and_a_place_that_is_free_again_can_be_had() {
    let cluster = bare_cluster().await;
    enrol(&cluster.namespace, &cluster.ann, ", maxActiveAlarms: 1, minIntervalSeconds: 60").await;
    cluster.apply("first", "  cronExpr: '@daily'").await;
    cluster.phase("first", Phase::Active).await;
    cluster.apply("second", "  cronExpr: '@daily'").await;
    let refused = cluster.phase("second", Phase::Invalid).await;
    assert_eq!(conditions(&refused), [("Ready", "False", "QuotaExceeded"), ("Stalled", "True", "QuotaExceeded")]);
    let said = &refused.conditions[0].message;
    assert!(said.starts_with("spec.owner: the agent may have 1 alarms that are active or paused, and has 1"), "{said}");
    cluster.apply("first", "  cronExpr: '@every 30s'").await;
    let refused = cluster.phase("first", Phase::Invalid).await;
    assert!(refused.conditions[0].message.starts_with("spec.cronExpr: the schedule fires every 30 s"));

    // An Agent that allows more lets in what waits.
    enrol(&cluster.namespace, &cluster.ann, ", maxActiveAlarms: 2").await;
    cluster.phase("second", Phase::Active).await;
    let recovered = cluster.phase("first", Phase::Active).await;
    assert_eq!(recovered.schedule.as_deref(), Some("@every 30s"));
}
