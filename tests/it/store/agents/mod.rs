//! Table `agents`: who is enrolled, and who may change that; what it does to their alarms, and what another key does.

mod alarms;
mod rotate;

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{access::Did, ids::ResourceUid},
    store::{
        Store,
        agents::{Changed, Enrolled, Holder, Mirrored, Quotas},
        alarms::Alarm,
        resources::Identity,
    },
};
use uuid::Uuid;

use super::{ann, execute, refused_by, warm_store};
use crate::support::{AgentKey, Database};

const NO_LIMITS: Quotas = Quotas { max_active_alarms: None, min_interval_seconds: None };

struct Key {
    did: Did,
    public: [u8; 32],
}

fn key_of(user: &str) -> Key {
    let key = AgentKey::of(user);
    Key { did: key.did.parse().unwrap(), public: hex::decode(key.public_key).unwrap().try_into().unwrap() }
}

/// Ann, enrolled by hand. Her DID is the one that owns the alarms that tests make for her.
async fn enrolled_ann(store: &Store) -> Did {
    let key = hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a").unwrap();
    enrol(store, &ann(), &key.try_into().unwrap()).await;
    ann()
}

async fn enrol(store: &Store, did: &Did, key: &[u8; 32]) {
    let enrolled = store.enrol_by_hand_unless_held(did, key, NO_LIMITS).await.unwrap();
    assert!(matches!(enrolled, Enrolled::Stands(_)), "{enrolled:?}");
}

/// As if resources managed these alarms of hers, which are named after the order they are given in.
async fn let_resources_manage(database: &Database, alarms: &[&Alarm]) {
    for (number, alarm) in alarms.iter().enumerate() {
        let manage = format!(
            "UPDATE alarms SET source = 'kubernetes', cluster_id = '{}', resource_uid = gen_random_uuid(),
                    resource_namespace = 'home', resource_name = 'tea-{number}', resource_generation = 1, definition_hash = '\\x00'
             WHERE id = '{}'",
            Uuid::from_u128(1),
            alarm.id
        );
        execute(&mut database.connect().await, &manage).await;
    }
}

fn resource(number: u128, namespace: &str) -> Identity {
    Identity {
        cluster: Uuid::from_u128(1).into(),
        uid: ResourceUid::from_uuid(Uuid::from_u128(number)),
        namespace: namespace.to_owned(),
        name: "agent".to_owned(),
    }
}

fn at(second: i64) -> DateTime<Utc> {
    DateTime::<Utc>::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::seconds(second)
}

async fn mirror(store: &Store, key: &Key, identity: &Identity, created_at: DateTime<Utc>) -> Enrolled {
    let desired =
        Mirrored { did: &key.did, public_key: &key.public, suspended: false, quotas: NO_LIMITS, identity, created_at };
    store.enrol_resource_unless_held(&desired).await.unwrap()
}

fn holds(enrolled: &Enrolled, identity: &Identity) -> bool {
    matches!(enrolled, Enrolled::Stands(agent) if agent.holder == Holder::Resource(identity.clone()))
}

#[tokio::test]
async fn an_agent_enrolled_by_hand_is_found_suspended_resumed_and_removed() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = key_of("ann");
    assert_eq!(store.find_agent(&key.did).await.unwrap(), None);
    assert_eq!(store.set_suspended_unless_managed(&key.did, true).await.unwrap(), Changed::Unknown);

    let quotas = Quotas { max_active_alarms: Some(7), min_interval_seconds: None };
    let enrolled = store.enrol_by_hand_unless_held(&key.did, &key.public, quotas).await.unwrap();
    let found = store.find_agent(&key.did).await.unwrap().unwrap();
    assert_eq!(enrolled, Enrolled::Stands(Box::new(found.clone())));
    assert_eq!((found.public_key, found.quotas, found.suspended), (key.public, quotas, false));
    assert_eq!(found.holder, Holder::CommandLine);

    let Changed::Done(suspended) = store.set_suspended_unless_managed(&key.did, true).await.unwrap() else { panic!() };
    assert!(suspended.suspended);
    // Enrolling again is about quotas: it is not a way around a suspension.
    store.enrol_by_hand_unless_held(&key.did, &key.public, NO_LIMITS).await.unwrap();
    let found = store.find_agent(&key.did).await.unwrap().unwrap();
    assert_eq!((found.suspended, found.quotas), (true, NO_LIMITS));

    assert!(matches!(store.remove_agent_unless_managed(&key.did).await.unwrap(), Changed::Done(_)));
    assert_eq!(store.list_agents().await.unwrap(), []);
}

#[tokio::test]
async fn who_asks_is_told_with_the_time_whether_enrolled_or_not() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = key_of("ann");
    let before = store.now().await.unwrap();
    let stranger = store.presence(&key.did).await.unwrap();
    assert_eq!(stranger.agent, None);
    assert!(stranger.now >= before);

    store.enrol_by_hand_unless_held(&key.did, &key.public, NO_LIMITS).await.unwrap();
    store.set_suspended_unless_managed(&key.did, true).await.unwrap();
    let known = store.presence(&key.did).await.unwrap();
    assert_eq!(known.agent, store.find_agent(&key.did).await.unwrap());
    assert!(known.agent.is_some_and(|agent| agent.suspended));
    assert!(known.now > stranger.now);
}

#[tokio::test]
async fn a_did_that_stands_keeps_its_key() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = key_of("ann");
    store.enrol_by_hand_unless_held(&key.did, &key.public, NO_LIMITS).await.unwrap();

    // The same first half as its DID names, and another second one.
    let mut forged = key.public;
    forged[31] ^= 1;
    let enrolled = store.enrol_by_hand_unless_held(&key.did, &forged, NO_LIMITS).await.unwrap();
    assert_eq!(enrolled, Enrolled::Held(Holder::CommandLine));
    assert_eq!(store.find_agent(&key.did).await.unwrap().unwrap().public_key, key.public);
}

#[tokio::test]
async fn of_two_resources_with_one_did_the_older_holds_it_whichever_came_first() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = key_of("ann");
    let (older, newer) = (resource(9, "first"), resource(8, "second"));

    assert!(holds(&mirror(&store, &key, &newer, at(1)).await, &newer));
    assert!(holds(&mirror(&store, &key, &older, at(0)).await, &older));
    assert_eq!(mirror(&store, &key, &newer, at(1)).await, Enrolled::Held(Holder::Resource(older.clone())));

    // The younger one's end is not the agent's; the older one's is.
    assert_eq!(store.remove_agent_of_resource(newer.cluster, newer.uid).await.unwrap(), None);
    assert!(store.remove_agent_of_resource(older.cluster, older.uid).await.unwrap().is_some());
    assert!(holds(&mirror(&store, &key, &newer, at(1)).await, &newer));
}

#[tokio::test]
async fn of_two_resources_of_the_same_second_one_holds_however_many_mirror_them() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let key = key_of("ann");
    let (smaller, greater) = (resource(1, "first"), resource(2, "second"));
    let mirrored = (0..16).map(|n| mirror(&store, &key, if n % 2 == 0 { &greater } else { &smaller }, at(0)));
    futures::future::join_all(mirrored).await;
    assert!(holds(&mirror(&store, &key, &smaller, at(0)).await, &smaller));
}

#[tokio::test]
async fn a_resource_and_the_command_line_do_not_change_each_others_agents() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (by_hand, by_resource) = (key_of("ann"), key_of("bob"));
    let identity = resource(1, "team");
    store.enrol_by_hand_unless_held(&by_hand.did, &by_hand.public, NO_LIMITS).await.unwrap();
    mirror(&store, &by_resource, &identity, at(0)).await;

    let held = mirror(&store, &by_hand, &resource(2, "team"), at(0)).await;
    assert_eq!(held, Enrolled::Held(Holder::CommandLine));
    let held = store.enrol_by_hand_unless_held(&by_resource.did, &by_resource.public, NO_LIMITS).await.unwrap();
    assert_eq!(held, Enrolled::Held(Holder::Resource(identity.clone())));
    let managed = Changed::Managed(identity);
    assert_eq!(store.set_suspended_unless_managed(&by_resource.did, true).await.unwrap(), managed);
    assert_eq!(store.remove_agent_unless_managed(&by_resource.did).await.unwrap(), managed);
}

#[tokio::test]
async fn mirroring_a_resource_writes_only_what_has_changed() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (key, identity) = (key_of("ann"), resource(1, "team"));
    let mut desired = Mirrored {
        did: &key.did,
        public_key: &key.public,
        suspended: false,
        quotas: NO_LIMITS,
        identity: &identity,
        created_at: at(0),
    };
    let first = store.enrol_resource_unless_held(&desired).await.unwrap();
    assert_eq!(store.enrol_resource_unless_held(&desired).await.unwrap(), first);

    desired.suspended = true;
    let Enrolled::Stands(suspended) = store.enrol_resource_unless_held(&desired).await.unwrap() else { panic!() };
    assert!(suspended.suspended && suspended.updated_at > suspended.created_at);
}

#[tokio::test]
async fn the_schema_refuses_an_agent_that_no_type_could_hold() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    let other_key = "INSERT INTO agents (did, public_key, source)
                     VALUES ('did:matrix:ann:0000000000000000', repeat('1', 64), 'cli')";
    let upper_case = "INSERT INTO agents (did, public_key, source)
                      VALUES ('did:matrix:ann:AAAAAAAAAAAAAAAA', repeat('A', 64), 'cli')";
    let half_a_resource = "INSERT INTO agents (did, public_key, source, cluster_id)
                           VALUES ('did:matrix:ann:1111111111111111', repeat('1', 64), 'kubernetes', gen_random_uuid())";
    assert_eq!(refused_by(&mut db, other_key).await, "agents_did_names_its_key");
    assert_eq!(refused_by(&mut db, upper_case).await, "agents_did_is_well_formed");
    assert_eq!(refused_by(&mut db, half_a_resource).await, "agents_resource_is_whole");
}
