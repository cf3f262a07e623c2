//! The router of a run: a process of its own, outside the blast. What it says it has, it has on disk.
//!
//! ```text
//! replica ── POST /internal/wake/{incarnation} ──▶ Arrived ──▶ fdatasync ──▶ Reacted ──▶ answer
//! rig ────── POST /behave, /catch/{incarnation} ─▶ how it answers, and a word when a wake is here
//! ```

use chrono::{DateTime, Utc};

mod disk;
mod handle;
mod line;
mod mode;
mod server;

pub use handle::Handle;
pub use mode::Mode;
pub use server::main;

/// The true time, whatever clocks the replicas have.
#[expect(clippy::disallowed_methods, reason = "the rig's clock is the machine's")]
fn now() -> DateTime<Utc> {
    Utc::now()
}
