//! `chronosd cluster`: the Kubernetes clusters whose resources have alarms here, and what becomes of those of one that is gone.

use std::process::ExitCode;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    print,
    words::{are, cluster_id, count, cut, named, open, refuse, say, table, unsigned},
};
use crate::{
    config::Given,
    domain::{
        cluster::{NoHeir, SILENCE, heir},
        ids::ClusterId,
        rfc3339,
    },
    store::{
        Store,
        clusters::{Adopted, Cluster, Forgot, Forgotten, HandedOver},
    },
};

/// What a column, and a sentence, can bear of a name.
const LONGEST_NAME: usize = 40;

#[derive(Subcommand)]
pub enum Command {
    /// Lists all clusters, the one seen last first, with what each of them has
    #[command(after_help = "\
ALARMS are those that may still fire, OVER those that do not. A cluster without LAST SEEN was
forgotten, or never seen, and rows still name it.

With --json: a list of {id, name, last_seen, at_work, living_alarms, ended_alarms, agents}.

Example:
  chronosd cluster list --json | jq -r '.[] | select(.at_work | not).id'")]
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Cancels the alarms of a cluster that is gone for good, and removes its agents
    #[command(after_help = "\
Refused while a controller of it is at work: it would store them again. What its agents made over
HTTP stays, paused, as after `chronosd agent remove`. If this is interrupted, run it again.

Example:
  chronosd cluster forget 0b7c4a5e-3c1f-4d52-9a39-6d0f3a1f7f10")]
    Forget {
        /// The cluster: the uid of its namespace kube-system
        #[arg(value_name = "ID", value_parser = cluster_id)]
        id: ClusterId,
    },
    /// Hands the alarms and agents of a cluster over to the one that was built in its place
    #[command(after_help = "\
Refused while a controller of the old one is at work. Alarms keep their ids, with history, pauses
and retries, and each is taken over by the resource of the same namespace, name and owner, whether
that was applied before or is within CHRONOS_ORPHAN_GRACE_SECONDS; after that it is cancelled as
an orphan. If this is interrupted, run it again.

Example:
  chronosd cluster adopt 0b7c4a5e-3c1f-4d52-9a39-6d0f3a1f7f10 \\
    --into 5d1f0c9a-7a54-4f0b-8f43-1b7b9a0e2c66")]
    Adopt {
        /// The cluster that is gone
        #[arg(value_name = "OLD", value_parser = cluster_id)]
        old: ClusterId,
        /// The cluster in its place [default: the only other one seen within 3 minutes]
        #[arg(long, value_name = "NEW", value_parser = cluster_id)]
        into: Option<ClusterId>,
    },
}

pub async fn cluster(command: Command, given: Given) -> anyhow::Result<ExitCode> {
    let store = open(given).await?;
    match command {
        Command::List { json } => list(&store, json).await,
        Command::Forget { id } => forget(&store, id).await,
        Command::Adopt { old, into } => adopt(&store, old, into).await,
    }
}

async fn list(store: &Store, json: bool) -> anyhow::Result<ExitCode> {
    let clusters = store.list_clusters().await?;
    if json {
        let views: Value = clusters.iter().map(view).collect();
        return print(&format!("{views:#}\n")).map(|()| ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = clusters.iter().map(row).collect();
    print(&table(&["ID", "NAME", "LAST SEEN", "ALARMS", "OVER", "AGENTS"], &rows))?;
    for advice in clusters.iter().filter_map(advice) {
        eprintln!("{advice}");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(cluster: &Cluster) -> Vec<String> {
    vec![
        cluster.id.to_string(),
        if cluster.name.is_empty() { "-".to_owned() } else { cut(&cluster.name, LONGEST_NAME) },
        cluster.last_seen.map_or("-".to_owned(), rfc3339),
        cluster.living.to_string(),
        cluster.ended.to_string(),
        cluster.agents.to_string(),
    ]
}

fn view(cluster: &Cluster) -> Value {
    json!({
        "id": cluster.id,
        "name": cluster.name,
        "last_seen": cluster.last_seen.map(rfc3339),
        "at_work": cluster.is_at_work(),
        "living_alarms": cluster.living,
        "ended_alarms": cluster.ended,
        "agents": cluster.agents,
    })
}

/// What to do about a cluster that is gone and whose alarms are not.
fn advice(cluster: &Cluster) -> Option<String> {
    if cluster.is_at_work() || cluster.living == 0 {
        return None;
    }
    let id = cluster.id;
    let unseen =
        cluster.seen_ago().map_or("was never seen".to_owned(), |ago| format!("was last seen {} ago", long(ago)));
    let living = unsigned(cluster.living);
    let (alarms, them) = if living == 1 { ("its alarm fires", "it") } else { ("its alarms fire", "them") };
    Some(format!(
        "{id} {unseen} and {alarms} all the same: `chronosd cluster adopt {id}` hands {them} over to the cluster in its place, \
         `chronosd cluster forget {id}` cancels {them}"
    ))
}

async fn forget(store: &Store, id: ClusterId) -> anyhow::Result<ExitCode> {
    match store.forget_unless_at_work(id).await? {
        Forgotten::Done(forgot) => say(&format!("{id} is forgotten; {}", gone(forgot))),
        Forgotten::Unknown => Ok(refuse("cluster forget", &unknown(id))),
        Forgotten::AtWork { seen_ago, so_far } => {
            let why = format!(
                "{id} is not gone, its controller was seen {} ago: stop it first, or it would store them again",
                long(seen_ago)
            );
            let meanwhile = if so_far == Forgot::default() {
                String::new()
            } else {
                format!(". It came back meanwhile: {} before that", gone(so_far))
            };
            Ok(refuse("cluster forget", &format!("{why}{meanwhile}")))
        }
    }
}

fn gone(forgot: Forgot) -> String {
    let Forgot { alarms, agents, held } = forgot;
    let mut told =
        format!("{} {} cancelled and {} removed", count(alarms, "alarm"), are(alarms), count(agents, "agent"));
    if held > 0 {
        let stay = if held == 1 { "stays" } else { "stay" };
        told = format!("{told}, of whose own {} {stay} paused", count(held, "alarm"));
    }
    told
}

async fn adopt(store: &Store, old: ClusterId, into: Option<ClusterId>) -> anyhow::Result<ExitCode> {
    let clusters = store.list_clusters().await?;
    let unchanged = |why: &str| Ok(refuse("cluster adopt", &format!("{why}. Nothing was changed")));
    let Some(lost) = clusters.iter().find(|cluster| cluster.id == old) else { return unchanged(&unknown(old)) };
    if let Some(seen_ago) = lost.seen_ago().filter(|_| lost.is_at_work()) {
        return unchanged(&not_gone(old, seen_ago));
    }
    let seen: Vec<(ClusterId, DateTime<Utc>)> =
        clusters.iter().filter_map(|cluster| cluster.last_seen.map(|last_seen| (cluster.id, last_seen))).collect();
    let new = match heir(old, into, &seen, lost.as_of) {
        Ok(new) => new,
        Err(why) => return unchanged(&no_heir(old, &why, &clusters)),
    };
    match store.adopt_unless_at_work(old, new).await? {
        Adopted::Done(handed) => say(&handed_over(old, new, &handed).join("\n")),
        // Somebody was faster than we were: it was so a moment ago.
        Adopted::Unknown => unchanged(&unknown(old)),
        Adopted::NeverSeen => unchanged(&never_seen(new)),
        Adopted::AtWork { seen_ago, so_far } => {
            let why = not_gone(old, seen_ago);
            let gone_over = handed_over(old, new, &so_far).join(". ");
            Ok(refuse("cluster adopt", &format!("{why}. It came back meanwhile: {gone_over}")))
        }
    }
}

fn handed_over(old: ClusterId, new: ClusterId, handed: &HandedOver) -> Vec<String> {
    let went = format!("{} and {}", count(handed.alarms, "alarm"), count(handed.agents, "agent"));
    let mut told = vec![format!("{went} handed over to {new}")];
    if handed.alarms + handed.agents > 0 {
        told.push(
            "those whose resource is not applied within CHRONOS_ORPHAN_GRACE_SECONDS are cancelled as orphans"
                .to_owned(),
        );
    }
    let reasons = [
        (&handed.another_owner, "another owner has the alarm of that name there"),
        (&handed.another_waits, "one of that name was handed over before and still waits for its resource"),
    ];
    for (left, why) in reasons.into_iter().filter(|(left, _)| left.all > 0) {
        let all = unsigned(left.all);
        let stay = if all == 1 { "stays" } else { "stay" };
        let names = named(&left.first, left.all);
        told.push(format!("{} {stay} with {old}, because {why}: {names}", count(all, "alarm")));
    }
    told
}

fn no_heir(old: ClusterId, why: &NoHeir, clusters: &[Cluster]) -> String {
    let minutes = SILENCE.num_minutes();
    let listed = |meant: &dyn Fn(&Cluster) -> bool| {
        let meant: Vec<String> = clusters.iter().filter(|cluster| meant(cluster)).map(with_name).collect();
        meant.join(", ")
    };
    match why {
        NoHeir::Itself => format!("{old} cannot take its own place; give the cluster that was built in its place"),
        NoHeir::NeverSeen(named) => never_seen(*named),
        NoHeir::Several(several) => format!(
            "{} other clusters were seen within {minutes} minutes; say which takes its place with --into: {}",
            several.len(),
            listed(&|cluster| several.contains(&cluster.id))
        ),
        NoHeir::NoneAtWork => {
            let others = listed(&|cluster| cluster.id != old && cluster.last_seen.is_some());
            let named = if others.is_empty() { String::new() } else { format!(", or name it with --into: {others}") };
            format!(
                "no other cluster was seen within {minutes} minutes; start the controller of the one that was built in its \
                 place{named}"
            )
        }
    }
}

fn with_name(cluster: &Cluster) -> String {
    if cluster.name.is_empty() {
        return cluster.id.to_string();
    }
    format!("{} ({})", cluster.id, cut(&cluster.name, LONGEST_NAME))
}

fn unknown(id: ClusterId) -> String {
    format!("{id} is unknown; `chronosd cluster list` shows the clusters")
}

fn never_seen(id: ClusterId) -> String {
    format!("no controller of {id} was ever seen, so nobody would look after what goes there; start it first")
}

fn not_gone(id: ClusterId, seen_ago: TimeDelta) -> String {
    format!(
        "{id} is not gone, its controller was seen {} ago: stop it first, or it would go on with what was handed over",
        long(seen_ago)
    )
}

/// How long, in the unit that a person would choose.
fn long(span: TimeDelta) -> String {
    match (span.num_seconds(), span.num_minutes(), span.num_hours(), span.num_days()) {
        (seconds, 0..2, _, _) => format!("{seconds} s"),
        (_, minutes, 0..2, _) => format!("{minutes} minutes"),
        (_, _, hours, 0..2) => format!("{hours} hours"),
        (_, _, _, days) => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_the_unit_that_a_person_would_choose() {
        let told = |seconds| long(TimeDelta::seconds(seconds));
        assert_eq!([told(0), told(119), told(120)], ["0 s", "119 s", "2 minutes"]);
        assert_eq!([told(7199), told(7200)], ["119 minutes", "2 hours"]);
        assert_eq!([told(2 * 86_400 - 1), told(2 * 86_400)], ["47 hours", "2 days"]);
    }
}
