//! What the eldest dispatcher does beside its work.

use chrono::{Datelike, TimeDelta, Timelike};
use chronos::{
    domain::{
        access::Did,
        alarm::{Cause, Draft, Status},
        ids::WorkerId,
    },
    store::{
        Store,
        agents::{Changed, Quotas},
        alarms::Alarm,
        claims::{Beat, Look, Room},
    },
    upkeep::{Retention, Upkeep},
};
use uuid::Uuid;

use crate::support::{
    AgentKey, Database,
    alarms::{ann, bob, create, draft, execute, in_an_hour, read},
};

const KEEP: Retention = Retention { attempt_days: 30, alarm_days: None, session_days: None };

/// A worker that has beaten.
async fn dispatcher(store: &Store) -> WorkerId {
    let worker = WorkerId::from_uuid(Uuid::new_v4());
    let beat = Beat { version: "0.1.0", host: "here".to_owned() };
    let room = Room { rows: 0, bytes: 0, of_owner: 1, owners: Vec::new() };
    let look = Look {
        worker,
        beat: Some(&beat),
        lease: std::time::Duration::from_secs(60),
        room,
        suspects: true,
        sessions: true,
        after: None,
        backlog: None,
    };
    store.look(&look).await.unwrap();
    worker
}

#[tokio::test]
async fn the_eldest_makes_the_partitions_of_a_week_and_the_others_leave_it_to_it() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (eldest, younger) = (dispatcher(&store).await, dispatcher(&store).await);
    let partitions = async || -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM pg_inherits WHERE inhparent = 'attempts'::regclass")
            .fetch_one(&mut database.connect().await)
            .await
            .unwrap()
    };
    Upkeep::new(store.clone(), younger, KEEP).run_once().await.unwrap();
    assert_eq!(partitions().await, 1, "the default");
    Upkeep::new(store.clone(), eldest, KEEP).run_once().await.unwrap();
    assert_eq!(partitions().await, 1 + 8, "today's, and of a week ahead");
}

#[tokio::test]
async fn alarms_that_are_long_over_are_removed_only_when_asked_and_never_those_of_standing_resources() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let worker = dispatcher(&store).await;
    let owner = ann();
    let [living, recent, old, managed] = [0; 4].map(|_| create(&store, &owner, in_an_hour()));
    let (living, recent, old, managed) = (living.await, recent.await, old.await, managed.await);
    execute(
        &mut database.connect().await,
        &format!(
            "UPDATE alarms SET status = 'fired', updated_at = now() - interval '10 days' WHERE id <> '{}';
             UPDATE alarms SET updated_at = now() - interval '6 days' WHERE id = '{}';
             UPDATE alarms SET source = 'kubernetes', cluster_id = gen_random_uuid(), resource_uid = gen_random_uuid(),
                    resource_namespace = 'n', resource_name = 'n', resource_generation = 1, definition_hash = '\\x00'
             WHERE id = '{}'",
            living.id, recent.id, managed.id
        ),
    )
    .await;
    Upkeep::new(store.clone(), worker, KEEP).run_once().await.unwrap();
    assert!(store.get_if_owned(&ann(), old.id).await.unwrap().is_some(), "nobody asked");

    let week = Retention { alarm_days: Some(7), ..KEEP };
    Upkeep::new(store.clone(), worker, week).run_once().await.unwrap();
    assert!(store.get_if_owned(&ann(), old.id).await.unwrap().is_none());
    for kept in [&living, &recent, &managed] {
        assert!(store.get_if_owned(&ann(), kept.id).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn newer_zone_rules_move_slots_that_lie_ahead_and_nothing_else() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let worker = dispatcher(&store).await;
    let daily = || Draft { cron_expr: Some("0 9 * * *".into()), timezone: Some("Europe/Berlin".into()), ..draft() };
    let moved = create(&store, &ann(), daily()).await;
    let right = create(&store, &ann(), daily()).await;
    let retrying = create(&store, &ann(), daily()).await;
    // As if older rules had put Berlin an hour further east.
    execute(
        &mut database.connect().await,
        &format!(
            "UPDATE alarms SET scheduled_for = scheduled_for + interval '1 h', next_fire_at = next_fire_at + interval '1 h'
             WHERE id <> '{}';
             UPDATE alarms SET failure_count = 1 WHERE id = '{}'",
            right.id, retrying.id
        ),
    )
    .await;
    let stands = read(&store, &retrying).await.scheduled_for;

    store.advance_zone_database("2020a").await.unwrap();
    Upkeep::new(store.clone(), worker, KEEP).run_once().await.unwrap();
    let slot = read(&store, &moved).await;
    assert_eq!((slot.scheduled_for, slot.next_fire_at), (right.scheduled_for, right.scheduled_for));
    assert_eq!(read(&store, &right).await.scheduled_for, right.scheduled_for);
    assert_eq!(read(&store, &retrying).await.scheduled_for, stands, "its occurrence is under way");
    assert!(
        (slot.scheduled_for.hour(), slot.scheduled_for.minute()) <= (8, 0),
        "nine in Berlin is seven or eight here"
    );
    assert!(slot.scheduled_for - store.now().await.unwrap() <= TimeDelta::days(1), "{}", slot.scheduled_for.day());
    assert_eq!(store.zone_database().await.unwrap().as_deref(), Some("2020a"), "until older replicas are gone");
}

#[tokio::test]
async fn alarms_are_counted_by_status_and_by_what_is_due() {
    let database = Database::fresh().await;
    let store = database.store().await;
    for _ in 0..3 {
        create(&store, &ann(), in_an_hour()).await;
    }
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET next_fire_at = now() - interval '10 s' WHERE id = (SELECT id FROM alarms LIMIT 1);
         UPDATE alarms SET status = 'fired' WHERE id = (SELECT id FROM alarms WHERE next_fire_at > now() LIMIT 1)",
    )
    .await;
    let counts: Vec<_> =
        store.alarms_by_status().await.unwrap().into_iter().map(|(status, count)| (status.as_str(), count)).collect();
    assert_eq!(counts, [("active", 2), ("paused", 0), ("fired", 1), ("cancelled", 0), ("failed", 0)]);
    let due = store.due().await.unwrap();
    assert_eq!(due.alarms, 1);
    assert!((10.0..60.0).contains(&due.oldest_seconds), "{due:?}");
}

#[tokio::test]
async fn alarms_follow_an_agent_whose_suspension_nobody_finished() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (worker, younger) = (dispatcher(&store).await, dispatcher(&store).await);
    let key = AgentKey::of("ann");
    let owner: Did = key.did.parse().unwrap();
    let public_key = hex::decode(key.public_key).unwrap().try_into().unwrap();
    let no_limits = Quotas { max_active_alarms: None, min_interval_seconds: None };
    store.enrol_by_hand_unless_held(&owner, &public_key, no_limits).await.unwrap();
    let early = create(&store, &owner, in_an_hour()).await;
    // Nobody enrolled bob: open enrolment knows no agents.
    let foreign = create(&store, &bob(), in_an_hour()).await;
    let upkeep = async |worker| Upkeep::new(store.clone(), worker, KEEP).run_once().await.unwrap();
    let stands = async |alarm: &Alarm| {
        let alarm = read(&store, alarm).await;
        (alarm.status, alarm.paused_by())
    };

    let late = create(&store, &owner, in_an_hour()).await;
    // All that whoever suspends it has done before dying.
    let changed = store.set_suspended_unless_managed(&owner, true).await.unwrap();
    assert!(matches!(changed, Changed::Done(_)));
    upkeep(younger).await;
    assert_eq!(stands(&early).await, (Status::Active, vec![]), "the eldest does it");
    upkeep(worker).await;
    for alarm in [&early, &late] {
        assert_eq!(stands(alarm).await, (Status::Paused, vec![Cause::Agent]));
    }
    assert_eq!(stands(&foreign).await, (Status::Active, vec![]));

    store.set_suspended_unless_managed(&owner, false).await.unwrap();
    upkeep(worker).await;
    for alarm in [&early, &late] {
        assert_eq!(stands(alarm).await, (Status::Active, vec![]));
    }

    // What it left behind when it was removed stays paused, round after round.
    store.remove_agent_unless_managed(&owner).await.unwrap();
    upkeep(worker).await;
    assert_eq!(stands(&early).await, (Status::Paused, vec![Cause::Agent]));
}
