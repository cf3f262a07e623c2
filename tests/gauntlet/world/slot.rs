//! A place in which a replica runs. Each process in it is an incarnation: `r1.4` is the fourth in slot `r1`. One that ends is
//! followed by another.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tokio::{process::Command, sync::watch};

use super::{
    clock::Clock,
    network,
    proxy::Proxy,
    shell::{log_file, signal, state, wait_for},
};
use crate::log::{Pair, Point};

pub const API_PORT: u16 = 9096;
pub const PROBES_PORT: u16 = 9097;
/// Between the end of one and the start of the next.
const PAUSE: Duration = Duration::from_millis(200);
/// When it did not even get ready: a supervisor that tries without a pause is a fault of its own.
const LONG_PAUSE: Duration = Duration::from_millis(700);
/// Of a process that is told to stop: 3 s for deliveries, 5 s for the rest (`CHRONOS_SHUTDOWN_SECONDS`), and a busy machine.
const STOP: Duration = Duration::from_secs(25);
/// Whether one has ever been ready is looked at so often.
const LOOK: Duration = Duration::from_millis(300);
const PROBE: Duration = Duration::from_millis(1500);

pub struct Slot {
    /// From 1.
    pub number: usize,
    /// `r1`
    pub name: String,
    pub address: Ipv4Addr,
    pub lines: Lines,
    pub clock: Clock,
    /// Where its fail points look.
    pub points: PathBuf,
    pub logs: PathBuf,
    /// What every incarnation is told; the router's address is added.
    pub environment: Vec<(&'static str, String)>,
    pub life: watch::Sender<Life>,
    pub orders: Mutex<Orders>,
    pub http: reqwest::Client,
}

/// The proxies in front of whom it talks to, and of itself.
pub struct Lines {
    pub postgres: Proxy,
    pub router: Proxy,
    pub apiserver: Proxy,
    pub facade: Proxy,
}

impl Lines {
    pub fn of(&self, pair: Pair) -> &Proxy {
        match pair {
            Pair::Postgres => &self.postgres,
            Pair::Router => &self.router,
            Pair::Apiserver => &self.apiserver,
            Pair::Facade => &self.facade,
        }
    }
}

/// The incarnation that is there, or was there last.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// 0: none yet.
    pub incarnation: u32,
    /// `None`: it has ended.
    pub pid: Option<u32>,
}

/// What is wanted of the slot.
#[derive(Default)]
pub struct Orders {
    pub binary: PathBuf,
    /// Whether that binary has fail points.
    pub has_points: bool,
    pub down: bool,
    /// Incarnations that may end, because they were told to or were killed.
    condemned: Vec<u32>,
    /// At how many fail points it may end, at any time.
    armed: usize,
    /// Those that did.
    fell: Vec<u32>,
    /// Those that were ready.
    was_ready: Vec<u32>,
    pub exits: Vec<Exit>,
}

/// An incarnation that ended although nobody told it to, or not as it was told.
#[derive(Clone, Debug)]
pub struct Exit {
    pub incarnation: String,
    pub status: ExitStatus,
    pub was_ready: bool,
    pub last_words: String,
}

impl Orders {
    pub fn new(binary: PathBuf) -> Self {
        Self { binary, has_points: true, ..Self::default() }
    }
}

impl Slot {
    fn orders(&self) -> std::sync::MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn incarnation(&self) -> String {
        format!("{}.{}", self.name, self.life.borrow().incarnation)
    }

    /// Of the process that runs.
    pub fn pid(&self) -> Option<u32> {
        self.life.borrow().pid
    }

    /// Keeps a process in it until it is told otherwise.
    pub async fn supervise(self: Arc<Self>) {
        loop {
            if self.orders().down {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let number = self.life.borrow().incarnation + 1;
            let status = match self.spawn(number) {
                Ok(mut child) => {
                    let pid = child.id();
                    self.life.send_replace(Life { incarnation: number, pid });
                    let ready = async {
                        while !self.is_ready().await {
                            tokio::time::sleep(LOOK).await;
                        }
                        std::future::pending::<()>().await;
                    };
                    let status = tokio::select! {
                        status = child.wait() => status,
                        () = ready => unreachable!("it waits for ever"),
                    };
                    if let Some(pid) = pid {
                        Clock::tidy(pid);
                    }
                    status
                }
                Err(error) => Err(std::io::Error::other(error)),
            };
            self.life.send_replace(Life { incarnation: number, pid: None });
            let was_ready = self.note_end(number, status);
            tokio::time::sleep(if was_ready { PAUSE } else { LONG_PAUSE }).await;
        }
    }

    fn spawn(&self, number: u32) -> anyhow::Result<tokio::process::Child> {
        let name = format!("{}.{number}", self.name);
        let orders = self.orders();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network::namespace(self.number)]);
        command.args(["setpriv", "--pdeathsig=KILL", "--", "env"]);
        // Only for chronosd itself: not for those that start it.
        command.args(self.clock.environment().iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(&orders.binary).arg("run");
        let foreign = |name: &str| ["CHRONOS_", "OTEL_", "KUBE"].iter().any(|prefix| name.starts_with(prefix));
        for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        command.env("CHRONOS_ROUTER_WAKE_URL", format!("http://{}/internal/wake/{name}", self.lines.router.address));
        if orders.has_points {
            command.env("CHRONOS_FAIL_POINTS", &self.points);
        }
        let log = self.log(number);
        command.stdin(Stdio::null()).stdout(log_file(&log)?).stderr(log_file(&log)?).kill_on_drop(true);
        command.spawn().with_context(|| format!("{name} does not start"))
    }

    fn log(&self, number: u32) -> PathBuf {
        self.logs.join(format!("{}.{number}.log", self.name))
    }

    /// Whether it had been ready.
    fn note_end(&self, number: u32, status: std::io::Result<ExitStatus>) -> bool {
        let mut orders = self.orders();
        let was_ready = orders.was_ready.contains(&number);
        let Ok(status) = status else { return was_ready };
        let condemned = orders.condemned.contains(&number);
        // One that was told to stop says 0; one that was killed says nothing.
        let told_badly = condemned && was_ready && status.code().is_some_and(|code| code != 0);
        if !condemned && orders.armed > 0 && status.signal() == Some(Signal::KILL.as_raw()) {
            orders.fell.push(number);
        } else if told_badly || (!condemned && !orders.down) {
            let log = fs::read_to_string(self.log(number)).unwrap_or_default();
            let last_words = log.lines().last().unwrap_or_default().chars().take(600).collect();
            let incarnation = format!("{}.{number}", self.name);
            orders.exits.push(Exit { incarnation, status, was_ready, last_words });
        }
        was_ready
    }

    /// Whatever happens to this incarnation from now on, it may end.
    fn condemn(&self) {
        let number = self.life.borrow().incarnation;
        self.orders().condemned.push(number);
    }

    /// Until the process that was there is gone.
    pub async fn ended(&self, life: &Life) -> anyhow::Result<()> {
        let mut lives = self.life.subscribe();
        let gone = lives.wait_for(|now| now.incarnation != life.incarnation || now.pid.is_none());
        let gone = tokio::time::timeout(STOP, gone).await;
        gone.with_context(|| format!("{}.{} does not end", self.name, life.incarnation))??;
        Ok(())
    }

    /// `kill -9`
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.condemn();
        let life = self.life.borrow().clone();
        if let Some(pid) = life.pid {
            signal(pid, Signal::KILL);
        }
        self.ended(&life).await
    }

    /// Only sends the signal, as Kubernetes does.
    pub fn tell_to_stop(&self) {
        self.condemn();
        if let Some(pid) = self.pid() {
            signal(pid, Signal::TERM);
        }
    }

    /// Stops all of its threads. False: it was not there.
    pub async fn freeze(&self) -> anyhow::Result<bool> {
        let Some(pid) = self.pid() else { return Ok(false) };
        signal(pid, Signal::STOP);
        let stopped = || async { state(pid).is_none_or(|state| state == 'T' || state == 'Z') };
        wait_for("a replica is stopped", STOP, stopped).await?;
        Ok(state(pid) == Some('T'))
    }

    pub fn is_frozen(&self) -> bool {
        self.pid().and_then(state) == Some('T')
    }

    pub fn thaw(&self) {
        if let Some(pid) = self.pid() {
            signal(pid, Signal::CONT);
        }
    }

    pub async fn is_ready(&self) -> bool {
        let life = self.life.borrow().clone();
        let Some(pid) = life.pid else { return false };
        let asked = self.http.get(format!("http://{}:{PROBES_PORT}/readyz", self.address)).timeout(PROBE).send().await;
        let ready = asked.is_ok_and(|answer| answer.status().is_success());
        if ready {
            Clock::tidy(pid);
            let mut orders = self.orders();
            if !orders.was_ready.contains(&life.incarnation) {
                orders.was_ready.push(life.incarnation);
            }
        }
        ready
    }

    pub async fn wait_ready(&self, within: Duration) -> anyhow::Result<()> {
        wait_for(&format!("{} is ready", self.name), within, || self.is_ready()).await
    }

    pub fn facade(&self) -> SocketAddr {
        self.lines.facade.address
    }

    /// Tells a fail point what to do: `kill` or `stop`.
    pub fn arm(&self, point: Point, what: &str) -> anyhow::Result<()> {
        self.orders().armed += 1;
        let new = self.point(point).with_extension("new");
        fs::write(&new, what)?;
        Ok(fs::rename(new, self.point(point))?)
    }

    pub fn was_struck(&self, point: Point) -> bool {
        !self.point(point).exists()
    }

    /// False: too late, it has struck.
    pub fn disarm(&self, point: Point) -> bool {
        let in_time = fs::remove_file(self.point(point)).is_ok();
        if in_time {
            self.orders().armed -= 1;
        }
        in_time
    }

    /// Whether one killed itself at a fail point, and nobody has asked for it yet.
    pub fn has_fallen(&self) -> bool {
        !self.orders().fell.is_empty()
    }

    /// After it has struck: the incarnation that killed itself, if one did.
    pub fn disarmed(&self) -> Option<u32> {
        let mut orders = self.orders();
        orders.armed -= 1;
        orders.fell.pop()
    }

    fn point(&self, point: Point) -> PathBuf {
        let name = match point {
            Point::Claimed => "claimed",
            Point::Sent => "sent",
            Point::Answered => "answered",
            Point::Settled => "settled",
            Point::Reconciled => "reconciled",
            Point::Finalizer => "finalizer",
        };
        self.points.join(name)
    }

    pub fn use_binary(&self, binary: PathBuf, has_points: bool) {
        let mut orders = self.orders();
        (orders.binary, orders.has_points) = (binary, has_points);
    }

    pub fn has_points(&self) -> bool {
        self.orders().has_points
    }

    /// Ends for good. An error says that it did not end well.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.orders().down = true;
        let life = self.life.borrow().clone();
        self.tell_to_stop();
        let ended = self.ended(&life).await;
        if ended.is_err() {
            self.kill().await?;
        }
        ended?;
        let log = fs::read_to_string(self.log(life.incarnation)).unwrap_or_default();
        ensure!(log.contains("stopping"), "{}.{} did not say that it stops", self.name, life.incarnation);
        Ok(())
    }

    /// What should not have been: those that ended after they had been ready, and panics.
    pub fn troubles(&self) -> Vec<String> {
        let exits = self.orders().exits.clone();
        // One that cannot begin, for want of a database, ends with 1 and is started again. That is how it is meant.
        let bad = exits.into_iter().filter(|exit| exit.was_ready || exit.status.code() != Some(1));
        let mut troubles: Vec<String> =
            bad.map(|exit| format!("{} ended with {}: {}", exit.incarnation, exit.status, exit.last_words)).collect();
        for number in 1..=self.life.borrow().incarnation {
            let log = fs::read_to_string(self.log(number)).unwrap_or_default();
            let panics = log.lines().filter(|line| line.contains("panicked at"));
            troubles.extend(panics.map(|line| format!("{}.{number}: {line}", self.name)));
        }
        troubles
    }

    /// How many ended by themselves before they were ready.
    pub fn false_starts(&self) -> usize {
        self.orders().exits.iter().filter(|exit| !exit.was_ready).count()
    }
}
