//! `/metrics` of a running process.

use std::collections::BTreeMap;

use super::exposition::{self, Family};
use crate::support::{Daemon, with_tls};

pub async fn scrape(daemon: &Daemon) -> BTreeMap<String, Family> {
    with_tls();
    let response = reqwest::get(format!("http://{}/metrics", daemon.probes)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    exposition::read(&response.text().await.unwrap())
}

/// What one series says, which is a whole number.
pub async fn count(daemon: &Daemon, name: &str, labels: &[(&str, &str)]) -> u64 {
    let families = scrape(daemon).await;
    let family = families.iter().rev().find(|(family, _)| name.starts_with(family.as_str())).expect(name).1;
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let value = family.series[&(name.to_owned(), labels)];
    value.to_string().parse().unwrap_or_else(|_| panic!("{name} is {value}"))
}
