//! The schema and its statements on the real Postgres: one file per table, and one for the schema as a whole.

mod alarms;
mod bulk;
mod constraints;
mod plans;
mod schema;

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        access::Did,
        alarm::{Defaults, Draft, Plan},
        ids::{AlarmId, WorkerId},
        labels::Labels,
    },
    store::{
        Store,
        alarms::{Alarm, Created, Request},
        claims::Claimed,
    },
};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::support::Database;

const LEASE: std::time::Duration = std::time::Duration::from_secs(120);
const NO_LENIENCY: TimeDelta = TimeDelta::zero();

fn ann() -> Did {
    "did:matrix:ann:d75a980182b10ab7".parse().unwrap()
}

fn bob() -> Did {
    "did:matrix:bob:3d4017c3e843895a".parse().unwrap()
}

fn draft() -> Draft {
    Draft { wake_message: "wake up".to_owned(), ..Draft::default() }
}

fn in_an_hour() -> Draft {
    Draft { delay_seconds: Some(3600), ..draft() }
}

fn every_minute() -> Draft {
    Draft { cron_expr: Some("* * * * *".to_owned()), ..draft() }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Creates an alarm of ann's, or finds the one that `key` stands for.
async fn create_with_key(store: &Store, owner: &Did, draft: Draft, key: &str) -> Created {
    let born_at = store.now().await.unwrap();
    let definition = draft.define(Defaults { born_at, delays_from: born_at, max_failures: 5 }).unwrap();
    let id = AlarmId::from_uuid(Uuid::now_v7());
    let Plan::At(first) = definition.timing.plan(id, born_at, born_at) else { panic!("lies ahead") };
    let request =
        Request { id, owner, definition: &definition, first, born_at, idempotency_key: key, correlation_id: "test" };
    store.create_or_find_by_key(&request).await.unwrap()
}

async fn create(store: &Store, owner: &Did, draft: Draft) -> Alarm {
    match create_with_key(store, owner, draft, "").await {
        Created::New(alarm) => alarm,
        Created::Known(alarm) => panic!("no key, and yet known: {alarm:?}"),
    }
}

async fn read(store: &Store, alarm: &Alarm) -> Alarm {
    store.get_if_owned(&alarm.owner_did.parse().unwrap(), alarm.id).await.unwrap().expect("is there")
}

async fn claim(store: &Store) -> Claimed {
    store.claim_due(WorkerId::from_uuid(Uuid::new_v4()), 100, LEASE).await.unwrap()
}

/// Changes rows in ways that no store function does, such as letting time pass.
async fn execute(db: &mut PgConnection, statement: &str) {
    sqlx::query(AssertSqlSafe(statement.to_owned())).execute(db).await.expect(statement);
}

/// What history says of an alarm, oldest first: outcome, reason, first and last slot, number of slots.
async fn history(
    database: &Database,
    alarm: &Alarm,
) -> Vec<(String, Option<String>, Option<DateTime<Utc>>, Option<DateTime<Utc>>, Option<i64>)> {
    sqlx::query_as(
        "SELECT outcome, reason, first_at, last_at, slots FROM attempts WHERE alarm_id = $1 ORDER BY started_at",
    )
    .bind(alarm.id.as_uuid())
    .fetch_all(&mut database.connect().await)
    .await
    .unwrap()
}
