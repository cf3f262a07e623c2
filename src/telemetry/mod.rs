//! What operators see: log lines, probes, metrics, traces.

pub mod metrics;
pub mod probes;
pub mod traces;

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// Logs go to stderr: for people when it is a terminal, as JSON otherwise.
pub fn init(filter: &str) -> anyhow::Result<()> {
    // Unless asked for: Postgres' notices are of no use, and kube's client logs whole answers, alarms' messages included.
    let quiet = format!("sqlx::postgres::notice=warn,kube_client=error,{filter}");
    let filter = EnvFilter::try_new(quiet).with_context(|| {
        format!("CHRONOS_LOG is {filter:?}; expected a filter such as info or info,chronos::dispatch=debug")
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    if std::io::stderr().is_terminal() {
        registry.with(fmt::layer().with_writer(std::io::stderr)).init();
    } else {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).init();
    }
    Ok(())
}

/// An error with all its causes, for the one line that logs it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Some libraries repeat their source in their own words.
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
