//! A resource and its row say the same at the end.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    book::{About, Book, Found},
    rows::Row,
    slots::stored,
};

/// Two of the controller's pauses between writes.
const STATUS_LAG: TimeDelta = TimeDelta::seconds(10);

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// Nothing excuses a difference: whatever was undone, on either side, row and resource must have come together again.
pub fn statuses_agree_with_rows(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let rows: HashMap<Uuid, &Row> = book.rows.iter().filter_map(|row| Some((row.resource_uid?, row))).collect();
    let mut standing = std::collections::HashSet::new();
    for resource in &book.log.end.resources {
        let name = text(resource, "/metadata/name").unwrap_or_default();
        let Some(uid) = text(resource, "/metadata/uid").and_then(|uid| uid.parse().ok()) else { continue };
        standing.insert(uid);
        let story = book.stories.iter().position(|story| story.resource == Some(name));
        let about = story.map_or_else(|| About::Else(resource.to_string()), About::Story);
        let Some(row) = rows.get(&uid) else {
            let what = format!("the resource {name} stands, and no row tells of it: {}", resource["status"]);
            found.push(Found { rule: "status", about, what });
            continue;
        };
        for what in differences(resource, row, was_moving(book, row)) {
            found.push(Found { rule: "status", about: about.clone(), what: format!("{name}: {what}") });
        }
    }
    for row in book.rows.iter().filter(|row| row.source == "kubernetes" && row.is_living()) {
        if row.resource_uid.is_some_and(|uid| !standing.contains(&uid)) {
            let name = row.resource_name.as_deref().unwrap_or_default();
            let what = format!("alarm {} is {}, and its resource {name} is gone", row.id, row.status);
            found.push(Found { rule: "orphan", about: book.about(row.id), what });
        }
    }
    found
}

/// A status is written at most once in 5 s while the phase stays: a series that fired just before the replicas were stopped may be ahead
/// of it.
fn was_moving(book: &Book<'_>, row: &Row) -> bool {
    let since = book.log.end.read_at - STATUS_LAG;
    row.status == "active" && book.attempts_of(row.id).any(|one| one.ended_at() >= since)
}

fn differences(resource: &Value, row: &Row, was_moving: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut expect = |what: &str, shown: String, stored: String| {
        if shown != stored {
            found.push(format!("{what} is {shown}, and the row says {stored}"));
        }
    };
    let status = &resource["status"];
    let phase = text(status, "/phase").unwrap_or_default().to_lowercase();
    expect("phase", phase, row.status.clone());
    if !was_moving {
        let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        expect("firedCount", number("/firedCount").to_string(), row.fired_count.to_string());
        expect("missedCount", number("/missedCount").to_string(), row.missed_count.to_string());
        let next: Option<DateTime<Utc>> = text(status, "/nextFireTime").and_then(|at| at.parse().ok());
        let stored = (row.status == "active").then_some(row.next_fire_at);
        expect("nextFireTime", format!("{next:?}"), format!("{stored:?}"));
    }
    let generation = resource.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
    let observed = status.get("observedGeneration").and_then(Value::as_i64).unwrap_or(-1);
    expect("observedGeneration", observed.to_string(), generation.to_string());
    // What the resource wants; of what is over nothing is wanted any more.
    let suspended = resource.pointer("/spec/suspend").and_then(Value::as_bool).unwrap_or(false);
    let gone = resource.pointer("/metadata/deletionTimestamp").is_some();
    if !gone {
        agrees_with_spec(&resource["spec"], row, &mut expect);
    }
    if row.is_living() && !gone {
        expect("suspend", suspended.to_string(), (row.status == "paused").to_string());
    }
    found
}

/// That a generation was seen says nothing of whether it was stored.
fn agrees_with_spec(spec: &Value, row: &Row, expect: &mut impl FnMut(&str, String, String)) {
    let wanted = |name: &str| spec.get(name).and_then(Value::as_str).unwrap_or_default();
    expect("owner", wanted("owner").to_owned(), row.owner_did.clone());
    expect("cronExpr", wanted("cronExpr").to_owned(), row.cron_expr.clone());
    expect("wakeMessage", wanted("wakeMessage").to_owned(), row.wake_message.clone());
    let fire_at: Option<DateTime<Utc>> = wanted("fireAt").parse().ok();
    expect("fireAt", format!("{:?}", fire_at.map(stored)), format!("{:?}", row.fire_at));
    let payload: Option<Value> = serde_json::from_str(wanted("payloadJson")).ok();
    expect("payloadJson", payload.unwrap_or_else(|| json!({})).to_string(), row.payload.to_string());
}
