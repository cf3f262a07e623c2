//! The commands: parse, hand over.
//!
//! Exit codes of every command: 0 done, 1 refused or a problem found, 2 usage (clap's own).

mod agent;
mod alarm;
mod check;
mod cluster;
mod dispatch;
mod explain;
mod finalizers;
mod fires;
mod migrate;
mod next;
mod reference;
mod words;

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    clock,
    config::{Given, SETTINGS, flag},
    crd, dev,
    domain::invalid::Invalid,
    http, run, telemetry,
};

/// Chronos wakes agents on time: alarms go in as Kubernetes resources or over HTTP, and at the due
/// instant a wake goes out to the agents' router. Every alarm is a row in Postgres, so that any
/// process may die at any moment and no wake is lost.
#[derive(Parser)]
#[command(
    name = "chronosd",
    version,
    verbatim_doc_comment,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  chronosd dev                                              try it on this machine
  chronosd next \"0 9 * * MON-FRI\" --tz America/New_York     when would this fire?
  chronosd explain -f alarms.yaml                           is this file right? what would it do?
  chronosd run --roles controller,dispatch                  in a cluster

Exit codes: 0 done, 1 refused or a problem found, 2 usage. `chronosd COMMAND --help` says more."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// In the order in which people meet them: to try, to write alarms, to operate.
#[derive(Subcommand)]
enum Command {
    /// Runs everything on this machine: a Postgres of its own, a router that prints each wake
    #[command(after_help = "\
Example, in two terminals; the token is the one that the first prints:
  chronosd dev
  examples/sign-in.sh http://127.0.0.1:9096 TOKEN

The settings of `chronosd run` count here too: with CHRONOS_POSTGRES_URI in the environment it uses that
database, with CHRONOS_ROUTER_WAKE_URL wakes go there. It says so.")]
    Dev(dev::Options),
    /// Prints when a cron expression fires next, in local time and UTC
    Next(next::Options),
    /// Checks Alarm and Agent files offline: every mistake at once, and what they would do
    Explain(explain::Options),
    /// Runs the roles controller, dispatch and api, or those that --roles names
    Run(RunArgs),
    /// Brings the database's schema up to this version; safe to run by many at once
    Migrate(migrate::Options),
    /// Checks what `run` needs: configuration, database, schema, CRDs, router
    Check(check::Options),
    /// Enrols, lists, suspends, resumes and removes agents; gives one another key
    #[command(
        subcommand,
        after_help = "\
Reads CHRONOS_POSTGRES_URI, or the file that CHRONOS_POSTGRES_URI_FILE names.

Example:
  chronosd agent add did:matrix:ann:d75a980182b10ab7 --public-key d75a980182b10ab7…"
    )]
    Agent(agent::Command),
    /// Lists and shows alarms of all owners, and arms those that failed again
    #[command(
        subcommand,
        after_help = "\
Reads CHRONOS_POSTGRES_URI, or the file that CHRONOS_POSTGRES_URI_FILE names.

Example:
  chronosd alarm list --status failed"
    )]
    Alarm(alarm::Command),
    /// Lists clusters; hands a lost one's alarms over to its successor, or cancels them
    #[command(
        subcommand,
        after_help = "\
Reads CHRONOS_POSTGRES_URI, or the file that CHRONOS_POSTGRES_URI_FILE names.

A cluster is known by the uid of its namespace kube-system. One that is built anew has another id,
and the alarms of the one before go on firing until somebody says what is to become of them.

Example:
  chronosd cluster adopt 0b7c4a5e-3c1f-4d52-9a39-6d0f3a1f7f10"
    )]
    Cluster(cluster::Command),
    /// Lets go of all Alarms and Agents of a cluster before the operator is uninstalled
    #[command(subcommand)]
    Finalizers(finalizers::Command),
    /// Holds all deliveries for maintenance, or lets them go on
    #[command(subcommand)]
    Dispatch(dispatch::Switch),
    /// Prints the definitions (CRDs) of Alarm and Agent as YAML
    #[command(after_help = "Example:\n  chronosd crd | kubectl apply -f -")]
    Crd(CrdArgs),
    /// Prints the HTTP facade's OpenAPI document, as the facade serves it at /openapi.json
    #[command(after_help = "Example:\n  chronosd openapi > openapi.json")]
    Openapi,
    /// Writes the pages of docs/reference
    #[command(hide = true)]
    Reference(reference::Options),
}

#[derive(Args)]
struct RunArgs {
    /// The cluster's kubeconfig; inside a cluster none is needed
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[derive(Args)]
struct CrdArgs {
    /// Writes one file per definition into this directory instead
    #[arg(long, value_name = "DIR")]
    out_dir: Option<PathBuf>,
}

pub fn main() -> ExitCode {
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match start(cli, &matches) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("chronosd: {}", telemetry::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The command line, with a flag for every setting that is no secret.
fn command() -> clap::Command {
    let flags = SETTINGS.iter().filter(|setting| !setting.secret).map(|setting| {
        let default = setting.default.filter(|default| !default.is_empty());
        let default = default.map_or(String::new(), |default| format!(", default {default}"));
        Arg::new(setting.name)
            .long(flag(setting.name))
            .value_name("VALUE")
            .help(format!("{} [{}{default}]", setting.help, setting.name))
            .help_heading("Settings (each also an environment variable, or a file named by NAME_FILE)")
    });
    let secrets = SETTINGS.iter().filter(|setting| setting.secret);
    let secrets: Vec<String> = secrets.map(|setting| format!("  {}\n      {}", setting.name, setting.help)).collect();
    let secrets = format!(
        "Settings without a flag, because command lines are visible to others:\n{}\n\nExample:\n  chronosd run --roles controller,dispatch --kubeconfig ~/.kube/config",
        secrets.join("\n")
    );
    Cli::command().mut_subcommand("run", |run| run.args(flags).after_help(secrets))
}

fn start(cli: Cli, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the crypto provider is set already"))?;
    let done = match cli.command {
        Command::Next(options) => {
            return match next::next(&options, clock::system().now()) {
                Ok(text) => print(&text).map(|()| ExitCode::SUCCESS),
                Err(invalid) => Ok(refuse("next", &invalid)),
            };
        }
        Command::Explain(options) => {
            return match explain::explain(&options, clock::system().now()) {
                Ok((text, fine)) => print(&text).map(|()| if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
                Err(invalid) => Ok(refuse("explain", &[invalid])),
            };
        }
        Command::Crd(args) => print_crds(args.out_dir),
        Command::Openapi => print(http::openapi::text()),
        Command::Reference(options) => reference::reference(&options, Cli::command()),
        Command::Migrate(options) => on_runtime(migrate::migrate(options, given(&BTreeMap::new()))),
        Command::Check(options) => return on_runtime(check::check(options, || given(&BTreeMap::new()))),
        Command::Agent(command) => return on_runtime(agent::agent(command, given(&BTreeMap::new()))),
        Command::Alarm(command) => return on_runtime(alarm::alarm(command, given(&BTreeMap::new()))),
        Command::Cluster(command) => return on_runtime(cluster::cluster(command, given(&BTreeMap::new()))),
        Command::Finalizers(command) => return on_runtime(finalizers::finalizers(command, given(&BTreeMap::new()))),
        Command::Dispatch(switch) => on_runtime(dispatch::dispatch(switch, given(&BTreeMap::new()))),
        Command::Dev(options) => {
            let given = given(&options.flags());
            on_runtime(dev::dev(options, given))
        }
        Command::Run(args) => {
            let run = matches.subcommand_matches("run").expect("the subcommand that was parsed");
            let flag = |name| run.get_one::<String>(name).cloned().map(|value| (name, value));
            let flags =
                SETTINGS.iter().filter(|setting| !setting.secret).filter_map(|setting| flag(setting.name)).collect();
            on_runtime(run_roles(given(&flags), args.kubeconfig))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Every argument that cannot stand as it is, one per line.
fn refuse(command: &str, invalid: &[Invalid]) -> ExitCode {
    for argument in invalid {
        eprintln!("chronosd {command}: {argument}");
    }
    ExitCode::FAILURE
}

fn given(flags: &BTreeMap<&'static str, String>) -> Given {
    Given::collect(flags, &std::env::vars().collect())
}

fn on_runtime<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(command)
}

async fn run_roles(given: Given, kubeconfig: Option<PathBuf>) -> anyhow::Result<()> {
    telemetry::init(given.log_filter())?;
    let config = given.check()?;
    let cluster = kubeconfig.map_or(run::Cluster::Environment, run::Cluster::Kubeconfig);
    run::start(config, cluster).await?.until_stopped().await
}

fn print_crds(out_dir: Option<PathBuf>) -> anyhow::Result<()> {
    let Some(directory) = out_dir else {
        let documents: Vec<String> = crd::all().iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
        return print(&format!("---\n{}", documents.join("---\n")));
    };
    std::fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    for definition in crd::all() {
        let yaml = serde_saphyr::to_string(&definition)?;
        let name = definition.metadata.name.as_deref().context("a CRD has a name")?;
        let path = directory.join(format!("{name}.yaml"));
        let text = format!("# Generated by `chronosd crd`; `make generate` writes it, `make verify` compares.\n{yaml}");
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// To stdout. A reader that has seen enough, such as `head`, is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        Ok(()) | Err(_) => Ok(()),
    }
}
