//! A session's timer has come due: it becomes an event of its session, and the wake that tells the agent so is put into the outbox. One
//! transaction: the session is locked, the alarm is settled under its token, and only where that hit a row there is an event.
//! Exactly once, however often a promotion is tried.

use std::collections::HashSet;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{Attempt, Claim, Settlement, settle::record_lost};
use crate::{
    domain::{
        ids::{EventId, WorkerId},
        occurrence::Outcome,
        payload::Payload,
        session::{
            effect::{EffectType, dedupe_key},
            event::timer_payload,
        },
    },
    mutants::{self, Mutant},
    store::{Result, Store, wakes::Told},
};

/// A promotion, with all that is written when its claim still stands.
struct Promotion<'a> {
    claim: &'a Claim,
    attempt: &'a Attempt,
    session: &'a str,
    event: EventId,
    event_payload: String,
    /// What the wake says beside the event.
    told: String,
    dedupe_key: String,
}

impl Store {
    /// Promotes the timers of these claims. The answer are the outcomes as recorded, in the same order. Repeating it changes nothing and
    /// answers the same.
    pub async fn promote_under_token(
        &self,
        worker: WorkerId,
        settlements: &[(&Claim, &Settlement)],
    ) -> Result<Vec<Outcome>> {
        let mut promotions: Vec<Promotion<'_>> =
            settlements.iter().filter_map(|(claim, settlement)| Promotion::of(claim, settlement)).collect();
        promotions.sort_by_key(|promotion| promotion.claim.wake.alarm_id); // in one order for everybody who locks many
        let standing: HashSet<Uuid> = self
            .ask("promoting timers of sessions", async |db| {
                let mut transaction = db.begin().await?;
                lock_sessions(&mut transaction, &promotions).await?;
                let standing = promote(&mut transaction, worker, &promotions).await?;
                transaction.commit().await?;
                Ok(standing)
            })
            .await?;
        let mut lost = settlements.to_vec();
        lost.retain(|(claim, _)| !standing.contains(&claim.token.as_uuid()));
        let lost = if lost.is_empty() {
            std::collections::HashMap::new()
        } else {
            self.ask("recording fenced promotions", async |db| record_lost(db, &lost, worker).await).await?
        };
        let outcome = |claim: &Claim| {
            if standing.contains(&claim.token.as_uuid()) {
                return Outcome::Delivered;
            }
            lost.get(&claim.token).copied().unwrap_or(Outcome::Fenced)
        };
        Ok(settlements.iter().map(|(claim, _)| outcome(claim)).collect())
    }
}

impl<'a> Promotion<'a> {
    /// `None`: it is no session's timer, and nobody comes by here with one.
    fn of(claim: &'a Claim, settlement: &'a Settlement) -> Option<Self> {
        let timer = claim.session.as_ref()?;
        let attempt = settlement.attempt()?;
        let event = EventId::from_uuid(Uuid::now_v7());
        let told = Told::of(claim, &timer.timer_id).payload();
        let key = dedupe_key(&timer.session, &checkpoint_id(event), EffectType::Wake, 0, &told);
        Some(Self {
            claim,
            attempt,
            session: timer.session.as_str(),
            event,
            event_payload: timer_payload(&timer.timer_id, &claim.wake.payload),
            told: Payload::as_str(&told).to_owned(),
            dedupe_key: key,
        })
    }
}

/// What stands as the checkpoint of a wake: none asked for it.
fn checkpoint_id(event: EventId) -> String {
    format!("timer:{event}")
}

/// In one order for everybody who locks many.
async fn lock_sessions(db: &mut PgConnection, promotions: &[Promotion<'_>]) -> Result<(), sqlx::Error> {
    let keys: Vec<&str> = promotions.iter().map(|promotion| promotion.session).collect();
    sqlx::query("SELECT FROM sessions WHERE session_key = ANY ($1) ORDER BY session_key FOR UPDATE")
        .bind(keys)
        .execute(db)
        .await
        .map(|_| ())
}

/// The tokens of those whose claim still stood.
async fn promote(
    db: &mut PgConnection,
    worker: WorkerId,
    promotions: &[Promotion<'_>],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let milliseconds = |attempt: &Attempt| i64::try_from(attempt.duration.as_millis()).unwrap_or(i64::MAX);
    let unfenced = [
        (
            "AND alarms.claim_token = result.token AND alarms.schedule_epoch = result.epoch AND alarms.status = 'active'",
            "",
        ),
        ("status = 'fired',", "status = 'fired', cancelled_by = NULL,"),
        ("'delivered', $13 FROM promoted", "'delivered', $13 FROM promoted ON CONFLICT DO NOTHING"),
    ];
    let statement = mutants::changed(Mutant::PromoteTwice, include_str!("../sql/promote.sql"), &unfenced);
    let tokens: Vec<(Uuid,)> = sqlx::query_as(statement)
        .bind(promotions.iter().map(|one| one.claim.wake.alarm_id.as_uuid()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.claim.token.as_uuid()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.claim.epoch.0).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.event.as_uuid()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.event_payload.as_str()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| checkpoint_id(one.event)).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.told.as_str()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.dedupe_key.as_str()).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| one.claim.wake.delivery_id.as_uuid()).collect::<Vec<_>>())
        .bind(
            promotions.iter().map(|one| i32::try_from(one.claim.wake.attempt).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
        )
        .bind(promotions.iter().map(|one| one.attempt.started_at).collect::<Vec<_>>())
        .bind(promotions.iter().map(|one| milliseconds(one.attempt)).collect::<Vec<_>>())
        .bind(worker.as_uuid())
        .fetch_all(db)
        .await?;
    Ok(tokens.into_iter().map(|(token,)| token).collect())
}
