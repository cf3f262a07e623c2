//! Chance, by the seed.

use std::{ops::Range, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;

pub struct Dice(StdRng);

impl Dice {
    /// Each stream of one seed is another.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(StdRng::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// So many times in a hundred.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.0.random_ratio(chance, 100)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound)
    }

    pub fn number(&mut self, range: Range<u64>) -> u64 {
        self.0.random_range(range)
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.number(range))
    }

    pub fn uuid(&mut self) -> Uuid {
        uuid::Builder::from_random_bytes(self.0.random()).into_uuid()
    }

    /// One that goes its own way.
    pub fn fork(&mut self) -> Self {
        Self(StdRng::seed_from_u64(self.0.random()))
    }
}
