//! What owners do while a wake is under way, and just before.

use chronos::{
    domain::alarm::{Change, Changes, Draft, Status, lifecycle::NotFired},
    store::{
        Store,
        alarms::{Alarm, Cancelled, Edited, Patch},
    },
};

use super::{QUICK, attempts};
use crate::support::{
    Daemon, Reply, World,
    alarms::{ann, create, every_minute, execute, in_an_hour, read},
    eventually,
};

/// A series whose next slot no test lives to see.
fn yearly() -> Draft {
    Draft { cron_expr: Some("0 0 1 1 *".into()), ..every_minute() }
}

/// A world in which the wake of an alarm is under way: the sink holds it, and answers as told once it is released.
async fn under_way(draft: Draft, reply: Reply) -> (World, Store, Alarm, Daemon) {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), draft).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now(), scheduled_for = now()").await;
    world.sink.reply([Reply::Hold, reply]);
    let dispatcher = world.chronosd_with("dispatch", QUICK).await;
    world.sink.wakes(1).await;
    (world, store, alarm, dispatcher)
}

fn patch(changes: &Changes) -> Patch<'_> {
    Patch {
        changes,
        revision: None,
        max_failures: 5,
        quotas: chronos::domain::quota::Quotas::default(),
        leniency: chrono::TimeDelta::zero(),
    }
}

async fn outcome(world: &World, alarm: &Alarm) -> String {
    eventually("the attempt is recorded", || async {
        let history = attempts(&mut world.database.connect().await, &alarm.id.to_string()).await;
        history.into_iter().next_back().map(|attempt| attempt.outcome)
    })
    .await
}

#[tokio::test]
async fn an_edit_of_the_message_in_flight_leaves_one_wake_whose_result_counts() {
    let (world, store, alarm, _dispatcher) = under_way(in_an_hour(), Reply::Status(202)).await;
    let changes = Changes { wake_message: Change::Set("another".into()), ..Changes::default() };
    store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap();
    world.sink.release();
    assert_eq!(outcome(&world, &alarm).await, "delivered");
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.fired_count, stored.wake_message.as_str()), (Status::Fired, 1, "another"));
    assert_eq!(world.sink.received().len(), 1);
    assert_eq!(world.sink.received()[0].body["message"], "wake up", "what its claim returned");
}

/// Number and outcome of each attempt at an alarm, and of each run of slots.
async fn told(world: &World, alarm: &Alarm) -> Vec<(i32, String)> {
    sqlx::query_as("SELECT attempt, outcome FROM attempts WHERE alarm_id = $1 ORDER BY attempt")
        .bind(alarm.id.as_uuid())
        .fetch_all(&mut world.database.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_edit_of_the_schedule_in_flight_fences_the_result() {
    let (world, store, alarm, _dispatcher) = under_way(yearly(), Reply::Status(202)).await;
    let changes = Changes { cron_expr: Change::Set("0 0 2 1 *".into()), ..Changes::default() };
    store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap();
    assert_eq!(
        told(&world, &alarm).await,
        [(0, "fenced".to_owned())],
        "by the edit: who knows what comes of the wake?"
    );
    world.sink.release();
    let both = [(0, "fenced".to_owned()), (1, "fenced".to_owned())];
    eventually("its attempt is told, too", || async { (told(&world, &alarm).await == both).then_some(()) }).await;
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.fired_count), (Status::Active, 0));
    assert_eq!(stored.missed_count, 0, "its wake arrived");
    assert!(stored.next_fire_at > store.now().await.unwrap(), "as the edit planned it");
}

#[tokio::test]
async fn an_occurrence_that_an_edit_replaced_leaves_a_trace_though_its_dispatcher_died() {
    let series = Changes { cron_expr: Change::Set("0 0 1 1 *".into()), ..Changes::default() };
    let once = Changes { delay_seconds: Change::Set(7200), ..Changes::default() };
    for (draft, changes) in [(every_minute(), series), (in_an_hour(), once)] {
        let (world, store, alarm, dispatcher) = under_way(draft, Reply::Status(202)).await;
        dispatcher.kill().await;
        let stands = read(&store, &alarm).await;
        assert!(stands.in_flight);
        store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap();
        let history: Vec<(String, Option<String>, i64)> =
            sqlx::query_as("SELECT outcome, reason, slots FROM attempts WHERE first_at = $1")
                .bind(stands.scheduled_for)
                .fetch_all(&mut world.database.connect().await)
                .await
                .unwrap();
        assert_eq!(history, [("fenced".to_owned(), Some("replanned".to_owned()), 1)]);
    }
}

#[tokio::test]
async fn a_success_that_arrives_in_a_pause_counts_and_the_alarm_stays_paused() {
    let (world, store, alarm, _dispatcher) = under_way(every_minute(), Reply::Status(202)).await;
    store.pause_if_owned(&ann(), alarm.id).await.unwrap();
    world.sink.release();
    assert_eq!(outcome(&world, &alarm).await, "delivered");
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.fired_count, stored.in_flight), (Status::Paused, 1, false));
    assert!(stored.scheduled_for > alarm.when.created_at);
}

#[tokio::test]
async fn a_once_alarm_paused_in_flight_has_fired_when_the_success_arrives() {
    let (world, store, alarm, _dispatcher) = under_way(in_an_hour(), Reply::Status(202)).await;
    store.pause_if_owned(&ann(), alarm.id).await.unwrap();
    assert_eq!(read(&store, &alarm).await.status, Status::Paused);
    world.sink.release();
    assert_eq!(outcome(&world, &alarm).await, "delivered");
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.fired_count, stored.in_flight), (Status::Fired, 1, false));
    assert_eq!(world.sink.received().len(), 1);
}

#[tokio::test]
async fn a_failure_that_arrives_in_a_pause_keeps_its_rung_for_the_resume() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), in_an_hour()).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now(), scheduled_for = now()").await;
    world.sink.reply([Reply::HoldThen(503)]);
    let _dispatcher = world.chronosd_with("dispatch", QUICK).await;
    world.sink.wakes(1).await;
    store.pause_if_owned(&ann(), alarm.id).await.unwrap();
    world.sink.release();
    assert_eq!(outcome(&world, &alarm).await, "retrying");
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.failure_count), (Status::Paused, 1));
    assert_eq!(world.sink.received().len(), 1, "nothing goes out in a pause");

    store.resume_if_owned(&ann(), alarm.id).await.unwrap();
    let again = world.sink.wakes(2).await.remove(1);
    assert_eq!(again.body["attempt"], 2);
    eventually("it is fired", || async { (read(&store, &alarm).await.status == Status::Fired).then_some(()) }).await;
}

#[tokio::test]
async fn an_alarm_paused_in_flight_whose_dispatcher_is_found_dead_goes_out_again_when_it_is_resumed() {
    let (world, store, alarm, first) = under_way(in_an_hour(), Reply::Status(202)).await;
    store.pause_if_owned(&ann(), alarm.id).await.unwrap();
    first.kill().await;
    let second = world.chronosd_with("dispatch", &[("CHRONOS_BEAT_MS", "1000")]).await;
    eventually("it is found dead", || async { (second.said("has stopped beating") > 0).then_some(()) }).await;
    assert!(read(&store, &alarm).await.in_flight, "what is paused wants no delivery, and keeps its claim");
    assert_eq!(world.sink.received().len(), 1);

    // The claim would hold for two minutes, which no test waits for.
    store.resume_if_owned(&ann(), alarm.id).await.unwrap();
    let wakes = world.sink.wakes(2).await;
    assert_eq!(wakes[0].body, wakes[1].body, "the same wake, the same delivery id, the same attempt");
    eventually("it is fired", || async { (read(&store, &alarm).await.status == Status::Fired).then_some(()) }).await;
}

/// What the claim brought to an end: its dispatcher is dead, and its lease over.
async fn lost(world: &World, dispatcher: Daemon) {
    dispatcher.kill().await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET claimed_until = now()").await;
}

#[tokio::test]
async fn a_wake_that_may_have_arrived_before_a_pause_goes_out_again_whatever_is_done_with_what_is_late() {
    let strict = Draft { max_lateness_seconds: Some(1), ..in_an_hour() };
    let skips = Draft { misfire: Some("skip".into()), ..in_an_hour() };
    for draft in [strict, skips, yearly()] {
        let (world, store, alarm, first) = under_way(draft, Reply::Status(202)).await;
        store.pause_if_owned(&ann(), alarm.id).await.unwrap();
        lost(&world, first).await;
        // An hour goes by.
        execute(
            &mut world.database.connect().await,
            "UPDATE alarms SET next_fire_at = next_fire_at - interval '1 h', first_claimed_at = first_claimed_at - interval '1 h'",
        )
        .await;
        store.resume_if_owned(&ann(), alarm.id).await.unwrap();
        let _second = world.chronosd_with("dispatch", QUICK).await;
        let wakes = world.sink.wakes(2).await;
        assert_eq!(wakes[0].body, wakes[1].body, "the same wake, the same delivery id, the same attempt");
        assert_eq!(outcome(&world, &alarm).await, "delivered");
        let stored = read(&store, &alarm).await;
        assert_eq!((stored.fired_count, stored.missed_count), (1, 0));
    }
}

#[tokio::test]
async fn a_wake_that_may_have_arrived_is_not_counted_as_missed_by_an_edit_after_its_lease() {
    let (world, store, alarm, first) = under_way(yearly(), Reply::Status(202)).await;
    lost(&world, first).await;
    let changes = Changes { cron_expr: Change::Set("0 0 2 1 *".into()), ..Changes::default() };
    store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap();
    assert_eq!(told(&world, &alarm).await, [(0, "fenced".to_owned())]);
    assert_eq!(read(&store, &alarm).await.missed_count, 0);
}

#[tokio::test]
async fn an_alarm_cancelled_before_its_claim_never_starts_a_wake() {
    let world = World::new().await;
    let store = world.database.store().await;
    let (cancelled, other) = (create(&store, &ann(), in_an_hour()).await, create(&store, &ann(), in_an_hour()).await);
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let answer = store.cancel_if_owned(&ann(), cancelled.id).await.unwrap();
    assert!(matches!(answer, Cancelled::Over { in_flight: false, .. }));
    let _dispatcher = world.chronosd("dispatch").await;
    // The other one was due no earlier: when it has come, whatever was to come before it has, too.
    let wakes = world.sink.wakes(1).await;
    assert_eq!(wakes[0].body["alarm_id"], other.id.to_string());
    eventually("it is fired", || async { (read(&store, &other).await.status == Status::Fired).then_some(()) }).await;
    assert_eq!(world.sink.received().len(), 1);
}

#[tokio::test]
async fn an_alarm_fired_by_hand_goes_out_now_and_its_series_stays_where_it_was() {
    let world = World::new().await;
    let store = world.database.store().await;
    let (series, once) = (create(&store, &ann(), yearly()).await, create(&store, &ann(), in_an_hour()).await);
    let _dispatcher = world.chronosd("dispatch").await;
    for alarm in [&series, &once] {
        assert!(matches!(store.fire_if_owned(&ann(), alarm.id).await.unwrap(), Edited::Done(_)));
    }
    world.sink.wakes(2).await;
    for (alarm, status) in [(&series, Status::Active), (&once, Status::Fired)] {
        let stored = eventually("it is settled", || async {
            let stored = read(&store, alarm).await;
            (stored.fired_count == 1).then_some(stored)
        })
        .await;
        assert_eq!(stored.status, status);
    }
    let stored = read(&store, &series).await;
    assert_eq!((stored.scheduled_for, stored.missed_count), (series.scheduled_for, 0), "the slot that stood");
    let again = store.fire_if_owned(&ann(), once.id).await.unwrap();
    assert!(matches!(again, Edited::Refused(NotFired::NotActive(Status::Fired))), "{again:?}");
}
