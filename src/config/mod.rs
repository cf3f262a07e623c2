//! Configuration: one struct per concern, read from the environment, checked as a whole at start.
//!
//! Every setting is an environment variable; those that are no secret are flags of the same name as well
//! (`CHRONOS_TICK_MS` ↔ `--tick-ms`), which win; any may come from a file (`CHRONOS_TOKEN_FILE`). [`SETTINGS`] lists
//! them all. Those of OpenTelemetry keep the names that it gave them. A wrong one stops the process with every problem at once, each with the variable's name, what is wrong and
//! what would be right.
//!
//! Secrets that come from files, and the facade's certificate, are read again while the process runs ([`Files`]).

mod files;
mod given;
mod settings;
mod tls;

use std::{fmt, net::IpAddr, time::Duration};

use secrecy::SecretString;
use url::Url;

use crate::domain::{access::Keyring, ladder::Ladder, session::autonomy::Restraint, signature::SigningKey};

pub use files::Files;
pub use given::Given;
pub use settings::{SETTINGS, Setting, flag};
pub use tls::Tls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    pub controller: bool,
    pub dispatch: bool,
    pub api: bool,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub roles: Roles,
    pub database: Database,
    pub listen: Listen,
    pub api: Option<Api>,
    pub dispatch: Option<Dispatch>,
    pub controller: Controller,
    pub autonomy: Autonomy,
    /// The collector of traces, if there is one: OTLP's base address.
    pub collector: Option<Url>,
    /// Where the Leases live; `None`: where the cluster's credentials say.
    pub namespace: Option<String>,
    /// Retries of an alarm that does not say otherwise, whichever door it came through.
    pub max_failures: u32,
    /// How long a stop waits for what is in flight.
    pub shutdown: Duration,
    /// What works but should not stay so; logged at start.
    pub warnings: Vec<String>,
    /// Where some of this came from, and whence the next of it comes.
    pub files: Files,
}

#[derive(Clone, Debug)]
pub struct Database {
    pub uri: SecretString,
    pub allow_unsafe: bool,
    pub api_pool: u32,
    pub dispatch_pool: u32,
    /// The dispatchers' tick, within which an alarm's instant is worth a hint; `None`: no hints.
    pub hints: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Listen {
    pub bind: IpAddr,
    pub port: u16,
    pub metrics_port: u16,
}

/// The facade.
#[derive(Clone)]
pub struct Api {
    pub tokens: Vec<SecretString>,
    pub keyring: Keyring,
    pub enrolment: Enrolment,
    /// Requests a second that one owner may make; 0: any number.
    pub owner_rate: u32,
    /// `None`: plain HTTP.
    pub tls: Option<Tls>,
}

/// Which agents may sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrolment {
    /// Those with an Agent resource, or a row made by `chronosd agent add`.
    Registered,
    /// Any well-formed DID. For developers' machines.
    Open,
}

#[derive(Clone, Debug)]
pub struct Dispatch {
    pub wake_url: Url,
    pub wake_token: SecretString,
    /// Where service calls are told that a due time was reached.
    pub sink_url: Url,
    /// The wake token, unless the sink has one of its own.
    pub sink_token: SecretString,
    /// Empty: wakes are not signed. Several: signed with each.
    pub signing_keys: Vec<SigningKey>,
    pub wake_timeout: Duration,
    pub tick: Duration,
    pub lease: Duration,
    pub mode: DispatchMode,
    pub batch: usize,
    pub concurrency: usize,
    /// Of one owner.
    pub owner_concurrency: usize,
    /// Between two heartbeats.
    pub beat: Duration,
    pub ladder: Ladder,
    /// Days for which attempts are kept.
    pub attempt_days: u32,
    /// Days for which alarms that are over are kept; `None`: for ever.
    pub alarm_days: Option<u32>,
}

/// Which replicas of a cluster claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchMode {
    /// The one that holds the Lease.
    Leader,
    /// All.
    Active,
}

#[derive(Clone, Debug)]
pub struct Controller {
    /// Empty: all.
    pub namespaces: Vec<String>,
    /// What people call this cluster; empty: nobody gave it a name.
    pub cluster_name: String,
    /// How long a resource must be gone before its alarm is cancelled.
    pub orphan_grace: Duration,
}

/// Which parts of a cluster are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Namespaces of Alarms and Agents; empty: all.
    pub watched: Vec<String>,
    /// Where the operator itself is; `None`: where the cluster's credentials say.
    pub home: Option<String>,
}

/// Sessions that follow up by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autonomy {
    /// If not, there are no sessions, and their timers wait untouched.
    pub enabled: bool,
    pub restraint: Restraint,
    /// How long a client may take to acknowledge a message before it is sent again.
    pub ack: Duration,
    /// Days for which what a session has worked through is kept; `None`: for ever.
    pub retention_days: Option<u32>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration cannot be used:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

impl std::error::Error for Problems {}
