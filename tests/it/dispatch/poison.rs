//! Rows with which nothing can be done stop nobody.

use chronos::{
    domain::alarm::{Draft, Status},
    store::alarms::Alarm,
};
use sqlx::PgConnection;

use crate::support::{
    Reply, World,
    alarms::{ann, bob, create, draft, execute, in_an_hour, read},
    eventually,
};

#[tokio::test]
async fn an_occurrence_claimed_twenty_times_without_a_result_is_parked_and_one_less_is_sent() {
    let world = World::new().await;
    let store = world.database.store().await;
    let (poison, suspect) = (create(&store, &ann(), in_an_hour()).await, create(&store, &ann(), in_an_hour()).await);
    execute(
        &mut world.database.connect().await,
        &format!(
            "UPDATE alarms SET next_fire_at = now(), first_claimed_at = now(), claims = 19;
             UPDATE alarms SET claims = 20 WHERE id = '{}'",
            poison.id
        ),
    )
    .await;
    let _dispatcher = world.chronosd("dispatch").await;
    let wakes = world.sink.wakes(1).await;
    assert_eq!(wakes[0].body["alarm_id"], suspect.id.to_string());
    let parked = eventually("it is parked", || async {
        let stored = read(&store, &poison).await;
        (stored.status == Status::Failed).then_some(stored)
    })
    .await;
    assert!(parked.last_error.starts_with("parked: claimed 20 times without a result"), "{}", parked.last_error);
    assert_eq!(world.sink.received().len(), 1);
    let told: Vec<(i32, String, String, String)> =
        sqlx::query_as("SELECT attempt, outcome, reason, error FROM attempts WHERE alarm_id = $1")
            .bind(poison.id.as_uuid())
            .fetch_all(&mut world.database.connect().await)
            .await
            .unwrap();
    assert_eq!(told, [(0, "missed".to_owned(), "parked".to_owned(), parked.last_error)]);
}

#[tokio::test]
async fn columns_that_cannot_be_decoded_park_their_row_alone() {
    let world = World::new().await;
    let store = world.database.store().await;
    let (poison, healthy) = (create(&store, &ann(), in_an_hour()).await, create(&store, &ann(), in_an_hour()).await);
    execute(
        &mut world.database.connect().await,
        &format!(
            // An instant beyond what any clock of ours can hold.
            "UPDATE alarms SET next_fire_at = now();
             UPDATE alarms SET created_at = '294276-12-31' WHERE id = '{}'",
            poison.id
        ),
    )
    .await;
    let _dispatcher = world.chronosd("dispatch").await;
    assert_eq!(world.sink.wakes(1).await[0].body["alarm_id"], healthy.id.to_string());
    let error: String = eventually("it is parked", || async {
        sqlx::query_scalar("SELECT last_error FROM alarms WHERE id = $1 AND status = 'failed'")
            .bind(poison.id.as_uuid())
            .fetch_optional(&mut world.database.connect().await)
            .await
            .unwrap()
    })
    .await;
    assert!(error.starts_with("cannot be read: "), "{error}");
}

/// Postgres does not take this alarm's result until the trigger `refuse` is gone.
async fn refuse(db: &mut PgConnection, alarm: &Alarm) {
    execute(
        db,
        &format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON alarms FOR EACH ROW
                 WHEN (new.id = '{}' AND new.status = 'fired') EXECUTE FUNCTION refuse()",
            alarm.id
        ),
    )
    .await;
}

#[tokio::test]
async fn one_result_that_postgres_refuses_keeps_no_other_from_being_settled() {
    let world = World::new().await;
    let store = world.database.store().await;
    let mut alarms = Vec::new();
    for _ in 0..5 {
        alarms.push(create(&store, &ann(), in_an_hour()).await);
    }
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now()").await;
    let refused = alarms.pop().unwrap();
    refuse(&mut db, &refused).await;
    // All five answers come to one settle.
    world.sink.reply((0..5).map(|_| Reply::Hold));
    let dispatcher = world.chronosd("dispatch").await;
    world.sink.wakes(5).await;
    world.sink.release();
    for alarm in &alarms {
        eventually("the others are fired", || async {
            (read(&store, alarm).await.status == Status::Fired).then_some(())
        })
        .await;
    }
    assert_eq!(read(&store, &refused).await.status, Status::Active);
    eventually("it is told", || async { (dispatcher.said("cannot be settled") > 0).then_some(()) }).await;
    // It is tried again all the while, and nothing is sent twice.
    execute(&mut db, "DROP TRIGGER refuse ON alarms").await;
    eventually("it is fired, too", || async { (read(&store, &refused).await.status == Status::Fired).then_some(()) })
        .await;
    assert_eq!(world.sink.received().len(), 5);
}

#[tokio::test]
async fn a_result_that_postgres_refused_is_settled_when_it_may_be_however_many_others_come_in() {
    let world = World::new().await;
    let store = world.database.store().await;
    let refused = create(&store, &ann(), in_an_hour()).await;
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now()").await;
    refuse(&mut db, &refused).await;
    // Twenty results a second from now on, for longer than a test waits for anything.
    execute(
        &mut db,
        &format!(
            "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
             SELECT '{}', 'u', 'c', 'once', at, 'm', at, at
             FROM generate_series(1, 800) AS n, LATERAL (SELECT now() + n * interval '50 ms' AS at) AS t",
            bob().as_str()
        ),
    )
    .await;
    let dispatcher = world.chronosd("dispatch").await;
    eventually("it is refused", || async { (dispatcher.said("cannot be settled") > 0).then_some(()) }).await;
    execute(&mut db, "DROP TRIGGER refuse ON alarms").await;
    eventually("it is fired", || async { (read(&store, &refused).await.status == Status::Fired).then_some(()) }).await;
    let to_come: i64 =
        sqlx::query_scalar("SELECT count(*) FROM alarms WHERE status = 'active'").fetch_one(&mut db).await.unwrap();
    assert!(to_come > 0, "it had to wait for the others to end");
    let wakes = world.sink.received();
    assert_eq!(wakes.iter().filter(|wake| wake.body["alarm_id"] == refused.id.to_string()).count(), 1);
}

#[tokio::test]
async fn an_instant_that_no_clock_can_hold_stops_nobody_else() {
    let world = World::new().await;
    let store = world.database.store().await;
    let mut db = world.database.connect().await;
    let endless = create(&store, &ann(), in_an_hour()).await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = 'infinity'").await;
    let dispatcher = world.chronosd("dispatch").await;
    for number in 1..=2 {
        let healthy = create(&store, &ann(), Draft { delay_seconds: Some(1), ..draft() }).await;
        let wakes = world.sink.wakes(number).await;
        assert_eq!(wakes[number - 1].body["alarm_id"], healthy.id.to_string());
    }
    let status: String = sqlx::query_scalar("SELECT status FROM alarms WHERE id = $1")
        .bind(endless.id.as_uuid())
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(status, "active");
    assert!(dispatcher.terminate().await.success());
}
