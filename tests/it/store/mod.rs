//! The schema and its statements on the real Postgres: one file per table, and one for the schema as a whole.

mod agents;
mod alarms;
mod bulk;
mod claims;
mod clusters;
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
    domain::{access::Did, alarm::Changes, ids::WorkerId, labels::Labels},
    store::{
        Store,
        alarms::{Alarm, Edited, May, Patch},
        claims::{Beat, Found, Look, Room},
    },
};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

pub use crate::support::alarms::{ann, bob, create, create_with_key, draft, every_minute, execute, in_an_hour, read};
use crate::support::{AgentKey, Database};

/// No limits, enrolled or not.
pub const ANYBODY: May = May {
    quotas: chronos::domain::quota::Quotas { max_active_alarms: None, min_interval_seconds: None },
    unenrolled: true,
};

const LEASE: std::time::Duration = std::time::Duration::from_secs(120);
const NO_LENIENCY: TimeDelta = TimeDelta::zero();

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

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A look of a dispatcher that has a hundred free slots.
fn look(beat: &Beat) -> Look<'_> {
    Look {
        worker: WorkerId::from_uuid(Uuid::new_v4()),
        beat: Some(beat),
        lease: LEASE,
        room: Room { rows: 100, bytes: usize::MAX, of_owner: 100, owners: Vec::new() },
        suspects: true,
        sessions: true,
        after: None,
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
    Patch {
        changes,
        revision: None,
        max_failures: 5,
        quotas: chronos::domain::quota::Quotas::default(),
        leniency: NO_LENIENCY,
    }
}

fn done<R: std::fmt::Debug>(edited: Edited<R>) -> Alarm {
    let Edited::Done(alarm) = edited else { panic!("not done: {edited:?}") };
    *alarm
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
