//! The schema and its statements on the real Postgres: one file per table, and one for the schema as a whole.

mod agents;
mod alarms;
mod bulk;
mod constraints;
mod lifecycle;
mod operation;
mod partitions;
mod plans;
mod resources;
mod schema;
mod service_calls;
mod sessions;

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        access::Did,
        alarm::{Changes, Defaults, Draft, Plan},
        ids::{AlarmId, WorkerId},
        labels::Labels,
    },
    store::{
        Store,
        alarms::{Alarm, Created, Edited, Patch, Request},
        claims::{Beat, Found, Look, Room},
    },
};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::support::{AgentKey, Database};

const LEASE: std::time::Duration = std::time::Duration::from_secs(120);
const NO_LENIENCY: TimeDelta = TimeDelta::zero();

fn ann() -> Did {
    "did:matrix:ann:d75a980182b10ab7".parse().unwrap()
}

fn bob() -> Did {
    "did:matrix:bob:3d4017c3e843895a".parse().unwrap()
}

/// A DID of this user, another one with every call.
fn did_of(user: &str) -> Did {
    AgentKey::of(user).did.parse().unwrap()
}

/// A store whose connections stand already: what is asked at once meets in the database, not one after another while the
/// connections are made.
async fn warm_store(database: &Database) -> Store {
    let store = database.store().await;
    for now in futures::future::join_all((0..16).map(|_| store.now())).await {
        now.unwrap();
    }
    store
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

/// A look of a dispatcher that has a hundred free slots.
fn look(beat: &Beat) -> Look<'_> {
    Look {
        worker: WorkerId::from_uuid(Uuid::new_v4()),
        beat: Some(beat),
        lease: LEASE,
        room: Room { rows: 100, bytes: usize::MAX, of_owner: 100, owners: Vec::new() },
        backlog: None,
    }
}

fn a_beat() -> Beat {
    Beat { version: "0.1.0", host: "here".to_owned() }
}

async fn claim(store: &Store) -> Found {
    store.look(&look(&a_beat())).await.unwrap()
}

fn patch(changes: &Changes) -> Patch<'_> {
    Patch { changes, revision: None, max_failures: 5, leniency: NO_LENIENCY }
}

fn done<R: std::fmt::Debug>(edited: Edited<R>) -> Alarm {
    let Edited::Done(alarm) = edited else { panic!("not done: {edited:?}") };
    *alarm
}

/// Runs statements of the test's own: what no store function does, such as letting time pass.
async fn execute(db: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(db).await.expect(statement);
}

/// The constraint that keeps a statement from being carried out.
async fn refused_by(db: &mut PgConnection, statement: &str) -> String {
    let refused = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(db).await.expect_err(statement);
    let constraint = refused.as_database_error().and_then(|error| error.constraint().map(str::to_owned));
    constraint.unwrap_or_else(|| panic!("{statement}: {refused}"))
}

/// The plan Postgres makes for a statement, whose parameters are these texts.
async fn plan_of(db: &mut PgConnection, statement: &str, parameters: &[&str]) -> String {
    let mut query = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN {statement}")));
    for parameter in parameters {
        query = query.bind((*parameter).to_owned());
    }
    let lines: Vec<String> = query.fetch_all(db).await.unwrap();
    lines.join("\n")
}

/// Names of the columns of a table or view, in order.
async fn columns_of(db: &mut PgConnection, relation: &str) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
    )
    .bind(relation)
    .fetch_all(db)
    .await
    .unwrap()
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
