//! `chronosd agent`: who is enrolled, by hand. Agents that a resource holds are shown here and changed there.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    print,
    words::{are, count, did, named, open, public_key, refuse, say, table, unsigned},
};
use crate::{
    config::Given,
    domain::{access::Did, rfc3339},
    store::{
        Store,
        agents::{Agent, Changed, Enrolled, Holder, Living, Purged, Quotas, Rotated},
        resources::Identity,
    },
};

#[derive(Subcommand)]
pub enum Command {
    /// Enrols an agent, or gives one that is enrolled by hand other quotas
    Add(Add),
    /// Lists all agents, whoever enrolled them
    #[command(after_help = "\
With --json: a list of {did, public_key, suspended, max_active_alarms, min_interval_seconds,
living_alarms, held_alarms, managed_by, created_at, updated_at}.

Example:
  chronosd agent list --json | jq -r '.[] | select(.suspended).did'")]
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Lets an agent in no more, and pauses its alarms
    #[command(after_help = "\
From then on its requests are refused; what is in flight arrives. Its alarms are paused until it
is resumed, beside whatever else pauses them.

Example:
  chronosd agent suspend did:matrix:ann:d75a980182b10ab7")]
    Suspend {
        /// The agent: did:matrix:<user id>:<first 16 hex digits of its public key>
        #[arg(value_name = "DID", value_parser = did)]
        did: Did,
    },
    /// Lets a suspended agent in again, and its alarms go on
    #[command(after_help = "\
Slots that passed meanwhile do not fire; an alarm that fires once and whose instant passed fires
at once.

Example:
  chronosd agent resume did:matrix:ann:d75a980182b10ab7")]
    Resume {
        /// The agent: did:matrix:<user id>:<first 16 hex digits of its public key>
        #[arg(value_name = "DID", value_parser = did)]
        did: Did,
    },
    /// Gives an agent another key: all it has goes over to the new key's DID
    Rotate(Rotate),
    /// Removes an agent; its alarms stay, paused, unless --purge is given
    #[command(after_help = "\
Suspended first, then removed: if this is interrupted, run it again. Enrolled again, the agent
finds its alarms, and they go on. What was attempted stays in the history.

Example:
  chronosd agent remove did:matrix:ann:d75a980182b10ab7 --purge")]
    Remove {
        /// The agent: did:matrix:<user id>:<first 16 hex digits of its public key>
        #[arg(value_name = "DID", value_parser = did)]
        did: Did,
        /// Also cancels its alarms and deletes its service calls and sessions
        #[arg(long)]
        purge: bool,
    },
}

#[derive(Args)]
#[command(after_help = "\
A suspension stays as it is. Alarms that an earlier removal left paused go on.

Example:
  chronosd agent add did:matrix:ann:d75a980182b10ab7 --max-active-alarms 100 \\
    --public-key d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")]
pub struct Add {
    /// did:matrix:<user id>:<first 16 hex digits of the public key>
    #[arg(value_name = "DID", value_parser = did)]
    did: Did,
    /// The whole ed25519 public key, 64 hex digits
    #[arg(long, value_name = "HEX64", value_parser = public_key)]
    public_key: [u8; 32],
    /// How many of its alarms may still fire [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MOST))]
    max_active_alarms: Option<u32>,
    /// Least seconds between two wakes of one alarm [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MOST))]
    min_interval_seconds: Option<u32>,
}

/// What the columns hold.
const MOST: i64 = i32::MAX as i64;

#[derive(Args)]
#[command(after_help = "\
Alarms, service calls, sessions, history, quotas and a suspension go over in one transaction; what
is in flight arrives and counts. Refused where resources name the old DID: edit those.

Example:
  chronosd agent rotate did:matrix:ann:d75a980182b10ab7 did:matrix:ann:3d4017c3e843895a \\
    --public-key 3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")]
pub struct Rotate {
    /// The DID it has
    #[arg(value_name = "OLD", value_parser = did)]
    old: Did,
    /// The DID it gets: of the same user, with the new key's first 16 hex digits
    #[arg(value_name = "NEW", value_parser = did)]
    new: Did,
    /// The new key, 64 hex digits
    #[arg(long, value_name = "HEX64", value_parser = public_key)]
    public_key: [u8; 32],
}

pub async fn agent(command: Command, given: Given) -> anyhow::Result<ExitCode> {
    let store = open(given).await?;
    match command {
        Command::Add(options) => add(&store, &options).await,
        Command::List { json } => list(&store, json).await,
        Command::Suspend { did } => suspend(&store, &did).await,
        Command::Resume { did } => resume(&store, &did).await,
        Command::Rotate(options) => rotate(&store, &options).await,
        Command::Remove { did, purge } => remove(&store, &did, purge).await,
    }
}

async fn add(store: &Store, options: &Add) -> anyhow::Result<ExitCode> {
    let did = &options.did;
    if !did.names_key(&options.public_key) {
        return Ok(refuse("agent add", &another_key(did, &options.public_key)));
    }
    let quotas =
        Quotas { max_active_alarms: options.max_active_alarms, min_interval_seconds: options.min_interval_seconds };
    let agent = match store.enrol_by_hand_unless_held(did, &options.public_key, quotas).await? {
        Enrolled::Stands(agent) => agent,
        Enrolled::Held(Holder::Resource(identity)) => return Ok(refuse("agent add", &held_by(did, &identity))),
        Enrolled::Held(Holder::CommandLine) => {
            let why =
                format!("{did} is enrolled with another key of the same beginning; remove it first if that is wrong");
            return Ok(refuse("agent add", &why));
        }
    };
    let went_on = store.follow_agent(did).await?.resumed;
    let standing = if agent.suspended { "enrolled, and suspended as before" } else { "enrolled" };
    let mut told = vec![format!("{did} is {standing}"), limits(agent.quotas)];
    if went_on > 0 {
        told.push(format!("{} no longer {} for it", count(went_on, "alarm"), waits(went_on)));
    }
    say(&told.join("; "))
}

fn limits(quotas: Quotas) -> String {
    let most =
        quotas.max_active_alarms.map(|most| format!("at most {} that can still fire", count(most.into(), "alarm")));
    let least = quotas.min_interval_seconds.map(|least| format!("at least {least} s between two wakes of one alarm"));
    let limits: Vec<String> = [most, least].into_iter().flatten().collect();
    if limits.is_empty() { "no limits".to_owned() } else { limits.join(", ") }
}

async fn list(store: &Store, json: bool) -> anyhow::Result<ExitCode> {
    let agents = store.list_agents().await?;
    let living = store.living_alarms_by_owner().await?;
    let living = |agent: &Agent| living.get(agent.did.as_str()).copied().unwrap_or_default();
    let told = if json {
        let views: Value = agents.iter().map(|agent| view(agent, living(agent))).collect();
        format!("{views:#}\n")
    } else {
        let rows: Vec<Vec<String>> = agents.iter().map(|agent| row(agent, living(agent))).collect();
        table(&["DID", "STATUS", "MAX ALARMS", "MIN INTERVAL", "ALARMS", "MANAGED BY", "CREATED"], &rows)
    };
    print(&told).map(|()| ExitCode::SUCCESS)
}

fn row(agent: &Agent, living: Living) -> Vec<String> {
    let limit = |number: Option<u32>, unit: &str| number.map_or("-".to_owned(), |number| format!("{number}{unit}"));
    vec![
        agent.did.to_string(),
        if agent.suspended { "suspended" } else { "enrolled" }.to_owned(),
        limit(agent.quotas.max_active_alarms, ""),
        limit(agent.quotas.min_interval_seconds, " s"),
        living.alarms.to_string(),
        match &agent.holder {
            Holder::CommandLine => "command line".to_owned(),
            Holder::Resource(identity) => format!("Agent {}/{}", identity.namespace, identity.name),
        },
        rfc3339(agent.created_at),
    ]
}

fn view(agent: &Agent, living: Living) -> Value {
    json!({
        "did": agent.did,
        "public_key": hex::encode(agent.public_key),
        "suspended": agent.suspended,
        "max_active_alarms": agent.quotas.max_active_alarms,
        "min_interval_seconds": agent.quotas.min_interval_seconds,
        "living_alarms": living.alarms,
        "held_alarms": living.held,
        "managed_by": match &agent.holder {
            Holder::CommandLine => Value::Null,
            Holder::Resource(Identity { cluster, namespace, name, .. }) => {
                json!({ "cluster": cluster, "namespace": namespace, "name": name })
            }
        },
        "created_at": rfc3339(agent.created_at),
        "updated_at": rfc3339(agent.updated_at),
    })
}

async fn suspend(store: &Store, did: &Did) -> anyhow::Result<ExitCode> {
    if let Some(why) = why_not(did, store.set_suspended_unless_managed(did, true).await?) {
        return Ok(refuse("agent suspend", &why));
    }
    store.follow_agent(did).await?;
    let held = unsigned(store.living_alarms_of(did).await?.held);
    say(&format!("{did} is suspended; {} {} paused", count(held, "alarm"), are(held)))
}

async fn resume(store: &Store, did: &Did) -> anyhow::Result<ExitCode> {
    if let Some(why) = why_not(did, store.set_suspended_unless_managed(did, false).await?) {
        return Ok(refuse("agent resume", &why));
    }
    let went_on = store.follow_agent(did).await?.resumed;
    say(&format!("{did} is resumed; {} no longer {} for it", count(went_on, "alarm"), waits(went_on)))
}

async fn remove(store: &Store, did: &Did, purge: bool) -> anyhow::Result<ExitCode> {
    if purge {
        return remove_and_purge(store, did).await;
    }
    if let Some(why) = why_not(did, store.remove_agent_unless_managed(did).await?) {
        return Ok(refuse("agent remove", &why));
    }
    let held = unsigned(store.living_alarms_of(did).await?.held);
    say(&format!("{did} is removed; {} {} paused", count(held, "alarm"), if held == 1 { "stays" } else { "stay" }))
}

/// In an order in which whoever dies half way can be followed by another: nobody comes in, then nothing is left, then it is gone. What
/// an earlier removal left behind may be purged as well.
async fn remove_and_purge(store: &Store, did: &Did) -> anyhow::Result<ExitCode> {
    if let Some(managed) = store.managed_living_alarms_of(did).await? {
        let why = format!(
            "{did} owns {} that resources manage, and only they can end: {}; delete them first",
            count(unsigned(managed.all), "alarm"),
            named(&managed.first, managed.all)
        );
        return Ok(refuse("agent remove", &why));
    }
    let standing = store.set_suspended_unless_managed(did, true).await?;
    let enrolled = !matches!(standing, Changed::Unknown);
    if enrolled && let Some(why) = why_not(did, standing) {
        return Ok(refuse("agent remove", &why));
    }
    let purged = store.purge_what_is_owned_by(did).await?;
    if enrolled {
        store.remove_agent_unless_managed(did).await?;
    } else if purged == Purged::default() {
        return Ok(refuse(
            "agent remove",
            &format!("{did} is not enrolled and owns nothing; `chronosd agent list` shows who is enrolled"),
        ));
    }
    say(&format!(
        "{did} is removed; {} {} cancelled, {} and {} deleted",
        count(purged.alarms, "alarm"),
        are(purged.alarms),
        count(purged.service_calls, "service call"),
        count(purged.sessions, "session")
    ))
}

async fn rotate(store: &Store, options: &Rotate) -> anyhow::Result<ExitCode> {
    let Rotate { old, new, public_key } = options;
    let why = match store.rotate_unless_refused(old, new, public_key).await? {
        Rotated::Done(agent, moved) => {
            let standing = if agent.suspended { ", suspended as before" } else { "" };
            return say(&format!(
                "{old} is now {new}{standing}; {}, {}, {} and {} went over",
                count(moved.alarms, "alarm"),
                count(moved.service_calls, "service call"),
                count(moved.sessions, "session"),
                count(moved.attempts, "attempt")
            ));
        }
        Rotated::Unknown => unknown(old),
        Rotated::Held(identity) => held_by(old, &identity),
        Rotated::Manages(managed) => format!(
            "{old} is the owner of {} that resources manage: {}; delete them, and create them for {new}",
            count(unsigned(managed.all), "alarm"),
            named(&managed.first, managed.all)
        ),
        Rotated::Enrolled(Holder::CommandLine) => {
            format!("{new} is enrolled already; give a new key's DID, or remove that agent first")
        }
        Rotated::Enrolled(Holder::Resource(identity)) => held_by(new, &identity),
        Rotated::Owns => {
            format!("{new} owns something already, which would be mixed up with what {old} owns; give a new key's DID")
        }
        Rotated::AnotherUser => format!(
            "{old} is of user {} and {new} of user {}; a key changes, its user does not",
            old.user_id(),
            new.user_id()
        ),
        Rotated::AnotherKey => another_key(new, public_key),
    };
    Ok(refuse("agent rotate", &format!("{why}. Nothing was changed")))
}

const fn waits(number: u64) -> &'static str {
    if number == 1 { "waits" } else { "wait" }
}

fn why_not(did: &Did, changed: Changed) -> Option<String> {
    match changed {
        Changed::Done(_) => None,
        Changed::Unknown => Some(unknown(did)),
        Changed::Managed(identity) => Some(held_by(did, &identity)),
    }
}

fn unknown(did: &Did) -> String {
    format!("{did} is not enrolled; `chronosd agent list` shows who is")
}

fn held_by(did: &Did, identity: &Identity) -> String {
    let Identity { namespace, name, cluster, .. } = identity;
    format!("{did} is held by the resource Agent {namespace}/{name} of cluster {cluster}; change it there")
}

fn another_key(did: &Did, public_key: &[u8; 32]) -> String {
    let begins: String = hex::encode(public_key).chars().take(did.fingerprint().len()).collect();
    format!(
        "--public-key begins with {begins} and {did} does not end in that; give the key and the DID that belong together"
    )
}
