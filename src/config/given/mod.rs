//! From texts to a configuration: flags, environment and files in, one checked [`Config`] or every problem out.

mod values;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::{Api, Config, Controller, Database, Dispatch, DispatchMode, Listen, Problems, Roles, SETTINGS};
use crate::domain::{access::Keyring, alarm::MAX_FAILURES_CAP, ladder::Ladder};

/// Settings as given, before anybody looked at them: flags, then the environment, then files.
#[derive(Default)]
pub struct Given {
    values: BTreeMap<&'static str, String>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Given {
    /// `flags` win over `environment`; `NAME_FILE` names a file that holds the value.
    pub fn collect(flags: &BTreeMap<&'static str, String>, environment: &BTreeMap<String, String>) -> Self {
        let mut given = Self::default();
        given.warn_of_unknown(environment.keys());
        let environment = |name: &str| environment.get(name).cloned();
        for setting in SETTINGS {
            let file = format!("{}_FILE", setting.name);
            let value = match (flags.get(setting.name), environment(setting.name), environment(&file)) {
                (Some(flag), _, _) => Some(flag.clone()),
                (None, Some(_), Some(_)) => {
                    given.problems.push(format!("{} and {file} are both set; set one of them", setting.name));
                    None
                }
                (None, Some(value), None) => Some(value),
                (None, None, Some(path)) => match std::fs::read_to_string(&path) {
                    // The newline an editor or `echo` leaves at the end is nobody's secret.
                    Ok(text) => Some(text.trim_end_matches(['\n', '\r']).to_owned()),
                    Err(error) => {
                        given.problems.push(format!("{file} names {path}, which cannot be read: {error}"));
                        None
                    }
                },
                (None, None, None) => None,
            };
            if let Some(value) = value {
                given.values.insert(setting.name, value);
            }
        }
        given
    }

    /// A misspelt name would be passed over in silence otherwise.
    fn warn_of_unknown<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        let known = |name: &str| SETTINGS.iter().any(|setting| setting.name == name.trim_end_matches("_FILE"));
        // Kubernetes puts these into every pod beside a Service called chronos.
        let service_link = |name: &str| name.starts_with("CHRONOS_SERVICE_") || name.starts_with("CHRONOS_PORT_");
        let ours = names.filter(|name| name.starts_with("CHRONOS_"));
        let unknown = ours.filter(|name| !known(name) && !service_link(name));
        self.warnings.extend(unknown.map(|name| format!("{name} is no setting of this version and is ignored")));
    }

    /// Fills in what was left open: `chronosd dev` brings its own defaults.
    pub fn or(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.entry(name).or_insert_with(|| value.into());
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn log_filter(&self) -> &str {
        self.values.get("CHRONOS_LOG").map_or("info", String::as_str)
    }

    /// The database alone: all that `chronosd migrate` needs.
    pub fn database(mut self) -> Result<Database, Problems> {
        let database = self.read_database();
        if self.problems.is_empty() { Ok(database) } else { Err(Problems(self.problems)) }
    }

    /// Everything that `chronosd run` needs.
    pub fn check(mut self) -> Result<Config, Problems> {
        let roles = self.roles();
        let database = self.read_database();
        let listen = Listen {
            bind: self.parse(
                "CHRONOS_BIND",
                "an IP address such as 127.0.0.1 or 0.0.0.0",
                IpAddr::V4(Ipv4Addr::LOCALHOST),
            ),
            port: self.parse("CHRONOS_PORT", "a port between 0 and 65535", 0),
            metrics_port: self.parse("CHRONOS_METRICS_PORT", "a port between 0 and 65535", 0),
        };
        let wake_timeout = self.seconds("CHRONOS_WAKE_TIMEOUT_SECONDS");
        let shutdown = match self.text("CHRONOS_SHUTDOWN_SECONDS") {
            Some(_) => self.seconds("CHRONOS_SHUTDOWN_SECONDS"),
            None => wake_timeout + SHUTDOWN_MARGIN,
        };
        let max_failures = self.number("CHRONOS_MAX_FAILURES", 0..=MAX_FAILURES_CAP.unsigned_abs());
        let dev = self.flag("CHRONOS_DEV");
        let api = roles.api.then(|| self.api(dev));
        let dispatch = roles.dispatch.then(|| self.dispatch(wake_timeout));
        let controller = Controller { namespaces: self.list("CHRONOS_WATCH_NAMESPACES") };
        let collector = self.collector();
        let namespace = self.namespace();
        if !self.problems.is_empty() {
            return Err(Problems(self.problems));
        }
        Ok(Config {
            roles,
            database,
            listen,
            api: api.flatten(),
            dispatch,
            controller,
            collector,
            namespace,
            max_failures: u32::try_from(max_failures).expect("at most MAX_FAILURES_CAP"),
            shutdown,
            warnings: self.warnings,
        })
    }

    fn roles(&mut self) -> Roles {
        let names = self.list("CHRONOS_ROLES");
        let mut roles = Roles { controller: false, dispatch: false, api: false };
        for name in &names {
            match name.as_str() {
                "controller" => roles.controller = true,
                "dispatch" => roles.dispatch = true,
                "api" => roles.api = true,
                other => {
                    self.problem("CHRONOS_ROLES", &format!("has {other:?}; roles are controller, dispatch and api"));
                }
            }
        }
        if names.is_empty() {
            self.problem("CHRONOS_ROLES", "is empty; give at least one of controller, dispatch and api");
        }
        roles
    }

    fn read_database(&mut self) -> Database {
        let uri = self.required("CHRONOS_POSTGRES_URI", "set it to postgres://user:password@host:5432/name");
        if !uri.is_empty() && !uri.starts_with("postgres://") && !uri.starts_with("postgresql://") {
            // The value itself is not shown: it holds a password.
            self.problem(
                "CHRONOS_POSTGRES_URI",
                "does not begin with postgres://; set it to postgres://user:password@host:5432/name",
            );
        }
        Database {
            uri: SecretString::from(uri),
            allow_unsafe: self.flag("CHRONOS_ALLOW_UNSAFE_POSTGRES"),
            api_pool: self.count("CHRONOS_API_POOL", 1000),
            dispatch_pool: self.dispatch_pool(),
            hints: self.hints(),
        }
    }

    fn dispatch_pool(&mut self) -> u32 {
        let connections = self.count("CHRONOS_DISPATCH_POOL", 1000);
        if connections < LEAST_DISPATCH_POOL {
            self.problem(
                "CHRONOS_DISPATCH_POOL",
                &format!(
                    "is {connections}; a dispatcher claims, settles and listens at the same time, so give it \
                     {LEAST_DISPATCH_POOL} connections or more"
                ),
            );
        }
        connections
    }

    fn hints(&mut self) -> Option<Duration> {
        let tick = self.milliseconds("CHRONOS_TICK_MS");
        match self.text("CHRONOS_HINTS").unwrap_or_default().as_str() {
            "on" => Some(tick),
            "off" => None,
            other => {
                self.problem(
                    "CHRONOS_HINTS",
                    &format!("is {other:?}; it is on, or off behind a pgbouncer that pools transactions"),
                );
                None
            }
        }
    }

    fn api(&mut self, dev: bool) -> Option<Api> {
        let tokens = self.secrets("CHRONOS_TOKEN");
        let secrets = self.secrets("CHRONOS_AGENT_AUTH_SECRET");
        match (self.text("CHRONOS_ENROLMENT").unwrap_or_default().as_str(), dev) {
            ("open", true) => {}
            ("open", false) => self.problem(
                "CHRONOS_ENROLMENT",
                "is open, which lets any key speak for any user; it needs CHRONOS_DEV=true and a machine of your own",
            ),
            ("registered", _) => self.problem(
                "CHRONOS_ENROLMENT",
                "is registered, which this version cannot serve yet; on a developer's machine set it to open together with \
                 CHRONOS_DEV=true, elsewhere leave the api role out (--roles controller,dispatch)",
            ),
            (other, _) => self.problem("CHRONOS_ENROLMENT", &format!("is {other:?}; it is registered or open")),
        }
        let keyring = Keyring::new(secrets.iter().map(ExposeSecret::expose_secret))?;
        Some(Api { tokens, keyring, enrolment: super::Enrolment::Open })
    }

    fn dispatch(&mut self, wake_timeout: Duration) -> Dispatch {
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

    /// OpenTelemetry's rule: an empty value is as good as none.
    fn collector(&mut self) -> Option<Url> {
        self.text("OTEL_EXPORTER_OTLP_ENDPOINT").filter(|text| !text.is_empty())?;
        let protocol = self.text("OTEL_EXPORTER_OTLP_PROTOCOL").unwrap_or_default();
        if !matches!(protocol.as_str(), "" | "http/protobuf") {
            self.problem(
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                &format!(
                    "is {protocol:?}; traces go out as http/protobuf alone: unset it and let OTEL_EXPORTER_OTLP_ENDPOINT \
                     name the collector's HTTP port, as a rule 4318"
                ),
            );
        }
        Some(self.url("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"))
    }

    fn namespace(&mut self) -> Option<String> {
        let name = self.text("CHRONOS_NAMESPACE").filter(|name| !name.is_empty())?;
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let label = name.len() <= LONGEST_NAMESPACE && name.bytes().all(allowed);
        if !label || name.starts_with('-') || name.ends_with('-') {
            let problem =
                format!("is {name:?}; a namespace has lower-case letters, digits and inner dashes, at most 63");
            self.problem("CHRONOS_NAMESPACE", &problem);
        }
        Some(name)
    }
}

/// A claim must outlive its wake by the time one settle takes.
const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// One to claim and beat, one to settle, one that hears hints.
const LEAST_DISPATCH_POOL: u32 = 3;
/// After the last wake's deadline there is still its settle to write.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(5);
/// A century.
const MOST_DAYS: u32 = 36_500;
/// Kubernetes' own limit: a label of DNS.
const LONGEST_NAMESPACE: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> Given {
        let pairs: BTreeMap<String, String> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Given::collect(&BTreeMap::new(), &pairs)
    }

    fn working() -> Vec<(&'static str, &'static str)> {
        vec![
            ("CHRONOS_POSTGRES_URI", "postgres://localhost/chronos"),
            ("CHRONOS_TOKEN", "transport-token-of-32-characters"),
            ("CHRONOS_AGENT_AUTH_SECRET", "auth-secret-of-at-least-32-chars"),
            ("CHRONOS_WAKE_TOKEN", "wake-token-of-at-least-32-chars-"),
            ("CHRONOS_ENROLMENT", "open"),
            ("CHRONOS_DEV", "true"),
        ]
    }

    fn with(name: &'static str, value: &'static str) -> Result<Config, Problems> {
        let mut pairs = working();
        pairs.retain(|(given, _)| *given != name);
        pairs.push((name, value));
        given(&pairs).check()
    }

    #[test]
    fn the_defaults_are_those_of_the_documents() {
        let config = given(&working()).check().unwrap();
        let dispatch = config.dispatch.unwrap();
        assert_eq!(config.roles, Roles { controller: true, dispatch: true, api: true });
        assert_eq!((config.listen.port, config.listen.metrics_port), (9096, 9097));
        assert_eq!(dispatch.tick, Duration::from_secs(1));
        assert_eq!((dispatch.lease, dispatch.wake_timeout), (Duration::from_secs(120), Duration::from_secs(60)));
        assert_eq!((dispatch.batch, dispatch.concurrency), (500, 512));
        assert_eq!((dispatch.mode, config.namespace), (DispatchMode::Leader, None));
        assert_eq!(config.max_failures, 5);
        assert_eq!(config.shutdown, Duration::from_secs(65));
        assert_eq!(config.warnings, Vec::<String>::new());
    }

    #[test]
    fn everything_wrong_is_told_at_once_by_name() {
        let Problems(problems) = given(&[("CHRONOS_PORT", "http"), ("CHRONOS_BATCH", "0")]).check().unwrap_err();
        let named: Vec<&str> = problems.iter().map(|problem| problem.split(' ').next().unwrap()).collect();
        assert_eq!(
            named,
            [
                "CHRONOS_POSTGRES_URI",
                "CHRONOS_PORT",
                "CHRONOS_TOKEN",
                "CHRONOS_AGENT_AUTH_SECRET",
                "CHRONOS_ENROLMENT",
                "CHRONOS_WAKE_TOKEN",
                "CHRONOS_BATCH"
            ]
        );
    }

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
    fn a_namespace_that_no_cluster_has_is_told() {
        assert_eq!(with("CHRONOS_NAMESPACE", "chronos-1").unwrap().namespace.as_deref(), Some("chronos-1"));
        assert_eq!(with("CHRONOS_NAMESPACE", "").unwrap().namespace, None, "as a chart leaves it");
        for wrong in ["Chronos", "a/b", "-a", "a-"] {
            let told = with("CHRONOS_NAMESPACE", wrong).unwrap_err().0;
            assert!(told[0].starts_with("CHRONOS_NAMESPACE is \""), "{told:?}");
        }
    }

    #[test]
    fn open_enrolment_is_for_developers_machines() {
        assert!(with("CHRONOS_DEV", "false").unwrap_err().0[0].starts_with("CHRONOS_ENROLMENT is open"));
        assert!(with("CHRONOS_ENROLMENT", "sometimes").unwrap_err().0[0].contains("registered or open"));
    }

    #[test]
    fn an_empty_entry_in_a_list_of_secrets_stops_the_process() {
        let Problems(problems) = with("CHRONOS_TOKEN", "transport-token-of-32-characters,").unwrap_err();
        assert_eq!(problems, ["CHRONOS_TOKEN has an empty entry in its list; remove the stray comma"]);
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

    #[test]
    fn traces_go_to_the_collector_that_opentelemetry_names() {
        let collector = |value| with("OTEL_EXPORTER_OTLP_ENDPOINT", value).map(|config| config.collector);
        assert_eq!(given(&working()).check().unwrap().collector, None);
        assert_eq!(collector("").unwrap(), None);
        assert_eq!(collector("http://collector:4318").unwrap().unwrap().as_str(), "http://collector:4318/");
        let told = collector("collector:4318").unwrap_err().0;
        assert_eq!(
            told,
            ["OTEL_EXPORTER_OTLP_ENDPOINT is \"collector:4318\"; expected an address such as http://collector:4318"]
        );
        let mut pairs = working();
        pairs.push(("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"));
        assert!(given(&pairs).check().is_ok(), "nothing goes anywhere");
        pairs.push(("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"));
        let told = given(&pairs).check().unwrap_err().0;
        assert!(told.len() == 1 && told[0].starts_with("OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\"; "), "{told:?}");
    }

    #[test]
    fn a_misspelt_variable_is_told() {
        let config = with("CHRONOS_BACTH", "3").unwrap();
        assert_eq!(config.warnings, ["CHRONOS_BACTH is no setting of this version and is ignored"]);
        assert_eq!(with("CHRONOS_SERVICE_HOST", "10.0.0.1").unwrap().warnings, Vec::<String>::new());
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        let flags = BTreeMap::from([("CHRONOS_TICK_MS", "250".to_owned())]);
        let pairs = working().into_iter().chain([("CHRONOS_TICK_MS", "9")]);
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let given = Given::collect(&flags, &pairs);
        assert_eq!(given.check().unwrap().dispatch.unwrap().tick, Duration::from_millis(250));
    }

    #[test]
    fn a_value_may_come_from_a_file_but_not_from_two_places() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "250\n").unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let from = |also: Option<&str>| {
            let mut pairs: BTreeMap<String, String> =
                working().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            pairs.insert("CHRONOS_TICK_MS_FILE".to_owned(), path.clone());
            also.map(|value| pairs.insert("CHRONOS_TICK_MS".to_owned(), value.to_owned()));
            Given::collect(&BTreeMap::new(), &pairs).check()
        };
        assert_eq!(from(None).unwrap().dispatch.unwrap().tick, Duration::from_millis(250));
        let both = from(Some("9")).unwrap_err().0;
        assert!(both[0].contains("both set"), "{both:?}");
        // And it is told once: what stands twice is not also missing.
        let mut pairs = working();
        pairs.push(("CHRONOS_POSTGRES_URI_FILE", &path));
        assert_eq!(given(&pairs).check().unwrap_err().0.len(), 1);
    }

    #[test]
    fn a_wrong_value_is_told_whichever_roles_run() {
        let mut pairs = working();
        pairs.retain(|(name, _)| *name != "CHRONOS_DEV");
        pairs.extend([("CHRONOS_DEV", "maybe"), ("CHRONOS_ROLES", "dispatch")]);
        let told = given(&pairs).check().unwrap_err().0;
        assert_eq!(told, ["CHRONOS_DEV is \"maybe\"; expected true or false"]);
    }
}
