//! `metrics.md`: every metric, with the values that its labels may have.

use super::{code, head, table};
use crate::telemetry::metrics::{Described, described};

pub fn page() -> String {
    let about = "\
`GET /metrics` on port 9097 (`CHRONOS_METRICS_PORT`) of every replica, in the text format of Prometheus; it never asks the database. Labels
come from closed sets: no ids, no owners. Every series is there from the start, with its zero, whatever the replica's roles; only of
`chronos_pool_connections` there are those of the pools that it has. A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and
`NAME_count`.
";
    let rows: Vec<Vec<String>> = described().iter().map(row).collect();
    format!("{}\n{}", head("Metrics", about), table(&["metric", "kind", "labels", "meaning"], &rows))
}

fn row(metric: &Described) -> Vec<String> {
    let labels = metric.labels.iter().map(|(name, values)| {
        let values: Vec<String> = values.iter().map(|value| code(value)).collect();
        format!("{}: {}", code(name), values.join(", "))
    });
    vec![code(metric.name), metric.kind.to_owned(), labels.collect::<Vec<_>>().join("; "), metric.help.to_owned()]
}
