//! Chance that can be had again: everything in a simulation follows from its seed.

/// `SplitMix64`: small, quick, and good enough to choose who goes next.
pub struct Chance(u64);

impl Chance {
    pub const fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than that.
    pub fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % (most as u64)).expect("less than a usize")
    }

    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.next() % high.abs_diff(low)).expect("less than the difference of two")
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }

    /// Uniform in 0..1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept, which is all a float has")]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
