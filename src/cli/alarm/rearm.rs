//! `chronosd alarm rearm`: after an incident, what failed is armed again.

use std::process::ExitCode;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use serde_json::{Value, json};

use super::{Of, unknown};
use crate::{
    cli::{
        print,
        words::{alarm_id, count, fire_at, refuse},
    },
    domain::{
        alarm::{Status, lifecycle::NotRearmed},
        ids::AlarmId,
        rfc3339,
    },
    store::{
        Store,
        alarms::{Again, Edited, Resource, Search},
    },
};

/// Alarms that one look finds.
const PAGE: i64 = 100;
/// Half a century: nobody means more, and no clock holds all that would fit.
const LONGEST_DELAY: i64 = 50 * 365 * 86_400;

#[derive(Args)]
#[command(after_help = "\
A series goes on at its next slot. An alarm that fires once and whose instant has passed needs
another one: without --delay-seconds or --fire-at it is refused, and told. Alarms that resources
manage are refused: edit the resource. Ends with 1 if any was refused; the others are armed.

With --json: a list of {id, armed, next_fire_at, refused}.

Examples:
  chronosd alarm rearm 01939d3e-7c5b-7a52-8f5a-0d6f3c1f7a10 --delay-seconds 60
  chronosd alarm rearm --failed-since 2026-11-16T09:00:00Z --delay-seconds 60 --dry-run")]
pub struct Rearm {
    /// Which alarms; or else --owner or --failed-since: alarms that are failed
    #[arg(value_name = "ID", value_parser = alarm_id, required_unless_present_any = ["owner", "failed_since"],
          conflicts_with_all = ["owner", "failed_since"])]
    ids: Vec<AlarmId>,
    #[command(flatten)]
    of: Of,
    /// When alarms that fire once fire: RFC 3339 with an offset
    #[arg(long, value_name = "T", value_parser = fire_at, conflicts_with = "delay_seconds")]
    fire_at: Option<DateTime<Utc>>,
    /// How many seconds from now alarms that fire once fire
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=LONGEST_DELAY))]
    delay_seconds: Option<i64>,
    /// Says what would be done, and does nothing
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What became of one.
struct One {
    id: AlarmId,
    /// When it fires next, or why it does not.
    armed: Result<DateTime<Utc>, String>,
}

pub async fn rearm(store: &Store, options: Rearm) -> anyhow::Result<ExitCode> {
    let again = options.fire_at.map(Again::At);
    let again = again.or(options.delay_seconds.map(|seconds| Again::After(TimeDelta::seconds(seconds))));
    let mut done = Vec::new();
    if options.ids.is_empty() {
        let Of { owner, failed_since } = options.of;
        let search = Search { owner, statuses: vec![Status::Failed], failed_since };
        let mut before = None;
        loop {
            let found = store.search_all_owners(&search, before, PAGE).await?;
            let Some(last) = found.last().map(|alarm| alarm.id) else { break };
            for alarm in found {
                // An instant is for those of them that need one.
                done.push(one(store, alarm.id, again, false, options.dry_run).await?);
            }
            before = Some(last);
        }
    } else {
        for id in options.ids {
            done.push(one(store, id, again, true, options.dry_run).await?);
        }
    }
    tell(&done, options.dry_run, options.json)
}

async fn one(store: &Store, id: AlarmId, again: Option<Again>, strict: bool, dry_run: bool) -> anyhow::Result<One> {
    let armed = match store.rearm_any(id, again, strict, dry_run).await? {
        Edited::Done(alarm) | Edited::Unchanged(alarm) => Ok(alarm.next_fire_at),
        Edited::Unknown => Err(unknown(id)),
        Edited::Managed(Resource { cluster, namespace, name }) => Err(format!(
            "the resource Alarm {namespace}/{name} of cluster {cluster} manages it; edit its schedule there"
        )),
        Edited::Unreadable(why) => Err(format!("its row cannot be read: {why}; its owner may replace it by PUT")),
        // Quotas are for owners; should one ever be asked about here, it is told.
        Edited::OverQuota(exceeded) => Err(exceeded.to_string()),
        Edited::Barred => Err("its owner is not enrolled, or suspended".to_owned()),
        Edited::Refused(NotRearmed::NeedsInstant) => {
            Err("its instant has passed; give --delay-seconds or --fire-at".to_owned())
        }
        Edited::Refused(NotRearmed::Past) => Err("--fire-at lies in the past; give an instant ahead".to_owned()),
        Edited::Refused(NotRearmed::IsSeries) => {
            Err("it follows a cron expression; leave --delay-seconds and --fire-at out".to_owned())
        }
        Edited::Refused(refused @ (NotRearmed::Living(_) | NotRearmed::NoFutureInstant)) => Err(refused.to_string()),
    };
    Ok(One { id, armed })
}

fn tell(done: &[One], dry_run: bool, json: bool) -> anyhow::Result<ExitCode> {
    let refused = done.iter().filter(|one| one.armed.is_err()).count();
    let number = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
    let told = if json {
        let view = |one: &One| {
            json!({
                "id": one.id,
                "armed": one.armed.is_ok() && !dry_run,
                "next_fire_at": one.armed.as_ref().ok().copied().map(rfc3339),
                "refused": one.armed.as_ref().err(),
            })
        };
        let views: Value = done.iter().map(view).collect();
        format!("{views:#}\n")
    } else {
        let verb = if dry_run { "would be armed, to fire" } else { "is armed, and fires" };
        let armed = done.iter().filter_map(|one| one.armed.as_ref().ok().map(|next| (one.id, *next)));
        let mut lines: Vec<String> = armed.map(|(id, next)| format!("{id} {verb} at {}", rfc3339(next))).collect();
        let armed = count(number(done.len() - refused), "alarm");
        let verb = if dry_run { "would be armed" } else { "armed" };
        lines.push(format!("{armed} {verb}, {refused} refused\n"));
        lines.join("\n")
    };
    for one in done {
        if let Err(why) = &one.armed {
            refuse("alarm rearm", &format!("{}: {why}", one.id));
        }
    }
    print(&told)?;
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
