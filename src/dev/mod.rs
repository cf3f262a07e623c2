//! `chronosd dev`: everything on this machine with nothing configured. A Postgres of its own, migrations, all roles but the
//! controller (with `--kubeconfig` the controller too), open enrolment, generated secrets, and a small router that prints
//! each wake. Loopback only.

mod postgres;
mod secrets;
mod sink;

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use futures::{FutureExt, future::pending};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::warn;

use crate::{
    config::Given,
    crd,
    run::{self, Cluster},
    store::Store,
    telemetry,
};
use secrets::Secrets;

#[derive(Args)]
pub struct Options {
    /// Where Postgres' data and the generated secrets are kept; default: a cache folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Runs the controller too, against this cluster, and installs the CRDs there first
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Port of the HTTP facade; 0 takes a free one
    #[arg(long, default_value_t = 9096)]
    port: u16,
    /// Port of the probes; 0 takes a free one
    #[arg(long, default_value_t = 9097)]
    metrics_port: u16,
    /// Prints JSON lines: one with everything needed to use it, then one per wake
    #[arg(long)]
    json: bool,
}

impl Options {
    /// What the options say, as settings.
    pub fn flags(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            // Loopback only, whatever the environment says: enrolment is open.
            ("CHRONOS_BIND", "127.0.0.1".to_owned()),
            ("CHRONOS_PORT", self.port.to_string()),
            ("CHRONOS_METRICS_PORT", self.metrics_port.to_string()),
            // Plain HTTP, too: who would make a certificate for it?
            ("CHRONOS_TLS_CERT_PATH", String::new()),
            ("CHRONOS_TLS_KEY_PATH", String::new()),
        ])
    }
}

pub async fn dev(options: Options, given: Given) -> anyhow::Result<()> {
    let given = given.or("CHRONOS_LOG", "warn,chronos=info");
    telemetry::init(given.log_filter())?;
    let data_dir = options.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    std::fs::create_dir_all(&data_dir)
        .with_context(|| format!("creating the data directory {}", data_dir.display()))?;
    let data_dir = data_dir.canonicalize()?;
    let _lock = lock(&data_dir)?;
    let secrets = Secrets::load_or_create(&data_dir)?;

    // A database of the caller's, or one of our own that ends with us.
    let own_postgres = if given.has("CHRONOS_POSTGRES_URI") {
        warn!(
            "CHRONOS_POSTGRES_URI is set: that database is migrated and its alarms are delivered, not one of dev's own"
        );
        None
    } else {
        Some(postgres::Server::start(&data_dir, &secrets.postgres_password).await?)
    };
    let given = match &own_postgres {
        Some(server) => given.or("CHRONOS_POSTGRES_URI", server.uri()),
        None => given,
    };

    let printer = if options.json { sink::Printer::Json } else { sink::Printer::Text };
    let (given, sink) = if given.has("CHRONOS_ROUTER_WAKE_URL") {
        warn!("CHRONOS_ROUTER_WAKE_URL is set: wakes go there and are not printed here");
        (given, pending().boxed())
    } else {
        let (url, serving) = sink::start(&secrets.wake_token, printer).await?;
        (given.or("CHRONOS_ROUTER_WAKE_URL", url), serving.boxed())
    };

    let roles = if options.kubeconfig.is_some() { "controller,dispatch,api" } else { "dispatch,api" };
    let given = given
        .or("CHRONOS_ROLES", roles)
        // The database is ours alone: nobody else delivers its alarms, whatever else runs in the cluster.
        .or("CHRONOS_DISPATCH_MODE", "active")
        .or("CHRONOS_DEV", "true")
        .or("CHRONOS_ENROLMENT", "open")
        .or("CHRONOS_TOKEN", &secrets.token)
        .or("CHRONOS_AGENT_AUTH_SECRET", &secrets.agent_auth_secret)
        .or("CHRONOS_WAKE_TOKEN", &secrets.wake_token);
    let shown = Shown::of(&given);
    let config = given.check()?;

    Store::connect(&config.database, "migrate", 1).await?.migrate().await?;
    let cluster = options.kubeconfig.map_or(Cluster::None, Cluster::Kubeconfig);
    if let Cluster::Kubeconfig(_) = &cluster {
        install_crds(&cluster).await?;
    }
    let running = run::start(config, cluster).await?;
    let api_url = running.api.map(|address| format!("http://{address}"));
    let metrics_url = format!("http://{}", running.probes);
    let ready = json!({
        "event": "ready",
        "api_url": api_url,
        "metrics_url": metrics_url,
        "postgres_uri": shown.postgres_uri,
        "token": shown.token,
        "agent_auth_secret": shown.agent_auth_secret,
        "wake_token": shown.wake_token,
        "wake_url": shown.wake_url,
        "data_dir": data_dir,
    });
    if options.json {
        println!("{ready}");
    } else {
        println!("chronos {} is up; Ctrl-C stops it", env!("CARGO_PKG_VERSION"));
        for (name, value) in ready.as_object().into_iter().flatten().filter(|(name, _)| *name != "event") {
            println!("  {name:<18} {}", value.as_str().unwrap_or("-"));
        }
    }
    // Whatever ends first ends everything: half of it would only look alive.
    let mut own_postgres = own_postgres;
    let ended = tokio::select! {
        ended = running.until_stopped() => ended,
        gone = ended(&mut own_postgres) => return Err(gone),
        gone = sink => gone.context("the router that prints wakes ended"),
    };
    if let Some(server) = own_postgres {
        server.stop().await?;
    }
    ended
}

async fn ended(postgres: &mut Option<postgres::Server>) -> anyhow::Error {
    match postgres {
        Some(server) => server.ended().await,
        None => pending().await,
    }
}

/// One at a time per data directory. The lock goes with the process, however that ends.
fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let file = File::create(data_dir.join("lock")).context("creating the data directory's lock")?;
    file.try_lock().ok().with_context(|| {
        format!(
            "another chronosd dev uses the data directory {}; stop it, or give another --data-dir",
            data_dir.display()
        )
    })?;
    Ok(file)
}

/// What the ready line shows. These secrets are a developer's own and are meant to be used.
struct Shown {
    postgres_uri: String,
    token: String,
    agent_auth_secret: String,
    wake_token: String,
    wake_url: String,
}

impl Shown {
    fn of(given: &Given) -> Self {
        let text = |name| given.get(name).unwrap_or_default().to_owned();
        Self {
            postgres_uri: text("CHRONOS_POSTGRES_URI"),
            token: text("CHRONOS_TOKEN"),
            agent_auth_secret: text("CHRONOS_AGENT_AUTH_SECRET"),
            wake_token: text("CHRONOS_WAKE_TOKEN"),
            wake_url: text("CHRONOS_ROUTER_WAKE_URL"),
        }
    }
}

/// `$XDG_CACHE_HOME/chronos/dev`. For root a place that another user can enter, because Postgres will not run as root and
/// root's home is closed.
fn default_data_dir() -> anyhow::Result<PathBuf> {
    if postgres::is_root() {
        return Ok(PathBuf::from("/var/cache/chronos/dev"));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set; give --data-dir")?.join("chronos/dev"))
}

async fn install_crds(cluster: &Cluster) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(run::client(cluster).await?);
    for definition in crd::all() {
        let name = definition.name_any();
        let parameters = PatchParams::apply("chronosd-dev").force();
        api.patch(&name, &parameters, &Patch::Apply(&definition))
            .await
            .with_context(|| format!("installing the CRD {name}"))?;
    }
    Ok(())
}
