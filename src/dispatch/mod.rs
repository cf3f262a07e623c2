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
use tracing::{debug, error, warn};

use crate::{
    domain::{ids::WorkerId, ladder::Ladder},
    router::Router,
    store::{self, Store, claims::Claim},
    telemetry::chain,
};

#[derive(Debug, Error)]
pub enum Error {
    #[error("looking for due alarms")]
    Look(#[from] store::Error),
}

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

/// The deliveries under way.
#[derive(Default)]
pub struct Flights {
    tasks: JoinSet<()>,
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
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut flights = Flights::default();
        while !stop.is_cancelled() {
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

    /// Until it is time to look again, or, while there is no room for another claim, until there is. Deliveries that land
    /// meanwhile are no reason to look.
    async fn wait(&self, wait: Duration, flights: &mut Flights, stop: &CancellationToken) {
        let until = Instant::now() + wait;
        let full = flights.tasks.len() >= self.limits.concurrency;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(until), if !full => return,
                landed = flights.tasks.join_next(), if !flights.tasks.is_empty() => {
                    Flights::report(landed);
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
        // The claim's age counts from before the statement was sent: never younger than Postgres thinks.
        let asked_at = Instant::now();
        let found = self.store.claim_due(self.worker, room, self.limits.lease).await?;
        for row in &found.unreadable {
            error!(alarm_id = %row.id, why = row.why, "alarm {} cannot be read and is parked as failed", row.id);
            self.store.park_under_token(row).await?;
        }
        let claimed = found.claims.len();
        for claim in found.claims {
            let dispatcher = Arc::clone(self);
            flights.tasks.spawn(async move { dispatcher.attend(claim, asked_at).await });
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
    async fn attend(&self, claim: Claim, asked_at: Instant) {
        if asked_at.elapsed() + self.limits.wake_timeout > self.limits.lease {
            warn!(alarm_id = %claim.wake.alarm_id, "alarm {}: the claim is too old to finish inside its lease and is given back", claim.wake.alarm_id);
            if let Err(error) = self.store.give_back_under_token(&claim).await {
                // The lease gives it back as well, later.
                warn!(alarm_id = %claim.wake.alarm_id, error = %chain(&error), "alarm {}: the claim cannot be given back", claim.wake.alarm_id);
            }
            return;
        }
        let delivered = deliver::deliver(&self.router, &self.ladder, &claim, asked_at).await;
        self.settle(&claim, &delivered, asked_at).await;
    }

    /// Tries until it is written or the lease has ended: after that another dispatcher has the alarm, and this answer is
    /// worth nothing.
    async fn settle(&self, claim: &Claim, delivered: &deliver::Delivered, asked_at: Instant) {
        let deliver::Delivered { next, attempt } = delivered;
        loop {
            match self.store.settle_under_token(claim, self.worker, next, attempt).await {
                Ok(outcome) => {
                    let (alarm_id, delivery_id) = (claim.wake.alarm_id, claim.wake.delivery_id);
                    debug!(%alarm_id, %delivery_id, outcome = outcome.as_str(), "alarm {alarm_id} settled");
                    return;
                }
                Err(error) if asked_at.elapsed() + SETTLE_PAUSE < self.limits.lease => {
                    warn!(alarm_id = %claim.wake.alarm_id, error = %chain(&error), "alarm {}: cannot settle yet", claim.wake.alarm_id);
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    error!(
                        alarm_id = %claim.wake.alarm_id, error = %chain(&error),
                        "alarm {}: not settled within its lease; the same wake goes out again", claim.wake.alarm_id
                    );
                    return;
                }
            }
        }
    }
}

impl Flights {
    /// Waits until nothing is in flight.
    pub async fn land(&mut self) {
        while let Some(landed) = self.tasks.join_next().await {
            Self::report(Some(landed));
        }
    }

    /// A delivery that panicked leaves its claim to the lease; the others go on.
    fn report(landed: Option<Result<(), JoinError>>) {
        if let Some(Err(error)) = landed {
            error!(%error, "a delivery panicked; its lease will run out and it is tried again");
        }
    }
}

/// Between two tries at a settle: long enough not to drum on a database that is coming up.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);
