//! How the router behaves.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Takes every wake at once.
    Well,
    /// Takes it after so many milliseconds.
    Slow(u64),
    /// Answers this status.
    Fails(u16),
    /// Reads the wake, and resets the connection.
    Resets,
    /// Takes it, in megabytes of words.
    Huge,
}
