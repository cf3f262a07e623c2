//! `chronosd cluster`.

use chronos::store::{Store, alarms::Alarm};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{chronosd, chronosd_on, json_of, refused, told};
use crate::support::{
    AgentKey, Database,
    alarms::{ann, bob, create, execute, in_an_hour, read},
};

const BLUE: Uuid = Uuid::from_u128(0xb1);
const GREEN: Uuid = Uuid::from_u128(0x92);
const RED: Uuid = Uuid::from_u128(0x3d);

/// A controller of the cluster was seen so many seconds ago.
async fn seen(database: &Database, cluster: Uuid, name: &str, seconds_ago: u32) {
    let seen = format!(
        "INSERT INTO clusters (cluster_id, name, last_seen) VALUES ('{cluster}', '{name}', now() - interval '{seconds_ago} s')
         ON CONFLICT (cluster_id) DO UPDATE SET last_seen = excluded.last_seen"
    );
    execute(&mut database.connect().await, &seen).await;
}

/// The alarm stands for the resource `home/<name>` of a cluster.
async fn manage(database: &Database, alarm: &Alarm, cluster: Uuid, name: &str) {
    let manage = format!(
        "UPDATE alarms SET source = 'kubernetes', cluster_id = '{cluster}', resource_uid = gen_random_uuid(), resource_namespace = 'home',
                resource_name = '{name}', resource_generation = 1, definition_hash = '\\x00'
         WHERE id = '{}'",
        alarm.id
    );
    execute(&mut database.connect().await, &manage).await;
}

async fn stored(database: &Database, store: &Store, cluster: Uuid, name: &str) -> Alarm {
    let alarm = create(store, &ann(), in_an_hour()).await;
    manage(database, &alarm, cluster, name).await;
    alarm
}

/// An agent that a resource of the cluster holds.
async fn enrolled(database: &Database, cluster: Uuid) -> AgentKey {
    let key = AgentKey::of("cora");
    let insert = format!(
        "INSERT INTO agents (did, public_key, source, cluster_id, resource_uid, resource_namespace, resource_name, resource_created_at)
         VALUES ('{}', '{}', 'kubernetes', '{cluster}', gen_random_uuid(), 'home', 'cora', now())",
        key.did, key.public_key
    );
    execute(&mut database.connect().await, &insert).await;
    key
}

#[tokio::test]
async fn the_list_shows_clusters_to_people_and_programs_and_says_what_to_do_about_a_lost_one() {
    let database = Database::fresh().await;
    let store = database.store().await;
    assert_eq!(told(&database, &["cluster", "list"]).await, "ID  NAME  LAST SEEN  ALARMS  OVER  AGENTS\n");
    seen(&database, GREEN, "green", 5).await;
    seen(&database, BLUE, "", 3 * 3600).await;
    stored(&database, &store, GREEN, "tea").await;
    assert!(told(&database, &["cluster", "list"]).await.contains("  green  "), "nothing to advise: blue has nothing");
    stored(&database, &store, BLUE, "tea").await;
    stored(&database, &store, BLUE, "cake").await;
    stored(&database, &store, RED, "tea").await;
    let fired = stored(&database, &store, BLUE, "bread").await;
    let fire = format!("UPDATE alarms SET status = 'fired' WHERE id = '{}'", fired.id);
    execute(&mut database.connect().await, &fire).await;
    enrolled(&database, BLUE).await;

    let listed = chronosd_on(&database, &["cluster", "list"]).await;
    let rows: Vec<Vec<&str>> = listed.stdout.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let [green, blue, red] = [GREEN, BLUE, RED].map(|id| id.to_string());
    assert_eq!([&rows[0][..2], &rows[0][3..]].concat(), [&green, "green", "1", "0", "0"]);
    assert_eq!([&rows[1][..2], &rows[1][3..]].concat(), [&blue, "-", "2", "1", "1"]);
    assert_eq!(rows[2], [&red, "-", "-", "1", "0", "0"]);
    assert_eq!(
        listed.stderr,
        format!(
            "{blue} was last seen 3 hours ago and its alarms fire all the same: `chronosd cluster adopt {blue}` hands them over to the \
             cluster in its place, `chronosd cluster forget {blue}` cancels them\n\
             {red} was never seen and its alarm fires all the same: `chronosd cluster adopt {red}` hands it over to the cluster in its \
             place, `chronosd cluster forget {red}` cancels it\n"
        )
    );

    let ended = chronosd_on(&database, &["cluster", "list", "--json"]).await;
    let mut list = json_of(&ended);
    let seen: Vec<bool> = list.as_array().unwrap().iter().map(|cluster| cluster["last_seen"].is_string()).collect();
    assert_eq!((seen, ended.stderr.as_str()), (vec![true, true, false], ""));
    for cluster in list.as_array_mut().unwrap() {
        cluster.as_object_mut().unwrap().remove("last_seen");
    }
    let view = |id: Uuid, name: &str, at_work: bool, living: u8, ended: u8, agents: u8| -> Value {
        json!({ "id": id, "name": name, "at_work": at_work, "living_alarms": living, "ended_alarms": ended, "agents": agents })
    };
    assert_eq!(
        list,
        json!([view(GREEN, "green", true, 1, 0, 0), view(BLUE, "", false, 2, 1, 1), view(RED, "", false, 1, 0, 0)])
    );
}

#[tokio::test]
async fn a_cluster_is_forgotten_once_its_controller_has_stopped() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let blue = BLUE.to_string();
    assert_eq!(
        refused(&database, &["cluster", "forget", &blue]).await,
        format!("chronosd cluster forget: {blue} is unknown; `chronosd cluster list` shows the clusters\n")
    );
    seen(&database, BLUE, "blue", 100).await;
    let alarm = stored(&database, &store, BLUE, "tea").await;
    let key = enrolled(&database, BLUE).await;
    let by_http = create(&store, &key.did.parse().unwrap(), in_an_hour()).await;
    let why = refused(&database, &["cluster", "forget", &blue]).await;
    let (before, after) = why.split_once(" seen 10").expect(&why);
    assert_eq!(before, format!("chronosd cluster forget: {blue} is not gone, its controller was"));
    assert_eq!(&after[1..], " s ago: stop it first, or it would store them again\n");
    assert!(read(&store, &alarm).await.status.is_living());

    seen(&database, BLUE, "blue", 180).await;
    assert_eq!(
        told(&database, &["cluster", "forget", &blue]).await,
        format!("{blue} is forgotten; 1 alarm is cancelled and 1 agent removed, of whose own 1 alarm stays paused\n")
    );
    assert_eq!(read(&store, &alarm).await.cancelled_by.as_deref(), Some("cluster"));
    assert!(!read(&store, &by_http).await.paused_by().is_empty());
    assert_eq!(
        told(&database, &["cluster", "forget", &blue]).await,
        format!("{blue} is forgotten; 0 alarms are cancelled and 0 agents removed\n")
    );
}

#[tokio::test]
async fn a_cluster_is_handed_over_to_the_only_one_at_work_and_it_is_said_what_stays_and_what_comes_next() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let [green, blue] = [GREEN, BLUE].map(|id| id.to_string());
    seen(&database, GREEN, "green", 5).await;
    seen(&database, BLUE, "blue", 600).await;
    seen(&database, RED, "", 600).await;
    enrolled(&database, BLUE).await;
    let alarm = stored(&database, &store, BLUE, "tea").await;
    stored(&database, &store, BLUE, "cake").await;
    let bobs = create(&store, &bob(), in_an_hour()).await;
    manage(&database, &bobs, GREEN, "cake").await;
    assert_eq!(
        told(&database, &["cluster", "adopt", &blue]).await,
        format!(
            "1 alarm and 1 agent handed over to {green}\n\
             those whose resource is not applied within CHRONOS_ORPHAN_GRACE_SECONDS are cancelled as orphans\n\
             1 alarm stays with {blue}, because another owner has the alarm of that name there: Alarm home/cake\n"
        )
    );
    assert_eq!(read(&store, &alarm).await.resource().unwrap().cluster, GREEN);
    assert_eq!(
        told(&database, &["cluster", "adopt", &blue, "--into", &green]).await,
        format!(
            "0 alarms and 0 agents handed over to {green}\n\
             1 alarm stays with {blue}, because another owner has the alarm of that name there: Alarm home/cake\n"
        )
    );
}

#[tokio::test]
async fn what_cannot_be_handed_over_is_refused_with_the_reason_and_the_candidates() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let [green, blue, red] = [GREEN, BLUE, RED].map(|id| id.to_string());
    let why = async |arguments: &[&str]| {
        let why = refused(&database, &[&["cluster", "adopt"], arguments].concat()).await;
        let why = why.strip_prefix("chronosd cluster adopt: ").expect("says who").to_owned();
        why.strip_suffix(". Nothing was changed\n").expect("says so").to_owned()
    };
    assert_eq!(why(&[&blue]).await, format!("{blue} is unknown; `chronosd cluster list` shows the clusters"));
    let alarm = stored(&database, &store, BLUE, "tea").await;
    let none =
        "no other cluster was seen within 3 minutes; start the controller of the one that was built in its place";
    assert_eq!(why(&[&blue]).await, none);
    let never =
        format!("no controller of {green} was ever seen, so nobody would look after what goes there; start it first");
    assert_eq!(why(&[&blue, "--into", &green]).await, never);

    seen(&database, BLUE, "blue", 600).await;
    seen(&database, GREEN, "green", 600).await;
    assert_eq!(why(&[&blue]).await, format!("{none}, or name it with --into: {green} (green)"));
    assert_eq!(
        why(&[&blue, "--into", &blue]).await,
        format!("{blue} cannot take its own place; give the cluster that was built in its place")
    );
    seen(&database, GREEN, "green", 5).await;
    seen(&database, RED, "", 10).await;
    assert_eq!(
        why(&[&blue]).await,
        format!(
            "2 other clusters were seen within 3 minutes; say which takes its place with --into: {green} (green), {red}"
        )
    );
    seen(&database, BLUE, "blue", 100).await;
    let at_work = why(&[&blue, "--into", &green]).await;
    assert!(at_work.starts_with(&format!("{blue} is not gone, its controller was seen 10")), "{at_work}");
    assert!(at_work.ends_with(" s ago: stop it first, or it would go on with what was handed over"), "{at_work}");
    assert_eq!(read(&store, &alarm).await.resource().unwrap().cluster, BLUE);
}

#[tokio::test]
async fn an_id_that_is_none_is_wrong_usage() {
    let green = GREEN.to_string();
    let wrong: [(&[&str], &str); 4] = [
        (&["cluster", "forget", "blue"], "'blue' for '<ID>': is not a cluster id: `chronosd cluster list` shows them"),
        (&["cluster", "adopt", "blue"], "'blue' for '<OLD>': is not a cluster id"),
        (&["cluster", "adopt", &green, "--into", "blue"], "'blue' for '--into <NEW>': is not a cluster id"),
        (&["cluster", "adopt"], "<OLD>"),
    ];
    for (arguments, said) in wrong {
        let ended = chronosd(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
}
