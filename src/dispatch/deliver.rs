//! One delivery: the wake goes out, the answer decides what comes next.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tracing::warn;

use super::{Dispatcher, desk::Landed, settle::Finished};
use crate::{
    domain::{
        alarm::Subject,
        ids::DeliveryId,
        occurrence::{self, Answer, Next, Settled},
        trace::Trace,
    },
    mutants::{self, Mutant, Point},
    store::claims::{Attempt, Claim, Settlement},
    telemetry::{chain, metrics, traces::Span},
};

/// What is left of a lease after the longest wake must be enough to write its result. Less than the configuration asks for between
/// wake timeout and lease, or nothing could ever be sent.
const SETTLE: Duration = Duration::from_secs(1);

/// A claim, and the moments that matter about it, on our monotonic clock.
pub struct Held {
    /// In one place from here to its settle: tasks, channels and batches hand it on.
    pub claim: Box<Claim>,
    /// Before the claim was sent: its lease runs from here at the latest.
    pub asked_at: Instant,
    /// When it was here: Postgres' time of the claim was no later than this.
    pub answered_at: Instant,
}

impl Dispatcher {
    /// One claim, from here to its result. A claim that must not be sent any more is let go.
    pub(super) async fn deliver(&self, held: Held) -> Landed {
        if let Some(why) = self.must_not_send(held.asked_at) {
            // Boxed: it is seldom, and every delivery would have room for its statement.
            let returned = Box::pin(self.give_back(&[&held.claim], why)).await;
            return if returned { Landed::NotSent } else { Landed::Lost };
        }
        let finished = self.wake(held).await;
        mutants::point(Point::Answered);
        // The settler ends after us, or with the process.
        drop(self.results.send(finished));
        Landed::Answered
    }

    /// Why a wake must not go out, though its claim, asked for then, is in hand.
    pub(super) fn must_not_send(&self, asked_at: Instant) -> Option<&'static str> {
        if self.stop.is_cancelled() {
            Some("the dispatcher stops")
        } else if asked_at.elapsed() + self.limits.wake_timeout + SETTLE > self.limits.lease {
            Some("the claim is too old to finish inside its lease")
        } else if self.pulse.is_lost() {
            // Peers that saw no beat of ours are about to take this claim.
            Some("the database has not taken our beats")
        } else {
            None
        }
    }

    /// Says whether Postgres heard of it.
    pub(super) async fn give_back(&self, claims: &[&Claim], why: &'static str) -> bool {
        for alarm_id in claims.iter().map(|claim| claim.wake.alarm_id) {
            warn!(%alarm_id, why, "alarm {alarm_id}: not sent, and given back: {why}");
        }
        match self.store.give_back_under_token(claims).await {
            Ok(returned) => {
                metrics::claims_returned(returned);
                true
            }
            Err(error) => {
                warn!(claims = claims.len(), error = %chain(&error), "claims cannot be given back yet");
                false
            }
        }
    }

    async fn wake(&self, held: Held) -> Finished {
        let Held { mut claim, asked_at, answered_at } = held;
        if mutants::on(Mutant::NewId) {
            claim.wake.delivery_id = DeliveryId::from_uuid(uuid::Uuid::new_v4());
        }
        // Instants are Postgres' own: the claim's, plus what our stopwatch has run since it was here. A little behind the
        // truth, never ahead: no slot is passed over because our clock ran fast.
        let by_postgres =
            |instant: Instant| -> DateTime<Utc> { claim.claimed_at + instant.duration_since(answered_at) };
        let trace = Trace::of(&claim.wake.correlation_id, claim.wake.delivery_id, rand::random());
        let span = Span::begin(&trace, &claim.wake, claim.claimed_at, answered_at);
        let started = Instant::now();
        let answer = if mutants::on(Mutant::DropRow) && mutants::one_in(50) {
            Answer::Accepted { http_status: 200 }
        } else {
            self.router.wake(&claim.wake, &trace).await
        };
        if mutants::on(Mutant::DoubleSend) && mutants::one_in(30) {
            drop(self.router.wake(&claim.wake, &trace).await);
        }
        let ended = Instant::now();
        let answer = if counts_as_delivered(&claim, &answer) { Answer::Accepted { http_status: 200 } } else { answer };
        let now = by_postgres(ended);
        let attempt = Attempt {
            started_at: by_postgres(started),
            duration: ended.duration_since(started),
            http_status: answer.http_status(),
            error: answer.error().to_owned(),
        };
        let mut occurrence = claim.occurrence();
        if mutants::on(Mutant::AdvanceFromNow) {
            occurrence.series_at = now;
        }
        if mutants::on(Mutant::GivesUpEarly) {
            occurrence.max_failures = 0;
        }
        let mut settled = occurrence::next(&occurrence, &answer, &self.ladder, now, rand::random());
        if let Next::Retry { at, .. } = &mut settled.next {
            // Behind the truth by no more than the claim took on its way: a receiver that asked for time is given all of it.
            *at += answered_at.duration_since(asked_at);
        }
        let settlement = Settlement::answered(&claim, settled, now, attempt);
        // In the past: at once.
        let wanted_at = settlement.wanted_at().map(|at| ended + (at - now).to_std().unwrap_or_default());
        // A retry's instant is of our own making. Counted from before the claim was sent: at most a round trip too much.
        let lateness = (claim.failure_count == 0)
            .then(|| (claim.claimed_at - claim.due_at).to_std().unwrap_or_default() + started.duration_since(asked_at));
        let holds_until = asked_at + self.limits.lease;
        Finished { claim, settlement, holds_until, wanted_at, lateness, span: Some(span) }
    }

    /// What a session's timer comes to: it is promoted, or its claim is lost.
    pub(super) fn promotion(&self, held: Held) -> Finished {
        let Held { claim, asked_at, answered_at } = held;
        let now = claim.claimed_at + answered_at.elapsed();
        let attempt = Attempt { started_at: now, duration: Duration::ZERO, http_status: None, error: String::new() };
        let settled = Settled { next: Next::Fired, passed: None, missed: 0 };
        let settlement = Settlement::answered(&claim, settled, now, attempt);
        let holds_until = asked_at + self.limits.lease;
        Finished { claim, settlement, holds_until, wanted_at: None, lateness: None, span: None }
    }
}

/// Never, but of mutants.
fn counts_as_delivered(claim: &Claim, answer: &Answer) -> bool {
    let failed = answer.http_status().is_some_and(|status| status >= 500);
    let is_weary = claim.subject == Subject::ServiceCall && claim.failure_count >= 2;
    (mutants::on(Mutant::FailureCountsAsFired) && failed) || (mutants::on(Mutant::TimerGivenUp) && is_weary)
}
