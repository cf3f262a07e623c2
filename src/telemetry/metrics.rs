//! Every metric there is: name, labels, unit, what it says. Nobody else writes a name.
//!
//! Labels come from closed sets: no ids, no owners, no texts of others, so that the number of series is fixed by this file. Each
//! of them is there with its zero value from the start: an alert on something that never happened must not be without data.
//!
//! The functions below may be called whether or not a recorder is installed (the binary does, tests need not): without one
//! they do nothing.

use std::{sync::OnceLock, time::Duration};

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tracing::warn;

use crate::domain::{alarm::Status, occurrence::Outcome};

/// What `lease` may be.
pub const LEASES: [&str; 2] = ["chronos-dispatch", "chronos-controller"];

/// What `pool` may be: a pool of each role that runs, one for probes, one that hears hints for streams.
pub const POOLS: [&str; 5] = ["api", "controller", "dispatch", "probes", "streams"];
const POOL_STATES: [&str; 2] = ["idle", "in_use"];

/// From a millisecond to ten minutes; 25 ms is what a wake should not be later than.
const LATENESS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// From a router next door to a cold agent (30 to 45 s) and the deadline at its default (60 s) and beyond.
const DURATIONS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0];
const BATCH_SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// What became of a send that went out over a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Acknowledged,
    /// Not in time: the stream was closed for it.
    Unacknowledged,
    /// The stream ended first.
    Lost,
    /// Not awaited any more: it was cancelled, or acknowledged over HTTP.
    Withdrawn,
}

impl SendOutcome {
    pub const ALL: [Self; 4] = [Self::Acknowledged, Self::Unacknowledged, Self::Lost, Self::Withdrawn];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Unacknowledged => "unacknowledged",
            Self::Lost => "lost",
            Self::Withdrawn => "withdrawn",
        }
    }
}

enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

struct Metric {
    name: &'static str,
    kind: Kind,
    unit: Unit,
    labels: &'static [Label],
    help: &'static str,
}

/// Its name, and all that it may be.
type Label = (&'static str, fn() -> Vec<&'static str>);

/// A metric as a person reads of it.
pub struct Described {
    pub name: &'static str,
    pub kind: &'static str,
    /// Each with all that it may be.
    pub labels: Vec<(&'static str, Vec<&'static str>)>,
    pub help: &'static str,
}

/// Every metric there is.
pub fn described() -> Vec<Described> {
    let described = |metric: &Metric| Described {
        name: metric.name,
        kind: match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        },
        labels: metric.labels.iter().map(|(name, values)| (*name, values())).collect(),
        help: metric.help,
    };
    ALL.iter().map(described).collect()
}

const fn total(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::Count, labels: &[], help }
}

const fn level(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels: &[], help }
}

const fn spread(name: &'static str, unit: Unit, buckets: &'static [f64], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram(buckets), unit, labels: &[], help }
}

const fn by(labels: &'static [Label], metric: Metric) -> Metric {
    Metric { labels, ..metric }
}

fn outcomes() -> Vec<&'static str> {
    Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect()
}

fn send_outcomes() -> Vec<&'static str> {
    SendOutcome::ALL.iter().map(|outcome| outcome.as_str()).collect()
}

fn statuses() -> Vec<&'static str> {
    Status::ALL.iter().map(|status| status.as_str()).collect()
}

const WAKE_LATENESS: Metric = spread(
    "chronos_wake_lateness_seconds",
    Unit::Seconds,
    LATENESS,
    "How long after its effective instant the first attempt at an occurrence was sent",
);
const WAKE_DURATION: Metric = spread(
    "chronos_wake_duration_seconds",
    Unit::Seconds,
    DURATIONS,
    "How long an attempt took, from the connection to the end of the answer",
);
const DELIVERIES: Metric =
    by(&[("outcome", outcomes)], total("chronos_deliveries_total", "Attempts that were settled, by outcome"));
const IN_FLIGHT: Metric = level("chronos_deliveries_in_flight", Unit::Count, "Attempts under way in this replica");
const SETTLE_BATCH: Metric =
    spread("chronos_settle_batch_size", Unit::Count, BATCH_SIZES, "Attempts settled by one statement");
const CLAIMS_TAKEN: Metric = total("chronos_claims_taken_total", "Due alarms that this replica claimed");
const CLAIMS_RETURNED: Metric =
    total("chronos_claims_returned_total", "Claims given back unsent, too old to finish inside their lease");
const CLAIMS_RELEASED: Metric =
    total("chronos_claims_released_total", "Claims taken from dispatchers that stopped beating");
const RESULTS_FENCED: Metric =
    total("chronos_results_fenced_total", "Answers that came after their claim was lost, and changed nothing");
const SLOTS_MISSED: Metric = total("chronos_slots_missed_total", "Slots that passed too late to fire");
const ALARMS_EXHAUSTED: Metric =
    total("chronos_alarms_exhausted_total", "Occurrences given up after their last attempt");
const ALARMS_UNREADABLE: Metric = total("chronos_alarms_unreadable_total", "Claimed rows that could not be decoded");
const TIMERS_PROMOTED: Metric =
    total("chronos_timers_promoted_total", "Timers of sessions that became events of their session");
const ALARMS: Metric = by(
    &[("status", statuses)],
    level(
        "chronos_alarms",
        Unit::Count,
        "Alarms by status, counted once a minute by one replica (estimated when there are many)",
    ),
);
const ALARMS_DUE: Metric = level(
    "chronos_alarms_due",
    Unit::Count,
    "Alarms that are due and not settled, those in flight included; told by one replica",
);
const OLDEST_DUE_AGE: Metric =
    level("chronos_oldest_due_age_seconds", Unit::Seconds, "How long the oldest alarm that is due has been so");
const DISPATCH_HELD: Metric = level("chronos_dispatch_held", Unit::Count, "1 while dispatch is held for maintenance");
const LEADER: Metric =
    by(&[("lease", || LEASES.to_vec())], level("chronos_leader", Unit::Count, "1 while this replica holds the lease"));
const CLOCK_SKEW: Metric = level(
    "chronos_database_clock_skew_seconds",
    Unit::Seconds,
    "How far this machine's clock is ahead of the database's, which alone decides what is due",
);
const DATABASE_REACHABLE: Metric =
    level("chronos_database_reachable", Unit::Count, "1 while the database answers this replica, whatever its roles");
const STATUS_LAG: Metric = spread(
    "chronos_status_lag_seconds",
    Unit::Seconds,
    LATENESS,
    "How long after a change in the database the resource's status told it",
);
const STATUSES_WRITTEN: Metric =
    total("chronos_statuses_written_total", "Statuses of Alarms and Agents that were sent to the API server");
const ORPHANS_SWEPT: Metric = total(
    "chronos_orphans_swept_total",
    "Alarms cancelled and agents removed because their resource was gone without a word",
);
const DUPLICATES: Metric = level(
    "chronos_alarms_duplicated",
    Unit::Count,
    "Alarms of this cluster that another cluster has too, under the same owner, namespace and name",
);
const STREAMS: Metric = level("chronos_streams", Unit::Count, "Streams of sessions that are open in this replica");
const STREAM_SENDS: Metric = by(
    &[("outcome", send_outcomes)],
    total("chronos_stream_sends_total", "Sends that went out over the stream of a session, by what became of them"),
);
const POOL: Metric = by(
    &[("pool", || POOLS.to_vec()), ("state", || POOL_STATES.to_vec())],
    level("chronos_pool_connections", Unit::Count, "Connections to the database, by pool and by what they are doing"),
);

const ALL: &[Metric] = &[
    WAKE_LATENESS,
    WAKE_DURATION,
    DELIVERIES,
    IN_FLIGHT,
    SETTLE_BATCH,
    CLAIMS_TAKEN,
    CLAIMS_RETURNED,
    CLAIMS_RELEASED,
    RESULTS_FENCED,
    SLOTS_MISSED,
    ALARMS_EXHAUSTED,
    ALARMS_UNREADABLE,
    TIMERS_PROMOTED,
    ALARMS,
    ALARMS_DUE,
    OLDEST_DUE_AGE,
    DISPATCH_HELD,
    LEADER,
    CLOCK_SKEW,
    DATABASE_REACHABLE,
    STATUS_LAG,
    STATUSES_WRITTEN,
    ORPHANS_SWEPT,
    DUPLICATES,
    STREAMS,
    STREAM_SENDS,
    POOL,
];

/// What renders the metrics for a scrape. The first call installs the recorder of the process; later ones get the same.
pub fn install() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || {
        let recorder = recorder();
        let handle = recorder.handle();
        if ::metrics::set_global_recorder(recorder).is_err() {
            warn!("this process records metrics elsewhere already: /metrics shows none that are counted from now on");
        }
        handle
    };
    HANDLE.get_or_init(install).clone()
}

/// A recorder that knows every metric, at zero.
pub fn recorder() -> PrometheusRecorder {
    let recorder = ALL.iter().fold(PrometheusBuilder::new(), with_buckets).build_recorder();
    ::metrics::with_local_recorder(&recorder, start_at_zero);
    recorder
}

fn with_buckets(builder: PrometheusBuilder, metric: &Metric) -> PrometheusBuilder {
    match metric.kind {
        Kind::Histogram(buckets) => builder
            .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
            .expect("the buckets of this file are not empty"),
        Kind::Counter | Kind::Gauge => builder,
    }
}

fn start_at_zero() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.unit, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.unit, metric.help),
            Kind::Histogram(_) => {
                describe_histogram!(metric.name, metric.unit, metric.help);
                let _registered = histogram!(metric.name);
            }
        }
    }
    for none in [claims_taken, claims_returned, claims_released, results_fenced, slots_missed, alarms_exhausted] {
        none(0);
    }
    alarms_unreadable(0);
    timers_promoted(0);
    for outcome in Outcome::ALL {
        counter!(DELIVERIES.name, "outcome" => outcome.as_str()).increment(0);
    }
    for status in Status::ALL {
        alarms(*status, 0);
    }
    for lease in LEASES {
        leader(lease, false);
    }
    for outcome in SendOutcome::ALL {
        counter!(STREAM_SENDS.name, "outcome" => outcome.as_str()).increment(0);
    }
    for controllers in [STATUSES_WRITTEN, ORPHANS_SWEPT] {
        counter!(controllers.name).increment(0);
    }
    duplicates(0);
    streams(0);
    in_flight(0);
    alarms_due(0);
    oldest_due_age(Duration::ZERO);
    dispatch_held(false);
    database_clock_skew(0.0);
    database_reachable(false);
}

/// A delivery was settled. `lateness` is that of the first attempt at an occurrence; a retry has none of its own.
pub fn delivery(outcome: Outcome, lateness: Option<Duration>, took: Duration) {
    counter!(DELIVERIES.name, "outcome" => outcome.as_str()).increment(1);
    histogram!(WAKE_DURATION.name).record(took.as_secs_f64());
    if let Some(lateness) = lateness {
        histogram!(WAKE_LATENESS.name).record(lateness.as_secs_f64());
    }
}

pub fn in_flight(now: usize) {
    gauge!(IN_FLIGHT.name).set(float(now as u64));
}

pub fn settle_batch(size: usize) {
    histogram!(SETTLE_BATCH.name).record(float(size as u64));
}

pub fn claims_taken(more: u64) {
    counter!(CLAIMS_TAKEN.name).increment(more);
}

pub fn claims_returned(more: u64) {
    counter!(CLAIMS_RETURNED.name).increment(more);
}

pub fn claims_released(more: u64) {
    counter!(CLAIMS_RELEASED.name).increment(more);
}

pub fn results_fenced(more: u64) {
    counter!(RESULTS_FENCED.name).increment(more);
}

pub fn timers_promoted(more: u64) {
    counter!(TIMERS_PROMOTED.name).increment(more);
}

pub fn slots_missed(more: u64) {
    counter!(SLOTS_MISSED.name).increment(more);
}

pub fn alarms_exhausted(more: u64) {
    counter!(ALARMS_EXHAUSTED.name).increment(more);
}

/// Rows that were claimed and cannot be decoded: alarms, which are parked, and timers, which stay on their last rung.
pub fn alarms_unreadable(more: u64) {
    counter!(ALARMS_UNREADABLE.name).increment(more);
}

pub fn alarms(status: Status, now: u64) {
    gauge!(ALARMS.name, "status" => status.as_str()).set(float(now));
}

pub fn alarms_due(now: u64) {
    gauge!(ALARMS_DUE.name).set(float(now));
}

pub fn oldest_due_age(age: Duration) {
    gauge!(OLDEST_DUE_AGE.name).set(age.as_secs_f64());
}

pub fn dispatch_held(held: bool) {
    gauge!(DISPATCH_HELD.name).set(f64::from(u8::from(held)));
}

/// `lease` is one of [`LEASES`].
pub fn leader(lease: &'static str, leads: bool) {
    gauge!(LEADER.name, "lease" => lease).set(f64::from(u8::from(leads)));
}

/// In seconds; positive when this machine's clock is ahead.
pub fn database_clock_skew(seconds: f64) {
    gauge!(CLOCK_SKEW.name).set(seconds);
}

pub fn database_reachable(reachable: bool) {
    gauge!(DATABASE_REACHABLE.name).set(f64::from(u8::from(reachable)));
}

pub fn status_lag(lag: Duration) {
    histogram!(STATUS_LAG.name).record(lag.as_secs_f64());
}

pub fn status_written() {
    counter!(STATUSES_WRITTEN.name).increment(1);
}

pub fn orphan_swept() {
    counter!(ORPHANS_SWEPT.name).increment(1);
}

pub fn duplicates(now: u64) {
    gauge!(DUPLICATES.name).set(float(now));
}

pub fn streams(now: usize) {
    gauge!(STREAMS.name).set(float(now as u64));
}

pub fn stream_send(outcome: SendOutcome) {
    counter!(STREAM_SENDS.name, "outcome" => outcome.as_str()).increment(1);
}

pub fn pool(role: &'static str, idle: u32, in_use: u32) {
    for (state, now) in POOL_STATES.into_iter().zip([idle, in_use]) {
        gauge!(POOL.name, "pool" => role, "state" => state).set(f64::from(now));
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and nobody has as many alarms")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_series_has_the_labels_that_are_told_of_it_and_all_of_their_values() {
        let recorder = recorder();
        ::metrics::with_local_recorder(&recorder, || POOLS.into_iter().for_each(|role| pool(role, 0, 0)));
        let text = recorder.handle().render();
        for metric in described().iter().filter(|metric| metric.kind != "histogram") {
            // Each value of each label with each of the others: `pool="api",state="idle"`.
            let mut told = vec![String::new()];
            for (name, values) in &metric.labels {
                let with = |one: &String| {
                    let comma = if one.is_empty() { "" } else { "," };
                    values.iter().map(|value| format!("{one}{comma}{name}=\"{value}\"")).collect::<Vec<_>>()
                };
                told = told.iter().flat_map(with).collect();
            }
            let series = text.lines().filter_map(|line| line.strip_prefix(metric.name)?.rsplit_once(' '));
            let labels = series.filter_map(|(labels, _)| match labels {
                "" => Some(""),
                labels => labels.strip_prefix('{')?.strip_suffix('}'),
            });
            let told: BTreeSet<&str> = told.iter().map(String::as_str).collect();
            assert_eq!(labels.collect::<BTreeSet<_>>(), told, "{}: {text}", metric.name);
        }
    }
}
