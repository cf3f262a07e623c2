//! The command line.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};

use crate::{log::Kind, nemesis::Pace, simulation::Flaw};

#[derive(Parser)]
#[command(name = "gauntlet", about = "Tries to break every promise of Chronos, and says which held")]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Strike faults in batches, and check
    Run(Setting),
    /// Run builds with a known bug; the checker must find each
    Mutants {
        #[command(flatten)]
        setting: Setting,
        /// Which; none: all
        names: Vec<String>,
    },
    /// Check what runs wrote down once more
    Check {
        #[arg(required = true)]
        directories: Vec<PathBuf>,
    },
    /// Play small worlds in memory
    Simulate {
        #[arg(long, default_value_t = 100_000)]
        seeds: u64,
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// With a bug in the model, which must be found
        #[arg(long, value_enum)]
        flaw: Option<Flaw>,
    },
    /// The router; runs start it themselves
    #[command(hide = true)]
    Sink { directory: PathBuf },
}

#[derive(Args, Clone, Debug)]
pub struct Setting {
    /// Faults in all; more than a batch are struck in several batches, each with the next seed
    #[arg(long, default_value_t = 60)]
    pub faults: usize,
    /// Faults in one batch
    #[arg(long, default_value_t = 250)]
    pub batch: usize,
    /// Of the first batch; without it any
    #[arg(long)]
    pub seed: Option<u64>,
    /// `cheap`, `all`, or names, comma separated
    #[arg(long, default_value = "cheap")]
    pub kinds: String,
    /// `leader` or `active`; without it by the seed
    #[arg(long)]
    pub mode: Option<String>,
    /// How close faults come to each other
    #[arg(long, value_enum, default_value = "dense")]
    pub pace: Pace,
    /// chronosd, built with feature `mutants`
    #[arg(long, default_value_os_t = path_in("GAUNTLET_BINARY"))]
    pub binary: PathBuf,
    /// Another build of it, for rolling replacement
    #[arg(long, default_value_os_t = path_in("GAUNTLET_OTHER"))]
    pub other: PathBuf,
    /// Where to keep what is written down; without it only runs that break something are kept
    #[arg(long)]
    pub directory: Option<PathBuf>,
}

impl Arguments {
    /// `None`: somebody asked for a test by name (`cargo test -- NAME`), and this is none.
    pub fn from_command_line() -> Option<Self> {
        let first = std::env::args().nth(1);
        let ours = ["run", "mutants", "check", "simulate", "sink", "help", "--help", "-h"];
        first.is_none_or(|word| ours.contains(&word.as_str())).then(Self::parse)
    }
}

impl Setting {
    pub fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        let all = Kind::all();
        match self.kinds.as_str() {
            "all" => Ok(all),
            "cheap" => Ok(Kind::cheap()),
            names => names
                .split(',')
                .map(|name| match all.iter().find(|kind| kind.name() == name) {
                    Some(kind) => Ok(*kind),
                    None => {
                        let known: Vec<_> = all.iter().map(|kind| kind.name()).collect();
                        bail!("--kinds: there is no fault `{name}`; there are cheap, all, {}", known.join(", "))
                    }
                })
                .collect(),
        }
    }

    /// The seed of the first batch.
    pub fn first_seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| rand::random::<u32>().into())
    }
}

/// From the environment; else the ordinary build.
fn path_in(variable: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| env!("CARGO_BIN_EXE_chronosd").into(), PathBuf::from)
}
