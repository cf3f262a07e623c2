//! What operators see: metrics, readiness, traces.

mod exposition;
mod metrics;
mod traces;
