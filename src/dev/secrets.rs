//! Secrets of a developer's machine: made once, kept in the data directory, so that a restart changes nothing.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Secrets {
    pub token: String,
    pub agent_auth_secret: String,
    pub wake_token: String,
    pub postgres_password: String,
}

impl Secrets {
    pub fn load_or_create(data_dir: &Path) -> anyhow::Result<Self> {
        let path = data_dir.join("secrets.json");
        let doing = || format!("the secrets in {}", path.display());
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(doing),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                anyhow::ensure!(
                    !data_dir.join("postgres/PG_VERSION").exists(),
                    "{} is gone, and with it the password of the database beside it; put it back, or remove {} to start anew",
                    path.display(),
                    data_dir.display()
                );
                let secrets = Self {
                    token: random(),
                    agent_auth_secret: random(),
                    wake_token: random(),
                    postgres_password: random(),
                };
                let mut file =
                    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).with_context(doing)?;
                file.write_all(serde_json::to_string_pretty(&secrets)?.as_bytes()).with_context(doing)?;
                Ok(secrets)
            }
            Err(error) => Err(error).with_context(doing),
        }
    }
}

fn random() -> String {
    hex::encode(rand::random::<[u8; 24]>())
}
