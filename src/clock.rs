//! The machine's clock is asked here and nowhere else (clippy insists).
//!
//! What is due is decided by Postgres' `now()` alone, and the instants in tables come from there too. This clock serves
//! what never meets a table: the expiry of principal tokens, the times of conditions in a resource's status, and when a wake
//! was sent, for its signature.

use std::sync::Arc;

use chrono::{DateTime, Utc};

pub trait Clock: Send + Sync {
    fn now(&self) -> DateTime<Utc>;
}

pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that asks")]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

pub fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}
