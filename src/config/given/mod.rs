//! From texts to a configuration: flags, environment and files in, one checked [`Config`] or every problem out.

mod api;
mod autonomy;
mod dispatch;
mod values;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use secrecy::SecretString;
use url::Url;

use super::{Config, Controller, Database, Files, Listen, Place, Problems, Roles, SETTINGS};
use crate::{domain::alarm::MAX_FAILURES_CAP, mutants};

pub use api::{Pem, TLS_CERT, TLS_KEY};

/// Settings as given, before anybody looked at them: flags, then the environment, then files.
#[derive(Clone, Default)]
pub struct Given {
    values: BTreeMap<&'static str, String>,
    /// Where values were read, by their settings' names.
    files: BTreeMap<&'static str, String>,
    /// Certificate and key, once they have been read.
    pem: Option<Pem>,
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
                (None, None, Some(path)) => match Self::read(setting.name, &path) {
                    Ok(text) => {
                        given.files.insert(setting.name, path);
                        Some(text)
                    }
                    Err(problem) => {
                        given.problems.push(problem);
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

    /// A setting's value from its file.
    pub(super) fn read(name: &str, path: &str) -> Result<String, String> {
        match std::fs::read_to_string(path) {
            // The newline an editor or `echo` leaves at the end is nobody's secret.
            Ok(text) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(error) => Err(format!("{name}_FILE names {path}, which cannot be read: {error}")),
        }
    }

    /// Which settings came from files, and from which.
    pub(super) fn files(&self) -> &BTreeMap<&'static str, String> {
        &self.files
    }

    /// The same with another value, which came from the same place.
    pub(super) fn with(&self, name: &'static str, value: String) -> Self {
        let mut given = self.clone();
        given.values.insert(name, value);
        given
    }

    pub(super) fn pem(&self) -> Option<&Pem> {
        self.pem.as_ref()
    }

    pub(super) fn with_pem(&self, pem: Pem) -> Self {
        Self { pem: Some(pem), ..self.clone() }
    }

    /// A misspelt name would be passed over in silence otherwise.
    fn warn_of_unknown<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        let known = |name: &str| SETTINGS.iter().any(|setting| setting.name == name.trim_end_matches("_FILE"));
        // Kubernetes puts these into every pod beside a Service called chronos.
        let service_link = |name: &str| name.starts_with("CHRONOS_SERVICE_") || name.starts_with("CHRONOS_PORT_");
        let ours = names.filter(|name| name.starts_with("CHRONOS_"));
        let unknown = ours.filter(|name| !known(name) && !service_link(name) && !mutants::is_order(name));
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

    /// Where in a cluster: all that `chronosd finalizers` needs. What is wrong with other settings is of no concern to it.
    pub fn place(mut self) -> Result<Place, Problems> {
        let ours = ["CHRONOS_WATCH_NAMESPACES", "CHRONOS_NAMESPACE"];
        self.problems.retain(|problem| ours.iter().any(|name| problem.starts_with(name)));
        let place = Place { watched: self.list("CHRONOS_WATCH_NAMESPACES"), home: self.namespace() };
        if self.problems.is_empty() { Ok(place) } else { Err(Problems(self.problems)) }
    }

    /// Everything that `chronosd run` needs.
    pub fn check(mut self) -> Result<Config, Problems> {
        let roles = self.roles();
        if roles.api && self.pem.is_none() {
            self.pem = self.read_pem().unwrap_or_else(|problems| {
                self.problems.extend(problems);
                None
            });
        }
        let files = Files::new(self.clone());
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
        let controller = self.controller();
        let autonomy = self.autonomy();
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
            autonomy,
            collector,
            namespace,
            max_failures: u32::try_from(max_failures).expect("at most MAX_FAILURES_CAP"),
            shutdown,
            warnings: self.warnings,
            files,
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

    fn controller(&mut self) -> Controller {
        Controller {
            namespaces: self.list("CHRONOS_WATCH_NAMESPACES"),
            cluster_name: self.cluster_name(),
            orphan_grace: self.seconds("CHRONOS_ORPHAN_GRACE_SECONDS"),
        }
    }

    fn cluster_name(&mut self) -> String {
        let name = self.text("CHRONOS_CLUSTER_NAME").unwrap_or_default();
        if name.len() > LONGEST_CLUSTER_NAME {
            let problem = format!("is {} bytes long; give a name of at most {LONGEST_CLUSTER_NAME}", name.len());
            self.problem("CHRONOS_CLUSTER_NAME", &problem);
        }
        if name.chars().any(char::is_control) {
            self.problem("CHRONOS_CLUSTER_NAME", &format!("is {name:?}; give a name without control characters"));
        }
        name
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

/// One to claim and beat, one to settle, one that hears hints.
const LEAST_DISPATCH_POOL: u32 = 3;
/// After the last wake's deadline there is still its settle to write.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(5);
/// Kubernetes' own limit: a label of DNS.
const LONGEST_NAMESPACE: usize = 63;
/// What the column holds.
const LONGEST_CLUSTER_NAME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DispatchMode;

    pub(super) fn given(pairs: &[(&str, &str)]) -> Given {
        let pairs: BTreeMap<String, String> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Given::collect(&BTreeMap::new(), &pairs)
    }

    pub(super) fn working() -> Vec<(&'static str, &'static str)> {
        vec![
            ("CHRONOS_POSTGRES_URI", "postgres://localhost/chronos"),
            ("CHRONOS_TOKEN", "transport-token-of-32-characters"),
            ("CHRONOS_AGENT_AUTH_SECRET", "auth-secret-of-at-least-32-chars"),
            ("CHRONOS_WAKE_TOKEN", "wake-token-of-at-least-32-chars-"),
            ("CHRONOS_ENROLMENT", "open"),
            ("CHRONOS_DEV", "true"),
        ]
    }

    pub(super) fn with(name: &'static str, value: &'static str) -> Result<Config, Problems> {
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
        assert_eq!((config.controller.cluster_name.as_str(), config.controller.orphan_grace.as_secs()), ("", 300));
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
                "CHRONOS_WAKE_TOKEN",
                "CHRONOS_BATCH"
            ]
        );
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
    fn whoever_asks_only_for_a_place_hears_nothing_of_other_settings() {
        let unreadable = ("CHRONOS_TOKEN_FILE", "/nowhere");
        let place = given(&[unreadable, ("CHRONOS_WATCH_NAMESPACES", "a, b")]).place();
        assert_eq!(place, Ok(Place { watched: vec!["a".to_owned(), "b".to_owned()], home: None }));
        // Never taken for all namespaces.
        let told = given(&[unreadable, ("CHRONOS_WATCH_NAMESPACES_FILE", "/nowhere")]).place().unwrap_err().0;
        assert!(told.len() == 1 && told[0].starts_with("CHRONOS_WATCH_NAMESPACES_FILE names /nowhere"), "{told:?}");
    }

    #[test]
    fn a_cluster_has_a_name_that_fits_its_column_and_orphans_have_a_grace() {
        let name = |value| with("CHRONOS_CLUSTER_NAME", value).map(|config| config.controller.cluster_name);
        assert_eq!(name("blue, in the cellar"), Ok("blue, in the cellar".to_owned()));
        let long: &str = Box::leak("é".repeat(129).into_boxed_str());
        assert_eq!(name(&long[2..]).map(|name| name.len()), Ok(256));
        let told = name(long).unwrap_err().0;
        assert_eq!(told, ["CHRONOS_CLUSTER_NAME is 258 bytes long; give a name of at most 256"]);
        let told = name("a\0b").unwrap_err().0;
        assert_eq!(told, [r#"CHRONOS_CLUSTER_NAME is "a\0b"; give a name without control characters"#]);

        let grace = |value| with("CHRONOS_ORPHAN_GRACE_SECONDS", value).map(|config| config.controller.orphan_grace);
        assert_eq!(grace("1"), Ok(Duration::from_secs(1)));
        for wrong in ["0", "86401", "5m"] {
            let told = grace(wrong).unwrap_err().0;
            assert_eq!(
                told,
                [format!("CHRONOS_ORPHAN_GRACE_SECONDS is {wrong:?}; expected a whole number between 1 and 86400")]
            );
        }
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
