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

/// How long it took after faults of a kind until wakes were on time again.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub kind: Kind,
    /// In ascending order.
    pub times: Vec<Duration>,
    /// Faults that others were in the way of.
    pub among_others: usize,
}

impl Recovery {
    pub fn of(kind: Kind, mut times: Vec<Duration>, among_others: usize) -> Self {
        times.sort_unstable();
        Self { kind, times, among_others }
    }

    pub fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or_default()
    }

    pub fn worst(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }

    pub fn print(&self) -> String {
        let (name, count) = (self.kind.name(), self.times.len());
        let (median, worst) = (self.median().as_secs_f64(), self.worst().as_secs_f64());
        format!("{name:<28} {count:>4}   median {median:>6.2} s   worst {worst:>6.2} s")
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
