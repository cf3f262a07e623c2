//! What an owner may do, seen where it is done. How many alarms an owner has is counted under a lock of the owner's own, so that of two
//! that ask for the last place one gets it; and whether the owner is still enrolled is asked once more, under a lock that a suspension, a
//! removal or a rotation has to wait for: a request may have been let in long before its body came.
//!
//! Order of locks: the owner's, the agent's row, alarms by their ids.

use sqlx::PgConnection;

use crate::domain::{
    access::{self, Did},
    quota::{Exceeded, Quotas},
};

/// What the owner behind a request may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct May {
    pub quotas: Quotas,
    /// Also one that is not enrolled may: on developers' machines.
    pub unenrolled: bool,
}

/// From here to the end of the transaction nobody else adds to the living alarms of an owner with a limit, and nobody suspends or removes
/// the agent. `false`: it is not let in any more.
pub(super) async fn admit(db: &mut PgConnection, owner: &Did, may: &May) -> Result<bool, sqlx::Error> {
    hold_count(db, owner, &may.quotas).await?;
    is_let_in(db, owner, may).await
}

/// From here to the end of the transaction nobody else adds to the living alarms of an owner with a limit.
pub(in crate::store) async fn hold_count(
    db: &mut PgConnection,
    owner: &Did,
    quotas: &Quotas,
) -> Result<(), sqlx::Error> {
    if quotas.max_active_alarms.is_none() {
        return Ok(());
    }
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('chronos: alarms of ' || $1, 0))")
        .bind(owner.as_str())
        .execute(db)
        .await
        .map(|_| ())
}

/// Whether the owner is enrolled and not suspended. Holds the row until the transaction ends.
pub(super) async fn is_let_in(db: &mut PgConnection, owner: &Did, may: &May) -> Result<bool, sqlx::Error> {
    let suspended: Option<bool> = sqlx::query_scalar("SELECT suspended FROM agents WHERE did = $1 FOR SHARE")
        .bind(owner.as_str())
        .fetch_optional(db)
        .await?;
    Ok(access::is_let_in(suspended, may.unenrolled))
}

/// Whether the owner may have one more. The caller holds the owner's lock.
pub(in crate::store) async fn admit_one_more(
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
pub(in crate::store) async fn living(db: &mut PgConnection, owner: &Did) -> Result<u64, sqlx::Error> {
    let count: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND status = 'active')
              + (SELECT count(*) FROM alarms WHERE owner_did = $1 AND subject = 'agent' AND status = 'paused')",
    )
    .bind(owner.as_str())
    .fetch_one(db)
    .await?;
    Ok(count.unsigned_abs())
}
