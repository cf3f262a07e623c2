//! `chronosd dispatch hold|release`: the maintenance switch, in the database, for all replicas at once.

use clap::Subcommand;

use crate::{config::Given, domain::rfc3339, leader, store::Store, telemetry};

#[derive(Subcommand)]
pub enum Switch {
    /// Nothing is claimed until release; what is in flight finishes, alarms stay and become due
    #[command(
        after_help = "Reads CHRONOS_POSTGRES_URI. Replicas stay ready; /readyz and the metric chronos_dispatch_held say so."
    )]
    Hold,
    /// Lets deliveries go on; slots that passed meanwhile are folded, missed or queued as their alarms say
    #[command(after_help = "Reads CHRONOS_POSTGRES_URI.")]
    Release,
}

pub async fn dispatch(switch: Switch, given: Given) -> anyhow::Result<()> {
    telemetry::init(given.log_filter())?;
    let store = Store::connect(&given.database()?, "cli", 1).await?;
    store.check_schema().await?;
    match switch {
        Switch::Hold => {
            let hold = store.hold_dispatch(&caller()).await?;
            println!("dispatch is held by {} since {}", hold.by, rfc3339(hold.since));
        }
        Switch::Release => match store.release_dispatch().await? {
            Some(hold) => println!("dispatch goes on; it was held by {} since {}", hold.by, rfc3339(hold.since)),
            None => println!("dispatch was not held"),
        },
    }
    Ok(())
}

/// Who asks, for whoever finds dispatch held.
fn caller() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let name = format!("{}@{}", user.as_deref().unwrap_or("somebody"), leader::host());
    // As long as the column takes.
    name.chars().take(128).collect()
}
