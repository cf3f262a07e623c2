//! What a dispatcher needs.

use std::time::Duration;

use secrecy::SecretString;

use super::Given;
use crate::{
    config::{Dispatch, DispatchMode},
    domain::ladder::Ladder,
};

/// A claim must outlive its wake by the time one settle takes.
const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// A century.
const MOST_DAYS: u32 = 36_500;

impl Given {
    pub(super) fn dispatch(&mut self, wake_timeout: Duration) -> Dispatch {
        let wake_url = self.url("CHRONOS_ROUTER_WAKE_URL", "http://router.agents.svc:8088/internal/wake");
        let lease = self.seconds("CHRONOS_LEASE_SECONDS");
        if lease < wake_timeout + LEASE_MARGIN {
            let problem = format!(
                "is {} s, shorter than CHRONOS_WAKE_TIMEOUT_SECONDS ({} s) + {} s: a claim would end while its wake is \
                 still under way; make the lease longer or the timeout shorter",
                lease.as_secs(),
                wake_timeout.as_secs(),
                LEASE_MARGIN.as_secs()
            );
            self.problem("CHRONOS_LEASE_SECONDS", &problem);
        }
        let mode = match self.text("CHRONOS_DISPATCH_MODE").unwrap_or_default().as_str() {
            "leader" => DispatchMode::Leader,
            "active" => DispatchMode::Active,
            other => {
                self.problem("CHRONOS_DISPATCH_MODE", &format!("is {other:?}; it is leader or active"));
                DispatchMode::Leader
            }
        };
        let (base, cap) = (self.milliseconds("CHRONOS_RETRY_BASE_MS"), self.milliseconds("CHRONOS_RETRY_CAP_MS"));
        if base > cap {
            self.problem(
                "CHRONOS_RETRY_BASE_MS",
                "is longer than CHRONOS_RETRY_CAP_MS; the first rung cannot pass the cap",
            );
        }
        let jitter: f64 = self.parse("CHRONOS_RETRY_JITTER", "a share between 0 and 0.5", 0.0);
        if !(0.0..=0.5).contains(&jitter) {
            self.problem("CHRONOS_RETRY_JITTER", "is not between 0 and 0.5");
        }
        let wake_token = self.required("CHRONOS_WAKE_TOKEN", "set it to the bearer that the router expects");
        self.warn_if_short("CHRONOS_WAKE_TOKEN", &wake_token);
        if !wake_token.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.problem(
                "CHRONOS_WAKE_TOKEN",
                "has a character that cannot stand in a header; use visible ASCII alone",
            );
        }
        Dispatch {
            wake_url,
            wake_token: SecretString::from(wake_token),
            signing_keys: self.signing_keys("CHRONOS_WAKE_SIGNING_SECRET"),
            wake_timeout,
            tick: self.milliseconds("CHRONOS_TICK_MS"),
            lease,
            mode,
            batch: self.count("CHRONOS_BATCH", 10_000) as usize,
            concurrency: self.count("CHRONOS_CONCURRENCY", 100_000) as usize,
            owner_concurrency: self.count("CHRONOS_OWNER_CONCURRENCY", 100_000) as usize,
            beat: self.milliseconds("CHRONOS_BEAT_MS"),
            ladder: Ladder { base, cap, jitter },
            attempt_days: self.count("CHRONOS_ATTEMPT_RETENTION_DAYS", MOST_DAYS),
            alarm_days: self
                .text("CHRONOS_ALARM_RETENTION_DAYS")
                .map(|_| self.count("CHRONOS_ALARM_RETENTION_DAYS", MOST_DAYS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Problems,
        given::tests::{given, with, working},
    };

    #[test]
    fn a_lease_that_cannot_hold_the_wake_timeout_names_both_variables() {
        let Problems(problems) = with("CHRONOS_LEASE_SECONDS", "61").unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("CHRONOS_LEASE_SECONDS") && problems[0].contains("CHRONOS_WAKE_TIMEOUT_SECONDS"));
        assert!(with("CHRONOS_LEASE_SECONDS", "62").is_ok());
    }

    #[test]
    fn a_mode_that_does_not_exist_is_told_with_those_that_do() {
        let told = with("CHRONOS_DISPATCH_MODE", "both").unwrap_err().0;
        assert_eq!(told, ["CHRONOS_DISPATCH_MODE is \"both\"; it is leader or active"]);
        let config = with("CHRONOS_DISPATCH_MODE", "active").unwrap();
        assert_eq!(config.dispatch.unwrap().mode, DispatchMode::Active);
    }

    #[test]
    fn a_wake_token_that_no_header_can_carry_is_told() {
        let told = with("CHRONOS_WAKE_TOKEN", "hunter2-hunter2-\u{e9}").unwrap_err().0;
        assert!(told.len() == 1 && told[0].starts_with("CHRONOS_WAKE_TOKEN has a character"), "{told:?}");
    }

    #[test]
    fn a_short_secret_works_with_a_warning_and_is_not_printed() {
        let config = with("CHRONOS_WAKE_TOKEN", "hunter2").unwrap();
        assert!(config.warnings[0].starts_with("CHRONOS_WAKE_TOKEN"));
        assert!(!format!("{config:?} {:?}", config.warnings).contains("hunter2"));
    }

    #[test]
    fn a_signing_secret_that_cannot_be_read_stops_the_process_and_is_not_printed() {
        const NAME: &str = "CHRONOS_WAKE_SIGNING_SECRET";
        const GOOD: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"; // 24 bytes
        let keys = |value| with(NAME, value).unwrap().dispatch.unwrap().signing_keys.len();
        assert_eq!(given(&working()).check().unwrap().dispatch.unwrap().signing_keys.len(), 0);
        assert_eq!(
            (keys(GOOD), keys("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz, whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI0")),
            (1, 2)
        );
        for (value, wrong) in [
            ("", "is empty (entry 1 of the list); write whsec_"),
            ("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz,", "is empty (entry 2 of the list)"),
            ("hunter2hunter2hunter2hunter2", "does not begin with whsec_"),
            ("whsec_hunter2!", "is not base64 behind whsec_"),
            ("whsec_aHVudGVyMg==", "has a key of 7 bytes; 24 to 64 will do"),
        ] {
            let told = with(NAME, value).unwrap_err().0;
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with(&format!("{NAME} {wrong}")), "{told:?}");
            assert!(!told[0].contains("hunter2") && !told[0].contains("aHVudGVyMg"), "{told:?}");
        }
        let config = with(NAME, GOOD).unwrap();
        assert!(!format!("{config:?}").contains("MDEyMzQ1"), "{config:?}");
    }
}
