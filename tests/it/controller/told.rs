//! What a status tells, how often it is written, and what events add.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chronos::crd::Phase;
use futures::{StreamExt, pin_mut};
use kube::{
    api::{Patch, PatchParams, WatchParams},
    core::WatchEvent,
};
use serde_json::json;
use tokio::time::Instant;

use super::{cluster, conditions};
use crate::support::{Reply, eventually};

/// Between two writes of one status, unless its phase changes (design, section 8).
const QUIET: Duration = Duration::from_secs(5);
/// A watch tells of a write a little later than it was made, and of the next one perhaps less late.
const JITTER: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn a_router_that_is_in_trouble_is_told_in_delivering_attempts_and_events() {
    let cluster = cluster().await;
    cluster.world.sink.reply([Reply::Status(503)]);
    cluster.apply("tea", "  delaySeconds: 1\n  maxFailures: 1").await;
    let tried = cluster.namespace.status("tea", "was tried", |status| status.failure_count == 1).await;
    assert_eq!(conditions(&tried), [("Ready", "True", "Scheduled"), ("Delivering", "False", "Retrying")]);
    let [attempt] = &tried.attempts[..] else { panic!("one attempt: {:?}", tried.attempts) };
    assert_eq!((attempt.attempt, attempt.outcome.as_str(), attempt.http_status), (1, "retrying", Some(503)));
    assert_eq!(tried.last_attempt_time.as_ref(), Some(&attempt.started_at));
    assert_eq!(tried.last_error, "HTTP 503");
    let delivering = &tried.conditions[1].message;
    assert!(delivering.starts_with("the router did not take the last wake (HTTP 503); attempt 2 at "), "{delivering}");
    let events = eventually("events tell of it", || async {
        let events = cluster.namespace.events_of("tea").await;
        events.iter().any(|(_, reason, _)| reason == "DeliveryFailed").then_some(events)
    })
    .await;
    let told: Vec<(&str, &str)> = events.iter().map(|(kind, reason, _)| (kind.as_str(), reason.as_str())).collect();
    assert!(told.contains(&("Normal", "Scheduled")) && told.contains(&("Warning", "DeliveryFailed")), "{events:?}");
}

#[tokio::test]
async fn what_was_given_up_missed_or_written_wrongly_has_its_event() {
    let cluster = cluster().await;
    cluster.world.sink.reply([Reply::Status(503)]);
    cluster.apply("given-up", "  delaySeconds: 1\n  maxFailures: 0").await;
    cluster.apply("missed", "  fireAt: 2020-01-01T00:00:00Z").await;
    cluster.apply("wrong", "  cronExpr: '0 25 * * *'").await;
    for (name, reason) in [("given-up", "Exhausted"), ("missed", "Missed"), ("wrong", "Invalid")] {
        let note = eventually(&format!("{name} has its event {reason}"), || async {
            let events = cluster.namespace.events_of(name).await;
            events.into_iter().find(|(kind, told, _)| kind == "Warning" && told == reason).map(|(_, _, note)| note)
        })
        .await;
        let expected = match name {
            "given-up" => "failed: HTTP 503; given up",
            "missed" => "1 slot passed without a wake",
            _ => "spec.cronExpr: ",
        };
        assert!(note.contains(expected), "{note}");
    }
}

#[tokio::test]
async fn an_alarm_that_fires_every_second_is_told_of_every_five_seconds() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '@every 1s'").await;
    let alarms = cluster.namespace.alarms();
    let only = WatchParams::default().fields("metadata.name=tea");
    let events = alarms.watch(&only, "0").await.unwrap();
    pin_mut!(events);
    let mut written: Vec<(Instant, Option<Phase>, i64)> = Vec::new();
    // Long enough for several writes: it ends with the ninth wake that the status tells of.
    while written.last().is_none_or(|(.., fired)| *fired < 9) {
        let event = tokio::time::timeout(crate::support::PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
        let (WatchEvent::Added(alarm) | WatchEvent::Modified(alarm)) = event else { continue };
        let status = alarm.status.unwrap_or_default();
        let last = written.last().map(|(_, phase, fired)| (*phase, *fired));
        if last != Some((status.phase, status.fired_count)) {
            written.push((Instant::now(), status.phase, status.fired_count));
        }
    }
    let told: Vec<_> = written.iter().filter(|(_, phase, _)| phase.is_some()).collect();
    for pair in told.windows(2) {
        let apart = pair[1].0 - pair[0].0;
        assert!(
            apart + JITTER >= QUIET || pair[0].1 != pair[1].1,
            "written {apart:?} after the one before: {written:?}"
        );
    }
    assert!(told.len() >= 2, "{written:?}");
}

#[tokio::test]
async fn a_status_that_somebody_else_wrote_is_put_right() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    let right = cluster.phase("tea", Phase::Active).await;
    let wrong = json!({ "status": { "phase": "Fired", "firedCount": 77 } });
    cluster.namespace.alarms().patch_status("tea", &PatchParams::default(), &Patch::Merge(wrong)).await.unwrap();
    let again = cluster.namespace.status("tea", "is right again", |status| status.fired_count == 0).await;
    assert_eq!(again, right);
}

#[tokio::test]
async fn nothing_is_written_when_nothing_changes() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    cluster.phase("tea", Phase::Active).await;
    let version = || async { cluster.namespace.alarms().get("tea").await.unwrap().metadata.resource_version };
    let before = version().await;
    // Looked at again because of a label that means nothing to it but is kept: one more write, of the database alone.
    let patch = json!({ "metadata": { "annotations": { "example.com/touched": "yes" } } });
    let touched = cluster.namespace.alarms().patch("tea", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_ne!(touched.metadata.resource_version, before);
    // Whatever is applied after it is looked at after it.
    cluster.apply("after", "  cronExpr: '0 0 1 1 *'").await;
    cluster.phase("after", Phase::Active).await;
    assert_eq!(version().await, touched.metadata.resource_version);
}

#[tokio::test]
async fn kubectl_shows_what_happens_next_and_finds_alarms_by_owner_and_phase() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: 0 9 * * MON-FRI\n  timezone: America/New_York").await;
    let status = cluster.phase("tea", Phase::Active).await;
    let (done, shown) = cluster.namespace.kubectl(&["get", "al"]).await;
    assert!(done, "{shown}");
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "SCHEDULE", "ZONE", "NEXT", "LAST", "FAILURES", "STATUS", "AGE"]);
    let next = status.next_fire_time.unwrap();
    assert_eq!(lines[1][..7], ["tea", "0", "9", "*", "*", "MON-FRI", "America/New_York"]);
    assert!(shown.contains(&next) && shown.contains("Active"), "{shown}");
    let due: DateTime<Utc> = next.parse().unwrap();
    assert!(due > cluster.ask::<DateTime<Utc>>("SELECT now()").await);

    let selector = |phase: &str| format!("--field-selector=spec.owner={},status.phase={phase}", cluster.ann.did);
    let names = |selector: String| async move {
        cluster.namespace.kubectl(&["get", "alarms", "-o", "name", &selector]).await.1
    };
    assert_eq!(names(selector("Active")).await.trim(), "alarm.chronos.dev/tea");
}
