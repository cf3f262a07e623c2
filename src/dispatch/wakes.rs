//! Wakes of sessions: claimed from the outbox, delivered as alarms are, settled under their token. Whoever claims alarms claims these.
//!
//! Looked for when a promotion has put some there, when a rung is due, when a dead peer's are free, and every few ticks besides: so
//! whatever nobody told us of is found. The same statement frees sends whose replica died. An idle dispatcher pays next to nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::{debug, error, info, warn};

use super::Dispatcher;
use crate::{
    domain::{
        ids::{ClaimToken, EffectId},
        occurrence::{Answer, Outcome, error_class},
        trace::Trace,
    },
    mutants::{self, Point},
    store::{
        STATEMENT_TIMEOUT,
        wakes::{WakeClaim, WakeFate, WakeResult, WakeRoom},
    },
    telemetry::{chain, metrics, traces::Span},
};

/// As many of the slots as wakes of sessions may take besides those of alarms.
const SHARE: usize = 2;
/// Ticks between two looks that nobody asked for.
const FALLBACK_TICKS: u32 = 10;
/// Between two tries to write results while the database is away.
const PAUSE: Duration = Duration::from_millis(500);
/// A wake that was claimed this often without a result is given up: whoever delivers it dies or freezes.
const MOST_UNANSWERED: u32 = 20;

/// What is in hand. All of it can be lost with the process: the table knows every claim.
#[derive(Default)]
struct Hand {
    flights: JoinSet<Landed>,
    /// What is in flight, and whose.
    flying: HashMap<Id, (ClaimToken, String)>,
    /// Answered, and to be written until their lease ends.
    results: Vec<(WakeResult, Instant)>,
    /// Until then claims may turn up as ours that nobody here knows of.
    lost_until: Option<Instant>,
}

struct Landed {
    result: WakeResult,
    holds_until: Instant,
}

/// Until the dispatcher stops; then until what is in flight has landed.
pub async fn run(dispatcher: Arc<Dispatcher>, mut claiming: watch::Receiver<bool>) {
    let mut hand = Hand::default();
    let mut look_at = Instant::now();
    loop {
        let stopping = dispatcher.stop.is_cancelled();
        if stopping && hand.flights.is_empty() && hand.results.is_empty() {
            return;
        }
        let may_claim = dispatcher.limits.sessions && !stopping && *claiming.borrow();
        if may_claim && look_at <= Instant::now() {
            look_at = dispatcher.look_for_wakes(&mut hand).await;
        }
        let write_at = (!hand.results.is_empty()).then(|| Instant::now() + PAUSE);
        tokio::select! {
            () = dispatcher.stop.cancelled(), if !stopping => {}
            () = sleep_until(look_at), if may_claim => {}
            () = dispatcher.wakes_waiting.notified(), if may_claim => look_at = Instant::now(),
            // Gone with the loop that says so, which stops.
            changed = claiming.changed(), if !stopping && claiming.has_changed().is_ok() => drop(changed),
            Some(landed) = hand.flights.join_next_with_id() => {
                hand.land(landed);
                while let Some(landed) = hand.flights.try_join_next_with_id() {
                    hand.land(landed);
                }
                // There is room again.
                look_at = look_at.min(Instant::now() + super::GATHER);
            }
            () = sleep_until(write_at.unwrap_or_else(Instant::now)), if write_at.is_some() => {}
        }
        dispatcher.write_wakes(&mut hand).await;
    }
}

impl Hand {
    fn land(&mut self, landed: Result<(Id, Landed), JoinError>) {
        let id = match landed {
            Ok((id, Landed { result, holds_until })) => {
                self.results.push((result, holds_until));
                id
            }
            Err(error) => {
                if error.is_panic() {
                    error!(%error, "a delivery panicked; its claim is let go, and it is tried again");
                }
                self.lose();
                error.id()
            }
        };
        self.flying.remove(&id);
    }

    /// A claim may stand as ours with nobody here to know of it, for as long as Postgres may still carry out what was asked of it.
    fn lose(&mut self) {
        self.lost_until = Some(Instant::now() + STATEMENT_TIMEOUT * 2);
    }

    fn tokens(&self) -> Vec<ClaimToken> {
        let flying = self.flying.values().map(|(token, _)| *token);
        flying.chain(self.results.iter().map(|(result, _)| result.token)).collect()
    }

    /// Owners that have some in flight, and how many more each may have.
    fn owners(&self, most: usize) -> Vec<(String, usize)> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (_, owner) in self.flying.values() {
            *counts.entry(owner).or_default() += 1;
        }
        counts.into_iter().map(|(owner, count)| (owner.to_owned(), most.saturating_sub(count))).collect()
    }
}

impl Dispatcher {
    /// Claims as many as there is room for, and starts their delivery. Says when to look again.
    async fn look_for_wakes(self: &Arc<Self>, hand: &mut Hand) -> Instant {
        let tick_at = Instant::now() + self.limits.tick * FALLBACK_TICKS;
        let most = (self.limits.concurrency / SHARE).max(1).min(self.limits.batch);
        let room = most.saturating_sub(hand.flights.len());
        if room == 0 {
            return tick_at;
        }
        // Peers that saw no beat of ours are about to take what we claim.
        if self.pulse.is_lost() {
            return Instant::now() + self.limits.tick;
        }
        if hand.lost_until.is_some() {
            match self.store.release_wakes_of(self.worker, &hand.tokens()).await {
                Ok(_) => hand.lost_until = hand.lost_until.filter(|until| Instant::now() < *until),
                Err(error) => warn!(error = %chain(&error), "cannot let go of wakes whose claim was lost yet"),
            }
        }
        let of_owner = self.limits.owner_concurrency;
        let wanted = WakeRoom { wakes: room, of_owner, owners: hand.owners(of_owner) };
        let asked_at = Instant::now();
        let found = match self.store.claim_wakes(self.worker, self.limits.lease, &wanted).await {
            Ok(found) => found,
            Err(error) => {
                error!(error = %chain(&error), "cannot look for wakes of sessions");
                hand.lose();
                return Instant::now() + self.limits.tick;
            }
        };
        let answered_at = Instant::now();
        let holds_until = asked_at + self.limits.lease;
        let claimed = found.claims.len() + found.unreadable.len();
        for row in found.unreadable {
            error!(effect_id = %row.id, why = row.why, "wake {} cannot be read, and is given up", row.id);
            let fate = WakeFate::Failed { why: format!("cannot be read: {}", row.why).chars().take(300).collect() };
            hand.results.push((WakeResult { id: row.id, token: row.token, fate }, holds_until));
        }
        for claim in found.claims {
            let flight = (claim.token, claim.wake.owner_did.clone());
            let dispatcher = Arc::clone(self);
            let task = hand.flights.spawn(async move {
                let result = dispatcher.deliver_wake(claim, asked_at, answered_at).await;
                Landed { result, holds_until }
            });
            hand.flying.insert(task.id(), flight);
        }
        if claimed == room {
            // There may be more; whatever lands makes room for it.
            return answered_at + super::GATHER;
        }
        found.next_in.map_or(tick_at, |wait| tick_at.min(answered_at + wait.max(super::GATHER)))
    }

    async fn deliver_wake(&self, claim: WakeClaim, asked_at: Instant, answered_at: Instant) -> WakeResult {
        let WakeClaim { id, token, claimed_at, due_at, failure_count, unanswered, wake } = claim;
        if let Some(why) = self.must_not_send(asked_at) {
            warn!(effect_id = %id, why, "wake {id}: not sent, and given back: {why}");
            return WakeResult { id, token, fate: WakeFate::NotSent };
        }
        if unanswered > MOST_UNANSWERED {
            let why = format!(
                "given up: claimed {MOST_UNANSWERED} times without a result; whatever delivers it ends or hangs"
            );
            error!(effect_id = %id, "wake {id}: {why}");
            return WakeResult { id, token, fate: WakeFate::Failed { why } };
        }
        let trace = Trace::of(&wake.correlation_id, wake.delivery_id, rand::random());
        let span = Span::begin(&trace, &wake, claimed_at, answered_at);
        let started = Instant::now();
        let answer = self.router.wake(&wake, &trace).await;
        let took = started.elapsed();
        mutants::point(Point::Answered);
        let (fate, outcome) = self.wake_fate(&answer, failure_count);
        log(id, failure_count + 1, outcome, answer.error());
        let lateness = (claimed_at - due_at).to_std().unwrap_or_default() + started.duration_since(answered_at);
        metrics::delivery(outcome, (failure_count == 0 && unanswered == 1).then_some(lateness), took);
        span.end(outcome, answer.http_status());
        WakeResult { id, token, fate }
    }

    fn wake_fate(&self, answer: &Answer, failures: u32) -> (WakeFate, Outcome) {
        let failed = |why: &str| (WakeFate::Failed { why: why.to_owned() }, Outcome::Exhausted);
        let retry = |why: &str, retry_after| {
            let after = self.ladder.wait(failures, retry_after, rand::random());
            (WakeFate::Retry { after, why: why.to_owned() }, Outcome::Retrying)
        };
        match answer {
            Answer::Accepted { .. } => (WakeFate::Completed, Outcome::Delivered),
            Answer::Gone { why } | Answer::Unavailable { why, .. } if failures >= self.limits.max_failures => {
                failed(why)
            }
            // Nobody home gives up an agent's alarm at once. What happened in a session is told for as long as the ladder has rungs.
            Answer::Gone { why } => retry(why, None),
            Answer::Unavailable { why, retry_after, .. } => retry(why, *retry_after),
        }
    }

    /// Writes results, if it can be done now; those whose lease has ended are worth nothing any more.
    async fn write_wakes(&self, hand: &mut Hand) {
        hand.results.retain(|(result, holds_until)| {
            let holds = Instant::now() < *holds_until;
            if !holds {
                let id = result.id;
                error!(effect_id = %id, "wake {id}: not settled within its lease; the same wake goes out again");
            }
            holds
        });
        if hand.results.is_empty() {
            return;
        }
        let results: Vec<WakeResult> = hand.results.iter().map(|(result, _)| result.clone()).collect();
        match self.store.settle_wakes_under_token(&results).await {
            Ok(settled) => {
                mutants::point(Point::Settled);
                metrics::results_fenced((results.len() as u64).saturating_sub(settled));
                hand.results.clear();
            }
            // The database refuses one of them, or somebody holds on to it: that one keeps no other waiting.
            Err(error) if results.len() > 1 && (!error.is_away() || error.is_timeout()) => {
                warn!(waiting = results.len(), error = %chain(&error), "wakes of sessions are settled one by one");
                let mut left = Vec::new();
                for (result, holds_until) in std::mem::take(&mut hand.results) {
                    if let Err(error) = self.store.settle_wakes_under_token(std::slice::from_ref(&result)).await {
                        let id = result.id;
                        error!(effect_id = %id, error = %chain(&error), "wake {id}: cannot be settled yet");
                        left.push((result, holds_until));
                    }
                }
                hand.results = left;
            }
            Err(error) => warn!(waiting = results.len(), error = %chain(&error), "cannot settle wakes of sessions yet"),
        }
    }
}

/// What became of a try, for operators: the class of an error, not the router's words.
fn log(effect_id: EffectId, attempt: u32, outcome: Outcome, error: &str) {
    let (error, word) = (error_class(error), outcome.as_str());
    match outcome {
        Outcome::Exhausted => warn!(%effect_id, attempt, error, "wake {effect_id}: given up after {attempt} attempts"),
        Outcome::Retrying => {
            info!(%effect_id, attempt, error, "wake {effect_id}: attempt {attempt} failed and is tried again");
        }
        Outcome::Delivered | Outcome::Missed | Outcome::Skipped | Outcome::Cancelled | Outcome::Fenced => {
            debug!(%effect_id, attempt, word, "wake {effect_id} {word}");
        }
    }
}
