//! Rows with which nothing can be done stop nobody.

use chronos::domain::alarm::Status;

use crate::support::{
    World,
    alarms::{ann, create, execute, in_an_hour, read},
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
