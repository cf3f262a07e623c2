//! Many alarms at once.

use chronos::{
    domain::{
        alarm::{Draft, Status},
        labels::Selector,
    },
    store::{
        Store,
        alarms::{Action, BULK_MOST, Bulk},
    },
};

use sqlx::Connection;

use super::{ANYBODY, ann, bob, create, every_minute, execute, in_an_hour, labels, read};
use crate::support::{Database, eventually};

fn ops() -> Selector {
    Selector::parse("team=ops").unwrap()
}

fn of_ops(draft: Draft) -> Draft {
    Draft { labels: labels(&[("team", "ops")]), ..draft }
}

async fn bulk(store: &Store, action: Action) -> Bulk {
    store.bulk_if_owned(&ann(), action, &ops(), &[], false, &ANYBODY).await.unwrap().unwrap()
}

/// Matched, changed, skipped.
fn counts(bulk: &Bulk) -> (usize, usize, usize) {
    (bulk.matched, bulk.changed, bulk.skipped)
}

#[tokio::test]
async fn an_action_reaches_what_the_selector_means_and_nothing_else() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (series, single) =
        (create(&store, &ann(), of_ops(every_minute())).await, create(&store, &ann(), of_ops(in_an_hour())).await);
    let others = [create(&store, &ann(), in_an_hour()).await, create(&store, &bob(), of_ops(in_an_hour())).await];

    let paused = bulk(&store, Action::Pause).await;
    assert_eq!(counts(&paused), (2, 2, 0));
    assert_eq!(paused.ids, [series.id, single.id]);
    assert_eq!(counts(&bulk(&store, Action::Pause).await), (2, 0, 2), "they are paused already");
    assert_eq!(counts(&bulk(&store, Action::Resume).await), (2, 2, 0));
    assert_eq!(counts(&bulk(&store, Action::Cancel).await), (2, 2, 0));
    assert_eq!(counts(&bulk(&store, Action::Cancel).await), (0, 0, 0), "what is over does not fit a cancel");
    assert_eq!(counts(&bulk(&store, Action::Rearm).await), (2, 2, 0));
    for alarm in &others {
        assert_eq!(read(&store, alarm).await.revision, 1);
    }
    assert_eq!(read(&store, &series).await.status, Status::Active);
}

#[tokio::test]
async fn a_dry_run_decides_everything_and_writes_nothing() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), of_ops(in_an_hour())).await;
    let dry = store.bulk_if_owned(&ann(), Action::Cancel, &ops(), &[], true, &ANYBODY).await.unwrap().unwrap();
    assert_eq!((counts(&dry), dry.ids.as_slice()), ((1, 1, 0), [alarm.id].as_slice()));
    assert_eq!(read(&store, &alarm).await.revision, 1);
}

#[tokio::test]
async fn a_status_narrows_what_is_meant() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let fired = create(&store, &ann(), of_ops(every_minute())).await;
    let cancelled = create(&store, &ann(), of_ops(every_minute())).await;
    store.cancel_if_owned(&ann(), cancelled.id).await.unwrap();
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired' WHERE status = 'active'").await;
    let rearmed =
        store.bulk_if_owned(&ann(), Action::Rearm, &ops(), &[Status::Fired], false, &ANYBODY).await.unwrap().unwrap();
    assert_eq!((counts(&rearmed), rearmed.ids), ((1, 1, 0), vec![fired.id]));
}

#[tokio::test]
async fn what_a_resource_manages_and_what_needs_an_instant_are_skipped() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let managed = create(&store, &ann(), of_ops(in_an_hour())).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET source = 'kubernetes', cluster_id = gen_random_uuid(), resource_uid = gen_random_uuid(),
                resource_namespace = 'home', resource_name = 'tea', resource_generation = 1, definition_hash = ''",
    )
    .await;
    create(&store, &ann(), of_ops(every_minute())).await;
    assert_eq!(counts(&bulk(&store, Action::Cancel).await), (2, 1, 1));
    assert_eq!(read(&store, &managed).await.status, Status::Active);

    let once = create(&store, &ann(), of_ops(in_an_hour())).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET status = 'fired', fire_at = '2020-01-01' WHERE kind = 'once' AND source = 'api'",
    )
    .await;
    assert_eq!(counts(&bulk(&store, Action::Rearm).await), (2, 1, 1));
    assert_eq!(read(&store, &once).await.status, Status::Fired);
}

#[tokio::test]
async fn more_than_one_call_handles_are_done_by_calling_again() {
    const MANY: usize = BULK_MOST + 20;
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), of_ops(in_an_hour())).await;
    execute(
        &mut database.connect().await,
        &format!(
            "INSERT INTO alarms (owner_did, user_id, labels, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
             SELECT owner_did, user_id, labels, 'x', kind, fire_at, wake_message, scheduled_for, next_fire_at
             FROM alarms, generate_series(2, {MANY})"
        ),
    )
    .await;
    let dry = store.bulk_if_owned(&ann(), Action::Pause, &ops(), &[], true, &ANYBODY).await.unwrap().unwrap();
    let first = bulk(&store, Action::Pause).await;
    assert_eq!((counts(&first), first.truncated), ((MANY, BULK_MOST, 0), true));
    assert_eq!(dry, first);
    let second = bulk(&store, Action::Pause).await;
    assert_eq!((counts(&second), second.truncated), ((MANY, 20, BULK_MOST), false));
    assert_eq!(read(&store, &alarm).await.status, Status::Paused);
}

#[tokio::test]
async fn alarms_that_cannot_be_changed_do_not_keep_a_call_from_the_others() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let unreadable = create(&store, &ann(), of_ops(every_minute())).await;
    let mut db = database.connect().await;
    // With lower ids than the good one.
    execute(
        &mut db,
        &format!(
            "UPDATE alarms SET status = 'failed', timezone = 'Mars/Olympus';
             INSERT INTO alarms (id, owner_did, user_id, labels, correlation_id, kind, cron_expr, timezone, status, scheduled_for, next_fire_at)
             SELECT lpad(to_hex(n), 32, '0')::uuid, owner_did, user_id, labels, 'x', kind, cron_expr, timezone, status, now(), now()
             FROM alarms, generate_series(1, {}) AS n",
            BULK_MOST + 10
        ),
    )
    .await;
    let good = create(&store, &ann(), of_ops(every_minute())).await;
    execute(&mut db, &format!("UPDATE alarms SET status = 'failed' WHERE id = '{}'", good.id)).await;
    let rearmed = bulk(&store, Action::Rearm).await;
    assert_eq!((rearmed.ids.as_slice(), rearmed.truncated), ([good.id].as_slice(), false));
    assert_eq!(counts(&rearmed), (BULK_MOST + 12, 1, BULK_MOST + 11));
    assert_eq!(read(&store, &unreadable).await.status, Status::Failed);
}

#[tokio::test]
async fn what_is_no_longer_meant_when_its_lock_is_had_is_left_alone() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), of_ops(in_an_hour())).await;
    let mut other = database.connect().await;
    let mut holding = other.begin().await.unwrap();
    execute(&mut holding, "UPDATE alarms SET labels = '{\"team\": \"dev\"}'").await;
    let wait_for_lock = async {
        eventually("the bulk waits for the row", || async {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(&mut database.connect().await)
            .await
            .unwrap();
            (waiting == 1).then_some(())
        })
        .await;
        holding.commit().await.unwrap();
    };
    let (cancelled, ()) = tokio::join!(bulk(&store, Action::Cancel), wait_for_lock);
    assert_eq!(cancelled.changed, 0);
    assert_eq!(read(&store, &alarm).await.status, Status::Active);
}
