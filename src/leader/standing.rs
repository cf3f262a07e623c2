//! What the rest of the process is told about an election.

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// What this replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not known: before the first answer, after a deadline that was not met, and at the end.
    Undecided,
    /// Another leads.
    Following { holder: String },
    /// This one leads, unless `until` has passed.
    Leading { until: Instant },
    /// The Lease has not been reached for so long that nobody can say who leads.
    Unreachable,
}

impl Standing {
    pub fn leads(&self, now: Instant) -> bool {
        match self {
            Self::Leading { until } => now < *until,
            Self::Undecided | Self::Following { .. } | Self::Unreachable => false,
        }
    }

    /// Whether a dispatcher may claim: election narrows who does, it never stops claiming.
    pub fn may_claim(&self, now: Instant) -> bool {
        match self {
            Self::Leading { until } => now < *until,
            Self::Unreachable => true,
            Self::Undecided | Self::Following { .. } => false,
        }
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Following { .. } => "following",
            Self::Leading { .. } => "leading",
            Self::Unreachable => "unreachable",
        }
    }
}

/// An election, as those see it who depend on it.
#[derive(Clone, Debug)]
pub struct Leadership {
    standing: watch::Receiver<Standing>,
}

impl Leadership {
    pub fn new(standing: watch::Receiver<Standing>) -> Self {
        Self { standing }
    }

    pub fn standing(&mut self) -> Standing {
        self.standing.borrow_and_update().clone()
    }

    /// Whether a dispatcher may claim at this very moment. The deadline is looked at here, so that a process that was
    /// frozen past it does not act on what it believed before.
    pub fn may_claim(&self) -> bool {
        self.standing.borrow().may_claim(Instant::now())
    }

    /// Until the election says something new; for ever when it has ended.
    pub async fn changed(&mut self) {
        if self.standing.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Until this replica does not lead.
    pub async fn lost(&mut self) {
        loop {
            let Standing::Leading { until } = self.standing() else { return };
            tokio::select! {
                () = sleep_until(until) => {
                    // Unless it was renewed in this very moment.
                    if !self.standing().leads(Instant::now()) {
                        return;
                    }
                }
                () = self.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_may_claim() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let may = |standing: Standing| (standing.leads(now), standing.may_claim(now));
        assert_eq!(may(Standing::Undecided), (false, false));
        assert_eq!(may(Standing::Following { holder: "other".to_owned() }), (false, false));
        assert_eq!(may(Standing::Leading { until: later }), (true, true));
        assert_eq!(may(Standing::Leading { until: now }), (false, false), "deposed by its own clock");
        assert_eq!(may(Standing::Unreachable), (false, true));
    }
}
