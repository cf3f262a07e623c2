//! What Alarms cost as resources: 10,000 are applied, become Ready, are looked at by a controller that starts anew, and some of them
//! fire every second. `chronosd` is controller and dispatcher in one, as it is by default.
//!
//! How often a status is written is counted where it arrives: in the API server's audit log. Nothing but `chronosd` writes one.

use std::{
    collections::HashMap,
    sync::{
        LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Timelike, Utc};
use chronos::{
    clock,
    crd::{Agent, Alarm, Phase, condition::READY},
};
use ed25519_dalek::SigningKey;
use futures::future::try_join_all;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    cluster::{Cluster, NAMESPACE},
    field::float,
    report::{Report, grouped, percentile},
    sink::Sink,
    world::{Daemon, WAKE_TOKEN, World},
};

/// Applied in all; ALARMS in the environment says otherwise, for a quick look.
static ALARMS: LazyLock<i64> =
    LazyLock::new(|| std::env::var("ALARMS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000));
/// Those of them that fire every second, later.
const RESTLESS: i64 = 200;
/// For so long.
const WATCHED: TimeDelta = TimeDelta::seconds(30);
/// What is promised: between two writes to one object whose phase stays.
const QUIET: TimeDelta = TimeDelta::seconds(5);
/// Who applies them: as many as `kubectl apply` in some terminals, or a GitOps tool.
const CALLERS: usize = 8;
/// Nobody may need longer: the controller writes some dozen statuses a second at the least.
const PATIENCE: Duration = Duration::from_secs(600);
/// Postgres counts what a connection did only when it has done nothing for 10 s, unless it goes on.
const REPORTED: Duration = Duration::from_secs(11);
const STATUSES_WRITTEN: &str = "chronos_statuses_written_total";
/// About 200 bytes.
const MESSAGE: &str = "Look at what came in since yesterday, sort it by what is asked of whom, answer what can be answered \
                       at once, and write down for everybody else what is waiting for them and until when it has to be done.";

/// `performance.md` 4 point 9.
pub async fn controller(world: &World, report: &mut Report) -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    let sink = Sink::start()?;
    report.title(&format!("Controller: {} Alarms as resources of one owner", grouped(float(*ALARMS))));
    let stage = Stage { world, cluster: &cluster, sink: &sink, owner: enrol(&cluster).await? };
    let daemon = stage.chronosd().await?;
    stage.applied(&daemon, report).await?;
    drop(daemon);
    let daemon = stage.restarted(report).await?;
    stage.firing(&daemon, report).await
}

/// The one owner; its DID.
async fn enrol(cluster: &Cluster) -> anyhow::Result<String> {
    let public_key = hex::encode(SigningKey::from_bytes(&rand::random()).verifying_key().as_bytes());
    let did = format!("did:matrix:bench:{}", &public_key[..16]);
    let agent = json!({ "metadata": { "name": "bench" }, "spec": { "did": did, "publicKey": public_key } });
    let agent: Agent = serde_json::from_value(agent)?;
    Api::namespaced(cluster.client.clone(), NAMESPACE).create(&PostParams::default(), &agent).await?;
    Ok(did)
}

struct Stage<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    sink: &'a Sink,
    owner: String,
}

impl Stage<'_> {
    async fn chronosd(&self) -> anyhow::Result<Daemon> {
        let (kubeconfig, url) = (self.cluster.kubeconfig.to_string_lossy(), self.sink.url());
        let settings = [
            ("CHRONOS_ROLES", "controller,dispatch"),
            ("KUBECONFIG", &*kubeconfig),
            ("CHRONOS_NAMESPACE", NAMESPACE),
            ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN),
            ("CHRONOS_ROUTER_WAKE_URL", &url),
        ];
        let daemon = self.world.chronosd(&settings).await?;
        daemon.until_ready().await?;
        Ok(daemon)
    }

    fn alarms(&self) -> Api<Alarm> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    /// All at once, until all are Ready.
    async fn applied(&self, daemon: &Daemon, report: &mut Report) -> anyhow::Result<()> {
        let before = self.cost(daemon).await?;
        let (from, begun) = (clock::system().now(), Instant::now());
        let (creates, all_ready_at) = tokio::try_join!(self.create_all(), self.until_ready(daemon))?;
        let took = (all_ready_at - begun).as_secs_f64();
        daemon.until_idle().await?;
        let cost = self.cost_at_rest(daemon).await? - before;
        let written = self.cluster.statuses_written(from)?;
        report.line(&format!("created by {CALLERS} callers at once"), &format!("{:>8} /s", grouped(creates)));
        report.line(
            "Ready, from the first create on",
            &format!("{:>8} /s   all of them after {took:.1} s", grouped(float(*ALARMS) / took)),
        );
        report.line("statuses written", &counted(&written, *ALARMS));
        report.line("  as the metric has it, the Agent's included", &format!("{:>8}", grouped(cost.statuses)));
        report.line("cost until all is quiet", &cost.told(*ALARMS));
        report.line("memory of chronosd", &memory(daemon)?);
        report.at_least("9. controller: Alarms Ready / applied", self.ready().await? / float(*ALARMS), 1.0);
        let what = "9. controller: s between two statuses of an Alarm, until Ready";
        report.at_least(what, shortest(&written), seconds(QUIET));
        Ok(())
    }

    /// With everything in place: it looks at every Alarm, and has nothing to write.
    async fn restarted(&self, report: &mut Report) -> anyhow::Result<Daemon> {
        let (transactions, postgres) = (self.world.transactions().await?, self.world.postgres_cpu());
        let (from, begun) = (clock::system().now(), Instant::now());
        let daemon = self.chronosd().await?;
        let ready = begun.elapsed().as_secs_f64();
        // Its own start is part of it.
        let before = Cost { chronosd: 0.0, postgres, transactions: float(transactions), statuses: 0.0 };
        let (looked_at, cost) = loop {
            let looked_at = daemon.until_idle().await?;
            let cost = self.cost_at_rest(&daemon).await? - before;
            // On a busy machine it may be at rest before it has begun: one look at an Alarm takes several transactions.
            if cost.transactions >= float(*ALARMS) {
                break (looked_at, cost);
            }
            ensure!(begun.elapsed() < PATIENCE, "it has not looked at all: {} transactions", cost.transactions);
        };
        let took = (looked_at - begun).as_secs_f64();
        let written: usize = self.cluster.statuses_written(from)?.values().map(Vec::len).sum();
        report.line(
            "started again: has looked at all",
            &format!(
                "{:>8} /s   after {took:.1} s, ready after {ready:.1} s",
                grouped(float(*ALARMS) / (took - ready))
            ),
        );
        report.line("  cost", &cost.told(*ALARMS));
        report.line("  memory of chronosd", &memory(&daemon)?);
        report.at_most("9. controller: statuses that a restart writes", float(i64::try_from(written)?), 0.0);
        Ok(daemon)
    }

    /// Some fire far more often than a status is worth writing.
    async fn firing(&self, daemon: &Daemon, report: &mut Report) -> anyhow::Result<()> {
        let edited_at = clock::system().now();
        // The zone goes: an interval has none.
        let often = json!({ "spec": { "cronExpr": "@every 1s", "timezone": null } });
        let (alarms, often) = (self.alarms(), Patch::Merge(often));
        each(RESTLESS, async |number| {
            alarms.patch(&name(number), &PatchParams::default(), &often).await?;
            Ok(())
        })
        .await?;
        // What they wrote because they were edited is over by then.
        tokio::time::sleep((QUIET * 2).to_std()?).await;
        let (before, lag) = (self.cost(daemon).await?, Lag::of(daemon).await?);
        let (from, _before) = (clock::system().now(), self.sink.take().await?);
        tokio::time::sleep(WATCHED.to_std()?).await;
        let mut late: Vec<i64> = self.sink.take().await?.into_iter().map(|(late, ..)| late).collect();
        let (cost, lag) = (self.cost(daemon).await? - before, Lag::of(daemon).await?.since(&lag));
        late.sort_unstable();
        ensure!(!late.is_empty(), "no wake came");

        let mut written = self.cluster.statuses_written(edited_at)?;
        let shortest = shortest(&written);
        for times in written.values_mut() {
            times.retain(|at| (from..from + WATCHED).contains(at));
        }
        let writes = float(i64::try_from(written.values().map(Vec::len).sum::<usize>())?);
        report.line(
            &format!("{RESTLESS} of them fire every second, for {} s", WATCHED.num_seconds()),
            &format!(
                "{:>8} wakes, p99 {:.1} ms late",
                grouped(float(i64::try_from(late.len())?)),
                percentile(&late, 99.0) / 1e3
            ),
        );
        report.line("  statuses written", &counted(&written, RESTLESS));
        report.line("  behind their rows, mean", &format!("{lag:>8.1} s"));
        report.line("  cost", &cost.told(RESTLESS));
        report.line("  memory of chronosd", &memory(daemon)?);
        let per_quiet = writes / float(RESTLESS) / (seconds(WATCHED) / seconds(QUIET));
        report.at_most("9. controller: statuses an Alarm and 5 s, firing every second", per_quiet, 1.0);
        report.at_least("9. controller: s between two statuses of an Alarm, firing", shortest, seconds(QUIET));
        Ok(())
    }

    /// Creates a second.
    async fn create_all(&self) -> anyhow::Result<f64> {
        let begun = Instant::now();
        // Not while this runs, whatever the zone does.
        let hour = (clock::system().now().hour() + 12) % 24;
        let spec = json!({ "owner": self.owner, "wakeMessage": MESSAGE, "cronExpr": format!("0 {hour} * * *"), "timezone": "Europe/Berlin" });
        let alarms = self.alarms();
        each(*ALARMS, async |number| {
            let alarm = json!({ "metadata": { "name": name(number) }, "spec": spec });
            let alarm: Alarm = serde_json::from_value(alarm)?;
            alarms.create(&PostParams::default(), &alarm).await?;
            Ok(())
        })
        .await?;
        Ok(float(*ALARMS) / begun.elapsed().as_secs_f64())
    }

    /// When the last one was. Asked of chronosd, which is cheap; then of the API server, which is not.
    async fn until_ready(&self, daemon: &Daemon) -> anyhow::Result<Instant> {
        let begun = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (written, at) = (daemon.metric(STATUSES_WRITTEN).await?, Instant::now());
            if written >= float(*ALARMS) && self.ready().await? >= float(*ALARMS) {
                return Ok(at);
            }
            ensure!(begun.elapsed() < PATIENCE, "{} of {} are Ready", self.ready().await?, *ALARMS);
        }
    }

    /// How many are.
    async fn ready(&self) -> anyhow::Result<f64> {
        let (alarms, mut ready, mut page) = (self.alarms(), 0, ListParams::default().limit(500));
        loop {
            let listed = alarms.list(&page).await?;
            ready += listed.items.iter().filter(|alarm| is_ready(alarm)).count();
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(float(i64::try_from(ready)?)),
            }
        }
    }

    /// The same of one that does nothing any more.
    async fn cost_at_rest(&self, daemon: &Daemon) -> anyhow::Result<Cost> {
        tokio::time::sleep(REPORTED).await;
        self.cost(daemon).await
    }

    async fn cost(&self, daemon: &Daemon) -> anyhow::Result<Cost> {
        Ok(Cost {
            chronosd: daemon.cpu()?,
            postgres: self.world.postgres_cpu(),
            statuses: daemon.metric(STATUSES_WRITTEN).await?,
            transactions: float(self.world.transactions().await?),
        })
    }
}

/// Some at once, until so many are done.
async fn each(count: i64, act: impl AsyncFn(i64) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let next = AtomicI64::new(0);
    try_join_all((0..CALLERS).map(async |_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return anyhow::Ok(());
            }
            act(number).await?;
        }
    }))
    .await?;
    Ok(())
}

fn name(number: i64) -> String {
    format!("alarm-{number}")
}

fn is_ready(alarm: &Alarm) -> bool {
    alarm.status.as_ref().is_some_and(|status| {
        let ready = status.conditions.iter().any(|one| one.type_ == READY && one.status == "True");
        status.phase == Some(Phase::Active) && ready
    })
}

/// What something took.
#[derive(Clone, Copy)]
struct Cost {
    /// Processor seconds.
    chronosd: f64,
    postgres: f64,
    transactions: f64,
    statuses: f64,
}

impl std::ops::Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            chronosd: self.chronosd - before.chronosd,
            postgres: self.postgres - before.postgres,
            transactions: self.transactions - before.transactions,
            statuses: self.statuses - before.statuses,
        }
    }
}

impl Cost {
    fn told(&self, alarms: i64) -> String {
        format!(
            "{:>8} transactions, {:.1} an Alarm   CPU: chronosd {:.1} s, Postgres {:.1} s",
            grouped(self.transactions),
            self.transactions / float(alarms),
            self.chronosd,
            self.postgres
        )
    }
}

/// How long statuses came after what they tell, so far: the sum in seconds, and how many.
struct Lag(f64, f64);

impl Lag {
    async fn of(daemon: &Daemon) -> anyhow::Result<Self> {
        let (sum, count) = ("chronos_status_lag_seconds_sum", "chronos_status_lag_seconds_count");
        Ok(Self(daemon.metric(sum).await?, daemon.metric(count).await?))
    }

    fn since(&self, before: &Self) -> f64 {
        (self.0 - before.0) / (self.1 - before.1)
    }
}

fn counted(written: &HashMap<String, Vec<DateTime<Utc>>>, alarms: i64) -> String {
    let (all, most) = (written.values().map(Vec::len).sum::<usize>(), written.values().map(Vec::len).max());
    let all = float(i64::try_from(all).expect("some thousand"));
    let most = most.unwrap_or_default();
    format!("{:>8}      {:.3} an Alarm, {most} at most", grouped(all), all / float(alarms))
}

/// Seconds between two writes to one Alarm; as long as anybody waits here if none was written to twice.
fn shortest(written: &HashMap<String, Vec<DateTime<Utc>>>) -> f64 {
    let between = written.values().flat_map(|times| times.windows(2).map(|two| seconds(two[1] - two[0])));
    between.fold(PATIENCE.as_secs_f64(), f64::min)
}

fn seconds(span: TimeDelta) -> f64 {
    span.as_seconds_f64()
}

fn memory(daemon: &Daemon) -> anyhow::Result<String> {
    let megabytes = |bytes: f64| bytes / f64::from(1 << 20);
    Ok(format!("{:>8.0} MB   {:.0} MB at its peak", megabytes(daemon.memory()?), megabytes(daemon.peak_memory()?)))
}
