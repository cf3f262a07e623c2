//! Files of lines, written by one and read by another.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::Mutex,
};

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};

/// A file that grows by lines. Each is with the kernel when `write` returns, and so outlives this process.
pub struct Journal(Mutex<File>);

impl Journal {
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        Ok(Self(Mutex::new(file.with_context(|| format!("cannot make {}", path.display()))?)))
    }

    pub fn write(&self, line: &impl Serialize) {
        let mut text = serde_json::to_vec(line).expect("a line has a JSON");
        text.push(b'\n');
        self.0.lock().expect("no writer panics").write_all(&text).expect("the rig's disk has room");
    }
}

/// A last line that was cut short, by a killed writer, is left out.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<String> = BufReader::new(file).lines().collect::<Result<_, _>>()?;
    let mut read = Vec::with_capacity(lines.len());
    for (place, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(line) => read.push(line),
            Err(_) if place + 1 == lines.len() => {}
            Err(error) => anyhow::bail!("{} line {}: {error}", path.display(), place + 1),
        }
    }
    Ok(read)
}

pub fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_reader(BufReader::new(file)).with_context(|| path.display().to_string())
}

pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_vec_pretty(value)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
