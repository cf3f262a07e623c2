//! What operators see: metrics, readiness, traces.

mod database;
mod exposition;
mod metrics;
mod probes;
pub mod scrape;
mod traces;
