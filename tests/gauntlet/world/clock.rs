//! A replica's own idea of the time of day. Its stopwatch stays right, as on a machine that lost its time server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;

/// Debian's libfaketime for programs with threads; the loader fills in where this machine keeps its libraries.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";
/// How long the library believes what it has read: a second, counted in whole ones, and a little more.
pub const NOTICED: Duration = Duration::from_millis(2100);

pub struct Clock(PathBuf);

impl Clock {
    pub fn new(path: PathBuf) -> anyhow::Result<Self> {
        let clock = Self(path);
        clock.set(0)?;
        Ok(clock)
    }

    /// So many seconds ahead. Seen within [`NOTICED`].
    pub fn set(&self, seconds: i64) -> anyhow::Result<()> {
        // Moved into place: whoever reads it reads a whole one.
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(&new, &self.0).context("a clock is set")
    }

    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.0.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// The library leaves them behind when its process is killed, and stumbles over them when the pid comes round again. Whoever
    /// has opened them keeps them.
    pub fn tidy(pid: u32) {
        for left in ["faketime_shm", "sem.faketime_sem"] {
            fs::remove_file(format!("/dev/shm/{left}_{pid}")).ok();
        }
    }
}

pub fn library_is_there() -> bool {
    let places = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    places
        .map(|place| place.path())
        .chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")])
        .any(|place: PathBuf| Path::new(&place).join("faketime/libfaketimeMT.so.1").exists())
}
