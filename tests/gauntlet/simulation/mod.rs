//! The dispatcher's decisions against a model of the table, thousands of interleavings a second.
//!
//! The gauntlet proper tries the whole product, and tries a few interleavings an hour. Here two or three dispatchers live in memory, and
//! decide by the product's own functions ([`dispatcher`]); the statements of the store are a model ([`table`]) with the same fences, locks
//! and leases. Everything that the real code awaits is a step of its own: a statement is sent, carried out, answered; a wake goes out,
//! arrives, is answered. A seed decides who goes next ([`world`]), who is killed, frozen, or never hears an answer, what is carried out
//! long after everybody has given it up, and what somebody edits meanwhile ([`client`]). Then everything is healed and runs to rest, and
//! the [`promises`] are looked at. One seed, one run, always the same: a failing one prints all that happened.
//!
//! A test that finds nothing proves little; so the model can be given flaws ([`Flaw`]), and each must be found.
//!
//! Not in the model: batches of many owners (fairness, backlogs, byte budgets), rows that cannot be read or kill their dispatcher, leadership
//! (all dispatchers claim), wakes by hand, service calls, sessions and their promotion, hints (the look comes
//! with the tick or the next due instant), more than one statement of a settler at a time.

mod chance;
mod client;
mod dispatcher;
mod promises;
mod table;
mod world;

use std::{fmt, ops::Range};

use world::World;

/// A bug of the model, for seeing that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Flaw {
    /// A settle asks for no token.
    SettleWithoutToken,
    /// A settle writes over a cancel.
    SettleRevives,
    /// Claims never end, and nobody frees those of the dead.
    NoRelease,
    /// A look takes what others have claimed.
    ClaimsWhatIsClaimed,
    /// Every claim draws another delivery id.
    NewId,
    /// Slots are told up to now.
    AdvancesFromNow,
    /// What is due soon counts as due.
    LooksAhead,
    /// A peer that stood still over one beat is dead.
    BuriesTooSoon,
    /// An occurrence is judged anew with every claim.
    JudgesAgain,
}

/// What went on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub faults: u64,
    pub crashes: u64,
    pub freezes: u64,
    pub stops: u64,
    pub edits: u64,
    pub wakes: u64,
    /// Wakes that arrived again after they were taken.
    pub repeats: u64,
    /// Answers that came too late to count.
    pub fenced: u64,
    /// Runs of slots that passed without a try.
    pub runs: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.freezes += other.freezes;
        self.stops += other.stops;
        self.edits += other.edits;
        self.wakes += other.wakes;
        self.repeats += other.repeats;
        self.fenced += other.fenced;
        self.runs += other.runs;
    }
}

/// A run that broke something.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub broken: Vec<String>,
    /// Everything that happened, in order.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        for line in self.trace.iter().map(|line| format!("    {line}")).chain(self.broken.clone()) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// What many seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub interleavings: u64,
    pub counts: Counts,
    pub failures: Vec<Failure>,
}

/// One run per seed. Stops at so many failures that more would tell nothing new.
pub fn simulate(seeds: Range<u64>, flaw: Option<Flaw>) -> Outcome {
    const ENOUGH: usize = 3;
    let mut outcome = Outcome::default();
    for seed in seeds {
        outcome.interleavings += 1;
        match run(seed, flaw) {
            Ok(counts) => outcome.counts.add(counts),
            Err(failure) => outcome.failures.push(failure),
        }
        if outcome.failures.len() >= ENOUGH {
            break;
        }
    }
    outcome
}

pub fn run(seed: u64, flaw: Option<Flaw>) -> Result<Counts, Failure> {
    let live = |traced| {
        let mut world = World::new(seed, flaw, traced);
        let ran = world.run();
        (ran, world)
    };
    let judged = |ran: Result<(), String>, world: &World| match ran {
        Ok(()) => promises::broken(world),
        Err(why) => vec![why],
    };
    let (ran, world) = live(false);
    if judged(ran, &world).is_empty() {
        return Ok(world.counted());
    }
    // Once more, with somebody who writes it down.
    let (ran, mut world) = live(true);
    Err(Failure { seed, broken: judged(ran, &world), trace: world.trace.take().unwrap_or_default() })
}
