//! The means to say, after things broke, whether every promise was kept: a history from every side, and the [`checker`] that
//! reads it.

mod checker;
pub mod history;
