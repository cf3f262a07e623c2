//! A bridge, and on it a network namespace for each slot.
//!
//! Lines are cut by a queue that holds nothing, at the end that sends: what is dropped there is dropped in silence, for
//! connections that are open, too. (A blackhole route would tell the sender at once.)

use std::{net::Ipv4Addr, path::PathBuf};

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::shell::{sh, sh_now, signal, state};

/// What is ours has the pid of its run in its name, so that the next run can tell what nobody needs any more.
const NAMESPACE: &str = "gauntlet-";
const BRIDGE: &str = "gtb";
const VETH: &str = "gtv";
/// The source of our mounts, as `mount` shows it.
pub const MOUNT: &str = "gauntlet-";

pub struct Network {
    /// Of the bridge: where the rig is for the replicas.
    pub address: Ipv4Addr,
}

/// Which direction is dead, seen from the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Out,
    In,
}

impl Network {
    pub async fn make(slots: usize) -> anyhow::Result<Self> {
        let pid = std::process::id();
        let taken = sh("ip -4 -o address").await? + &sh("ip route").await?;
        let first = u8::try_from(pid % 250).expect("below 250");
        let mut numbers = (first..250).chain(0..first);
        let number =
            numbers.find(|number| !taken.contains(&format!("10.77.{number}."))).context("no subnet is free")?;
        let network = Self { address: Ipv4Addr::new(10, 77, number, 1) };
        sh(&format!("ip link add {BRIDGE}{pid} type bridge")).await?;
        sh(&format!("ip address add {}/24 dev {BRIDGE}{pid}", network.address)).await?;
        sh(&format!("ip link set {BRIDGE}{pid} up")).await?;
        for slot in 1..=slots {
            let (namespace, veth) = (namespace(slot), veth(slot));
            sh(&format!("ip netns add {namespace}")).await?;
            sh(&format!("ip link add {veth} type veth peer name eth0 netns {namespace}")).await?;
            sh(&format!("ip link set {veth} master {BRIDGE}{pid} up")).await?;
            sh(&format!("ip -n {namespace} address add {}/24 dev eth0", network.of(slot))).await?;
            sh(&format!("ip -n {namespace} link set eth0 up")).await?;
            sh(&format!("ip -n {namespace} link set lo up")).await?;
        }
        Ok(network)
    }

    /// A slot's address. Slots count from 1.
    pub fn of(&self, slot: usize) -> Ipv4Addr {
        let [a, b, c, _] = self.address.octets();
        Ipv4Addr::new(a, b, c, u8::try_from(slot + 1).expect("a handful of slots"))
    }

    pub async fn cut(&self, slot: usize, direction: Direction) -> anyhow::Result<()> {
        sh(&format!("{} qdisc replace {} root pfifo limit 0", tc(slot, direction), device(slot, direction))).await?;
        Ok(())
    }

    pub async fn mend(&self, slot: usize, direction: Direction) -> anyhow::Result<()> {
        let shown = sh(&format!("{} qdisc show {}", tc(slot, direction), device(slot, direction))).await?;
        if shown.contains("pfifo") {
            sh(&format!("{} qdisc del {} root", tc(slot, direction), device(slot, direction))).await?;
        }
        let shown = sh(&format!("{} qdisc show {}", tc(slot, direction), device(slot, direction))).await?;
        ensure!(!shown.contains("pfifo"), "slot {slot} stays cut off: {shown}");
        Ok(())
    }
}

pub fn namespace(slot: usize) -> String {
    format!("{NAMESPACE}{}-r{slot}", std::process::id())
}

fn veth(slot: usize) -> String {
    format!("{VETH}{}-{slot}", std::process::id())
}

fn tc(slot: usize, direction: Direction) -> String {
    match direction {
        Direction::Out => format!("tc -n {}", namespace(slot)),
        Direction::In => "tc".to_owned(),
    }
}

fn device(slot: usize, direction: Direction) -> String {
    match direction {
        Direction::Out => "dev eth0".to_owned(),
        Direction::In => format!("dev {}", veth(slot)),
    }
}

/// Where the run keeps what is too large or too short-lived for its own directory.
pub fn scratch(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{MOUNT}{pid}"))
}

/// Removes what this process or a dead one has made: processes, namespaces, links, mounts, the scratch directory. Waits for nobody.
pub fn sweep(of: impl Fn(u32) -> bool) {
    let named = |name: &str, prefix: &str| {
        let digits: String = name.strip_prefix(prefix)?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok().filter(|pid| of(*pid))
    };
    // A process that was frozen when its run was killed does not end by itself. Those of servers stand in the run's directory.
    let stands_in = |pid: u32| {
        let place = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        let first = place.strip_prefix(std::env::temp_dir()).ok()?.components().next()?;
        named(first.as_os_str().to_str()?, MOUNT)
    };
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|pid| state(*pid) == Some('T') && stands_in(*pid).is_some()) {
            signal(pid, Signal::KILL);
        }
    }
    for line in sh_now("ip netns list").lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if named(name, NAMESPACE).is_some() {
            sh_now(&format!("ip netns del {name}"));
        }
    }
    for line in sh_now("ip -o link").lines() {
        let name = line.split(": ").nth(1).and_then(|name| name.split('@').next()).unwrap_or_default();
        if named(name, BRIDGE).or(named(name, VETH)).is_some() {
            sh_now(&format!("ip link del {name}"));
        }
    }
    for line in std::fs::read_to_string("/proc/mounts").unwrap_or_default().lines() {
        let mut words = line.split(' ');
        if let (Some(source), Some(place)) = (words.next(), words.next())
            && named(source, MOUNT).is_some()
        {
            sh_now(&format!("umount -l {place}"));
        }
    }
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(|name| named(name, MOUNT)).is_some() {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// What earlier runs left behind that were killed.
pub fn sweep_the_dead() {
    sweep(|pid| pid != std::process::id() && !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

/// Removes everything of this run when it is dropped.
pub struct Debris;

impl Drop for Debris {
    fn drop(&mut self) {
        sweep(|pid| pid == std::process::id());
    }
}
