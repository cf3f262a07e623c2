//! Store → router: claims what is due, delivers it, settles what became of it.
//!
//! ```text
//!           ┌──────────── wait (until the next due instant, at most a tick) ◄─┐
//!           ▼                                                                 │
//!   claim: one short statement stamps due rows with a fresh token             │
//!           │  each claim on its own task, no transaction open                │
//!           ▼                                                                 │
//!   deliver: POST to the router, one deadline ──► decide (domain::occurrence) │
//!           │                                                                 │
//!           ▼                                                                 │
//!   settle under the token: alarm and attempt row in one statement ───────────┘
//! ```
//!
//! The process may die at any line. Before the claim commits: nothing happened. After it, before the settle commits: the
//! claim's lease runs out and another dispatcher delivers the same occurrence under the same delivery id. After the
//! settle: done. A dispatcher that was frozen past its lease finds its token gone and changes nothing.

mod deliver;

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    domain::{
        ids::WorkerId,
        ladder::Ladder,
        occurrence::{self, Outcome},
    },
    router::Router,
    store::{self, Store, claims::Claim},
    telemetry::chain,
};

#[derive(Debug, Error)]
pub enum Error {
    #[error("looking for due alarms")]
    Look(#[from] store::Error),
}

/// Asked before every look: whether this replica claims, or leaves it to the one that was elected.
pub type MayClaim = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Clone, Debug)]
pub struct Limits {
    pub tick: Duration,
    pub lease: Duration,
    /// A wake must be able to finish inside its lease, or it is not sent.
    pub wake_timeout: Duration,
    pub batch: usize,
    pub concurrency: usize,
    /// How long a stop waits for deliveries in flight.
    pub shutdown: Duration,
}

/// One dispatcher: the only kind of task that talks to the router.
pub struct Dispatcher {
    store: Store,
    router: Router,
    ladder: Ladder,
    limits: Limits,
    worker: WorkerId,
}

/// The deliveries under way. Each says at its end when its alarm wants attention again.
#[derive(Default)]
pub struct Flights {
    tasks: JoinSet<Option<Instant>>,
}

/// A claim, and the moments that matter about it, on our monotonic clock.
struct Held {
    claim: Claim,
    /// Before the claim was sent: its lease runs from here at the latest.
    asked_at: Instant,
    /// When it was here: Postgres' time of the claim was no later than this.
    answered_at: Instant,
}

/// What one look found.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    pub claimed: usize,
    /// How long nothing new can become due, as far as is known.
    pub wait: Duration,
}

impl Dispatcher {
    pub fn new(store: Store, router: Router, ladder: Ladder, limits: Limits, worker: WorkerId) -> Arc<Self> {
        Arc::new(Self { store, router, ladder, limits, worker })
    }

    /// Looks, delivers and waits until told to stop; then finishes what is in flight.
    pub async fn run(self: Arc<Self>, may_claim: MayClaim, stop: CancellationToken) {
        let mut flights = Flights::default();
        while !stop.is_cancelled() {
            if !may_claim() {
                self.wait(self.limits.tick, &mut flights, &stop).await;
                continue;
            }
            let wait = match self.run_once(&mut flights).await {
                Ok(look) => look.wait,
                Err(error) => {
                    // The database is away. Alarms are safe there; look again with the next tick.
                    error!(error = %chain(&error), "cannot look for due alarms");
                    self.limits.tick
                }
            };
            self.wait(wait, &mut flights, &stop).await;
        }
        if tokio::time::timeout(self.limits.shutdown, flights.land()).await.is_err() {
            warn!("stopped with deliveries in flight; their leases will run out and another dispatcher takes them");
        }
    }

    /// Until it is time to look again, or, while there is no room for another claim, until there is. A delivery that lands
    /// is a reason to look only when its alarm wants attention sooner.
    async fn wait(&self, wait: Duration, flights: &mut Flights, stop: &CancellationToken) {
        let mut until = Instant::now() + wait;
        let full = flights.tasks.len() >= self.limits.concurrency;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(until), if !full => return,
                Some(landed) = flights.tasks.join_next() => {
                    until = Flights::wanted(landed).map_or(until, |wanted| until.min(wanted));
                    // Whatever else has landed makes room in the same go.
                    while let Some(landed) = flights.tasks.try_join_next() {
                        until = Flights::wanted(landed).map_or(until, |wanted| until.min(wanted));
                    }
                    if full {
                        return;
                    }
                }
            }
        }
    }

    /// Claims as much as there is room for and starts its delivery.
    pub async fn run_once(self: &Arc<Self>, flights: &mut Flights) -> Result<Look, Error> {
        let room = self.limits.concurrency.saturating_sub(flights.tasks.len()).min(self.limits.batch);
        if room == 0 {
            return Ok(Look { claimed: 0, wait: self.limits.tick });
        }
        let asked_at = Instant::now();
        let found = self.store.claim_due(self.worker, room, self.limits.lease).await?;
        let answered_at = Instant::now();
        let claimed = found.claims.len();
        for claim in found.claims {
            let (dispatcher, held) = (Arc::clone(self), Held { claim, asked_at, answered_at });
            flights.tasks.spawn(async move { dispatcher.attend(held).await });
        }
        for row in &found.unreadable {
            error!(alarm_id = %row.id, why = row.why, "alarm {} cannot be read and is parked as failed", row.id);
            if let Err(error) = self.store.park_under_token(row).await {
                // It comes back when its lease has run out.
                warn!(alarm_id = %row.id, error = %chain(&error), "alarm {} cannot be parked yet", row.id);
            }
        }
        let wait = if claimed + found.unreadable.len() == room {
            Duration::ZERO // there may be more
        } else {
            self.store.until_next_due().await?.unwrap_or(self.limits.tick).min(self.limits.tick)
        };
        debug!(claimed, ?wait, "looked for due alarms");
        Ok(Look { claimed, wait })
    }

    /// One claim, from here to its settle.
    async fn attend(&self, held: Held) -> Option<Instant> {
        let alarm_id = held.claim.wake.alarm_id;
        if held.asked_at.elapsed() + self.limits.wake_timeout > self.limits.lease {
            warn!(%alarm_id, "alarm {alarm_id}: the claim is too old to finish inside its lease and is given back");
            if let Err(error) = self.store.give_back_under_token(&held.claim).await {
                // The lease gives it back as well, later.
                warn!(%alarm_id, error = %chain(&error), "alarm {alarm_id}: the claim cannot be given back");
            }
            return None;
        }
        let delivered = deliver::deliver(&self.router, &self.ladder, &held).await;
        self.settle(&held, &delivered).await.then_some(delivered.wanted_at).flatten()
    }

    /// Tries until it is written or the lease has ended: after that another dispatcher has the alarm, and this answer is
    /// worth nothing. Says whether it was written.
    async fn settle(&self, held: &Held, delivered: &deliver::Delivered) -> bool {
        let (claim, alarm_id) = (&held.claim, held.claim.wake.alarm_id);
        loop {
            match self.store.settle_under_token(claim, self.worker, &delivered.next, &delivered.attempt).await {
                Ok(outcome) => {
                    report(claim, delivered, outcome);
                    return true;
                }
                Err(error) if held.asked_at.elapsed() + SETTLE_PAUSE < self.limits.lease => {
                    warn!(%alarm_id, error = %chain(&error), "alarm {alarm_id}: cannot settle yet");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    let error = chain(&error);
                    error!(%alarm_id, error, "alarm {alarm_id}: not settled within its lease; the same wake goes out again");
                    return false;
                }
            }
        }
    }
}

impl Flights {
    /// Waits until nothing is in flight.
    pub async fn land(&mut self) {
        while let Some(landed) = self.tasks.join_next().await {
            Self::wanted(landed);
        }
    }

    /// When the alarm of a delivery that has landed wants attention again. One that panicked leaves its claim to the lease;
    /// the others go on.
    fn wanted(landed: Result<Option<Instant>, JoinError>) -> Option<Instant> {
        landed.unwrap_or_else(|error| {
            error!(%error, "a delivery panicked; its lease will run out and it is tried again");
            None
        })
    }
}

/// What became of an attempt, for operators: the class of an error, not the router's words.
fn report(claim: &Claim, delivered: &deliver::Delivered, outcome: Outcome) {
    let (alarm_id, delivery_id, attempt) = (claim.wake.alarm_id, claim.wake.delivery_id, claim.wake.attempt);
    let error = occurrence::error_class(&delivered.attempt.error);
    match outcome {
        Outcome::Delivered => debug!(%alarm_id, %delivery_id, attempt, "alarm {alarm_id} delivered"),
        Outcome::Retrying => {
            info!(%alarm_id, %delivery_id, attempt, error, "alarm {alarm_id}: attempt {attempt} failed and is tried again");
        }
        Outcome::Exhausted => {
            warn!(%alarm_id, %delivery_id, attempt, error, "alarm {alarm_id}: given up after {attempt} attempts");
        }
        Outcome::Cancelled | Outcome::Fenced | Outcome::Missed | Outcome::Skipped => {
            let outcome = outcome.as_str();
            info!(%alarm_id, %delivery_id, attempt, outcome, "alarm {alarm_id}: the answer came too late to count");
        }
    }
}

/// Between two tries at a settle: long enough not to drum on a database that is coming up.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);
