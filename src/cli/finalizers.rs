//! `chronosd finalizers release`: before the operator is uninstalled. No database is asked.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};

use super::{
    print,
    words::{count, span},
};
use crate::{
    config::Given,
    controller::release::{Ended, Release, Report, Tally},
    run, telemetry,
};

/// As many names as a line can bear.
const NAMED: usize = 10;

#[derive(Subcommand)]
pub enum Command {
    /// Takes the finalizers of Chronos off all Alarms and Agents; their rows in the database stay
    #[command(after_help = "\
While no controller runs, its finalizers hold every Alarm and Agent that is deleted, and its
namespace. This lets go of them all. Finalizers of others stay, nothing else is changed, and a
controller that comes later finds the same alarms and puts its finalizers back on.

With --deployment, those Deployments are scaled to 0 first and their pods waited for: a controller
that is still at work would put the finalizers back. They are looked for in CHRONOS_NAMESPACE, or in
the pod's own namespace, or in the kubeconfig context's.

What is being deleted at that moment goes away, and its row does not hear of it: the next controller
of the cluster clears it away, or `chronosd cluster forget` if there will be none.

Needs: list and patch on alarms and agents; with --deployment also patch on deployments/scale and
list on pods. Reads CHRONOS_WATCH_NAMESPACES and CHRONOS_NAMESPACE. May be run again.

Example:
  chronosd finalizers release --kubeconfig ~/.kube/config --deployment chronos

Exit codes: 0 no finalizer of ours is left, 1 some are, or nobody could look, 2 usage")]
    Release(Options),
}

#[derive(Args)]
pub struct Options {
    /// The cluster's kubeconfig; inside a cluster none is needed
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// A namespace to look into; repeatable; default: those watched
    #[arg(long = "namespace", value_name = "NS")]
    namespaces: Vec<String>,
    /// A Deployment to scale to 0 and wait for first; repeatable
    #[arg(long = "deployment", value_name = "NAME")]
    deployments: Vec<String>,
    /// How long all of it may take, such as 90s or 2m
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = span)]
    timeout: Duration,
}

pub async fn finalizers(command: Command, given: Given) -> anyhow::Result<ExitCode> {
    let Command::Release(options) = command;
    telemetry::init(given.log_filter())?;
    let place = given.place()?;
    let cluster = options.kubeconfig.map_or(run::Cluster::Environment, run::Cluster::Kubeconfig);
    let client = run::find_client(&cluster).await?.ok_or_else(|| {
        anyhow::anyhow!("finalizers are in a cluster: run this inside one, set KUBECONFIG or --kubeconfig")
    })?;
    let namespaces = if options.namespaces.is_empty() { place.watched } else { options.namespaces };
    let release = Release {
        home: place.home.unwrap_or_else(|| client.default_namespace().to_owned()),
        client,
        deployments: options.deployments,
        namespaces,
        timeout: options.timeout,
    };
    let mut report = Report::default();
    let done = release.run(&mut report).await;
    print(&told(&report, done.is_ok()))?;
    done?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each Deployment, for each kind, and for those that are gone now. Of what was not done to its end: what was done.
fn told(report: &Report, whole: bool) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (name, ended) in &report.deployments {
        lines.push(match ended {
            Ended::ScaledDown => format!("Deployment {name}: scaled to 0, no pod is left"),
            Ended::NotThere => format!("Deployment {name}: there is none"),
        });
    }
    let kinds = [("Alarm", &report.alarms), ("Agent", &report.agents)];
    for (kind, tally) in kinds.iter().filter_map(|(kind, tally)| Some((kind, tally.as_ref()?))) {
        if whole || tally.released() > 0 {
            lines.push(one_kind(kind, tally));
        }
    }
    let gone: Vec<&str> = kinds.iter().filter_map(|(_, tally)| tally.as_ref()).flat_map(let_go).collect();
    if !gone.is_empty() {
        let more = gone.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        lines.push(format!(
            "being deleted, and let go: {}{more}. Nobody has told the database: their alarms are still active, their agents still \
             enrolled. The next controller of this cluster clears them away; if there will be none, `chronosd cluster forget` does",
            gone[..gone.len().min(NAMED)].join(", ")
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn let_go(tally: &Tally) -> impl Iterator<Item = &str> {
    tally.let_go.iter().map(String::as_str)
}

fn one_kind(kind: &str, tally: &Tally) -> String {
    match (tally.not_served, tally.released()) {
        (true, 0) => format!("{kind}s: the cluster has no such resource, nothing to do"),
        (false, 0) => format!("{kind}s: none has a finalizer of ours, nothing to do"),
        (_, released) => format!("{kind}s: finalizer taken off {}", count(released as u64, kind)),
    }
}
