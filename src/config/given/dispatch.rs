//! What a dispatcher needs.

use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use super::Given;
use crate::{
    config::{Dispatch, DispatchMode},
    domain::ladder::Ladder,
};

const WAKE_URL: &str = "CHRONOS_ROUTER_WAKE_URL";
const WAKE_TOKEN: &str = "CHRONOS_WAKE_TOKEN";
const SINK_URL: &str = "CHRONOS_TIMER_SINK_URL";
const SINK_TOKEN: &str = "CHRONOS_TIMER_SINK_TOKEN";

/// A claim must outlive its wake by the time one settle takes.
const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// A century.
pub(super) const MOST_DAYS: u32 = 36_500;

impl Given {
    pub(super) fn dispatch(&mut self, wake_timeout: Duration) -> Dispatch {
        let wake_url = self.url(WAKE_URL, "http://router.agents.svc:8088/internal/wake");
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
        let wake_token = self.required(WAKE_TOKEN, "set it to the bearer that the router expects");
        self.check_bearer(WAKE_TOKEN, &wake_token);
        let sink_url = self.sink_url(&wake_url);
        let sink_token = self.sink_token(&sink_url, &wake_url).unwrap_or_else(|| wake_token.clone());
        Dispatch {
            wake_url,
            wake_token: SecretString::from(wake_token),
            sink_url,
            sink_token: SecretString::from(sink_token),
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

    fn sink_url(&mut self, wake_url: &Url) -> Url {
        // Empty is as good as none, as a chart leaves it.
        match self.text(SINK_URL).filter(|url| !url.is_empty()) {
            Some(_) => self.url(SINK_URL, "http://orchestration.svc:8080/timers"),
            None => wake_url.clone(),
        }
    }

    /// The sink's own token. Without one the wake token will do, where it may go: to the router's origin and nowhere else.
    fn sink_token(&mut self, sink_url: &Url, wake_url: &Url) -> Option<String> {
        let token = self.text(SINK_TOKEN);
        match &token {
            Some(token) if token.is_empty() => {
                self.problem(SINK_TOKEN, "is empty; set it to the bearer that the timer sink expects, or unset it");
            }
            Some(token) => self.check_bearer(SINK_TOKEN, token),
            None => {
                let told = |name| self.problems.iter().any(|problem| problem.starts_with(name));
                if sink_url.origin() != wake_url.origin() && !told(SINK_URL) && !told(WAKE_URL) {
                    let problem = format!(
                        "is not set, and {SINK_URL} ({}) is on another origin than {WAKE_URL} ({}), where {WAKE_TOKEN} does not \
                         go; set it to the bearer that the timer sink expects",
                        sink_url.origin().ascii_serialization(),
                        wake_url.origin().ascii_serialization()
                    );
                    self.problem(SINK_TOKEN, &problem);
                }
            }
        }
        token
    }

    fn check_bearer(&mut self, name: &'static str, token: &str) {
        self.warn_if_short(name, token);
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.problem(name, "has a character that cannot stand in a header; use visible ASCII alone");
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

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

    /// Where events go, and with which token.
    fn sink(pairs: &[(&'static str, &'static str)]) -> Result<(String, String), Problems> {
        let pairs: Vec<_> = working().into_iter().chain(pairs.iter().copied()).collect();
        let dispatch = given(&pairs).check()?.dispatch.unwrap();
        Ok((dispatch.sink_url.to_string(), dispatch.sink_token.expose_secret().to_owned()))
    }

    #[test]
    fn events_go_where_wakes_go_unless_told_otherwise() {
        let wakes = ("http://127.0.0.1:8088/internal/wake".to_owned(), "wake-token-of-at-least-32-chars-".to_owned());
        assert_eq!(sink(&[]).unwrap(), wakes);
        assert_eq!(sink(&[(SINK_URL, "")]).unwrap(), wakes, "as a chart leaves it");
        let path = "http://127.0.0.1:8088/timers";
        assert_eq!(sink(&[(SINK_URL, path)]).unwrap(), (path.to_owned(), wakes.1), "the same origin");
        let own = sink(&[(SINK_TOKEN, "the-sinks-own-token-of-32-chars-")]).unwrap();
        assert_eq!(own, (wakes.0, "the-sinks-own-token-of-32-chars-".to_owned()));
    }

    #[test]
    fn a_sink_on_another_origin_needs_a_token_of_its_own() {
        for other in ["http://127.0.0.1:8089/", "https://127.0.0.1:8088/", "http://localhost:8088/"] {
            let told = sink(&[(SINK_URL, other)]).unwrap_err().0;
            assert_eq!(
                told,
                [format!(
                    "CHRONOS_TIMER_SINK_TOKEN is not set, and CHRONOS_TIMER_SINK_URL ({}) is on another origin than \
                     CHRONOS_ROUTER_WAKE_URL (http://127.0.0.1:8088), where CHRONOS_WAKE_TOKEN does not go; set it to the bearer \
                     that the timer sink expects",
                    other.trim_end_matches('/')
                )]
            );
            let own = "the-sinks-own-token-of-32-chars-";
            assert_eq!(sink(&[(SINK_URL, other), (SINK_TOKEN, own)]).unwrap(), (other.to_owned(), own.to_owned()));
        }
    }

    #[test]
    fn what_is_wrong_with_the_sink_is_told_once_and_its_token_is_not_printed() {
        for (pairs, wrong) in [
            (&[(SINK_URL, "sink:8080")][..], "CHRONOS_TIMER_SINK_URL is \"sink:8080\"; expected an address such as "),
            (
                &[(SINK_TOKEN, "")],
                "CHRONOS_TIMER_SINK_TOKEN is empty; set it to the bearer that the timer sink expects, or",
            ),
            (&[(SINK_TOKEN, "hunter2 hunter2 hunter2")], "CHRONOS_TIMER_SINK_TOKEN has a character that cannot stand"),
        ] {
            let told = sink(pairs).unwrap_err().0;
            assert!(told.len() == 1 && told[0].starts_with(wrong), "{told:?}");
            assert!(!told[0].contains("hunter2"), "{told:?}");
        }
        let config = with(SINK_TOKEN, "hunter2").unwrap();
        assert!(config.warnings[0].starts_with(SINK_TOKEN));
        assert!(!format!("{config:?} {:?}", config.warnings).contains("hunter2"));
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
