//! Hints: "look into this session now". One connection to the database hears them for all streams of this process. A hint only shortens
//! a wait: one that is lost is found by the next look.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    domain::session::SessionKey,
    store::{Store, streams::SESSION_CHANGED},
    telemetry::chain,
};

/// After the connection for hints broke.
const RECONNECT: Duration = Duration::from_secs(1);
/// A connection that has been silent for so long may be dead without knowing it.
const SILENCE: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct Hub {
    /// The streams of a session: one as a rule, two while the newer takes over.
    bells: Mutex<HashMap<SessionKey, Vec<Arc<Notify>>>>,
}

/// Hears the hints of one session, also those that come while nobody waits.
pub struct Ear {
    hub: Arc<Hub>,
    key: SessionKey,
    bell: Arc<Notify>,
}

impl Hub {
    pub fn hear(self: &Arc<Self>, key: &SessionKey) -> Ear {
        let bell = Arc::new(Notify::new());
        self.bells().entry(key.clone()).or_default().push(Arc::clone(&bell));
        Ear { hub: Arc::clone(self), key: key.clone(), bell }
    }

    pub async fn listen(&self, store: &Store, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.listen_once(store) => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(RECONNECT) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Until the connection breaks.
    async fn listen_once(&self, store: &Store) {
        match store.listen(SESSION_CHANGED).await {
            Err(error) => {
                warn!(error = %chain(&error), "cannot listen for hints; streams look by themselves, once a minute");
            }
            Ok(mut listener) => {
                // Whatever was hinted at while nobody listened.
                self.ring_all();
                // `None` is a connection that broke: another is made by the caller, not behind our back, so that nothing is missed.
                while let Ok(Ok(Some(hint))) = tokio::time::timeout(SILENCE, listener.try_recv()).await {
                    self.ring(hint.payload());
                }
                debug!("the connection for hints broke, or was silent for long: another one");
            }
        }
    }

    /// Most hints are about sessions that have no stream here, or none at all.
    fn ring(&self, payload: &str) {
        let Ok(key) = payload.parse() else { return };
        for bell in self.bells().get(&key).into_iter().flatten() {
            bell.notify_one();
        }
    }

    fn ring_all(&self) {
        for bell in self.bells().values().flatten() {
            bell.notify_one();
        }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<SessionKey, Vec<Arc<Notify>>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ear {
    /// Waits for a hint. Several that came meanwhile are one.
    pub async fn hinted(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut bells = self.hub.bells();
        if let Some(of_session) = bells.get_mut(&self.key) {
            of_session.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if of_session.is_empty() {
                bells.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn heard(ear: &Ear) -> bool {
        ear.hinted().now_or_never().is_some()
    }

    #[test]
    fn a_hint_reaches_every_stream_of_its_session_and_no_other() {
        let hub = Arc::new(Hub::default());
        let (key, other) = ("ann:coach:1".parse().unwrap(), "ann:coach:2".parse().unwrap());
        let (older, newer, apart) = (hub.hear(&key), hub.hear(&key), hub.hear(&other));
        hub.ring("ann:coach:1");
        hub.ring("ann:coach:1");
        hub.ring("nonsense");
        assert!(heard(&older) && heard(&newer) && !heard(&apart));
        assert!(!heard(&older), "two that came while nobody waited are one");
        drop(older);
        hub.ring_all();
        assert!(heard(&newer) && heard(&apart));
        drop((newer, apart));
        assert!(hub.bells().is_empty(), "and nobody is remembered who is not there");
    }
}
