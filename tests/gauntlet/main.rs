//! The gauntlet: a rig that tries to break every promise of the design, and says which held.
//!
//! ```text
//! driver ── proxies ── replicas ── proxies ── Postgres, API server ── sink
//!    │         ▲           ▲                      ▲                     │
//!    │         └───────────┴─────── nemesis ──────┴─────────────────────┤
//!    ▼                                 ▼                                ▼
//! calls.jsonl                    faults.jsonl                      wakes.jsonl     + tables and resources at rest
//!    └─────────────────────────────────┴──── checker ◄──────────────────┴────────────────────┘
//! ```
//!
//! `run` makes a [`world`], lets the [`driver`] work on it and the [`nemesis`] break it, heals it, waits until it is at rest and
//! hands what was written down ([`log`]) to the [`checker`]. `check` reads such a directory again. `mutants` does the same with builds
//! that have a known bug, which the checker must find. `simulate` plays thousands of small worlds in memory.

mod arguments;
mod checker;
mod driver;
mod log;
mod mutants;
mod nemesis;
mod report;
mod run;
mod simulation;
mod sink;
mod world;

use std::process::ExitCode;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let Some(arguments) = Arguments::from_command_line() else { return ExitCode::SUCCESS };
    rustls::crypto::ring::default_provider().install_default().expect("nobody else sets one");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be had");
    match runtime.block_on(obey(arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gauntlet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every promise held.
async fn obey(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.command {
        Command::Run(setting) => run::batches(&setting).await,
        Command::Mutants { setting, names } => run::mutants(&setting, &names).await,
        Command::Check { directories } => run::again(&directories),
        Command::Simulate { seeds, from, flaw } => {
            Ok(report::simulated(&simulation::simulate(from..from + seeds, flaw)))
        }
        Command::Sink { directory } => sink::main(&directory).await.map(|()| true),
    }
}
