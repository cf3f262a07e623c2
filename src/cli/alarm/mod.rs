//! `chronosd alarm`: the operator's view of the whole database, whosever the alarms are and whichever door they came through.

mod rearm;
mod view;

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};

use super::{
    print,
    words::{alarm_id, count, cut, did, instant, open, refuse, status, table},
};
use crate::{
    config::Given,
    domain::{access::Did, alarm::Status, ids::AlarmId, rfc3339},
    http::alarms::view::AttemptView,
    store::{
        Store,
        alarms::{Alarm, Search},
        attempts::Entry,
    },
};

#[derive(Subcommand)]
pub enum Command {
    /// Lists alarms of all owners, newest first
    List(List),
    /// Shows everything about one alarm: what it is, when it fires, who is at it
    #[command(after_help = "\
With --json: the facade's view of the alarm, with its owner and who holds a claim on it.

Example:
  chronosd alarm show 01939d3e-7c5b-7a52-8f5a-0d6f3c1f7a10")]
    Show {
        #[arg(value_name = "ID", value_parser = alarm_id)]
        id: AlarmId,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows what became of an alarm's attempts, newest first
    #[command(after_help = "\
Runs of slots that did not fire are entries, too. History outlives its alarm for as long as it is
kept. With --json: a list of the facade's attempts.

Example:
  chronosd alarm attempts 01939d3e-7c5b-7a52-8f5a-0d6f3c1f7a10 --limit 10")]
    Attempts {
        #[arg(value_name = "ID", value_parser = alarm_id)]
        id: AlarmId,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
        limit: i64,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Arms alarms that are over: some by their ids, or all that failed
    Rearm(rearm::Rearm),
}

/// As much as one answer shows.
const MOST: i64 = 10_000;

#[derive(Args)]
#[command(after_help = "\
With --json: a list of the facade's views, each with its owner.

Examples:
  chronosd alarm list --owner did:matrix:ann:d75a980182b10ab7 --status active,paused
  chronosd alarm list --failed-since 2026-11-16T09:00:00Z --json")]
pub struct List {
    #[command(flatten)]
    of: Of,
    /// Only alarms in these statuses: active, paused, fired, failed, cancelled
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    status: Vec<Status>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
    limit: i64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Which alarms are meant.
#[derive(Args)]
struct Of {
    /// Only alarms of this owner
    #[arg(long, value_name = "DID", value_parser = did)]
    owner: Option<Did>,
    /// Only alarms that are failed, and failed at or after this instant
    #[arg(long, value_name = "T", value_parser = instant)]
    failed_since: Option<DateTime<Utc>>,
}

pub async fn alarm(command: Command, given: Given) -> anyhow::Result<ExitCode> {
    let store = open(given).await?;
    match command {
        Command::List(options) => list(&store, options).await,
        Command::Show { id, json } => show(&store, id, json).await,
        Command::Attempts { id, limit, json } => attempts(&store, id, limit, json).await,
        Command::Rearm(options) => rearm::rearm(&store, options).await,
    }
}

async fn list(store: &Store, options: List) -> anyhow::Result<ExitCode> {
    let List { of: Of { owner, failed_since }, status, limit, json } = options;
    let search = Search { owner, statuses: status, failed_since };
    // One more than asked for says whether there are more.
    let mut alarms = store.search_all_owners(&search, None, limit + 1).await?;
    let shown = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = alarms.len() > shown;
    alarms.truncate(shown);
    let told = if json {
        let now = store.now().await?;
        let views: Vec<view::View> = alarms.into_iter().map(|alarm| view::View::of(alarm, now)).collect();
        format!("{}\n", serde_json::to_string_pretty(&views)?)
    } else {
        let rows: Vec<Vec<String>> = alarms.iter().map(row).collect();
        let names = ["ID", "OWNER", "LABEL", "SCHEDULE", "STATUS", "NEXT", "FAILURES", "LAST ERROR"];
        table(&names, &rows)
    };
    print(&told)?;
    if more {
        eprintln!("these are the newest {limit}; --limit shows more");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(alarm: &Alarm) -> Vec<String> {
    const LABEL: usize = 32;
    const ERROR: usize = 48;
    vec![
        alarm.id.to_string(),
        alarm.owner_did.clone(),
        cut(&alarm.label, LABEL),
        schedule(alarm),
        standing(alarm),
        if alarm.status == Status::Active { rfc3339(alarm.next_fire_at) } else { "-".to_owned() },
        alarm.failure_count.to_string(),
        cut(&alarm.last_error, ERROR),
    ]
}

/// As its owner wrote it.
fn schedule(alarm: &Alarm) -> String {
    match alarm.when.fire_at {
        Some(instant) => format!("once {}", rfc3339(instant)),
        None => format!("{} {}", alarm.when.cron_expr, alarm.when.timezone),
    }
}

/// The status, with whoever pauses or cancelled it.
fn standing(alarm: &Alarm) -> String {
    let mut causes: Vec<&str> = alarm.paused_by().iter().map(|cause| cause.as_str()).collect();
    causes.extend(alarm.cancelled_by.as_deref());
    let status = alarm.status.as_str();
    if causes.is_empty() { status.to_owned() } else { format!("{status} by {}", causes.join("+")) }
}

async fn show(store: &Store, id: AlarmId, json: bool) -> anyhow::Result<ExitCode> {
    let Some(seen) = store.see_alarm(id).await? else { return Ok(refuse("alarm show", &unknown(id))) };
    let now = store.now().await?;
    let told = if json { view::json(seen, now)? } else { view::told(&seen, now) };
    print(&told).map(|()| ExitCode::SUCCESS)
}

async fn attempts(store: &Store, id: AlarmId, limit: i64, json: bool) -> anyhow::Result<ExitCode> {
    let page = store.attempts_of_any(id, limit).await?;
    if page.entries.is_empty() && store.see_alarm(id).await?.is_none() {
        return Ok(refuse("alarm attempts", &format!("{}, and there is no history of one", unknown(id))));
    }
    let told = if json {
        // As `GET /v1/alarms/{id}/attempts` has them.
        let entries: Vec<AttemptView> = page.entries.into_iter().map(AttemptView::of).collect();
        format!("{}\n", serde_json::to_string_pretty(&entries)?)
    } else {
        let rows: Vec<Vec<String>> = page.entries.iter().map(entry).collect();
        table(&["STARTED", "ATTEMPT", "OUTCOME", "HTTP", "TOOK", "FOR", "WHAT"], &rows)
    };
    print(&told)?;
    if page.next.is_some() {
        eprintln!("these are the newest {limit}; --limit shows more");
    }
    Ok(ExitCode::SUCCESS)
}

fn entry(entry: &Entry) -> Vec<String> {
    const ERROR: usize = 80;
    let dash = || "-".to_owned();
    let (took, what) = match entry.run() {
        None => (format!("{} ms", entry.duration_ms), cut(&entry.error, ERROR)),
        Some(run) => {
            let why = entry.reason.as_deref().unwrap_or_default();
            let slots = format!("{}, {why}, since {}", count(run.slots, "slot"), rfc3339(run.first));
            (dash(), if entry.error.is_empty() { slots } else { format!("{slots}: {}", cut(&entry.error, ERROR)) })
        }
    };
    vec![
        rfc3339(entry.started_at),
        if entry.attempt == 0 { dash() } else { entry.attempt.to_string() },
        entry.outcome.as_str().to_owned(),
        entry.http_status.map_or_else(dash, |status| status.to_string()),
        took,
        rfc3339(entry.scheduled_for),
        what,
    ]
}

fn unknown(id: AlarmId) -> String {
    format!("no agent's alarm has the id {id}; `chronosd alarm list` shows which there are")
}
