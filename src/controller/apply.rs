//! The row in Postgres becomes what the resource says.

use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::{
    Context, Error,
    status::Report,
    validate::{Refused, Valid},
};
use crate::{
    crd::{Alarm, Mistake, condition::reason},
    domain::{alarm::Draft, ids::ResourceUid},
    store::resources::{Applied, Desired, Identity},
};

pub async fn apply(context: &Context, alarm: &Alarm, valid: &Valid) -> Report {
    let identity = identity(context, alarm, valid.uid);
    let hash = fingerprint(valid);
    let desired = Desired {
        identity: &identity,
        generation: valid.generation,
        owner: &valid.owner,
        definition: &valid.definition,
        hash: &hash,
        created_at: valid.created_at,
    };
    match context.store.apply_resource(&desired).await {
        Ok(Applied::Stored(stored)) => Report::Stored(stored),
        Ok(Applied::NeverFires) => {
            let message = Mistake::never_fires().to_string();
            refuse(context, alarm, Refused { reason: reason::INVALID_SCHEDULE, message }).await
        }
        Err(error) => Report::Failed(error),
    }
}

/// Nothing is written for what is refused; what was stored before, if anything, goes on and is reported as it is.
pub async fn refuse(context: &Context, alarm: &Alarm, refused: Refused) -> Report {
    let Some(uid) = alarm.uid().and_then(|uid| uid.parse().ok()) else {
        return Report::Refused { refused, stored: None };
    };
    match context.store.find_resource(&identity(context, alarm, uid)).await {
        Ok(stored) => Report::Refused { refused, stored: stored.map(Box::new) },
        Err(error) => Report::Failed(error),
    }
}

fn identity(context: &Context, alarm: &Alarm, uid: ResourceUid) -> Identity {
    Identity { cluster: context.cluster, uid, namespace: alarm.namespace().unwrap_or_default(), name: alarm.name_any() }
}

/// Before the finalizer lets go.
pub async fn cancel(context: &Context, alarm: &Alarm) -> Result<(), Error> {
    let name = alarm.name_any();
    let uid = alarm.uid().and_then(|uid| uid.parse().ok()).ok_or_else(|| Error::NoIdentity(name.clone()))?;
    context.store.cancel_resource(context.cluster, uid).await.map_err(|source| Error::Store { name, source })
}

/// What the row was made from. Length-prefixed, so that no two definitions share one.
fn fingerprint(valid: &Valid) -> [u8; 32] {
    let definition = &valid.definition;
    let draft = Draft::of(definition);
    let number = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
    let parts = [
        valid.owner.to_string(),
        draft.label,
        serde_json::to_string(&draft.labels).expect("a map of texts is JSON"),
        draft.fire_at.unwrap_or_default(),
        draft.cron_expr.unwrap_or_default(),
        draft.timezone.unwrap_or_default(),
        draft.starts_at.unwrap_or_default(),
        draft.ends_at.unwrap_or_default(),
        number(draft.spread_seconds),
        draft.misfire.unwrap_or_default(),
        number(draft.max_lateness_seconds),
        draft.conversation_id,
        draft.wake_message,
        draft.payload.unwrap_or_default(),
        number(draft.max_failures),
    ];
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
