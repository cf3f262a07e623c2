//! Results to the table, in batches: whatever comes in within a few milliseconds, or while the last batch was being written, makes the next
//! one. When that is a whole batch and more, two are written at once: while one waits for the disk, the other has its turn.
//!
//! The database may be away: a batch is tried again until the leases of its claims have ended. After that another dispatcher
//! has the alarm, and this answer is worth nothing. The database may refuse a batch because of one row in it. If somebody holds on to
//! rows, the others are written without them; else each row is written by itself, and one that is refused even so keeps nobody waiting.
//!
//! Two of these run side by side: one for what was answered, one for timers of sessions, whose promotion waits for the session's lock.
//! Nobody else's result waits with it.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, error, info, warn};

use super::{Dispatcher, GATHER};
use crate::{
    domain::{
        alarm::Subject,
        ids::{AlarmId, ClaimToken},
        occurrence::{self, Outcome},
    },
    mutants::{self, Point},
    store::{
        self,
        claims::{Claim, Settlement},
    },
    telemetry::{chain, metrics, traces::Span},
};

/// Rows of one statement: what a claim takes at most by default.
const BATCH: usize = 500;
/// Batches of answers under way at once, while there are whole ones. They share no row: a claim has one result.
pub const AT_ONCE: usize = 2;
/// Between two tries: long enough not to drum on a database that is coming up.
const PAUSE: Duration = Duration::from_millis(500);

/// A claim whose result is known.
pub struct Finished {
    pub claim: Box<Claim>,
    pub settlement: Settlement,
    /// Until then the claim holds, on our clock.
    pub holds_until: Instant,
    /// When its alarm wants attention again, on our clock.
    pub wanted_at: Option<Instant>,
    /// How long after its effective instant a first attempt was sent.
    pub lateness: Option<Duration>,
    /// Of what was sent.
    pub span: Option<Span>,
}

/// What is in the table now, or given up.
pub struct Written {
    pub tokens: Vec<ClaimToken>,
    /// When the first of their alarms wants attention again.
    pub wanted_at: Option<Instant>,
}

/// Writes results until no more can come, so many batches at once.
pub async fn run(
    dispatcher: Arc<Dispatcher>,
    at_once: usize,
    mut results: UnboundedReceiver<Finished>,
    written: UnboundedSender<Written>,
) {
    let mut waiting = Vec::with_capacity(BATCH);
    let mut under_way = FuturesUnordered::new();
    // From the first that waits on: those of a few milliseconds go together. Nobody waits for it, the wakes have gone out.
    let mut gathered_at = Instant::now();
    // Refused even by themselves: tried again now and then, beside the others.
    let mut stubborn: Vec<Finished> = Vec::new();
    let mut trying_again = FuturesUnordered::new();
    let mut retry_at = Instant::now();
    let mut open = true;
    loop {
        let now = Instant::now();
        // One at a time means those that are tried again, too.
        let may_begin = at_once > 1 || trying_again.is_empty();
        // A batch by itself, as long as that will do; beside it another that is full.
        let is_worth_it = match under_way.len() {
            0 => waiting.len() >= BATCH || !waiting.is_empty() && gathered_at <= now,
            batches => batches < at_once && waiting.len() >= BATCH,
        };
        if may_begin && is_worth_it {
            let batch = waiting.drain(..waiting.len().min(BATCH)).collect();
            under_way.push(dispatcher.write_until_settled(batch, &written));
            continue;
        }
        let may_try_again = !stubborn.is_empty() && trying_again.is_empty() && (at_once > 1 || under_way.is_empty());
        if may_try_again && retry_at <= now {
            trying_again.push(dispatcher.write_again(std::mem::take(&mut stubborn), &written));
            continue;
        }
        if !open && waiting.is_empty() && under_way.is_empty() && stubborn.is_empty() && trying_again.is_empty() {
            return;
        }
        tokio::select! {
            received = results.recv_many(&mut waiting, BATCH), if open => {
                open = received > 0;
                if waiting.len() == received {
                    gathered_at = Instant::now() + GATHER;
                }
            }
            Some(left) = under_way.next() => {
                // Those that wait already do not wait longer because of others.
                if stubborn.is_empty() {
                    retry_at = Instant::now() + PAUSE;
                }
                stubborn.extend(left);
            }
            Some(left) = trying_again.next() => {
                stubborn.extend(left);
                retry_at = Instant::now() + PAUSE;
            }
            () = sleep_until(gathered_at), if may_begin && under_way.is_empty() && !waiting.is_empty() => {}
            () = sleep_until(retry_at), if may_try_again => {}
        }
    }
}

/// Results whose lease has ended are worth nothing any more.
fn give_up_what_is_lost(batch: &mut Vec<Finished>, written: &UnboundedSender<Written>) {
    let now = Instant::now();
    let (holding, lost): (Vec<_>, Vec<_>) = batch.drain(..).partition(|result| result.holds_until > now);
    *batch = holding;
    for result in &lost {
        let alarm_id = result.claim.wake.alarm_id;
        error!(%alarm_id, "alarm {alarm_id}: not settled within its lease; the same wake goes out again");
    }
    let tokens: Vec<ClaimToken> = lost.iter().map(|result| result.claim.token).collect();
    if !tokens.is_empty() {
        drop(written.send(Written { tokens, wanted_at: None }));
    }
}

impl Dispatcher {
    /// Writes a batch, however often that has to be tried. The answer are those that somebody holds on to, or that are refused even by themselves.
    async fn write_until_settled(&self, mut batch: Vec<Finished>, written: &UnboundedSender<Written>) -> Vec<Finished> {
        while !batch.is_empty() {
            match self.write(&mut batch).await {
                Ok(done) => drop(written.send(done)), // nobody listens any more: the dispatcher has stopped
                // Many at once that get no answer may be waiting for one row that somebody holds on to.
                Err(error) if error.is_away() && !(error.is_timeout() && batch.len() > 1) => {
                    warn!(waiting = batch.len(), error = %chain(&error), "cannot settle yet");
                    give_up_what_is_lost(&mut batch, written);
                    sleep(PAUSE).await;
                }
                Err(error) => {
                    warn!(rows = batch.len(), error = %chain(&error), "a batch of results was refused; it is settled in parts");
                    return self.write_apart(&mut batch, written).await;
                }
            }
        }
        Vec::new()
    }

    /// Writes what was refused by itself once before, if nobody holds on to it any more. The answer are those that must wait on.
    async fn write_again(&self, mut stubborn: Vec<Finished>, written: &UnboundedSender<Written>) -> Vec<Finished> {
        give_up_what_is_lost(&mut stubborn, written);
        let mut left = self.set_aside_held(&mut stubborn).await;
        left.extend(self.write_each(&mut stubborn, written).await);
        left
    }

    /// Writes a batch that was refused as it was. The answer are those that must wait.
    async fn write_apart(&self, batch: &mut Vec<Finished>, written: &UnboundedSender<Written>) -> Vec<Finished> {
        let mut left = self.set_aside_held(batch).await;
        // Also when nobody holds on to anything any more: what stood in the way may be gone.
        if !batch.is_empty() {
            match self.write(batch).await {
                Ok(done) => drop(written.send(done)),
                Err(error) => warn!(rows = batch.len(), error = %chain(&error), "each result is settled by itself"),
            }
        }
        left.extend(self.write_each(batch, written).await);
        left
    }

    /// Takes those out whose row somebody holds on to, or whose session's; all of them if nobody can say.
    async fn set_aside_held(&self, batch: &mut Vec<Finished>) -> Vec<Finished> {
        let alarms: Vec<AlarmId> = batch.iter().map(|result| result.claim.wake.alarm_id).collect();
        match self.store.held_by_others(&alarms).await {
            Ok(held) => batch.extract_if(.., |result| held.contains(&result.claim.wake.alarm_id)).collect(),
            Err(error) => {
                warn!(rows = batch.len(), error = %chain(&error), "cannot tell which results can be settled yet");
                std::mem::take(batch)
            }
        }
    }

    /// Writes each by itself. The answer are those that were refused, and, if the database has gone away, the rest.
    async fn write_each(&self, batch: &mut Vec<Finished>, written: &UnboundedSender<Written>) -> Vec<Finished> {
        let mut left = Vec::new();
        let mut away = false;
        for result in batch.drain(..) {
            if away {
                left.push(result);
                continue;
            }
            let alarm_id = result.claim.wake.alarm_id;
            let mut alone = vec![result];
            match self.write(&mut alone).await {
                Ok(done) => drop(written.send(done)),
                Err(error) => {
                    error!(%alarm_id, error = %chain(&error), "alarm {alarm_id}: cannot be settled yet");
                    away = error.is_away() && !error.is_timeout();
                    left.append(&mut alone);
                }
            }
        }
        left
    }

    /// Writes a batch, and empties it.
    async fn write(&self, batch: &mut Vec<Finished>) -> store::Result<Written> {
        let settlements: Vec<(&Claim, &Settlement)> =
            batch.iter().map(|result| (&*result.claim, &result.settlement)).collect();
        // Timers of sessions come by a channel of their own: a batch is all of one kind.
        let outcomes = match batch.first().map(|result| result.claim.subject) {
            Some(Subject::Session) => {
                let outcomes = self.store.promote_under_token(self.worker, &settlements).await?;
                self.wakes_waiting.notify_one();
                outcomes
            }
            Some(Subject::Agent | Subject::ServiceCall) | None => {
                self.store.settle_under_token(self.worker, &settlements).await?
            }
        };
        mutants::point(Point::Settled);
        metrics::settle_batch(batch.len());
        let tokens = batch.iter().map(|result| result.claim.token).collect();
        let wanted_at = batch.iter().filter_map(|result| result.wanted_at).min();
        for (result, outcome) in batch.drain(..).zip(outcomes) {
            log(&result, outcome);
            count(result, outcome);
        }
        Ok(Written { tokens, wanted_at })
    }
}

fn count(result: Finished, outcome: Outcome) {
    let Finished { claim, settlement, lateness, span, .. } = result;
    let standing = !matches!(outcome, Outcome::Cancelled | Outcome::Fenced);
    if standing {
        metrics::slots_missed(settlement.slots_missed());
    } else {
        metrics::results_fenced(1);
    }
    if outcome == Outcome::Exhausted {
        metrics::alarms_exhausted(1);
    }
    if claim.subject == Subject::Session {
        // Nothing went out: its wake is counted when that does.
        metrics::timers_promoted(u64::from(standing));
    } else if let Some(attempt) = settlement.attempt() {
        metrics::delivery(outcome, lateness, attempt.duration);
        if let Some(span) = span {
            span.end(outcome, attempt.http_status);
        }
    }
}

/// What became of an attempt, for operators: the class of an error, not the router's words.
fn log(result: &Finished, outcome: Outcome) {
    let wake = &result.claim.wake;
    let (alarm_id, delivery_id, attempt) = (wake.alarm_id, wake.delivery_id, wake.attempt);
    let error = result.settlement.attempt().map_or("", |attempt| occurrence::error_class(&attempt.error));
    match outcome {
        Outcome::Delivered => debug!(%alarm_id, %delivery_id, attempt, "alarm {alarm_id} delivered"),
        Outcome::Retrying => {
            info!(%alarm_id, %delivery_id, attempt, error, "alarm {alarm_id}: attempt {attempt} failed and is tried again");
        }
        Outcome::Exhausted => {
            warn!(%alarm_id, %delivery_id, attempt, error, "alarm {alarm_id}: given up after {attempt} attempts");
        }
        Outcome::Missed | Outcome::Skipped => {
            info!(%alarm_id, %delivery_id, "alarm {alarm_id}: its instant was seen too late to fire");
        }
        Outcome::Cancelled | Outcome::Fenced => {
            let outcome = outcome.as_str();
            info!(%alarm_id, %delivery_id, attempt, outcome, "alarm {alarm_id}: the answer came too late to count");
        }
    }
}
