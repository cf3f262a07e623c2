//! Claims without a result: given back because the wake was not sent, taken from a dispatcher that is dead, or parked because
//! nobody can do anything with the row.

use std::time::Duration;

use sqlx::Row as _;

use super::Claim;
use crate::{
    domain::{
        ids::{AlarmId, ClaimToken, WorkerId},
        peers::Sighting,
    },
    store::{Result, Store},
};

/// A row that was claimed but with which nothing can be done, and why. It is parked, so that it neither stops the others nor
/// comes back with every claim.
#[derive(Debug)]
pub struct Unreadable {
    pub id: AlarmId,
    pub token: ClaimToken,
    pub why: String,
}

impl Store {
    /// Lets go of claims whose wakes were not sent; the alarms are due as before. Says how many still stood.
    pub async fn give_back_under_token(&self, claims: &[&Claim]) -> Result<u64> {
        let mut claims = claims.to_vec();
        claims.sort_by_key(|claim| claim.wake.alarm_id); // in one order for everybody who locks many
        let ids: Vec<_> = claims.iter().map(|claim| claim.wake.alarm_id.as_uuid()).collect();
        let tokens: Vec<_> = claims.iter().map(|claim| claim.token.as_uuid()).collect();
        self.ask("giving claims back", async |db| {
            sqlx::query(
                "UPDATE alarms SET claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL,
                        claims = greatest(claims - 1, 0), first_claimed_at = CASE WHEN claims > 1 THEN first_claimed_at END
                 FROM unnest($1::uuid[], $2::uuid[]) AS claim (id, token)
                 WHERE alarms.id = claim.id AND alarms.claim_token = claim.token",
            )
            .bind(ids)
            .bind(tokens)
            .execute(db)
            .await
            .map(|done| done.rows_affected())
        })
        .await
    }

    /// Takes the claims of a dispatcher that was found dead at this count of beats, and forgets it. One that has beaten since is
    /// not dead, and keeps them. The answer is how many were taken; `None`: it lives, or somebody else was faster.
    pub async fn release_if_still_at(&self, dead: &Sighting) -> Result<Option<u64>> {
        self.ask("taking a dead dispatcher's claims", async |db| {
            let row = sqlx::query(
                "WITH dead AS (
                     SELECT worker FROM dispatchers WHERE worker = $1 AND beats = $2 AND started_at = $3 FOR UPDATE
                 ), held AS (
                     -- What is claimed is due: found by alarms_due_idx. What was paused meanwhile wants no delivery.
                     SELECT alarms.id FROM alarms JOIN dead ON claimed_by = dead.worker
                     WHERE status = 'active' AND next_fire_at <= now()
                 ), free AS MATERIALIZED (
                     -- Nobody is waited for: our own beats and claims come after this.
                     SELECT alarms.id FROM alarms JOIN dead ON claimed_by = dead.worker
                     WHERE status = 'active' AND next_fire_at <= now()
                     FOR UPDATE OF alarms SKIP LOCKED
                 ), released AS (
                     UPDATE alarms SET claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL
                     FROM free WHERE alarms.id = free.id RETURNING alarms.id
                 ), wakes AS MATERIALIZED (
                     SELECT effects.id FROM effects JOIN dead ON claimed_by = dead.worker
                     WHERE status = 'executing' AND type = 'wake'
                     FOR UPDATE OF effects SKIP LOCKED
                 ), freed AS (
                     -- Of sessions: they are due as before. One that is passed over here runs out.
                     UPDATE effects SET status = 'pending', updated_at = now(),
                            claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
                     FROM wakes WHERE effects.id = wakes.id
                 ), forgotten AS (
                     -- While somebody holds on to a row of it, it is found dead again with the next beat.
                     DELETE FROM dispatchers USING dead
                     WHERE dispatchers.worker = dead.worker
                       AND (SELECT count(*) FROM held) = (SELECT count(*) FROM free)
                 )
                 SELECT (SELECT count(*) FROM dead) AS dead, (SELECT count(*) FROM released) AS released",
            )
            .bind(dead.worker.as_uuid())
            .bind(dead.beats)
            .bind(dead.started_at)
            .fetch_one(db)
            .await?;
            let (dead, released): (i64, i64) = (row.try_get("dead")?, row.try_get("released")?);
            Ok((dead > 0).then(|| released.unsigned_abs()))
        })
        .await
    }

    /// Lets go of this worker's claims but those in `known`: the answer to a claim was lost, or the worker stops. Some may have
    /// been sent: what is known of the occurrence stays, so that the same wake goes out again. Says how many there were.
    pub async fn release_claims_of(&self, worker: WorkerId, known: &[ClaimToken]) -> Result<u64> {
        let known: Vec<_> = known.iter().map(|token| token.as_uuid()).collect();
        self.ask("letting go of claims", async |db| {
            sqlx::query(
                "WITH free AS MATERIALIZED (
                     -- What somebody holds on to is found with the next beat, or by the lease.
                     SELECT id FROM alarms
                     WHERE claimed_by = $1 AND claim_token <> ALL ($2) AND status = 'active' AND next_fire_at <= now()
                     FOR UPDATE SKIP LOCKED
                 )
                 UPDATE alarms SET claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL
                 FROM free WHERE alarms.id = free.id",
            )
            .bind(worker.as_uuid())
            .bind(known)
            .execute(db)
            .await
            .map(|done| done.rows_affected())
        })
        .await
    }

    /// Parks rows with which nothing can be done, each with its reason, where their owners see it. A timer is owed for as long as it
    /// takes: it waits for `timers_wait` and is tried again.
    pub async fn park_under_token(&self, worker: WorkerId, rows: &[Unreadable], timers_wait: Duration) -> Result<()> {
        self.ask("parking alarms", async |db| {
            sqlx::query(include_str!("../sql/park.sql"))
                .bind(rows.iter().map(|row| row.id.as_uuid()).collect::<Vec<_>>())
                .bind(rows.iter().map(|row| row.token.as_uuid()).collect::<Vec<_>>())
                .bind(rows.iter().map(|row| row.why.clone()).collect::<Vec<_>>())
                .bind(timers_wait.as_secs_f64())
                .bind(super::RESOURCE_CHANGED)
                .bind(worker.as_uuid())
                .execute(db)
                .await
                .map(|_| ())
        })
        .await
    }
}
