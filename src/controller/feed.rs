//! Hints from the database: "the row of this resource has changed". What changed while nobody listened is asked for afterwards; a hint
//! that is lost all the same is found by the resync.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::Context;
use crate::{domain::ids::ClusterId, store::claims::RESOURCE_CHANGED, telemetry::chain};

const RECONNECT: Duration = Duration::from_secs(1);
/// What was written before we stopped hearing may have been committed later; and a connection may be dead for a while before it breaks.
const MARGIN: Duration = Duration::from_secs(30);

/// Listens until dropped, through every outage of the database. One connection serves all watches.
pub async fn listen(context: &Context) {
    // Reconciles begin while the first connection is made: what comes of them until then is asked for, too.
    let mut deaf_since = Instant::now();
    loop {
        match context.store.listen(RESOURCE_CHANGED).await {
            Err(error) => {
                warn!(error = %chain(&error), "cannot listen for database changes; statuses wait for the resync");
            }
            Ok(mut listener) => {
                catch_up(context, deaf_since.elapsed() + MARGIN).await;
                // `None` is a connection that broke: another is made by this loop, not behind our back, so that nothing is missed.
                while let Ok(Some(hint)) = listener.try_recv().await {
                    if let Some((namespace, name)) = parse(hint.payload(), context.cluster) {
                        context.scopes.ring(namespace, name).await;
                    }
                }
                deaf_since = Instant::now();
                warn!("the connection for hints broke");
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// What changed while nobody listened.
async fn catch_up(context: &Context, ago: Duration) {
    match context.store.resources_changed_within(context.cluster, ago).await {
        Ok(changed) => {
            debug!(count = changed.len(), "resources whose rows changed while nobody listened");
            for (namespace, name) in changed {
                context.scopes.ring(&namespace, &name).await;
            }
        }
        Err(error) => warn!(error = %chain(&error), "cannot ask what changed meanwhile; the resync finds it"),
    }
}

/// `<cluster id>/<namespace>/<name>`; other clusters' hints are not for us.
fn parse(payload: &str, cluster: ClusterId) -> Option<(&str, &str)> {
    let mut parts = payload.split('/');
    let (theirs, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    (theirs.parse() == Ok(cluster)).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn only_hints_about_our_own_resources_are_heard() {
        let cluster = ClusterId::from_uuid(Uuid::from_u128(1));
        let hint = format!("{cluster}/trading/daily");
        assert_eq!(parse(&hint, cluster), Some(("trading", "daily")));
        assert_eq!(parse(&hint, ClusterId::from_uuid(Uuid::from_u128(2))), None);
        assert_eq!(parse("nonsense", cluster), None);
    }
}
