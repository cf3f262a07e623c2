//! The file of wakes. One thread syncs it for all who wait.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::Context;
use tokio::sync::{Notify, watch};

use crate::log::{Journal, WakeLine};

pub struct Disk {
    journal: Journal,
    /// Lines the kernel has.
    written: AtomicU64,
    /// Lines the disk has.
    synced: watch::Sender<u64>,
    more: Notify,
}

impl Disk {
    pub fn create(path: &Path) -> anyhow::Result<Arc<Self>> {
        let journal = Journal::create(path)?;
        // Its own handle: whoever writes does not wait for a sync.
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let disk =
            Arc::new(Self { journal, written: AtomicU64::new(0), synced: watch::Sender::new(0), more: Notify::new() });
        let runtime = tokio::runtime::Handle::current();
        let ours = Arc::clone(&disk);
        thread::spawn(move || {
            loop {
                runtime.block_on(ours.more.notified());
                ours.sync(&file);
            }
        });
        Ok(disk)
    }

    /// With the kernel when this returns; says which line it is.
    pub fn write(&self, line: &WakeLine) -> u64 {
        self.journal.write(line);
        self.written.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Until this line is on disk.
    pub async fn reached(&self, line: u64) {
        let mut synced = self.synced.subscribe();
        self.more.notify_one();
        synced.wait_for(|synced| *synced >= line).await.expect("the disk outlives who waits for it");
    }

    /// Until everything is on disk.
    pub async fn settled(&self) {
        self.reached(self.written.load(Ordering::SeqCst)).await;
    }

    fn sync(&self, file: &File) {
        let written = self.written.load(Ordering::SeqCst);
        file.sync_data().expect("the rig's disk works");
        self.synced.send_replace(written);
    }
}
