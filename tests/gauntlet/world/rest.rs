//! Whether everything has come to rest, and how it stands then.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{PgConnection, Row};

use super::World;
use crate::log::Tables;

/// Rows that somebody still has to do something about, and in which words that is told.
const OPEN: &[(&str, &str)] = &[
    ("alarms due", "SELECT count(*) FROM alarms WHERE status = 'active' AND next_fire_at <= now()"),
    ("alarms claimed", "SELECT count(*) FROM alarms WHERE claim_token IS NOT NULL"),
    (
        "wakes of sessions open",
        "SELECT count(*) FROM effects WHERE type = 'wake' AND status IN ('pending', 'executing')",
    ),
];

/// What the status of an Alarm must agree with. `restless`: a series that has just fired. Its status is written at most once in 5 s while
/// its phase stays the same, and so it may be behind for as long as the series lives.
const ROWS: &str =
    "SELECT resource_uid::text AS uid, id::text AS id, status, next_fire_at, fired_count, missed_count, failure_count,
        status = 'active' AND EXISTS (
            SELECT FROM attempts WHERE alarm_id = alarms.id AND started_at > now() - interval '8 seconds') AS restless
    FROM alarms WHERE source = 'kubernetes'";

/// Alarms that should have gone out a second ago. One that is on the ladder is not due.
pub async fn overdue(world: &World) -> anyhow::Result<i64> {
    let mut connection = world.postgres.connect().await?;
    let question = "SELECT count(*) FROM alarms WHERE status = 'active' AND next_fire_at < now() - interval '1 second'";
    Ok(sqlx::query_scalar(question).fetch_one(&mut connection).await?)
}

pub async fn unrest(world: &World) -> anyhow::Result<Option<String>> {
    let mut connection = world.postgres.connect().await?;
    for (what, question) in OPEN {
        let count: i64 = sqlx::query_scalar(*question).fetch_one(&mut connection).await?;
        if count > 0 {
            return Ok(Some(format!("{count} {what}")));
        }
    }
    // Resources first: a row that changes in between is seen as unrest, and the next look tells.
    let resources = world.cluster.alarms().await?;
    let mut rows = HashMap::new();
    for row in sqlx::query(ROWS).fetch_all(&mut connection).await? {
        rows.insert(row.get::<String, _>("uid"), row);
    }
    for resource in &resources {
        let name = resource["metadata"]["name"].as_str().unwrap_or_default();
        let row = rows.remove(resource["metadata"]["uid"].as_str().unwrap_or_default());
        if let Some(why) = out_of_step(resource, row.as_ref()) {
            return Ok(Some(format!("Alarm {name}: {why}")));
        }
    }
    let forsaken = rows.values().find(|row| ["active", "paused"].contains(&row.get::<&str, _>("status")));
    Ok(forsaken.map(|row| format!("alarm {} lives, its resource does not", row.get::<String, _>("id"))))
}

fn out_of_step(resource: &Value, row: Option<&sqlx::postgres::PgRow>) -> Option<String> {
    let (meta, status) = (&resource["metadata"], &resource["status"]);
    if !meta["deletionTimestamp"].is_null() {
        return Some("is being deleted".to_owned());
    }
    if status["observedGeneration"] != meta["generation"] {
        return Some(format!("generation {} is not observed: {}", meta["generation"], status["observedGeneration"]));
    }
    let phase = status["phase"].as_str().unwrap_or_default().to_lowercase();
    let Some(row) = row else { return (phase != "invalid").then(|| "has no row".to_owned()) };
    let told = |field: &str, told: &Value, stands: String| {
        let told = told.as_str().map_or_else(|| told.to_string(), str::to_owned);
        (told != stands).then(|| format!("{field} is {told}, its row says {stands}"))
    };
    let next = status["nextFireTime"].as_str().and_then(|text| text.parse::<DateTime<Utc>>().ok());
    let row_next: Option<DateTime<Utc>> = (row.get::<&str, _>("status") == "active").then(|| row.get("next_fire_at"));
    let known = (phase != "invalid" && phase != row.get::<&str, _>("status"))
        .then(|| format!("phase is {phase}, its row says {}", row.get::<&str, _>("status")))
        .or_else(|| told("alarmId", &status["alarmId"], row.get("id")));
    if row.get("restless") {
        return known;
    }
    known
        .or_else(|| told("firedCount", &status["firedCount"], row.get::<i64, _>("fired_count").to_string()))
        .or_else(|| told("missedCount", &status["missedCount"], row.get::<i64, _>("missed_count").to_string()))
        .or_else(|| told("failureCount", &status["failureCount"], row.get::<i32, _>("failure_count").to_string()))
        .or_else(|| (next != row_next).then(|| format!("nextFireTime is {next:?}, its row says {row_next:?}")))
}

pub async fn tables(world: &World) -> anyhow::Result<Tables> {
    let mut connection = world.postgres.connect().await?;
    let connection = &mut connection;
    Ok(Tables {
        alarms: rows(connection, "SELECT row_to_json(t)::text FROM alarms t").await?,
        attempts: rows(connection, "SELECT row_to_json(t)::text FROM attempts t").await?,
        agents: rows(connection, "SELECT row_to_json(t)::text FROM agents t").await?,
        service_calls: rows(connection, "SELECT row_to_json(t)::text FROM service_calls t").await?,
        sessions: rows(connection, "SELECT row_to_json(t)::text FROM sessions t").await?,
        events: rows(connection, "SELECT row_to_json(t)::text FROM events t").await?,
        checkpoints: rows(connection, "SELECT row_to_json(t)::text FROM checkpoints t").await?,
        effects: rows(connection, "SELECT row_to_json(t)::text FROM effects t").await?,
    })
}

async fn rows(connection: &mut PgConnection, question: &'static str) -> anyhow::Result<Vec<Value>> {
    let texts: Vec<String> = sqlx::query_scalar(question).fetch_all(connection).await?;
    Ok(texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?)
}
