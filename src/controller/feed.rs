//! Hints from the database: "the row of this resource has changed". A hint lost is found by the resync.

use std::time::Duration;

use futures::channel::mpsc::{Receiver, Sender, channel as bounded};
use kube::runtime::reflector::ObjectRef;
use tracing::{debug, warn};

use crate::{
    crd::Alarm,
    domain::ids::ClusterId,
    store::{Store, claims::RESOURCE_CHANGED},
    telemetry::chain,
};

/// Hints waiting for the reconciler. More are dropped: they are only hints.
const WAITING: usize = 1024;
const RECONNECT: Duration = Duration::from_secs(1);

/// What one watch hears.
pub type Hints = Receiver<ObjectRef<Alarm>>;
/// A watch's scope (one namespace, or all) and where its hints go.
pub type Subscriber = (Option<String>, Sender<ObjectRef<Alarm>>);

pub fn channel() -> (Sender<ObjectRef<Alarm>>, Hints) {
    bounded(WAITING)
}

/// Listens until dropped, through every outage of the database. One connection serves all watches.
pub async fn listen(store: &Store, cluster: ClusterId, mut subscribers: Vec<Subscriber>) {
    loop {
        match store.listen(RESOURCE_CHANGED).await {
            Err(error) => {
                warn!(error = %chain(&error), "cannot listen for database changes; statuses wait for the resync");
            }
            Ok(mut listener) => loop {
                match listener.recv().await {
                    Ok(hint) => {
                        for (scope, hints) in &mut subscribers {
                            let concerned = parse(hint.payload(), cluster, scope.as_deref());
                            if concerned.is_some_and(|object| hints.try_send(object).is_err()) {
                                debug!("too many hints at once; the resync finds what is dropped");
                            }
                        }
                    }
                    Err(error) => {
                        warn!(%error, "the connection for hints broke");
                        break;
                    }
                }
            },
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// `<cluster id>/<namespace>/<name>`; other clusters' and other namespaces' hints are not for us.
fn parse(payload: &str, cluster: ClusterId, scope: Option<&str>) -> Option<ObjectRef<Alarm>> {
    let mut parts = payload.split('/');
    let (theirs, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = theirs.parse() == Ok(cluster) && scope.is_none_or(|scope| scope == namespace);
    ours.then(|| ObjectRef::new(name).within(namespace))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn only_hints_about_our_own_resources_are_heard() {
        let cluster = ClusterId::from_uuid(Uuid::from_u128(1));
        let hint = format!("{cluster}/trading/daily");
        assert_eq!(parse(&hint, cluster, None), Some(ObjectRef::new("daily").within("trading")));
        assert_eq!(parse(&hint, cluster, Some("trading")), Some(ObjectRef::new("daily").within("trading")));
        assert_eq!(parse(&hint, cluster, Some("other")), None);
        assert_eq!(parse(&hint, ClusterId::from_uuid(Uuid::from_u128(2)), None), None);
        assert_eq!(parse("nonsense", cluster, None), None);
    }
}
