//! Alarms follow their agents: suspended, resumed, removed, purged.

use chronos::{
    domain::{
        access::Did,
        alarm::{Cause, Draft, Status},
        ids::ServiceCallId,
        payload::Payload,
        session::{SessionKey, autonomy::EventType},
    },
    store::{
        Store,
        agents::{Changed, Followed, Living, Managed, Purged},
        alarms::{Alarm, Resource},
        claims::Claim,
        events::Happening,
        service_calls::Command,
    },
};
use uuid::Uuid;

use super::{NO_LIMITS, at, enrolled_ann, let_resources_manage, mirror, resource};
use crate::{
    store::{
        ann, bob, claim,
        claims::{accepted, due, worker},
        create, done, every_minute, execute, history, in_an_hour, read,
    },
    support::Database,
};

async fn suspend(store: &Store, did: &Did, suspended: bool) -> Followed {
    let changed = store.set_suspended_unless_managed(did, suspended).await.unwrap();
    assert!(matches!(changed, Changed::Done(_)), "{changed:?}");
    store.follow_agent(did).await.unwrap()
}

fn paused(alarms: u64) -> Followed {
    Followed { paused: alarms, resumed: 0 }
}

fn resumed(alarms: u64) -> Followed {
    Followed { paused: 0, resumed: alarms }
}

async fn stands(store: &Store, alarm: &Alarm) -> (Status, Vec<Cause>) {
    let alarm = read(store, alarm).await;
    (alarm.status, alarm.paused_by())
}

const HELD: (Status, [Cause; 1]) = (Status::Paused, [Cause::Agent]);

fn held() -> (Status, Vec<Cause>) {
    (HELD.0, HELD.1.to_vec())
}

fn active() -> (Status, Vec<Cause>) {
    (Status::Active, Vec::new())
}

#[tokio::test]
async fn a_suspension_pauses_what_may_still_fire_and_its_end_lets_it_go_on() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let alarm = create(&store, &owner, in_an_hour()).await;
    let managed = create(&store, &owner, every_minute()).await;
    let over = create(&store, &owner, in_an_hour()).await;
    let foreign = create(&store, &bob(), in_an_hour()).await;
    let_resources_manage(&database, &[&managed]).await;
    store.cancel_if_owned(&owner, over.id).await.unwrap();

    assert_eq!(suspend(&store, &owner, true).await, paused(2));
    assert_eq!(stands(&store, &alarm).await, held());
    assert_eq!(stands(&store, &managed).await, held(), "a resource's too");
    assert_eq!(stands(&store, &over).await, (Status::Cancelled, vec![]));
    assert_eq!(stands(&store, &foreign).await, active());
    assert_eq!(store.living_alarms_of(&owner).await.unwrap(), Living { alarms: 2, held: 2 });
    assert_eq!(store.follow_agent(&owner).await.unwrap(), paused(0), "they follow already");

    assert_eq!(suspend(&store, &owner, false).await, resumed(1));
    assert_eq!(stands(&store, &alarm).await, active());
    assert_eq!(stands(&store, &managed).await, held(), "who was enrolled by hand owns no resources");
    assert_eq!(read(&store, &alarm).await.next_fire_at, alarm.next_fire_at);
}

#[tokio::test]
async fn each_cause_of_a_pause_lifts_only_itself() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let alarm = create(&store, &owner, in_an_hour()).await;
    let both = || (Status::Paused, vec![Cause::Owner, Cause::Agent]);

    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    assert_eq!(suspend(&store, &owner, true).await, paused(1));
    assert_eq!(stands(&store, &alarm).await, both());
    assert_eq!(suspend(&store, &owner, false).await, resumed(1));
    assert_eq!(stands(&store, &alarm).await, (Status::Paused, vec![Cause::Owner]), "the owner's own pause survives");

    suspend(&store, &owner, true).await;
    done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!(stands(&store, &alarm).await, held());
    suspend(&store, &owner, false).await;
    assert_eq!(stands(&store, &alarm).await, active());
}

#[tokio::test]
async fn slots_that_pass_while_the_agent_is_suspended_are_told_as_of_any_pause() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let series = create(&store, &owner, every_minute()).await;
    suspend(&store, &owner, true).await;
    let passed = "UPDATE alarms SET scheduled_for = scheduled_for - interval '10 min', next_fire_at = next_fire_at - interval '10 min'";
    execute(&mut database.connect().await, passed).await;
    suspend(&store, &owner, false).await;
    let stands = read(&store, &series).await;
    assert!(stands.next_fire_at > store.now().await.unwrap(), "no burst");
    let [(outcome, reason, _, _, slots)] = history(&database, &series).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
    assert!((10..=11).contains(&slots.unwrap()), "{slots:?}");
}

#[tokio::test]
async fn what_is_in_flight_when_its_agent_is_suspended_arrives_and_counts() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let alarms = due(&database, &store, vec![in_an_hour(), every_minute()]).await;
    let claims = claim(&store).await.claims;
    assert_eq!(claims.len(), 2);

    assert_eq!(suspend(&store, &owner, true).await, paused(2));
    let results: Vec<_> = claims.iter().map(|claim: &Claim| (claim, accepted(claim))).collect();
    let results: Vec<_> = results.iter().map(|(claim, settlement)| (*claim, settlement)).collect();
    store.settle_under_token(worker(), &results).await.unwrap();
    assert_eq!(stands(&store, &alarms[0]).await, (Status::Fired, vec![]));
    assert_eq!(stands(&store, &alarms[1]).await, held(), "a series stays paused");
    assert_eq!(read(&store, &alarms[1]).await.fired_count, 1);
}

#[tokio::test]
async fn hundreds_of_alarms_follow_batch_by_batch() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let many = "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
                SELECT 'did:matrix:ann:d75a980182b10ab7', 'ann', 'c', 'once', at, 'm', at, at
                FROM generate_series(1, 450), LATERAL (SELECT now() + interval '1 day' AS at) AS t";
    execute(&mut database.connect().await, many).await;
    assert_eq!(suspend(&store, &owner, true).await, paused(450));
    assert_eq!(suspend(&store, &owner, false).await, resumed(450));
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_let_go_on_and_does_not_hold_up_the_others() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let broken = create(&store, &owner, every_minute()).await;
    let fine = create(&store, &owner, in_an_hour()).await;
    suspend(&store, &owner, true).await;
    let damage = format!("UPDATE alarms SET timezone = 'Mars/Olympus' WHERE id = '{}'", broken.id);
    execute(&mut database.connect().await, &damage).await;
    assert_eq!(suspend(&store, &owner, false).await, resumed(2));
    for alarm in [&broken, &fine] {
        assert_eq!(stands(&store, alarm).await, active(), "a dispatcher parks it, with its error");
    }
    assert!(store.agents_astray().await.unwrap().is_empty());
}

#[tokio::test]
async fn only_agents_whose_alarms_say_something_else_are_astray() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let alarm = create(&store, &owner, in_an_hour()).await;
    create(&store, &bob(), in_an_hour()).await;
    assert!(store.agents_astray().await.unwrap().is_empty(), "bob is not enrolled, and nobody's business");

    store.set_suspended_unless_managed(&owner, true).await.unwrap();
    assert_eq!(store.agents_astray().await.unwrap(), std::slice::from_ref(&owner), "an active alarm");
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    assert_eq!(store.agents_astray().await.unwrap(), std::slice::from_ref(&owner), "one paused by its owner alone");
    store.follow_agent(&owner).await.unwrap();
    assert!(store.agents_astray().await.unwrap().is_empty());
    store.set_suspended_unless_managed(&owner, false).await.unwrap();
    assert_eq!(
        store.agents_astray().await.unwrap(),
        std::slice::from_ref(&owner),
        "one that waits for an agent who is back"
    );
}

#[tokio::test]
async fn what_a_removed_agent_leaves_behind_stays_paused_until_it_is_enrolled_again() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let alarm = create(&store, &owner, in_an_hour()).await;
    let Changed::Done(removed) = store.remove_agent_unless_managed(&owner).await.unwrap() else { panic!() };
    assert_eq!(removed.did, owner);
    assert_eq!(store.find_agent(&owner).await.unwrap(), None);
    assert_eq!(stands(&store, &alarm).await, held());
    assert!(store.agents_astray().await.unwrap().is_empty());
    assert_eq!(store.follow_agent(&owner).await.unwrap(), Followed::default(), "it is gone");
    assert_eq!(store.remove_agent_unless_managed(&owner).await.unwrap(), Changed::Unknown);

    enrolled_ann(&store).await;
    assert_eq!(store.follow_agent(&owner).await.unwrap(), resumed(1));
    assert_eq!(stands(&store, &alarm).await, active());
}

#[tokio::test]
async fn a_removal_that_died_half_way_is_finished_by_the_next() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let early = create(&store, &owner, in_an_hour()).await;
    // It died here, before it paused anything.
    let late = create(&store, &owner, in_an_hour()).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE agents SET suspended = true").await;
    assert!(store.find_agent(&owner).await.unwrap().is_some_and(|agent| agent.suspended));

    assert!(matches!(store.remove_agent_unless_managed(&owner).await.unwrap(), Changed::Done(_)));
    for alarm in [&early, &late] {
        assert_eq!(stands(&store, alarm).await, held());
    }
}

#[tokio::test]
async fn the_agent_of_a_resource_that_is_gone_leaves_its_alarms_paused() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = super::key_of("ann");
    let identity = resource(1, "team");
    mirror(&store, &key, &identity, at(0)).await;
    let alarm = create(&store, &key.did, in_an_hour()).await;
    let_resources_manage(&database, &[&alarm]).await;
    let removed = store.remove_agent_of_resource(identity.cluster, identity.uid).await.unwrap();
    assert!(removed.is_some_and(|agent| agent.did == key.did && agent.quotas == NO_LIMITS));
    assert_eq!(stands(&store, &alarm).await, held());
}

/// A service call with a timer, and a session with an event and a timer.
pub async fn furnish(database: &Database, store: &Store, owner: &Did) {
    let call: ServiceCallId = "call-1".parse().unwrap();
    store.register_service_call(owner, &call).await.unwrap();
    let payload = Payload::parse("{}".to_owned()).unwrap();
    let due_at = store.now().await.unwrap() + chrono::TimeDelta::hours(1);
    let command = Command {
        tenant: owner,
        call: &call,
        due_at,
        correlation_id: None,
        fallback_correlation_id: "c",
        payload: &payload,
    };
    store.schedule_timer_if_registered(&command).await.unwrap().unwrap();
    let key: SessionKey = format!("{}:agent:thread", owner.user_id()).parse().unwrap();
    let happening = Happening { id: None, event_type: EventType::UserMessage, payload: &payload };
    store.append_event_if_owned(owner, &key, &happening).await.unwrap();
    execute(
        &mut database.connect().await,
        &format!(
            "INSERT INTO alarms (owner_did, user_id, subject, source, session_key, timer_id, correlation_id, kind, fire_at,
                                 scheduled_for, next_fire_at)
             SELECT '{owner}', '{}', 'session', 'session', '{key}', 'later', 'c', 'once', at, at, at
             FROM (SELECT now() + interval '1 day' AS at) AS t",
            owner.user_id()
        ),
    )
    .await;
}

/// How many rows hold a text in a column.
pub async fn count(database: &Database, table: &str, column: &str, text: &str) -> i64 {
    let statement = format!("SELECT count(*) FROM {table} WHERE {column} = '{text}'");
    sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(&mut database.connect().await).await.unwrap()
}

#[tokio::test]
async fn a_suspension_leaves_timers_as_they_are() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    furnish(&database, &store, &owner).await;
    assert_eq!(suspend(&store, &owner, true).await, paused(0));
    assert!(store.agents_astray().await.unwrap().is_empty());
    assert_eq!(count(&database, "alarms", "status", "active").await, 2);
}

#[tokio::test]
async fn a_purge_cancels_alarms_and_deletes_calls_and_sessions_of_this_owner_alone() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    let waiting = create(&store, &owner, in_an_hour()).await;
    let series = create(&store, &owner, every_minute()).await;
    let foreign = create(&store, &bob(), in_an_hour()).await;
    furnish(&database, &store, &owner).await;
    furnish(&database, &store, &bob()).await;
    suspend(&store, &owner, true).await;

    let purged = store.purge_what_is_owned_by(&owner).await.unwrap();
    assert_eq!(purged, Purged { alarms: 2, service_calls: 1, sessions: 1 });
    for alarm in [&waiting, &series] {
        let alarm = read(&store, alarm).await;
        assert_eq!((alarm.status, alarm.cancelled_by.as_deref()), (Status::Cancelled, Some("agent")));
    }
    assert_eq!(stands(&store, &foreign).await, active());
    for (table, column) in [("service_calls", "tenant_id"), ("sessions", "owner_did")] {
        assert_eq!(count(&database, table, column, ann().as_str()).await, 0, "{table}");
        assert_eq!(count(&database, table, column, bob().as_str()).await, 1, "{table}");
    }
    assert_eq!(count(&database, "events", "session_key", "ann:agent:thread").await, 0);
    assert_eq!(count(&database, "alarms", "subject", "session").await, 1, "bob's");
    assert_eq!(count(&database, "attempts", "reason", "deleted").await, 2, "timers leave a trace");
    assert_eq!(store.purge_what_is_owned_by(&owner).await.unwrap(), Purged::default(), "again");
}

#[tokio::test]
async fn living_alarms_that_resources_manage_are_counted_and_the_first_few_named() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = enrolled_ann(&store).await;
    assert_eq!(store.managed_living_alarms_of(&owner).await.unwrap(), None);
    let mut alarms = Vec::new();
    for _ in 0..5 {
        alarms.push(create(&store, &owner, Draft { label: "tea".to_owned(), ..in_an_hour() }).await);
    }
    let_resources_manage(&database, &alarms.iter().collect::<Vec<_>>()).await;
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired' WHERE resource_name = 'tea-0'").await;
    let named = |number: u8| Resource {
        cluster: Uuid::from_u128(1),
        namespace: "home".to_owned(),
        name: format!("tea-{number}"),
    };
    let managed = Managed { first: (1..=3).map(named).collect(), all: 4 };
    assert_eq!(store.managed_living_alarms_of(&owner).await.unwrap(), Some(managed));
}
