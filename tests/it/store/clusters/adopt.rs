//! A cluster that was built anew.

use std::{collections::BTreeSet, time::Duration};

use chrono::TimeDelta;
use chronos::{
    domain::{access::Did, alarm::Status, ids::ClusterId},
    store::{
        Store,
        agents::Holder,
        claims::RESOURCE_CHANGED,
        clusters::{Adopted, HandedOver, Left},
    },
};
use serde_json::{Value, json};
use sqlx::Connection;

use super::{
    BLUE, GREEN, RED, ann, bob, comes_back_with_the_next_write, count, create, enrolled, every_minute, everything_of,
    execute, in_an_hour, lines, row, row_but, seen, stored, stored_for, stored_many,
};
use crate::{
    store::{history, read},
    support::{Database, eventually},
};

/// Blue is gone, green is at work.
async fn rebuilt() -> (Database, Store) {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 600).await;
    seen(&database, &store, GREEN, 5).await;
    (database, store)
}

async fn adopt(store: &Store, old: ClusterId, new: ClusterId) -> HandedOver {
    match store.adopt_unless_at_work(old, new).await.unwrap() {
        Adopted::Done(handed) => handed,
        refused @ (Adopted::Unknown | Adopted::NeverSeen | Adopted::AtWork { .. }) => panic!("{refused:?}"),
    }
}

fn went(alarms: u64, agents: u64) -> HandedOver {
    HandedOver { alarms, agents, ..HandedOver::default() }
}

fn names(left: &Left) -> Vec<&str> {
    left.first.iter().map(|resource| resource.name.as_str()).collect()
}

async fn holder(store: &Store, agent: &Did) -> Holder {
    store.find_agent(agent).await.unwrap().expect("is enrolled").holder
}

/// What a hand-over changes in the row of an alarm that waits for its resource.
const WAITS: &[&str] = &["cluster_id", "adopted_at", "updated_at"];
/// And in that of one whose resource was stored already.
const REPLACES: &[&str] =
    &["cluster_id", "resource_uid", "resource_generation", "fire_requested", "created_at", "updated_at"];

#[tokio::test]
async fn alarms_and_agents_go_over_as_they_are_and_wait_for_their_resources() {
    let (database, store) = rebuilt().await;
    seen(&database, &store, RED, 600).await;
    let cora = enrolled(&database, BLUE, "cora").await;
    enrolled(&database, RED, "dora").await;
    let Holder::Resource(before) = holder(&store, &cora).await else { panic!("a resource's") };
    let paused = stored(&database, &store, BLUE, "paused", every_minute()).await;
    let on_its_ladder = stored(&database, &store, BLUE, "ladder", every_minute()).await;
    let fired = stored(&database, &store, BLUE, "fired", in_an_hour()).await;
    stored(&database, &store, RED, "paused", every_minute()).await;
    let by_http = create(&store, &cora, in_an_hour()).await;
    let as_it_was = format!(
        "UPDATE alarms SET status = 'paused', paused_by = '{{spec}}', fire_requested = 'now' WHERE id = '{}';
         UPDATE alarms SET failure_count = 3, next_fire_at = scheduled_for + interval '4 min', last_error = 'HTTP 503', fired_count = 7,
                schedule_epoch = 2, revision = 9, claimed_at = now(), claimed_until = now() + interval '1 min',
                claim_token = gen_random_uuid(), claimed_by = gen_random_uuid(), claims = 1, first_claimed_at = now()
         WHERE id = '{ladder}';
         INSERT INTO attempts (alarm_id, owner_did, scheduled_for, attempt, started_at, outcome, http_status, claim_token, delivery_id)
         VALUES ('{ladder}', 'did', now(), 1, now(), 'retrying', 503, gen_random_uuid(), gen_random_uuid());
         UPDATE alarms SET status = 'fired', updated_at = now() - interval '1 day' WHERE id = '{}'",
        paused.id,
        fired.id,
        ladder = on_its_ladder.id
    );
    execute(&mut database.connect().await, &as_it_was).await;
    let mut rows = Vec::new();
    for alarm in [&paused, &on_its_ladder, &fired] {
        rows.push(row_but(&database, alarm, WAITS).await);
    }
    let (of_red, mut hints) = (everything_of(&database, RED).await, store.listen(RESOURCE_CHANGED).await.unwrap());

    let handed_at = store.now().await.unwrap();
    assert_eq!(adopt(&store, BLUE, GREEN).await, went(3, 1));
    for (alarm, as_it_was) in [&paused, &on_its_ladder, &fired].into_iter().zip(rows) {
        assert_eq!(row_but(&database, alarm, WAITS).await, as_it_was, "neither edited nor re-planned, claim included");
        let now = row(&database, alarm.id).await.unwrap();
        assert_eq!(now["cluster_id"], json!(GREEN));
        assert!(now["adopted_at"].is_string());
    }
    assert!(read(&store, &paused).await.updated_at > handed_at, "who missed the hint finds it");
    assert!(read(&store, &fired).await.updated_at < handed_at - TimeDelta::hours(23), "when it ended stays");
    assert_eq!(history(&database, &on_its_ladder).await.len(), 1);
    let Holder::Resource(after) = holder(&store, &cora).await else { panic!("a resource's") };
    assert_eq!(after, chronos::store::resources::Identity { cluster: GREEN, ..before });
    assert_eq!(read(&store, &by_http).await.status, Status::Active);
    assert_eq!(everything_of(&database, RED).await, of_red);
    assert_eq!(lines(&store).await, [GREEN, RED]);

    let mut heard = BTreeSet::new();
    while heard.len() < 3 {
        let hint = tokio::time::timeout(Duration::from_secs(10), hints.recv()).await.expect("is told").unwrap();
        heard.insert(hint.payload().to_owned());
    }
    assert_eq!(heard, ["fired", "ladder", "paused"].map(|name| format!("{GREEN}/home/{name}")).into());
    assert_eq!(store.adopt_unless_at_work(BLUE, GREEN).await.unwrap(), Adopted::Unknown, "nothing of it is left");
}

#[tokio::test]
async fn an_alarm_whose_resource_was_stored_already_takes_the_place_of_what_was_stored() {
    let (database, store) = rebuilt().await;
    let old = stored(&database, &store, BLUE, "tea", every_minute()).await;
    let new = stored(&database, &store, GREEN, "tea", in_an_hour()).await;
    let as_it_was = format!(
        "UPDATE alarms SET fire_requested = 'of old', failure_count = 2, claimed_at = now(), claimed_until = now() + interval '1 min',
                claim_token = gen_random_uuid(), claimed_by = gen_random_uuid(), claims = 1, first_claimed_at = now()
         WHERE id = '{}';
         UPDATE alarms SET fire_requested = 'of new', resource_generation = 4, fired_count = 2 WHERE id = '{}'",
        old.id, new.id
    );
    execute(&mut database.connect().await, &as_it_was).await;
    let before = row_but(&database, &old, REPLACES).await;
    let twin = row(&database, new.id).await.unwrap();
    let mut hints = store.listen(RESOURCE_CHANGED).await.unwrap();

    assert_eq!(adopt(&store, BLUE, GREEN).await, went(1, 0));
    assert_eq!(row_but(&database, &old, REPLACES).await, before, "definition, hash, rung and claim included");
    let now = row(&database, old.id).await.unwrap();
    for column in ["cluster_id", "resource_uid", "resource_generation", "fire_requested"] {
        assert_eq!(now[column], twin[column], "{column}");
    }
    assert_eq!(now["adopted_at"], Value::Null, "nobody need take it over");
    assert_eq!(row(&database, new.id).await, None);
    let [(outcome, reason, ..)] = history(&database, &new).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("cancelled", Some("deleted")), "what it owed left a trace");
    assert_eq!(hints.recv().await.unwrap().payload(), format!("{GREEN}/home/tea"));
    assert_eq!(lines(&store).await, [GREEN]);
}

#[tokio::test]
async fn an_alarm_whose_name_is_anothers_owners_there_stays_and_is_told() {
    let (database, store) = rebuilt().await;
    let left = stored(&database, &store, BLUE, "cake", every_minute()).await;
    let goes = stored(&database, &store, BLUE, "tea", every_minute()).await;
    let others = stored_for(&database, &store, &bob(), GREEN, "cake", every_minute()).await;
    let (before, bobs) = (row(&database, left.id).await, row(&database, others.id).await);

    let handed = adopt(&store, BLUE, GREEN).await;
    assert_eq!((handed.alarms, handed.another_owner.all, names(&handed.another_owner)), (1, 1, vec!["cake"]));
    assert_eq!((row(&database, left.id).await, row(&database, others.id).await), (before, bobs));
    assert_eq!(row(&database, goes.id).await.unwrap()["cluster_id"], json!(GREEN));
    assert_eq!(lines(&store).await, [GREEN, BLUE], "something living is left there");
}

#[tokio::test]
async fn what_was_cancelled_with_its_resource_or_its_cluster_stays_and_keeps_no_line() {
    let (database, store) = rebuilt().await;
    stored(&database, &store, BLUE, "tea", every_minute()).await;
    stored(&database, &store, BLUE, "cake", every_minute()).await;
    let deleted_there = stored(&database, &store, GREEN, "bread", every_minute()).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET status = 'cancelled', cancelled_by = CASE resource_name WHEN 'tea' THEN 'resource' ELSE 'cluster' END",
    )
    .await;
    let of_blue = everything_of(&database, BLUE).await.len();
    // A resource that was deleted in the new cluster stands in nobody's way.
    let bread = stored(&database, &store, BLUE, "bread", every_minute()).await;

    assert_eq!(adopt(&store, BLUE, GREEN).await, went(1, 0));
    assert!(row(&database, bread.id).await.unwrap()["adopted_at"].is_string());
    assert!(row(&database, deleted_there.id).await.is_some());
    assert_eq!(everything_of(&database, BLUE).await.len(), of_blue - 1, "all but the line");
    assert_eq!(lines(&store).await, [GREEN]);
}

#[tokio::test]
async fn of_several_alarms_of_a_name_the_living_one_waits_and_adopting_again_changes_nothing() {
    let (database, store) = rebuilt().await;
    let fired = stored(&database, &store, BLUE, "tea", in_an_hour()).await;
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired'").await;
    let living = stored(&database, &store, BLUE, "tea", every_minute()).await;
    assert_eq!(adopt(&store, BLUE, GREEN).await, went(2, 0));
    let (front, other) = (row(&database, living.id).await.unwrap(), row(&database, fired.id).await.unwrap());
    assert!(front["adopted_at"].is_string());
    assert_eq!((&other["cluster_id"], &other["adopted_at"]), (&json!(GREEN), &Value::Null));

    // The resource has taken its alarm over, and somebody adopts once more: blue is known as long as a row names it.
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET adopted_at = NULL, resource_uid = gen_random_uuid() WHERE adopted_at IS NOT NULL",
    )
    .await;
    let gone = stored(&database, &store, BLUE, "cake", every_minute()).await;
    let cancel = format!("UPDATE alarms SET status = 'cancelled', cancelled_by = 'resource' WHERE id = '{}'", gone.id);
    execute(&mut database.connect().await, &cancel).await;
    let before = everything_of(&database, GREEN).await;
    assert_eq!(adopt(&store, BLUE, GREEN).await, went(0, 0));
    assert_eq!(everything_of(&database, GREEN).await, before);
}

#[tokio::test]
async fn an_adoption_that_was_cut_off_half_way_is_finished_by_the_next() {
    let (database, store) = rebuilt().await;
    let bobs = enrolled(&database, GREEN, "bob").await;
    stored_many(&database, BLUE, 450).await;
    // The agents and some of the alarms went over; the resources of some of these took them since.
    execute(
        &mut database.connect().await,
        &format!(
            "UPDATE alarms SET cluster_id = '{GREEN}', adopted_at = now() WHERE resource_name LIKE 'tea-1%';
             UPDATE alarms SET adopted_at = NULL, resource_uid = gen_random_uuid() WHERE resource_name LIKE 'tea-11%'"
        ),
    )
    .await;
    let went_before = everything_of(&database, GREEN).await;
    let half = count(&database, &format!("cluster_id = '{GREEN}'")).await.unsigned_abs();

    assert_eq!(adopt(&store, BLUE, GREEN).await, went(450 - half, 0));
    assert_eq!(count(&database, &format!("cluster_id = '{GREEN}' AND status = 'active'")).await, 450);
    let now = everything_of(&database, GREEN).await;
    assert!(went_before.iter().all(|row| now.contains(row)), "what went over before was not touched");
    assert!(matches!(holder(&store, &bobs).await, Holder::Resource(_)));
    assert_eq!(lines(&store).await, [GREEN]);
}

#[tokio::test]
async fn those_that_stay_do_not_stop_those_behind_them() {
    let (database, store) = rebuilt().await;
    stored_many(&database, BLUE, 450).await;
    stored_many(&database, GREEN, 250).await;
    execute(
        &mut database.connect().await,
        &format!("UPDATE alarms SET owner_did = '{}' WHERE cluster_id = '{GREEN}'", bob()),
    )
    .await;
    let handed = adopt(&store, BLUE, GREEN).await;
    assert_eq!((handed.alarms, handed.another_owner.all, handed.another_owner.first.len()), (200, 250, 3));
    assert_eq!(count(&database, &format!("cluster_id = '{BLUE}'")).await, 250);
}

#[tokio::test]
async fn of_two_lost_clusters_alarms_of_one_name_the_first_waits_and_the_second_stays() {
    let (database, store) = rebuilt().await;
    seen(&database, &store, RED, 600).await;
    let first = stored(&database, &store, BLUE, "tea", every_minute()).await;
    let second = stored(&database, &store, RED, "tea", every_minute()).await;
    assert_eq!(adopt(&store, BLUE, GREEN).await, went(1, 0));
    let (before, of_red) = (row(&database, first.id).await, everything_of(&database, RED).await);
    let handed = adopt(&store, RED, GREEN).await;
    assert_eq!((handed.alarms, handed.another_waits.all, names(&handed.another_waits)), (0, 1, vec!["tea"]));
    assert_eq!((row(&database, first.id).await, everything_of(&database, RED).await), (before, of_red));
    assert_eq!(read(&store, &second).await.status, Status::Active);
}

#[tokio::test]
async fn only_a_cluster_that_is_gone_is_handed_over_and_only_to_one_that_was_seen() {
    let (database, store) = rebuilt().await;
    stored(&database, &store, BLUE, "tea", every_minute()).await;
    enrolled(&database, BLUE, "bob").await;
    assert_eq!(store.adopt_unless_at_work(RED, GREEN).await.unwrap(), Adopted::Unknown);
    let before = everything_of(&database, BLUE).await;
    assert_eq!(store.adopt_unless_at_work(BLUE, RED).await.unwrap(), Adopted::NeverSeen);
    assert_eq!(everything_of(&database, BLUE).await, before);

    seen(&database, &store, BLUE, 20).await;
    let before = everything_of(&database, BLUE).await;
    let Adopted::AtWork { seen_ago, so_far } = store.adopt_unless_at_work(BLUE, GREEN).await.unwrap() else { panic!() };
    assert_eq!((seen_ago.num_seconds() / 10, so_far), (2, went(0, 0)));
    assert_eq!(everything_of(&database, BLUE).await, before);
}

#[tokio::test]
async fn a_cluster_that_comes_back_while_it_is_handed_over_keeps_what_it_still_has() {
    let (database, store) = rebuilt().await;
    stored_many(&database, BLUE, 450).await;
    comes_back_with_the_next_write(&database, BLUE).await;
    let Adopted::AtWork { so_far, .. } = store.adopt_unless_at_work(BLUE, GREEN).await.unwrap() else { panic!() };
    assert_eq!(so_far, went(200, 0), "one batch");
    assert_eq!(count(&database, &format!("cluster_id = '{BLUE}'")).await, 250);
    assert_eq!(lines(&store).await, [BLUE, GREEN]);
}

#[tokio::test]
async fn a_resource_that_is_being_stored_is_waited_for_and_found() {
    let (database, store) = rebuilt().await;
    let old = stored(&database, &store, BLUE, "tea", every_minute()).await;
    let new = create(&store, &ann(), in_an_hour()).await;
    // As a controller does it: under the lock of the resource's name.
    let mut connection = database.connect().await;
    let mut storing = connection.begin().await.unwrap();
    let store_it = format!(
        "SELECT pg_advisory_xact_lock(hashtextextended('chronos: resource/{GREEN}/home/tea', 0));
         UPDATE alarms SET source = 'kubernetes', cluster_id = '{GREEN}', resource_uid = gen_random_uuid(), resource_namespace = 'home',
                resource_name = 'tea', resource_generation = 1, definition_hash = '\\x00' WHERE id = '{}'",
        new.id
    );
    execute(&mut storing, &store_it).await;
    let commit = async {
        eventually("the adoption waits", || async {
            let waiting =
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
            sqlx::query_scalar::<_, i32>(waiting).fetch_optional(&mut database.connect().await).await.unwrap()
        })
        .await;
        storing.commit().await.unwrap();
    };
    let (handed, ()) = tokio::join!(adopt(&store, BLUE, GREEN), commit);
    assert_eq!(handed, went(1, 0));
    assert_eq!(row(&database, new.id).await, None);
    assert_eq!(row(&database, old.id).await.unwrap()["adopted_at"], Value::Null);
}

#[tokio::test]
async fn many_who_adopt_at_once_hand_everything_over_once() {
    let (database, store) = rebuilt().await;
    stored_many(&database, BLUE, 450).await;
    stored_many(&database, GREEN, 100).await;
    let adopted = futures::future::join_all((0..4).map(|_| store.adopt_unless_at_work(BLUE, GREEN))).await;
    let went = adopted.into_iter().map(|adopted| match adopted.unwrap() {
        Adopted::Done(handed) => handed.alarms,
        Adopted::Unknown => 0,
        refused @ (Adopted::NeverSeen | Adopted::AtWork { .. }) => panic!("{refused:?}"),
    });
    assert_eq!(went.sum::<u64>(), 450);
    assert_eq!(count(&database, &format!("cluster_id = '{GREEN}'")).await, 450);
    assert_eq!(count(&database, "adopted_at IS NULL").await, 100, "those whose resources were stored");
}
