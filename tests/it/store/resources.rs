//! Alarms that stand for resources.

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        alarm::{Defaults, Draft, Status},
        ids::{ClusterId, ResourceUid},
    },
    store::{
        Store,
        alarms::Alarm,
        resources::{Applied, Desired, Identity},
    },
};
use sqlx::Connection;
use uuid::Uuid;

use super::{ann, draft, every_minute, execute, history};
use crate::support::{Database, eventually};

fn tea() -> Identity {
    Identity {
        cluster: ClusterId::from_uuid(Uuid::from_u128(1)),
        uid: ResourceUid::from_uuid(Uuid::from_u128(2)),
        namespace: "home".to_owned(),
        name: "tea".to_owned(),
    }
}

/// Applies a resource that was created an hour ago, in its `generation`.
async fn apply(store: &Store, draft: Draft, generation: u8) -> Alarm {
    let created_at = store.now().await.unwrap() - TimeDelta::hours(1);
    let defaults = Defaults { born_at: created_at, delays_from: created_at, max_failures: 5 };
    let definition = draft.define(defaults).unwrap();
    let (identity, owner, hash) = (tea(), ann(), [generation; 32]);
    let desired = Desired {
        identity: &identity,
        generation: generation.into(),
        owner: &owner,
        definition: &definition,
        hash: &hash,
        created_at,
    };
    match store.apply_resource(&desired).await.unwrap() {
        Applied::Stored(alarm) => *alarm,
        Applied::NeverFires => panic!("never fires"),
    }
}

fn at(expr: &str) -> Draft {
    Draft { cron_expr: Some(expr.to_owned()), ..draft() }
}

#[tokio::test]
async fn what_an_edit_gives_up_is_told() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = apply(&store, every_minute(), 1).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', next_fire_at = next_fire_at - interval '1 h'",
    )
    .await;
    let edited = apply(&store, at("0 0 1 1 *"), 2).await;
    let [(outcome, reason, _, _, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("replanned")));
    assert_eq!(slots, Some(edited.missed_count));
    assert!(edited.missed_count >= 60, "{}", edited.missed_count);
}

#[tokio::test]
async fn what_is_over_takes_any_edit_and_stays_over() {
    let database = Database::fresh().await;
    let store = database.store().await;
    apply(&store, Draft { spread_seconds: Some(50), ..every_minute() }, 1).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'cancelled', cancelled_by = 'resource'").await;
    let narrowed = apply(&store, Draft { spread_seconds: Some(1), ..every_minute() }, 2).await;
    assert_eq!((narrowed.status, narrowed.revision), (Status::Cancelled, 2));
    execute(
        &mut db,
        "UPDATE alarms SET status = 'fired', cancelled_by = NULL, spread = '50 s', spread_offset = '40 s'",
    )
    .await;
    let past = Draft { fire_at: Some("2020-01-01T00:00:00Z".to_owned()), ..draft() };
    let instant = apply(&store, past, 3).await;
    assert_eq!((instant.status, instant.when.offset().unwrap()), (Status::Fired, TimeDelta::zero()));
}

#[tokio::test]
async fn an_edit_that_waited_for_the_row_plans_from_when_it_got_it() {
    let database = Database::fresh().await;
    let store = database.store().await;
    apply(&store, at("0 0 1 1 *"), 1).await;
    let mut other = database.connect().await;
    let mut holding = other.begin().await.unwrap();
    sqlx::query("SELECT FROM alarms FOR UPDATE").execute(&mut *holding).await.unwrap();
    let release = async {
        let blocked =
            "SELECT now() FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                       AND now() - xact_start > interval '2 s'";
        let released_at: DateTime<Utc> = eventually("the edit has waited for two seconds", || async {
            sqlx::query_scalar(blocked).fetch_optional(&mut database.connect().await).await.unwrap()
        })
        .await;
        holding.commit().await.unwrap();
        released_at
    };
    let (edited, released_at) = tokio::join!(apply(&store, at("@every 1s"), 2), release);
    assert!(edited.scheduled_for > released_at, "{} was past at {released_at}", edited.scheduled_for);
}
