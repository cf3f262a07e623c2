//! Another key, another DID: everything goes over, or nothing.

use chronos::{
    domain::{access::Did, alarm::Status, session::SessionKey},
    store::{
        Store,
        agents::{Changed, Holder, Managed, Moved, Quotas, Rotated},
        alarms::Resource,
    },
};
use uuid::Uuid;

use super::{
    Key,
    alarms::{count, furnish},
    at, enrol, enrolled_ann, key_of, let_resources_manage, mirror, resource,
};
use crate::{
    store::{
        ann, claim,
        claims::{accepted, due, worker},
        create, execute, in_an_hour,
    },
    support::Database,
};

async fn rotate(store: &Store, old: &Did, new: &Key) -> Rotated {
    store.rotate_unless_refused(old, &new.did, &new.public).await.unwrap()
}

/// Where a DID may stand.
const PLACES: [(&str, &str); 6] = [
    ("agents", "did"),
    ("alarms", "owner_did"),
    ("attempts", "owner_did"),
    ("service_calls", "tenant_id"),
    ("sessions", "owner_did"),
    ("nonces", "did"),
];

async fn rows_of(database: &Database, did: &Did) -> Vec<(&'static str, i64)> {
    let mut rows = Vec::new();
    for (table, column) in PLACES {
        rows.push((table, count(database, table, column, did.as_str()).await));
    }
    rows
}

#[tokio::test]
async fn everything_goes_over_to_the_new_key_and_nothing_is_left_behind() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (old, new) = (enrolled_ann(&store).await, key_of("ann"));
    let key = hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a").unwrap();
    let quotas = Quotas { max_active_alarms: Some(7), min_interval_seconds: Some(60) };
    store.enrol_by_hand_unless_held(&old, &key.try_into().unwrap(), quotas).await.unwrap();
    let alarm = create(&store, &old, in_an_hour()).await;
    let over = create(&store, &old, in_an_hour()).await;
    store.cancel_if_owned(&old, over.id).await.unwrap();
    let Changed::Done(before) = store.set_suspended_unless_managed(&old, true).await.unwrap() else { panic!() };
    furnish(&database, &store, &old).await;
    store.open_challenge(&old, "nonce", std::time::Duration::from_secs(60), 20).await.unwrap();
    execute(
        &mut database.connect().await,
        &format!(
            "INSERT INTO attempts (alarm_id, owner_did, scheduled_for, attempt, started_at, outcome, claim_token, delivery_id)
             VALUES ('{}', '{old}', now(), 1, now(), 'retrying', gen_random_uuid(), gen_random_uuid())",
            alarm.id
        ),
    )
    .await;
    assert_eq!(rows_of(&database, &old).await.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), [1, 4, 1, 1, 1, 1]);

    let thread: SessionKey = "ann:agent:thread".parse().unwrap();
    store.open_stream_if_owned(&old, &thread).await.unwrap().expect("the session is there");

    let Rotated::Done(agent, moved) = rotate(&store, &old, &new).await else { panic!("refused") };
    let streams: Vec<Option<uuid::Uuid>> =
        sqlx::query_scalar("SELECT stream_id FROM sessions").fetch_all(&mut database.connect().await).await.unwrap();
    assert_eq!(streams, [None], "the old key's connection is the session's no more");
    assert_eq!(moved, Moved { alarms: 2, service_calls: 1, sessions: 1, attempts: 1 });
    assert_eq!((&agent.did, agent.public_key), (&new.did, new.public));
    assert_eq!((agent.suspended, agent.quotas, agent.created_at), (true, quotas, before.created_at));
    assert!(rows_of(&database, &old).await.iter().all(|(_, rows)| *rows == 0), "{:?}", rows_of(&database, &old).await);
    assert_eq!(
        rows_of(&database, &new.did).await.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(),
        [1, 4, 1, 1, 1, 0],
        "an open challenge is void"
    );

    // It stands as it stood, and is found by its new owner alone, with all that hangs on it.
    let stands = store.get_if_owned(&new.did, alarm.id).await.unwrap().unwrap();
    assert_eq!((stands.revision, stands.updated_at), (alarm.revision, alarm.updated_at));
    assert_eq!((stands.status, stands.schedule_epoch), (Status::Active, alarm.schedule_epoch));
    assert!(store.get_if_owned(&old, alarm.id).await.unwrap().is_none());
    assert!(store.find_timer(&new.did, &"call-1".parse().unwrap()).await.unwrap().is_some());
    assert_eq!(count(&database, "attempts", "reason", "deleted").await, 0, "no timer was deleted on the way");
    let session: SessionKey = "ann:agent:thread".parse().unwrap();
    let found = store.find_session_if_owned(&new.did, &session).await.unwrap().unwrap();
    assert_eq!((found.last_seq, found.pending_timers), (1, 1));
    assert_eq!(store.events_after_if_owned(&new.did, &session, 0, 10).await.unwrap().unwrap().len(), 1);
    assert_eq!(store.attempts_if_owned(&new.did, alarm.id, None, 10).await.unwrap().unwrap().entries.len(), 1);
}

#[tokio::test]
async fn what_is_in_flight_while_the_key_changes_counts_and_is_in_the_new_owners_history() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (old, new) = (enrolled_ann(&store).await, key_of("ann"));
    let [alarm] = due(&database, &store, vec![in_an_hour()]).await.try_into().unwrap();
    let [claim] = claim(&store).await.claims.try_into().unwrap();

    assert!(matches!(rotate(&store, &old, &new).await, Rotated::Done(..)));
    store.settle_under_token(worker(), &[(&claim, &accepted(&claim))]).await.unwrap();
    assert_eq!(store.get_if_owned(&new.did, alarm.id).await.unwrap().unwrap().status, Status::Fired);
    let history = store.attempts_if_owned(&new.did, alarm.id, None, 10).await.unwrap().unwrap();
    assert_eq!(history.entries.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_rotation_that_is_refused_changes_nothing() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (old, new) = (ann(), key_of("ann"));
    assert_eq!(rotate(&store, &old, &new).await, Rotated::Unknown);
    create(&store, &old, in_an_hour()).await;
    assert_eq!(rotate(&store, &old, &new).await, Rotated::Unknown, "it owns something, and is not enrolled");
    enrolled_ann(&store).await;
    let before = rows_of(&database, &old).await;

    assert_eq!(rotate(&store, &old, &key_of("bob")).await, Rotated::AnotherUser);
    let forged = Key { did: new.did.clone(), public: key_of("ann").public };
    assert_eq!(rotate(&store, &old, &forged).await, Rotated::AnotherKey);

    let enrolled = key_of("ann");
    enrol(&store, &enrolled.did, &enrolled.public).await;
    assert_eq!(rotate(&store, &old, &enrolled).await, Rotated::Enrolled(Holder::CommandLine));
    let by_resource = key_of("ann");
    let identity = resource(1, "team");
    mirror(&store, &by_resource, &identity, at(0)).await;
    assert_eq!(rotate(&store, &old, &by_resource).await, Rotated::Enrolled(Holder::Resource(identity.clone())));
    assert_eq!(rotate(&store, &by_resource.did, &new).await, Rotated::Held(identity));

    for owned in ["alarm", "service call", "session"] {
        let other = key_of("ann");
        let session: SessionKey = format!("ann:agent:{}", other.did.fingerprint()).parse().unwrap();
        let statement = match owned {
            "alarm" => {
                create(&store, &other.did, in_an_hour()).await;
                "SELECT".to_owned()
            }
            "service call" => {
                format!("INSERT INTO service_calls (tenant_id, service_call_id) VALUES ('{}', 'c')", other.did)
            }
            _ => format!(
                "INSERT INTO sessions (session_key, owner_did, user_id) VALUES ('{session}', '{}', 'ann')",
                other.did
            ),
        };
        execute(&mut database.connect().await, &statement).await;
        assert_eq!(rotate(&store, &old, &other).await, Rotated::Owns, "{owned}");
    }
    assert_eq!(rows_of(&database, &old).await, before);
    assert_eq!(store.find_agent(&new.did).await.unwrap(), None);
}

#[tokio::test]
async fn resources_that_name_the_old_key_stand_in_the_way_and_are_named() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (old, new) = (enrolled_ann(&store).await, key_of("ann"));
    let (first, second) = (create(&store, &old, in_an_hour()).await, create(&store, &old, in_an_hour()).await);
    let_resources_manage(&database, &[&first, &second]).await;
    // One is over, and its resource may still stand; so its uid would be armed anew, for the old owner.
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired' WHERE resource_name = 'tea-0'").await;
    let named =
        |name: &str| Resource { cluster: Uuid::from_u128(1), namespace: "home".to_owned(), name: name.to_owned() };
    let managed = Managed { first: vec![named("tea-0"), named("tea-1")], all: 2 };
    assert_eq!(rotate(&store, &old, &new).await, Rotated::Manages(managed));

    // What went with its resource is history, and goes over.
    let gone = "UPDATE alarms SET status = 'cancelled', cancelled_by = 'resource'";
    execute(&mut database.connect().await, gone).await;
    assert!(matches!(rotate(&store, &old, &new).await, Rotated::Done(_, Moved { alarms: 2, .. })));
}
