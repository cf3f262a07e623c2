//! What came out.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use crate::log::Kind;

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
    /// Everything the log has about it, in order of time.
    pub timeline: Vec<String>,
}

impl Violation {
    pub fn print(&self) -> String {
        let mut text = format!("{}: {}\n", self.rule, self.what);
        for line in &self.timeline {
            let _ = writeln!(text, "    {line}");
        }
        text
    }
}

#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Why the run says nothing: a kind of fault that never struck, say.
    pub invalid: Vec<String>,
    pub counts: Counts,
    pub recovery: Vec<Recovery>,
}

impl Verdict {
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.invalid.is_empty()
    }

    /// How often each rule was broken.
    pub fn by_rule(&self) -> BTreeMap<&'static str, usize> {
        let mut rules = BTreeMap::new();
        for violation in &self.violations {
            *rules.entry(violation.rule).or_default() += 1;
        }
        rules
    }

    /// The whole of it, with the timelines of the first few violations of each rule, and many more by name.
    pub fn print(&self) -> String {
        const SHOWN: usize = 3;
        const NAMED: usize = 100;
        let mut text = String::new();
        for why in &self.invalid {
            let _ = writeln!(text, "invalid: {why}");
        }
        for (rule, count) in self.by_rule() {
            let _ = writeln!(text, "{rule}: {count}");
            let mut violations = self.violations.iter().filter(|one| one.rule == rule);
            for violation in violations.by_ref().take(SHOWN) {
                text.push_str(&violation.print());
            }
            for violation in violations.take(NAMED) {
                let _ = writeln!(text, "{rule}: {}", violation.what);
            }
        }
        text.push_str(&self.counts.print());
        for recovery in &self.recovery {
            let _ = writeln!(text, "{}", recovery.print());
        }
        text
    }
}

/// What faults of a kind cost those who wait for wakes.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub kind: Kind,
    /// For each, how long it took until wakes were on time again.
    pub again: Times,
    /// For each, how late the latest wake came that was due while it lasted, or under way when it struck.
    pub latest: Times,
    /// Faults that others were in the way of.
    pub among_others: usize,
}

impl Recovery {
    pub const fn of(kind: Kind) -> Self {
        Self { kind, again: Times::NONE, latest: Times::NONE, among_others: 0 }
    }

    pub fn add(&mut self, other: &Self) {
        self.again.0.extend(&other.again.0);
        self.latest.0.extend(&other.latest.0);
        self.among_others += other.among_others;
    }

    pub fn print(&self) -> String {
        let (name, count) = (self.kind.name(), self.again.0.len());
        format!("{name:<28} {count:>4}   on time again after {}, latest wake {}", self.again, self.latest)
    }
}

/// Times, in no order.
#[derive(Clone, Debug, PartialEq)]
pub struct Times(pub Vec<Duration>);

impl Times {
    const NONE: Self = Self(Vec::new());

    pub fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    pub fn worst(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} s (worst {:.2} s)", self.median().as_secs_f64(), self.worst().as_secs_f64())
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What the run was made of.
        #[derive(Clone, Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: usize,)*
        }

        impl Counts {
            pub fn each(&self) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counts! {
    faults,
    calls,
    /// Calls of which nobody knows whether they were done.
    unknown,
    refused,
    /// By way.
    alarms,
    http_alarms,
    resource_alarms,
    /// Calls that were registered, as often as it was asked for; and timers that stand at the end.
    service_calls,
    service_call_timers,
    session_timers,
    /// Owed: what became due or was planned, of alarms that certainly exist. The sum of the six below.
    occurrences,
    /// Occurrences whose wake was taken and counted.
    fires,
    exhausted,
    /// Slots told as missed, folded or skipped, and once alarms that were too late.
    missed,
    /// Planned when the alarm was cancelled or planned anew.
    cancelled,
    /// Planned for later, or paused.
    ahead,
    /// What an asynchronous failover took back.
    undone,
    wakes,
    attempts,
    /// Wakes that would have been named had they been sent twice, as no fault was at hand to explain it: at once,
    judged,
    /// or a lease later.
    judged_later,
    /// Occurrences that were due while nothing but the cluster was broken, and had to be on time.
    without_cluster,
    /// Same occurrence sent again, and a fault says why.
    repeats_explained,
    sessions,
    events,
    checkpoints,
    sends,
    /// Frames on the wire.
    frames,
    promotions,
}

impl Counts {
    pub fn print(&self) -> String {
        let mut text = String::new();
        for (name, count) in self.each() {
            let _ = writeln!(text, "{name:<20} {count:>8}");
        }
        text
    }
}
