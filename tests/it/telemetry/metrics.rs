//! `/metrics` and `/readyz` of the real binary.

#![expect(clippy::float_cmp, reason = "whole numbers, which a float holds exactly")]

use std::{collections::BTreeMap, time::Duration};

use chronos::{
    domain::{
        alarm::{Draft, Status},
        occurrence::Outcome,
    },
    telemetry::metrics,
};
use reqwest::Method;
use sqlx::Connection;

use super::{
    exposition::{self, Family},
    scrape::scrape,
};
use crate::support::{
    AgentKey, Reply, World,
    alarms::{ann, create, execute, in_an_hour},
    eventually,
};

/// The values of a family by one label.
fn by(label: &str, family: &Family) -> BTreeMap<String, f64> {
    let of = |labels: &[(String, String)]| labels.iter().find(|(name, _)| name == label).expect(label).1.clone();
    family.series.iter().map(|((_, labels), value)| (of(labels), *value)).collect()
}

fn zeros<'a>(labels: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, f64> {
    labels.into_iter().map(|label| (label.to_owned(), 0.0)).collect()
}

fn pools(families: &BTreeMap<String, Family>) -> BTreeMap<(String, String), f64> {
    let label = |labels: &[(String, String)], at: usize| labels[at].1.clone();
    let series = &families["chronos_pool_connections"].series;
    series.iter().map(|((_, labels), value)| ((label(labels, 0), label(labels, 1)), *value)).collect()
}

#[tokio::test]
async fn every_metric_is_there_from_the_start_with_its_zero() {
    let world = World::new().await;
    // Nothing can have happened: no dispatcher runs.
    let daemon = world.chronosd("api").await;
    let families = scrape(&daemon).await;
    let told: Vec<(&str, &str)> = families.iter().map(|(name, family)| (name.as_str(), family.kind.as_str())).collect();
    assert_eq!(
        told,
        [
            ("chronos_alarms", "gauge"),
            ("chronos_alarms_due", "gauge"),
            ("chronos_alarms_duplicated", "gauge"),
            ("chronos_alarms_exhausted_total", "counter"),
            ("chronos_alarms_unreadable_total", "counter"),
            ("chronos_claims_released_total", "counter"),
            ("chronos_claims_returned_total", "counter"),
            ("chronos_claims_taken_total", "counter"),
            ("chronos_database_clock_skew_seconds", "gauge"),
            ("chronos_database_reachable", "gauge"),
            ("chronos_deliveries_in_flight", "gauge"),
            ("chronos_deliveries_total", "counter"),
            ("chronos_dispatch_held", "gauge"),
            ("chronos_leader", "gauge"),
            ("chronos_oldest_due_age_seconds", "gauge"),
            ("chronos_orphans_swept_total", "counter"),
            ("chronos_pool_connections", "gauge"),
            ("chronos_results_fenced_total", "counter"),
            ("chronos_settle_batch_size", "histogram"),
            ("chronos_slots_missed_total", "counter"),
            ("chronos_status_lag_seconds", "histogram"),
            ("chronos_statuses_written_total", "counter"),
            ("chronos_stream_sends_total", "counter"),
            ("chronos_streams", "gauge"),
            ("chronos_timers_promoted_total", "counter"),
            ("chronos_wake_duration_seconds", "histogram"),
            ("chronos_wake_lateness_seconds", "histogram"),
        ]
    );
    for (name, family) in &families {
        assert!(family.help.len() > 20, "{name} says what it is: {:?}", family.help);
        let all_zero = family.series.values().all(|value| *value == 0.0);
        let stands = ["chronos_pool_connections", "chronos_database_reachable"].contains(&name.as_str());
        assert!(all_zero || stands, "{name}: {family:?}");
    }
    let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str());
    assert_eq!(by("outcome", &families["chronos_deliveries_total"]), zeros(outcomes));
    let outcomes = metrics::SendOutcome::ALL.iter().map(|outcome| outcome.as_str());
    assert_eq!(by("outcome", &families["chronos_stream_sends_total"]), zeros(outcomes));
    assert_eq!(by("status", &families["chronos_alarms"]), zeros(Status::ALL.iter().map(|status| status.as_str())));
    assert_eq!(by("lease", &families["chronos_leader"]), zeros(["chronos-dispatch", "chronos-controller"]));
    let lateness = &families["chronos_wake_lateness_seconds"].series;
    let has = |bound: &str| {
        let key = ("chronos_wake_lateness_seconds_bucket".to_owned(), vec![("le".to_owned(), bound.to_owned())]);
        lateness.contains_key(&key)
    };
    assert!(["0.001", "0.025", "1", "60", "600", "+Inf"].into_iter().all(has), "{lateness:?}");
}

#[tokio::test]
async fn the_pools_are_counted_as_postgres_counts_them() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let mut blocker = world.database.connect().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("LOCK TABLE alarms").execute(&mut *lock).await.unwrap();
    // Two callers wait for the table, each on a connection of the facade's.
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let (api, request) = (api.clone(), api.request(Method::GET, "/v1/alarms"));
            tokio::spawn(async move { api.send(request).await.status })
        })
        .collect();
    eventually("two of the facade's connections are in use, and all are counted", || async {
        let pools = pools(&scrape(&daemon).await);
        let of = |pool: &str, state: &str| pools[&(pool.to_owned(), state.to_owned())];
        let mut agree = of("api", "in_use") == 2.0;
        for pool in ["api", "dispatch", "probes", "streams"] {
            let there: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1",
            )
            .bind(format!("chronos-{pool}"))
            .fetch_one(&mut world.database.connect().await)
            .await
            .unwrap();
            agree &= of(pool, "idle") + of(pool, "in_use") == f64::from(i32::try_from(there).unwrap());
        }
        let names: std::collections::BTreeSet<&str> = pools.keys().map(|(pool, _)| pool.as_str()).collect();
        assert_eq!(names, ["api", "dispatch", "probes", "streams"].into(), "those of the roles that run");
        agree.then_some(())
    })
    .await;
    lock.rollback().await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await.unwrap(), 200);
    }
    eventually("none of the facade's connections is in use", || async {
        let pools = pools(&scrape(&daemon).await);
        (pools[&("api".to_owned(), "in_use".to_owned())] == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn readiness_says_that_dispatch_is_held_and_stays() {
    let world = World::new().await;
    let daemon = world.chronosd("dispatch").await;
    assert_eq!(daemon.readiness().await, (200, "ok\n".to_owned()));
    let store = world.database.store().await;
    let hold = store.hold_dispatch("ann").await.unwrap();
    let since = chronos::domain::rfc3339(hold.since);
    assert_eq!(daemon.readiness().await, (200, format!("ok\ndispatch is held by ann since {since}\n")));
    store.release_dispatch().await.unwrap();
    assert_eq!(daemon.readiness().await, (200, "ok\n".to_owned()));
}

#[test]
fn a_second_install_is_the_first() {
    // Before the first nothing is recorded, and nothing breaks.
    metrics::delivery(Outcome::Delivered, None, Duration::ZERO);
    let (first, second) = (metrics::install(), metrics::install());
    metrics::leader("chronos-nobody", true);
    for handle in [first, second] {
        assert_eq!(by("lease", &exposition::read(&handle.render())["chronos_leader"])["chronos-nobody"], 1.0);
    }
}

#[test]
fn what_is_recorded_is_what_is_scraped() {
    let recorder = metrics::recorder();
    ::metrics::with_local_recorder(&recorder, record);
    let families = exposition::read(&recorder.handle().render());
    let value = |name: &str, labels: &[(&str, &str)]| {
        let family = families.iter().rev().find(|(family, _)| name.starts_with(family.as_str())).expect(name).1;
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        family.series[&(name.to_owned(), labels)]
    };
    for (name, labels, expected) in [
        ("chronos_deliveries_total", &[("outcome", "delivered")][..], 1.0),
        ("chronos_deliveries_total", &[("outcome", "retrying")], 1.0),
        ("chronos_deliveries_total", &[("outcome", "fenced")], 0.0),
        ("chronos_wake_lateness_seconds_bucket", &[("le", "0.01")], 0.0),
        ("chronos_wake_lateness_seconds_bucket", &[("le", "0.025")], 1.0),
        ("chronos_wake_lateness_seconds_count", &[], 1.0),
        ("chronos_wake_duration_seconds_bucket", &[("le", "60")], 1.0),
        ("chronos_wake_duration_seconds_count", &[], 2.0),
        ("chronos_wake_duration_seconds_sum", &[], 61.3),
        ("chronos_claims_taken_total", &[], 3.0),
        ("chronos_claims_returned_total", &[], 4.0),
        ("chronos_claims_released_total", &[], 5.0),
        ("chronos_results_fenced_total", &[], 6.0),
        ("chronos_slots_missed_total", &[], 7.0),
        ("chronos_alarms_exhausted_total", &[], 8.0),
        ("chronos_alarms_unreadable_total", &[], 9.0),
        ("chronos_timers_promoted_total", &[], 15.0),
        ("chronos_deliveries_in_flight", &[], 10.0),
        ("chronos_settle_batch_size_sum", &[], 11.0),
        ("chronos_alarms", &[("status", "paused")], 12.0),
        ("chronos_alarms_due", &[], 13.0),
        ("chronos_oldest_due_age_seconds", &[], 14.5),
        ("chronos_dispatch_held", &[], 1.0),
        ("chronos_leader", &[("lease", "chronos-dispatch")], 1.0),
        ("chronos_leader", &[("lease", "chronos-controller")], 0.0),
        ("chronos_database_clock_skew_seconds", &[], -0.25),
        ("chronos_status_lag_seconds_sum", &[], 2.0),
    ] {
        let found = value(name, labels);
        assert!((found - expected).abs() < 1e-9, "{name}{labels:?} is {found}, not {expected}");
    }
}

fn record() {
    metrics::delivery(Outcome::Delivered, Some(Duration::from_millis(20)), Duration::from_millis(300));
    metrics::delivery(Outcome::Retrying, None, Duration::from_secs(61));
    metrics::claims_taken(3);
    metrics::claims_returned(4);
    metrics::claims_released(5);
    metrics::results_fenced(6);
    metrics::slots_missed(7);
    metrics::timers_promoted(15);
    metrics::alarms_exhausted(8);
    metrics::alarms_unreadable(9);
    metrics::in_flight(10);
    metrics::settle_batch(11);
    metrics::alarms(Status::Paused, 12);
    metrics::alarms_due(13);
    metrics::oldest_due_age(Duration::from_millis(14_500));
    metrics::dispatch_held(true);
    metrics::leader(metrics::LEASES[0], true);
    metrics::database_clock_skew(-0.25);
    metrics::status_lag(Duration::from_secs(2));
}

#[tokio::test]
async fn a_dispatcher_counts_what_it_claims_and_what_becomes_of_it() {
    let world = World::new().await;
    let store = world.database.store().await;
    // One is delivered at the second attempt, one given up, one too late.
    for draft in [
        Draft { max_failures: Some(1), ..in_an_hour() },
        Draft { max_failures: Some(0), ..in_an_hour() },
        Draft { max_lateness_seconds: Some(1), ..in_an_hour() },
    ] {
        create(&store, &ann(), draft).await;
    }
    execute(
        &mut world.database.connect().await,
        "UPDATE alarms SET next_fire_at = now() - interval '1 min' * (10 - max_failures)",
    )
    .await;
    world.sink.reply([Reply::Status(500), Reply::Status(503)]);
    let quick = [("CHRONOS_RETRY_BASE_MS", "20"), ("CHRONOS_RETRY_CAP_MS", "20"), ("CHRONOS_CONCURRENCY", "1")];
    let daemon = world.chronosd_with("dispatch", &quick).await;
    let families = eventually("all is counted", || async {
        let families = scrape(&daemon).await;
        let delivered = by("outcome", &families["chronos_deliveries_total"])["delivered"];
        (delivered == 1.0).then_some(families)
    })
    .await;
    let counts = by("outcome", &families["chronos_deliveries_total"]);
    assert_eq!((counts["exhausted"], counts["retrying"]), (1.0, 1.0), "{counts:?}");
    let value = |name: &str| families[name].series.values().copied().next().unwrap();
    assert_eq!(value("chronos_claims_taken_total"), 4.0);
    assert_eq!(value("chronos_alarms_exhausted_total"), 1.0);
    assert_eq!(value("chronos_slots_missed_total"), 1.0);
    let histogram = |name: &str| {
        let count = families[name].series.iter().find(|((sample, _), _)| sample.ends_with("_count"));
        *count.unwrap().1
    };
    assert_eq!(histogram("chronos_wake_lateness_seconds"), 2.0, "of first attempts");
    assert_eq!(histogram("chronos_wake_duration_seconds"), 3.0);
    let batches = &families["chronos_settle_batch_size"].series;
    assert_eq!(batches[&("chronos_settle_batch_size_sum".to_owned(), Vec::new())], 4.0, "a result for every claim");
    let skew = value("chronos_database_clock_skew_seconds");
    assert!(skew != 0.0 && skew.abs() < 5.0, "one machine, one clock: {skew}");
}

#[tokio::test]
async fn the_eldest_dispatcher_tells_how_many_alarms_there_are_and_how_long_they_have_waited() {
    /// The oldest has waited for ten minutes, and the test for less than one.
    const WAITED: std::ops::Range<f64> = 600.0..660.0;
    let world = World::new().await;
    let store = world.database.store().await;
    let mut alarms = Vec::new();
    for _ in 0..4 {
        alarms.push(create(&store, &ann(), in_an_hour()).await.id);
    }
    store.pause_if_owned(&ann(), alarms[3]).await.unwrap();
    // Due is what waits, not what is claimed.
    store.hold_dispatch("ann").await.unwrap();
    for (alarm, waited) in alarms.iter().zip(["10 min", "5 min"]) {
        let passed = format!("UPDATE alarms SET next_fire_at = now() - interval '{waited}' WHERE id = '{alarm}'");
        execute(&mut world.database.connect().await, &passed).await;
    }
    let daemon = world.chronosd("dispatch").await;
    let families = eventually("the table is counted", || async {
        let families = scrape(&daemon).await;
        let counted = by("status", &families["chronos_alarms"]).values().sum::<f64>() == 4.0;
        counted.then_some(families)
    })
    .await;
    let mut expected = zeros(Status::ALL.iter().map(|status| status.as_str()));
    expected.extend([("active".to_owned(), 3.0), ("paused".to_owned(), 1.0)]);
    assert_eq!(by("status", &families["chronos_alarms"]), expected);
    let value = |name: &str| families[name].series.values().copied().next().unwrap();
    assert_eq!((value("chronos_alarms_due"), value("chronos_dispatch_held")), (2.0, 1.0));
    let oldest = value("chronos_oldest_due_age_seconds");
    assert!(WAITED.contains(&oldest), "{oldest}");
}
