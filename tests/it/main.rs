//! Behaviour on real parts: a real Postgres, a real API server, real processes, real HTTP. One binary, so that all tests
//! share one Postgres server and one API server per run; every test has its own database and namespace in them.

#![expect(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]

mod architecture;
mod bad_input;
mod chart;
mod cli;
mod controller;
mod dev;
mod dispatch;
mod faults;
mod gauntlet;
mod gitops;
mod guides;
mod http;
mod leader;
mod parsers;
mod process;
mod rbac;
mod router;
mod sessions;
mod store;
mod support;
mod telemetry;
mod testbed;
mod upkeep;
