//! The daily partitions of `attempts`.

use chrono::{Days, NaiveDate};
use chronos::store::Error;
use sqlx::{Connection, PgConnection};

use super::{execute, warm_store};
use crate::support::Database;

/// Names and rows of the daily partitions, in order.
async fn partitions(db: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
         WHERE inhparent = 'attempts'::regclass AND relname <> 'attempts_default' ORDER BY relname",
    )
    .fetch_all(db)
    .await
    .unwrap()
}

/// An attempt at noon of this day, and where it went.
async fn attempt_at_noon(db: &mut PgConnection, day: NaiveDate) -> String {
    sqlx::query_scalar(
        "INSERT INTO attempts (alarm_id, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome,
                               first_at, last_at, slots, reason)
         SELECT gen_random_uuid(), 'did', gen_random_uuid(), noon, 0, noon, 'missed', noon, noon, 1, 'test'
         FROM (SELECT $1::timestamp AT TIME ZONE 'UTC' + interval '12 hours' AS noon) AS at
         RETURNING tableoid::regclass::text",
    )
    .bind(day)
    .fetch_one(db)
    .await
    .unwrap()
}

async fn make(db: &mut PgConnection, day: NaiveDate) {
    sqlx::query("SELECT attempts_make_partition($1)").bind(day).execute(db).await.unwrap();
}

fn name(day: NaiveDate) -> String {
    day.format("attempts_%Y%m%d").to_string()
}

#[tokio::test]
async fn partitions_are_made_ahead_by_any_number_of_replicas_at_once() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let mut db = database.connect().await;
    let made = futures::future::try_join_all((0..8).map(|_| store.make_attempt_partitions(7))).await.unwrap();
    assert!(made.iter().all(Vec::is_empty), "{made:?}");
    let days: Vec<_> = store.now().await.unwrap().date_naive().iter_days().take(8).collect();
    assert_eq!(partitions(&mut db).await, days.iter().copied().map(name).collect::<Vec<_>>());

    for day in days {
        assert_eq!(attempt_at_noon(&mut db, day).await, name(day));
    }
    // Every index of theirs belongs to one of the parent's: none was made twice.
    let strays: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
         WHERE indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'attempts'::regclass) AND NOT relispartition",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert_eq!(strays, 0);
}

#[tokio::test]
async fn days_are_those_of_utc_whatever_the_sessions_zone() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    execute(&mut db, "SET timezone = 'Pacific/Kiritimati'").await;
    let day = NaiveDate::from_ymd_opt(2026, 3, 29).unwrap();
    make(&mut db, day).await;
    execute(&mut db, "SET timezone = 'UTC'").await;
    let bounds: String =
        sqlx::query_scalar("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'attempts_20260329'")
            .fetch_one(&mut db)
            .await
            .unwrap();
    assert_eq!(bounds, "FOR VALUES FROM ('2026-03-29 00:00:00+00') TO ('2026-03-30 00:00:00+00')");
}

#[tokio::test]
async fn a_day_of_which_default_has_rows_is_left_to_default() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let today = store.now().await.unwrap().date_naive();
    let tomorrow = today.succ_opt().unwrap();
    assert_eq!(attempt_at_noon(&mut db, tomorrow).await, "attempts_default");

    assert_eq!(store.make_attempt_partitions(2).await.unwrap(), [tomorrow]);
    assert_eq!(partitions(&mut db).await, [name(today), name(today + Days::new(2))]);
    assert_eq!(attempt_at_noon(&mut db, tomorrow).await, "attempts_default");
}

#[tokio::test]
async fn what_is_older_than_the_days_that_are_kept_is_dropped_and_no_more() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let mut db = database.connect().await;
    let today = store.now().await.unwrap().date_naive();
    let ago = |days| today - Days::new(days);
    for days in [33, 31, 30, 0] {
        make(&mut db, ago(days)).await;
        attempt_at_noon(&mut db, ago(days)).await;
    }
    for days in [40, 32, 29] {
        assert_eq!(attempt_at_noon(&mut db, ago(days)).await, "attempts_default");
    }

    let dropped = futures::future::join_all((0..4).map(|_| store.drop_attempts_older_than(30))).await;
    assert!(dropped.iter().all(Result::is_ok), "{dropped:?}");
    assert_eq!(partitions(&mut db).await, [name(ago(30)), name(today)]);
    let kept: Vec<NaiveDate> =
        sqlx::query_scalar("SELECT (started_at AT TIME ZONE 'UTC')::date FROM attempts ORDER BY 1")
            .fetch_all(&mut db)
            .await
            .unwrap();
    assert_eq!(kept, [ago(30), ago(29), today]);

    store.drop_attempts_older_than(u32::MAX).await.unwrap();
    assert_eq!(partitions(&mut db).await.len(), 2, "there is nothing that old");
}

#[tokio::test]
async fn neither_making_nor_dropping_waits_behind_somebody_who_reads_it_all() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let long_ago = store.now().await.unwrap().date_naive() - Days::new(50);
    make(&mut db, long_ago).await;
    let mut dump = database.connect().await;
    let mut reading = dump.begin().await.unwrap();
    execute(&mut reading, "LOCK TABLE attempts, attempts_default IN ACCESS SHARE MODE").await;

    // Postgres says so after a moment; it is not our own deadline that ends it.
    let made = store.make_attempt_partitions(0).await;
    assert!(matches!(made, Err(Error::Query { .. })), "{made:?}");
    let dropped = store.drop_attempts_older_than(30).await;
    assert!(matches!(dropped, Err(Error::Query { .. })), "{dropped:?}");
    reading.rollback().await.unwrap();
    store.make_attempt_partitions(0).await.unwrap();
    store.drop_attempts_older_than(30).await.unwrap();
    assert_eq!(partitions(&mut db).await.len(), 1);
}
