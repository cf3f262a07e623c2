//! `chronosd migrate`: the schema, once the database is there.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::time::Instant;
use tracing::info;

use super::words::span;
use crate::{
    config::Given,
    store::{self, Store},
    telemetry::{self, chain},
};

/// Between two tries: a database that has just come up is not kept waiting, and one that is long in coming is not pestered.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Args)]
#[command(after_help = "\
Reads CHRONOS_POSTGRES_URI, or the file that CHRONOS_POSTGRES_URI_FILE names.

With --wait a database that nobody can reach yet, or that is starting, is tried again for so long.
One that answers and refuses, such as for a wrong password, is not.

Example:
  CHRONOS_POSTGRES_URI=postgres://user:password@host:5432/name chronosd migrate --wait 60s")]
pub struct Options {
    /// How long to wait for a database that is not up yet, such as 60s
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = span)]
    wait: Duration,
}

pub async fn migrate(options: Options, given: Given) -> anyhow::Result<()> {
    telemetry::init(given.log_filter())?;
    let database = given.database()?;
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let store = loop {
        let error = match Store::connect(&database, "migrate", 1).await {
            Ok(store) => break store,
            Err(error) => error,
        };
        let waited = began.elapsed();
        if !is_worth_waiting(&error, waited, options.wait) {
            if waited < options.wait || options.wait.is_zero() {
                return Err(error.into());
            }
            return Err(error).with_context(|| format!("waited {} s for the database", options.wait.as_secs()));
        }
        if pause == FIRST_PAUSE {
            info!(error = %chain(&error), "the database is not there yet; waiting for it, {} s at most", options.wait.as_secs());
        }
        tokio::time::sleep(pause.min(options.wait.saturating_sub(waited))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    store.migrate().await?;
    println!("the database's schema is up to date");
    Ok(())
}

fn is_worth_waiting(error: &store::Error, waited: Duration, patience: Duration) -> bool {
    waited < patience && error.may_come_up()
}
