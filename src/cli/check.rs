//! `chronosd check`: is everything there that `chronosd run` needs? What `helm test` runs.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use kube::{Client, CustomResourceExt, Resource};
use tokio::{net::TcpStream, time::timeout};
use url::Url;

use super::print;
use crate::{
    config::{Config, Database, Given, Problems, Roles, SETTINGS},
    crd, run,
    store::{ServerVersion, Store},
    telemetry::chain,
};

const WAKE_URL: &str = "CHRONOS_ROUTER_WAKE_URL";
const SINK_URL: &str = "CHRONOS_TIMER_SINK_URL";

/// How long the router, or the API server, may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(after_help = "\
Reads the settings of `chronosd run` from the environment and looks at each thing by itself, one
line each: configuration, database, schema, CRDs, router, and the timer sink if it is another than
the router. A line begins with ok or FAIL. Router and sink are only connected to: no wake is sent,
and no token. What CHRONOS_ROLES do not need is skipped.

Example:
  CHRONOS_ROLES=dispatch chronosd check && chronosd run

Exit codes: 0 all is well, 1 something is not, 2 usage")]
pub struct Options {
    /// The cluster's kubeconfig; inside a cluster none is needed
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// What came of one look: what is so, or what is wrong and what to do.
type Finding = Result<String, String>;

/// Configuration and database settings are read twice, each by itself: a missing token must not hide a missing schema.
pub async fn check(options: Options, given: impl Fn() -> Given) -> anyhow::Result<ExitCode> {
    let config = given().check();
    let database = given().database();
    // Where the roles themselves are wrong, all that any role needs is looked at.
    let roles = config.as_ref().map_or_else(|_| named_roles(&given()), |config| config.roles);
    let cluster = options.kubeconfig.map_or(run::Cluster::Environment, run::Cluster::Kubeconfig);
    let (reachable, schema) = match &database {
        Ok(database) => look_at_database(database).await,
        Err(problems) => (Err(format!("not looked at: {}", joined(problems))), no_schema()),
    };
    let mut findings = vec![
        ("configuration", configured(config.as_ref())),
        ("database", reachable),
        ("schema", schema),
        ("CRDs", look_at_cluster(&cluster, roles).await),
        ("router", look_at_router(config.as_ref().ok(), &given(), roles).await),
    ];
    if let Some(sink) = look_at_sink(config.as_ref().ok(), &given(), roles).await {
        findings.push(("timer sink", sink));
    }
    let line = |(name, finding): &(&str, Finding)| match finding {
        Ok(fine) => format!("ok    {name}: {fine}\n"),
        Err(wrong) => format!("FAIL  {name}: {wrong}\n"),
    };
    print(&findings.iter().map(line).collect::<String>())?;
    let fine = findings.iter().all(|(_, finding)| finding.is_ok());
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn configured(config: Result<&Config, &Problems>) -> Finding {
    match config {
        Ok(config) if config.warnings.is_empty() => Ok(format!("complete for {}", words(config.roles))),
        Ok(config) => Ok(format!("complete for {}; but {}", words(config.roles), config.warnings.join("; "))),
        Err(problems) => Err(joined(problems)),
    }
}

/// On one line, each once: what several parts of a configuration need is told by each of them.
fn joined(problems: &Problems) -> String {
    let mut told: Vec<&str> = Vec::new();
    for problem in &problems.0 {
        if !told.contains(&problem.as_str()) {
            told.push(problem);
        }
    }
    told.join("; ")
}

fn words(roles: Roles) -> String {
    let named = [(roles.controller, "controller"), (roles.dispatch, "dispatch"), (roles.api, "api")];
    named.iter().filter_map(|(has, name)| has.then_some(*name)).collect::<Vec<_>>().join(", ")
}

/// The roles of a configuration that is wrong elsewhere.
fn named_roles(given: &Given) -> Roles {
    let named = |role: &str| given.get("CHRONOS_ROLES").is_none_or(|roles| roles.contains(role));
    Roles { controller: named("controller"), dispatch: named("dispatch"), api: named("api") }
}

fn no_schema() -> Finding {
    Err("not looked at: there is no database to look into".to_owned())
}

async fn look_at_database(database: &Database) -> (Finding, Finding) {
    let store = match Store::connect(database, "check", 1).await {
        Ok(store) => store,
        Err(error) => {
            return (Err(format!("{}; see to CHRONOS_POSTGRES_URI and the server", chain(&error))), no_schema());
        }
    };
    let reachable = match store.server_version().await {
        Err(error) => Err(chain(&error)),
        Ok(version) if version.is_enough() => {
            let safe = if database.allow_unsafe { "whether it is safe was not asked" } else { "settings are safe" };
            Ok(format!("reachable, Postgres {version}, {safe}"))
        }
        Ok(version) => Err(format!("Postgres {version} is too old; chronos needs {} or later", ServerVersion::least())),
    };
    let schema = store.check_schema().await;
    store.close().await;
    (reachable, schema.map(|()| "this version can work with it".to_owned()).map_err(|error| chain(&error)))
}

async fn look_at_cluster(cluster: &run::Cluster, roles: Roles) -> Finding {
    let client = match run::find_client(cluster).await {
        Ok(Some(client)) => client,
        Ok(None) if roles.controller => {
            return Err(
                "no cluster, and role controller needs one: run inside one, set KUBECONFIG or --kubeconfig, or \
                        leave controller out of CHRONOS_ROLES"
                    .to_owned(),
            );
        }
        Ok(None) => return Ok("no cluster: skipped".to_owned()),
        Err(error) => return Err(format!("the cluster's credentials cannot be used: {}", chain(&*error))),
    };
    match timeout(PATIENCE, served(&client)).await {
        Ok(finding) => finding,
        Err(_elapsed) => Err(format!("the API server does not answer within {} s", PATIENCE.as_secs())),
    }
}

/// By discovery, which everybody may ask: reading the CRDs themselves is a right that chronos does without.
async fn served(client: &Client) -> Finding {
    let group = crd::Alarm::group(&());
    let wanted = crd::Alarm::api_version(&());
    let groups = client.list_api_groups().await.map_err(|error| format!("asking the API server: {}", chain(&error)))?;
    let remedy = "install them: chronosd crd | kubectl apply -f -";
    let Some(ours) = groups.groups.iter().find(|known| known.name == group) else {
        return Err(format!("the API server knows nothing of {group}; {remedy}"));
    };
    if !ours.versions.iter().any(|version| version.group_version == wanted) {
        let versions: Vec<&str> = ours.versions.iter().map(|version| version.version.as_str()).collect();
        return Err(format!("{group} is served as {}, and this binary needs {wanted}; {remedy}", versions.join(", ")));
    }
    let resources = client.list_api_group_resources(&wanted).await;
    let resources = resources.map_err(|error| format!("asking the API server: {}", chain(&error)))?;
    let missing: Vec<&str> = [crd::Alarm::crd_name(), crd::Agent::crd_name()]
        .into_iter()
        .filter(|name| !resources.resources.iter().any(|served| name.starts_with(&format!("{}.", served.name))))
        .collect();
    if missing.is_empty() {
        Ok(format!("Alarm and Agent are served as {wanted}"))
    } else {
        Err(format!("the API server does not serve {}; {remedy}", missing.join(" and ")))
    }
}

async fn look_at_router(config: Option<&Config>, given: &Given, roles: Roles) -> Finding {
    if !roles.dispatch {
        return Ok("skipped: only role dispatch talks to it".to_owned());
    }
    match config.and_then(|config| config.dispatch.as_ref()) {
        Some(dispatch) => knock(&dispatch.wake_url, WAKE_URL).await,
        None => match given.get(WAKE_URL).map_or(Ok(default_url()), Url::parse) {
            Ok(url) => knock(&url, WAKE_URL).await,
            Err(_) => Err(format!("not looked at: {WAKE_URL} cannot be used, as above")),
        },
    }
}

/// Where service calls are told of their timers; `None`: where the router is, or nobody is told.
async fn look_at_sink(config: Option<&Config>, given: &Given, roles: Roles) -> Option<Finding> {
    if !roles.dispatch {
        return None;
    }
    match config.and_then(|config| config.dispatch.as_ref()) {
        Some(dispatch) if dispatch.sink_url == dispatch.wake_url => None,
        Some(dispatch) => Some(knock(&dispatch.sink_url, SINK_URL).await),
        None => match Url::parse(given.get(SINK_URL).filter(|url| !url.is_empty())?) {
            Ok(url) => Some(knock(&url, SINK_URL).await),
            Err(_) => Some(Err(format!("not looked at: {SINK_URL} cannot be used, as above"))),
        },
    }
}

/// Whether anybody takes connections at the address that this variable names.
async fn knock(url: &Url, variable: &str) -> Finding {
    let origin = url.origin().ascii_serialization();
    let remedy = format!("start it, or set {variable}");
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(format!("{variable} names no host; give one such as http://router:8088/internal/wake"));
    };
    // An IPv6 address stands in brackets in a URL and without them elsewhere.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match timeout(PATIENCE, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) if url.scheme() == "https" => greet(&origin).await,
        Ok(Ok(_)) => Ok(format!("{origin} takes connections; no wake was sent")),
        Ok(Err(error)) => Err(format!("{origin} does not take connections: {error}; {remedy}")),
        Err(_elapsed) => Err(format!("{origin} does not answer within {} s; {remedy}", PATIENCE.as_secs())),
    }
}

/// Whether a certificate is good, by the trust that wakes go by: a HEAD of the origin's root, without a token. Whatever is
/// answered will do.
async fn greet(origin: &str) -> Finding {
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().timeout(PATIENCE);
    let asked = async { client.build()?.head(origin).send().await };
    match asked.await {
        Ok(answer) => {
            let status = answer.status().as_u16();
            Ok(format!("{origin} speaks TLS and answers HEAD / with {status}; no wake was sent"))
        }
        Err(error) => Err(format!(
            "{origin} takes connections and does not speak HTTPS to us: {}; see to its certificate and who signed it",
            chain(&error.without_url())
        )),
    }
}

/// As the settings have it.
fn default_url() -> Url {
    let setting = SETTINGS.iter().find(|setting| setting.name == WAKE_URL);
    let default = setting.and_then(|setting| setting.default).and_then(|text| text.parse().ok());
    default.expect("the setting has a default that is a URL")
}
