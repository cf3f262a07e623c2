//! A primary and its standby, and what can happen to them.
//!
//! The standby follows asynchronously through a proxy; for a failover that may lose nothing it is made synchronous first. After
//! a failover the old primary is thrown away, and made anew as the standby of the other.

mod server;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::sync::Mutex;

use super::{
    proxy::{Mode, Proxy},
    shell::{now, wait_for},
};
use server::{ROLE, Server};

pub const DATABASE: &str = "chronos";
/// For a standby that has to catch up.
const CATCH_UP: Duration = Duration::from_secs(60);
/// How long commits go on in lockstep before the primary is lost.
const LOCKSTEP: Duration = Duration::from_millis(700);
/// So much of what is committed is lost by an asynchronous failover.
const LOSS: Duration = Duration::from_millis(300);
/// A disk that is full strikes when something cannot be written.
const FILLING: Duration = Duration::from_secs(10);

pub struct Postgres {
    both: Mutex<Both>,
    /// Between the standby and whoever is the primary.
    replication: Proxy,
}

struct Both {
    primary: Server,
    standby: Server,
}

impl Postgres {
    pub async fn start(logs: &Path, scratch: &Path) -> anyhow::Result<Self> {
        let first = 12_000 + u16::try_from(std::process::id() % 9_000).expect("below 9000") * 2;
        let mut primary = Server::new("a", logs, scratch, first).await?;
        let mut standby = Server::new("b", logs, scratch, primary.address.port() + 1).await?;
        primary.initialise().await?;
        primary.start().await?;
        primary.tell("CREATE DATABASE chronos").await?;
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let replication = Proxy::listen(any_port, primary.address).await?;
        standby.copy_of(replication.address).await?;
        standby.start().await?;
        let postgres = Self { both: Mutex::new(Both { primary, standby }), replication };
        postgres.both.lock().await.streams().await?;
        Ok(postgres)
    }

    pub fn uri(at: SocketAddr) -> String {
        format!("postgres://{ROLE}@{at}/{DATABASE}")
    }

    pub async fn primary(&self) -> SocketAddr {
        self.both.lock().await.primary.address
    }

    /// To the primary, with nothing in between.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        self.both.lock().await.primary.connect(DATABASE).await
    }

    pub async fn kill(&self) -> anyhow::Result<()> {
        self.both.lock().await.primary.kill().await
    }

    pub async fn stop(&self) -> anyhow::Result<()> {
        self.both.lock().await.primary.stop().await
    }

    /// The same data on the same port.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        self.both.lock().await.primary.start().await
    }

    pub async fn freeze(&self) -> anyhow::Result<()> {
        self.both.lock().await.primary.freeze().await
    }

    pub async fn thaw(&self) {
        self.both.lock().await.primary.thaw();
    }

    /// Ends every connection of replicas. How many there were.
    pub async fn terminate_backends(&self) -> anyhow::Result<i64> {
        let mut connection = self.connect().await?;
        let ended = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'chronos-%'",
        );
        Ok(ended.fetch_one(&mut connection).await?)
    }

    /// Fills the primary's disk. What could not be written first.
    pub async fn fill_disk(&self) -> anyhow::Result<String> {
        let both = self.both.lock().await;
        both.primary.fill_disk().await?;
        let filling = async {
            let mut connection = both.primary.connect(DATABASE).await.map_err(|error| format!("{error:#}"))?;
            loop {
                // The log that lies there already is used up first.
                let one = "SELECT pg_logical_emit_message(true, 'gauntlet', repeat('x', 1000000))";
                sqlx::raw_sql(one).execute(&mut connection).await.map_err(|error| error.to_string())?;
            }
        };
        let filled: Result<Result<(), String>, _> = tokio::time::timeout(FILLING, filling).await;
        match filled.context("the disk is full, and Postgres goes on")? {
            Ok(()) => unreachable!("it writes until it cannot"),
            Err(why) => Ok(why),
        }
    }

    /// Gives the disk back, and starts it if it has given up.
    pub async fn clear_disk(&self) -> anyhow::Result<()> {
        let mut both = self.both.lock().await;
        both.primary.clear_disk();
        // One that has panicked says nothing for a moment, and then either recovers or ends.
        let settle = tokio::time::Instant::now() + CATCH_UP;
        loop {
            if both.primary.has_ended() {
                both.primary.start().await?;
            }
            if both.primary.says("SELECT NOT pg_is_in_recovery()").await {
                return Ok(());
            }
            anyhow::ensure!(tokio::time::Instant::now() < settle, "Postgres does not come back from a full disk");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Loses the primary and makes the standby the primary, which has all that was committed.
    pub async fn fail_over(&self) -> anyhow::Result<()> {
        let mut both = self.both.lock().await;
        both.primary.tell("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        both.primary.tell("SELECT pg_reload_conf()").await?;
        let in_step = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')";
        let primary = &both.primary;
        wait_for("the standby is synchronous", CATCH_UP, || primary.says(in_step)).await?;
        tokio::time::sleep(LOCKSTEP).await;
        both.promote(&self.replication).await
    }

    /// The same with a standby that lags: what was committed since the instant that is returned may be lost. Beside it, how many
    /// bytes of the log certainly were.
    pub async fn fail_over_with_loss(&self) -> anyhow::Result<(DateTime<Utc>, i64)> {
        let mut both = self.both.lock().await;
        let loses_from = now();
        self.replication.set(Mode::BlackHole { late: false });
        tokio::time::sleep(LOSS).await;
        let written = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint";
        let written = both.primary.place(written).await?;
        let received = "SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint";
        let received = both.standby.place(received).await?;
        both.promote(&self.replication).await?;
        Ok((loses_from, written - received))
    }

    /// What was the primary becomes the standby of what is.
    pub async fn rebuild_standby(&self) -> anyhow::Result<()> {
        let mut both = self.both.lock().await;
        both.standby.copy_of(self.replication.address).await?;
        both.standby.start().await?;
        both.streams().await
    }

    /// Whatever was left half done.
    pub async fn heal(&self) -> anyhow::Result<()> {
        self.replication.set(Mode::Pass);
        self.thaw().await;
        self.clear_disk().await
    }

    pub async fn close(&self) {
        let mut both = self.both.lock().await;
        both.standby.kill().await.ok();
        both.primary.stop().await.ok();
    }
}

impl Both {
    async fn streams(&self) -> anyhow::Result<()> {
        let streams = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'";
        wait_for("the standby follows", CATCH_UP, || self.primary.says(streams)).await
    }

    async fn promote(&mut self, replication: &Proxy) -> anyhow::Result<()> {
        self.primary.kill().await?;
        // What is under way in the proxy goes nowhere.
        replication.set(Mode::Cut);
        self.standby.tell("SELECT pg_promote()").await?;
        std::mem::swap(&mut self.primary, &mut self.standby);
        // It was copied when there was nobody to wait for; waiting for nobody now would be for ever.
        self.primary.tell("ALTER SYSTEM RESET synchronous_standby_names").await?;
        self.primary.tell("SELECT pg_reload_conf()").await?;
        let open = "SELECT NOT pg_is_in_recovery()";
        wait_for("the new primary takes writes", CATCH_UP, || self.primary.says(open)).await?;
        replication.retarget(self.primary.address);
        replication.set(Mode::Pass);
        Ok(())
    }
}
