//! How many alarms an owner has, counted under a lock of the owner's own, so that of two that ask for the last place one gets it.
//! Whoever needs both takes this lock before any row's.

use sqlx::PgConnection;

use crate::domain::{access::Did, quota::Exceeded, quota::Quotas};

/// From here to the end of the transaction nobody else adds to the owner's living alarms. Nothing is locked for an owner without a limit.
pub(super) async fn lock_owner(db: &mut PgConnection, owner: &Did, quotas: &Quotas) -> Result<(), sqlx::Error> {
    if quotas.max_active_alarms.is_none() {
        return Ok(());
    }
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('chronos: alarms of ' || $1, 0))")
        .bind(owner.as_str())
        .execute(db)
        .await
        .map(|_| ())
}

/// Whether the owner may have one more. The caller holds the owner's lock.
pub(super) async fn admit_one_more(
    db: &mut PgConnection,
    owner: &Did,
    quotas: &Quotas,
) -> Result<Result<(), Exceeded>, sqlx::Error> {
    if quotas.max_active_alarms.is_none() {
        return Ok(Ok(()));
    }
    Ok(quotas.admit_one_more(living(db, owner).await?))
}

/// How many of the owner's alarms are active or paused. Two counts, each by an index of its own.
pub(super) async fn living(db: &mut PgConnection, owner: &Did) -> Result<u64, sqlx::Error> {
    let count: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND status = 'active')
              + (SELECT count(*) FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND status = 'paused')",
    )
    .bind(owner.as_str())
    .fetch_one(db)
    .await?;
    Ok(count.unsigned_abs())
}
