//! The rig's own tests: that the checker names what is wrong and nothing else, and the simulation.

#![expect(dead_code, unused_imports, reason = "who writes logs and prints verdicts is not in this target")]

mod checker;
#[cfg(test)]
#[path = "checker/tests/mod.rs"]
mod checker_tests;
mod log;
mod simulation;
#[cfg(test)]
#[path = "simulation/tests.rs"]
mod simulation_tests;
