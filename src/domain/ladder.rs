//! The waits between attempts: 30 s, doubled with every failure, capped at 15 min. The numbers are configuration;
//! the shape is here. So is what a receiver may say about the next one, `Retry-After`.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};

/// The three spellings of an HTTP-date. The last two are obsolete; a recipient has to take them all the same.
const HTTP_DATES: [&str; 3] = ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

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

/// What a `Retry-After` asks for: seconds, or a date. A date is measured against the answer's own `Date`, so that no clock
/// has to agree with the receiver's; without one it says nothing. A date that has passed asks for no wait, a number beyond
/// all bounds for the longest.
pub fn retry_after(text: &str, answered_at: Option<DateTime<Utc>>) -> Option<Duration> {
    let text = text.trim_ascii();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let wait = http_date(text)? - answered_at?;
    Some(wait.to_std().unwrap_or_default())
}

/// An HTTP-date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<DateTime<Utc>> {
    let read = |format| NaiveDateTime::parse_from_str(text.trim_ascii(), format).ok();
    HTTP_DATES.into_iter().find_map(read).map(|date| date.and_utc())
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
    fn jitter_is_applied_before_the_cap() {
        // 960 s less a tenth. The cap less a tenth would be 810.
        assert_eq!(ladder().rung(5, 0.0), Duration::from_secs(864));
        for chance in [0.5, 0.75, 0.999] {
            assert_eq!(ladder().rung(5, chance), Duration::from_secs(900), "{chance}");
        }
        for chance in [0.0, 0.5, 0.999] {
            assert_eq!(ladder().rung(6, chance), Duration::from_secs(900), "{chance}");
        }
    }

    #[test]
    fn retry_after_lengthens_a_rung_up_to_the_cap_and_shortens_none() {
        let wait = |seconds| ladder().wait(0, Some(Duration::from_secs(seconds)), 0.5).as_secs();
        assert_eq!((wait(5), wait(200), wait(86_400)), (30, 200, 900));
    }

    #[test]
    fn retry_after_counts_seconds_however_many() {
        let read = |text| retry_after(text, None);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read(" 0\t"), Some(Duration::ZERO));
        assert_eq!(read("18446744073709551615"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(read("99999999999999999999999"), Some(Duration::MAX));
        for text in ["", "soon", "-1", "+1", "1.5", "1 2", "0x10", "\u{663}"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_date_to_retry_after_is_measured_against_the_answers_own() {
        let answered_at = http_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(answered_at, Some("1994-11-06T08:49:37Z".parse().unwrap()));
        let read = |text| retry_after(text, answered_at);
        for text in ["Sun, 06 Nov 1994 08:51:37 GMT", "Sunday, 06-Nov-94 08:51:37 GMT", "Sun Nov  6 08:51:37 1994"] {
            assert_eq!(read(text), Some(Duration::from_secs(120)), "{text}");
            assert_eq!(retry_after(text, None), None, "{text} says nothing without a Date");
        }
        assert_eq!(read("Sun, 06 Nov 1994 08:49:36 GMT"), Some(Duration::ZERO), "it has passed");
        for text in ["Mon, 06 Nov 1994 08:51:37 GMT", "Sun, 06 Nov 1994 08:51:37", "Sun, 31 Feb 1994 08:51:37 GMT"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn no_date_is_too_remote() {
        let (first, last) = (DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
        let date = "Fri, 31 Dec 9999 23:59:59 GMT";
        assert!(retry_after(date, Some(first)) > Some(Duration::from_secs(1 << 32)));
        assert_eq!(retry_after(date, Some(last)), Some(Duration::ZERO));
    }
}
