//! The waits between attempts: 30 s, doubled with every failure, capped at 15 min. The numbers are configuration;
//! the shape is here.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    pub base: Duration,
    pub cap: Duration,
    /// Share of a rung by which it may be longer or shorter, 0.1 for ±10 %.
    pub jitter: f64,
}

impl Ladder {
    /// How long to wait after the failure that followed `failures` earlier ones. `chance` is uniform in 0..1.
    ///
    /// The first rung has no jitter: a receiver that hiccups once sees its wake again exactly when it was told. After
    /// it, jitter keeps a thousand alarms that failed together from coming back together. It is applied before the
    /// cap, so nothing waits longer than the cap.
    pub fn rung(&self, failures: u32, chance: f64) -> Duration {
        // 2^31 × any base is far beyond the cap; more would overflow.
        let doubled = self.base.saturating_mul(1u32 << failures.min(31));
        if failures == 0 {
            return doubled.min(self.cap);
        }
        let factor = 1.0 + self.jitter * (2.0 * chance - 1.0);
        // Capped first as well, so that the multiplication cannot overflow a Duration.
        doubled.min(self.cap.saturating_mul(2)).mul_f64(factor.max(0.0)).min(self.cap)
    }

    /// The wait before the next attempt when the receiver asked for `retry_after`: it may lengthen a rung, up to the
    /// cap, and never shortens one.
    pub fn wait(&self, failures: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
        let asked = retry_after.unwrap_or_default().min(self.cap);
        self.rung(failures, chance).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder() -> Ladder {
        Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 }
    }

    #[test]
    fn the_rungs_double_from_half_a_minute_to_a_quarter_of_an_hour() {
        let middle = 0.5;
        let rungs: Vec<u64> = (0..8).map(|failures| ladder().rung(failures, middle).as_secs()).collect();
        assert_eq!(rungs, [30, 60, 120, 240, 480, 900, 900, 900]);
        assert_eq!(ladder().rung(u32::MAX, middle), Duration::from_secs(900));
    }

    #[test]
    fn jitter_spares_the_first_rung_and_never_passes_the_cap() {
        assert_eq!(ladder().rung(0, 0.0), Duration::from_secs(30));
        assert_eq!(ladder().rung(1, 0.0), Duration::from_secs(54));
        assert_eq!(ladder().rung(1, 1.0), Duration::from_secs(66));
        assert_eq!(ladder().rung(5, 1.0), Duration::from_secs(900));
    }

    #[test]
    fn retry_after_lengthens_a_rung_up_to_the_cap_and_shortens_none() {
        let wait = |seconds| ladder().wait(0, Some(Duration::from_secs(seconds)), 0.5).as_secs();
        assert_eq!((wait(5), wait(200), wait(86_400)), (30, 200, 900));
    }
}
