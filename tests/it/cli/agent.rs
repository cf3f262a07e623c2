//! `chronosd agent`.

use chronos::{
    domain::{
        access::Did,
        alarm::{Cause, Status},
        ids::{ClusterId, ResourceUid},
    },
    store::{
        Store,
        agents::{Mirrored, Quotas},
        resources::Identity,
    },
};
use serde_json::json;
use uuid::Uuid;

use super::{chronosd, chronosd_on, json_of, refused, told};
use crate::support::{
    AgentKey, Database,
    alarms::{create, execute, in_an_hour, read},
};

fn did(key: &AgentKey) -> Did {
    key.did.parse().unwrap()
}

async fn add(database: &Database, key: &AgentKey) -> String {
    told(database, &["agent", "add", &key.did, "--public-key", &key.public_key]).await
}

/// An agent that a resource holds.
async fn mirrored(store: &Store, key: &AgentKey) {
    let identity = Identity {
        cluster: ClusterId::from_uuid(Uuid::from_u128(1)),
        uid: ResourceUid::from_uuid(Uuid::from_u128(2)),
        namespace: "team".to_owned(),
        name: "portfolio".to_owned(),
    };
    let mirrored = Mirrored {
        did: &did(key),
        public_key: &hex::decode(&key.public_key).unwrap().try_into().unwrap(),
        suspended: false,
        quotas: Quotas { max_active_alarms: Some(5), min_interval_seconds: None },
        identity: &identity,
        created_at: store.now().await.unwrap(),
    };
    store.enrol_resource_unless_held(&mirrored).await.unwrap();
}

const MANAGE: &str =
    "UPDATE alarms SET source = 'kubernetes', cluster_id = gen_random_uuid(), resource_uid = gen_random_uuid(),
    resource_namespace = 'home', resource_name = 'tea', resource_generation = 1, definition_hash = '\\x00'";

#[tokio::test]
async fn an_agent_is_enrolled_suspended_resumed_and_removed_and_each_answer_says_what_is_so() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = AgentKey::of("ann");
    let owner = did(&key);
    let name = key.did.as_str();
    // Hex in either case.
    let upper = key.public_key.to_uppercase();
    let quotas = ["--max-active-alarms", "7", "--min-interval-seconds", "60"];
    let arguments = [&["agent", "add", name, "--public-key", &upper][..], &quotas].concat();
    assert_eq!(
        told(&database, &arguments).await,
        format!(
            "{name} is enrolled; at most 7 alarms that can still fire, at least 60 s between two wakes of one alarm\n"
        )
    );
    assert_eq!(add(&database, &key).await, format!("{name} is enrolled; no limits\n"));

    let alarm = create(&store, &owner, in_an_hour()).await;
    create(&store, &owner, in_an_hour()).await;
    let suspended = format!("{name} is suspended; 2 alarms are paused\n");
    assert_eq!(told(&database, &["agent", "suspend", name]).await, suspended);
    assert_eq!(told(&database, &["agent", "suspend", name]).await, suspended, "again");
    assert_eq!(read(&store, &alarm).await.paused_by(), [Cause::Agent]);
    assert_eq!(add(&database, &key).await, format!("{name} is enrolled, and suspended as before; no limits\n"));
    assert_eq!(
        told(&database, &["agent", "resume", name]).await,
        format!("{name} is resumed; 2 alarms no longer wait for it\n")
    );
    assert_eq!(read(&store, &alarm).await.status, Status::Active);

    assert_eq!(told(&database, &["agent", "remove", name]).await, format!("{name} is removed; 2 alarms stay paused\n"));
    assert_eq!(store.find_agent(&owner).await.unwrap(), None);
    assert_eq!(add(&database, &key).await, format!("{name} is enrolled; no limits; 2 alarms no longer wait for it\n"));
}

#[tokio::test]
async fn the_list_shows_everybody_to_people_and_programs() {
    let database = Database::fresh().await;
    let store = database.store().await;
    assert_eq!(
        told(&database, &["agent", "list"]).await,
        "DID  STATUS  MAX ALARMS  MIN INTERVAL  ALARMS  MANAGED BY  CREATED\n"
    );
    let (ann, bob) = (AgentKey::of("ann"), AgentKey::of("bob"));
    add(&database, &ann).await;
    mirrored(&store, &bob).await;
    create(&store, &did(&ann), in_an_hour()).await;
    told(&database, &["agent", "suspend", &ann.did]).await;

    let list = told(&database, &["agent", "list"]).await;
    let rows: Vec<Vec<&str>> = list.lines().skip(1).map(|line| line.split("  ").map(str::trim).collect()).collect();
    let filled =
        |row: &[&str]| row.iter().filter(|entry| !entry.is_empty()).map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(filled(&rows[0])[..6], [ann.did.as_str(), "suspended", "-", "-", "1", "command line"]);
    assert_eq!(filled(&rows[1])[..6], [bob.did.as_str(), "enrolled", "5", "-", "0", "Agent team/portfolio"]);

    let mut list = json_of(&chronosd_on(&database, &["agent", "list", "--json"]).await);
    for agent in list.as_array_mut().unwrap() {
        let agent = agent.as_object_mut().unwrap();
        assert!(agent.remove("created_at").unwrap().as_str().unwrap().ends_with('Z'));
        assert!(agent.remove("updated_at").is_some());
    }
    assert_eq!(
        list,
        json!([
            {
                "did": ann.did, "public_key": ann.public_key, "suspended": true, "max_active_alarms": null,
                "min_interval_seconds": null, "living_alarms": 1, "held_alarms": 1, "managed_by": null,
            },
            {
                "did": bob.did, "public_key": bob.public_key, "suspended": false, "max_active_alarms": 5,
                "min_interval_seconds": null, "living_alarms": 0, "held_alarms": 0,
                "managed_by": { "cluster": Uuid::from_u128(1), "namespace": "team", "name": "portfolio" },
            },
        ])
    );
}

#[tokio::test]
async fn what_cannot_be_done_to_an_agent_is_refused_with_the_reason_and_what_to_do() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (ann, bob) = (AgentKey::of("ann"), AgentKey::of("bob"));
    mirrored(&store, &bob).await;
    let unknown = format!("{} is not enrolled; `chronosd agent list` shows who is", ann.did);
    let held = format!(
        "{} is held by the resource Agent team/portfolio of cluster {}; change it there",
        bob.did,
        Uuid::from_u128(1)
    );
    for verb in ["suspend", "resume", "remove"] {
        assert_eq!(refused(&database, &["agent", verb, &ann.did]).await, format!("chronosd agent {verb}: {unknown}\n"));
        assert_eq!(refused(&database, &["agent", verb, &bob.did]).await, format!("chronosd agent {verb}: {held}\n"));
    }
    let purge = refused(&database, &["agent", "remove", &ann.did, "--purge"]).await;
    assert_eq!(
        purge,
        format!(
            "chronosd agent remove: {} is not enrolled and owns nothing; `chronosd agent list` shows who is enrolled\n",
            ann.did
        )
    );
    assert_eq!(
        refused(&database, &["agent", "add", &bob.did, "--public-key", &bob.public_key]).await,
        format!("chronosd agent add: {held}\n")
    );
    assert_eq!(
        refused(&database, &["agent", "add", &ann.did, "--public-key", &bob.public_key]).await,
        format!(
            "chronosd agent add: --public-key begins with {} and {} does not end in that; give the key and the DID that belong \
             together\n",
            &bob.public_key[..16],
            ann.did
        )
    );
}

#[tokio::test]
async fn arguments_that_are_none_are_wrong_usage_and_named() {
    let key = AgentKey::of("ann");
    let weak = format!("01{}", "0".repeat(62));
    let wrong: [(&[&str], &str); 5] = [
        (
            &["agent", "suspend", "ann"],
            "'<DID>': does not have the form did:matrix:<user id>:<16 hex digits>; give one",
        ),
        (&["agent", "add", &key.did, "--public-key", "abc"], "'--public-key <HEX64>': is not 64 hex digits"),
        (&["agent", "add", &key.did, "--public-key", &weak], "'--public-key <HEX64>': is a weak key"),
        (&["agent", "rotate", &key.did, "new", "--public-key", &key.public_key], "'<NEW>': does not have the form"),
        (&["agent", "add", &key.did], "--public-key <HEX64>"),
    ];
    for (arguments, said) in wrong {
        let ended = chronosd(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn a_purge_ends_alarms_and_what_resources_manage_stands_in_its_way() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = AgentKey::of("ann");
    add(&database, &key).await;
    let alarm = create(&store, &did(&key), in_an_hour()).await;
    store.register_service_call(&did(&key), &"call".parse().unwrap()).await.unwrap();
    execute(&mut database.connect().await, MANAGE).await;
    assert_eq!(
        refused(&database, &["agent", "remove", &key.did, "--purge"]).await,
        format!(
            "chronosd agent remove: {} owns 1 alarm that resources manage, and only they can end: Alarm home/tea; delete them first\n",
            key.did
        )
    );
    assert!(store.find_agent(&did(&key)).await.unwrap().is_some_and(|agent| !agent.suspended), "nothing was changed");

    execute(
        &mut database.connect().await,
        "UPDATE alarms SET source = 'api', cluster_id = NULL, resource_uid = NULL, resource_namespace = NULL,
                resource_name = NULL, resource_generation = NULL, definition_hash = NULL",
    )
    .await;
    assert_eq!(
        told(&database, &["agent", "remove", &key.did, "--purge"]).await,
        format!("{} is removed; 1 alarm is cancelled, 1 service call and 0 sessions deleted\n", key.did)
    );
    let over = read(&store, &alarm).await;
    assert_eq!((over.status, over.cancelled_by.as_deref()), (Status::Cancelled, Some("agent")));
    assert_eq!(store.find_agent(&did(&key)).await.unwrap(), None);
}

#[tokio::test]
async fn a_purge_finds_what_an_earlier_removal_left_behind() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = AgentKey::of("ann");
    add(&database, &key).await;
    let alarm = create(&store, &did(&key), in_an_hour()).await;
    told(&database, &["agent", "remove", &key.did]).await;
    assert_eq!(
        told(&database, &["agent", "remove", &key.did, "--purge"]).await,
        format!("{} is removed; 1 alarm is cancelled, 0 service calls and 0 sessions deleted\n", key.did)
    );
    assert_eq!(read(&store, &alarm).await.status, Status::Cancelled);
}

#[tokio::test]
async fn a_rotation_says_what_went_over_or_why_nothing_did() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (old, new, other) = (AgentKey::of("ann"), AgentKey::of("ann"), AgentKey::of("bob"));
    let rotate = |old: &AgentKey, new: &AgentKey, key: &AgentKey| {
        ["agent", "rotate", &old.did, &new.did, "--public-key", &key.public_key].map(str::to_owned)
    };
    let why = async |arguments: [String; 6]| refused(&database, &arguments.each_ref().map(String::as_str)).await;
    assert!(why(rotate(&old, &new, &new)).await.contains(&format!("{} is not enrolled", old.did)));
    add(&database, &old).await;
    let alarm = create(&store, &did(&old), in_an_hour()).await;
    store.register_service_call(&did(&old), &"call".parse().unwrap()).await.unwrap();

    let another_user = why(rotate(&old, &other, &other)).await;
    assert_eq!(
        another_user,
        format!(
            "chronosd agent rotate: {} is of user ann and {} of user bob; a key changes, its user does not. Nothing was changed\n",
            old.did, other.did
        )
    );
    assert!(why(rotate(&old, &new, &other)).await.contains("does not end in that"));
    mirrored(&store, &other).await;
    assert!(why(rotate(&other, &AgentKey::of("bob"), &other)).await.contains("does not end in that"));
    let next = AgentKey::of("bob");
    assert!(why(rotate(&other, &next, &next)).await.contains("held by the resource Agent team/portfolio"));
    execute(&mut database.connect().await, MANAGE).await;
    assert!(why(rotate(&old, &new, &new)).await.contains(&format!(
        "the owner of 1 alarm that resources manage: Alarm home/tea; delete them, and create them for {}",
        new.did
    )));
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'cancelled', cancelled_by = 'resource'").await;

    let arguments = rotate(&old, &new, &new);
    assert_eq!(
        told(&database, &arguments.each_ref().map(String::as_str)).await,
        format!("{} is now {}; 1 alarm, 1 service call, 0 sessions and 0 attempts went over\n", old.did, new.did)
    );
    assert!(store.get_if_owned(&did(&new), alarm.id).await.unwrap().is_some());
    assert!(why(rotate(&old, &new, &new)).await.contains(&format!("{} is not enrolled", old.did)));
}
