//! Chronos wakes agents on time. An alarm goes in as YAML or over HTTP; at its instant a wake goes out to the agents'
//! router, at least once. Postgres is the only truth: the alarm's row *is* the timer.
//!
//! ```text
//! YAML ── controller ──┐                      ┌── attempts (history)
//!                      ├── store: alarms ─────┤
//! HTTP ── http ────────┘        ▲             └── dispatch ── router (POST /internal/wake)
//!                               └── status mirrored back to the Alarm by the controller
//! ```
//!
//! `controller`, `dispatch` and `http` never import each other: they meet in Postgres. `domain` decides and imports none of
//! them. `run` alone knows everybody.
//!
//! | module | what it is |
//! |---|---|
//! | [`domain`] | what decides, pure: schedules, the transition function, the ladder, DIDs and tokens |
//! | [`crd`] | the resources as users write them |
//! | [`store`] | the only SQL |
//! | [`controller`] | YAML → store, store → status |
//! | [`http`] | the agents' door |
//! | [`dispatch`] | store → router: claim, deliver, settle |
//! | [`router`] | client of the downstream router |
//! | [`upkeep`] | what somebody has to do now and then: partitions, retention, zone rules, gauges |
//! | [`config`], [`clock`], [`telemetry`] | settings, the machine's clock, logs, probes, metrics and traces |
//! | [`leader`] | election over a Kubernetes Lease: which replica claims, which one is the controller |
//! | [`run`] | the composition root |
//! | [`dev`] | everything on one machine, with nothing configured |
//! | [`cli`] | the commands |
//! | [`mutants`] | bugs and crashes on order, for the gauntlet; empty without the feature of that name |

pub mod cli;
pub mod clock;
pub mod config;
pub mod controller;
pub mod crd;
pub mod dev;
pub mod dispatch;
pub mod domain;
pub mod http;
pub mod leader;
pub mod mutants;
pub mod router;
pub mod run;
pub mod store;
pub mod telemetry;
pub mod upkeep;
