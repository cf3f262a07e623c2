//! When to look next: at the next due instant, with the next tick or beat, or when a hint says that an alarm is due sooner.
//! Hints only shorten a wait. Nothing is lost with one.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::{
    store::{Store, hints},
    telemetry::chain,
};

/// After the connection for hints broke.
const RECONNECT: Duration = Duration::from_secs(1);

/// The earliest instant that somebody hinted at.
#[derive(Default)]
struct Earliest {
    at: Mutex<Option<Instant>>,
    changed: Notify,
}

pub struct Hints {
    earliest: Arc<Earliest>,
    _listener: Option<AbortOnDropHandle<()>>,
}

impl Hints {
    /// Listens until dropped, through every outage of the database; `None`: nobody does, and the tick finds everything.
    pub fn listen(store: Option<Store>) -> Self {
        let earliest = Arc::new(Earliest::default());
        let heard = Arc::clone(&earliest);
        let listener =
            store.map(|store| AbortOnDropHandle::new(tokio::spawn(async move { hear(&store, &heard).await })));
        Self { earliest, _listener: listener }
    }

    /// Takes a hint at what is due by now, if there is one.
    pub fn take_due(&self, now: Instant) -> bool {
        let mut at = self.earliest.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.take_if(|at| *at <= now).is_some()
    }

    /// Waits for a hint, and takes it: when an alarm is due.
    pub async fn next(&self) -> Instant {
        loop {
            let changed = self.earliest.changed.notified();
            if let Some(at) = self.earliest.at.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return at;
            }
            changed.await;
        }
    }
}

async fn hear(store: &Store, earliest: &Earliest) {
    loop {
        match store.listen(hints::ALARM_DUE).await {
            Err(error) => warn!(error = %chain(&error), "cannot listen for hints; alarms are found by the tick"),
            Ok(mut listener) => loop {
                match listener.recv().await {
                    Ok(hint) => {
                        let Some(wait) = hints::parse(hint.payload()) else { continue };
                        let due_at = Instant::now() + wait;
                        let mut at = earliest.at.lock().unwrap_or_else(PoisonError::into_inner);
                        *at = Some(at.map_or(due_at, |at| at.min(due_at)));
                        drop(at);
                        earliest.changed.notify_one();
                    }
                    Err(error) => {
                        debug!(%error, "the connection for hints broke");
                        break;
                    }
                }
            },
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hint_at_what_is_due_is_taken_at_once_and_one_at_what_is_ahead_is_waited_for() {
        const AHEAD: Duration = Duration::from_secs(1);
        let (hints, now) = (Hints::listen(None), Instant::now());
        *hints.earliest.at.lock().unwrap() = Some(now + AHEAD);
        assert!(!hints.take_due(now));
        assert!(hints.take_due(now + AHEAD));
        assert!(!hints.take_due(now + AHEAD), "once");
    }
}
