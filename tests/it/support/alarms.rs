//! Alarms as tests make them, straight through the store.

use chronos::{
    domain::{
        access::Did,
        alarm::{Defaults, Draft, Plan},
        ids::AlarmId,
    },
    store::{
        Store,
        alarms::{Alarm, Created, May, Request},
    },
};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

pub fn ann() -> Did {
    "did:matrix:ann:d75a980182b10ab7".parse().unwrap()
}

pub fn bob() -> Did {
    "did:matrix:bob:3d4017c3e843895a".parse().unwrap()
}

pub fn draft() -> Draft {
    Draft { wake_message: "wake up".to_owned(), ..Draft::default() }
}

pub fn in_an_hour() -> Draft {
    Draft { delay_seconds: Some(3600), ..draft() }
}

pub fn every_minute() -> Draft {
    Draft { cron_expr: Some("* * * * *".to_owned()), ..draft() }
}

/// Creates an alarm of ann's, or finds the one that `key` stands for.
pub async fn create_with_key(store: &Store, owner: &Did, draft: Draft, key: &str) -> Created {
    let born_at = store.now().await.unwrap();
    let definition = draft.define(Defaults { born_at, delays_from: born_at, max_failures: 5 }).unwrap();
    let id = AlarmId::from_uuid(Uuid::now_v7());
    let Plan::At(first) = definition.timing.plan(id, born_at, born_at) else { panic!("lies ahead") };
    let request = Request {
        id,
        owner,
        definition: &definition,
        first,
        born_at,
        idempotency_key: key,
        correlation_id: "test",
        may: May { unenrolled: true, ..May::default() },
    };
    store.create_or_find_by_key(&request).await.unwrap()
}

pub async fn create(store: &Store, owner: &Did, draft: Draft) -> Alarm {
    match create_with_key(store, owner, draft, "").await {
        Created::New(alarm) => alarm,
        Created::Known(alarm) => panic!("no key, and yet known: {alarm:?}"),
        Created::OverQuota(exceeded) => panic!("no quota, and yet {exceeded}"),
        Created::Barred => panic!("anybody may"),
    }
}

pub async fn read(store: &Store, alarm: &Alarm) -> Alarm {
    store.get_if_owned(&alarm.owner_did.parse().unwrap(), alarm.id).await.unwrap().expect("is there")
}

/// Runs statements of the test's own: what no store function does, such as letting time pass.
pub async fn execute(db: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(db).await.expect(statement);
}
