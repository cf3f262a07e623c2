//! A process of ours or of a peer, and what the kernel knows of it.

use std::{
    ops::RangeInclusive,
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

/// Nobody needs longer to begin, or to end when told to.
pub const TO_BEGIN: Duration = Duration::from_secs(60);
pub const TO_END: Duration = Duration::from_secs(30);

/// Told to stop when it is dropped, and made to if it does not.
pub struct Process {
    pub child: Child,
    pub name: String,
}

impl Process {
    /// It has not ended by itself.
    pub fn lives(&self) -> anyhow::Result<()> {
        let state = stat(self.child.id()).ok().and_then(|fields| fields.into_iter().next());
        ensure!(state.is_some_and(|state| state != "Z"), "{} died", self.name);
        Ok(())
    }

    /// Processor time so far, in seconds.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        self.lives()?;
        cpu(self.child.id())
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> anyhow::Result<f64> {
        self.kernel_says("VmRSS")
    }

    /// The most that it ever was.
    pub fn peak_memory(&self) -> anyhow::Result<f64> {
        self.kernel_says("VmHWM")
    }

    fn kernel_says(&self, what: &str) -> anyhow::Result<f64> {
        self.lives()?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(what)).context("the kernel says how much")?;
        let kilobytes: f64 = line.split_whitespace().nth(1).context("a figure")?.parse()?;
        Ok(kilobytes * 1024.0)
    }

    /// As an administrator does.
    pub fn terminate(&self) {
        drop(Command::new("kill").arg(self.child.id().to_string()).status());
    }

    /// At once.
    pub fn kill(&mut self) {
        eprintln!("{} did not end in {} s, and was killed", self.name, TO_END.as_secs());
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.terminate();
        let until = Instant::now() + TO_END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                return self.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn is_postgres(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
}

/// Processor time of a process, in seconds.
pub fn cpu(pid: u32) -> anyhow::Result<f64> {
    ticks(pid, 11..=12)
}

/// The same, with that of its children that have ended: a backend that goes takes nothing with it.
pub fn cpu_with_ended(pid: u32) -> anyhow::Result<f64> {
    ticks(pid, 11..=14)
}

fn ticks(pid: u32, of: RangeInclusive<usize>) -> anyhow::Result<f64> {
    let fields = stat(pid)?;
    let ticks: f64 = fields[of].iter().map(|field| field.parse::<f64>()).sum::<Result<_, _>>()?;
    Ok(ticks / 100.0) // USER_HZ, on every Linux
}

/// What the kernel's line has behind the name, the state first.
fn stat(pid: u32) -> anyhow::Result<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(')').next().context("a name in parentheses")?;
    Ok(after_name.split_whitespace().map(str::to_owned).collect())
}
