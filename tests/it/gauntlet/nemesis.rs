//! Breaks things, and keeps a log of what it broke when.

use std::{process::Stdio, sync::Mutex};

use chronos::clock;
use sqlx::PgPool;
use tokio::process::Command;

use super::{
    Replica,
    history::{Fault, What},
    postgres::{Postgres, Stop},
};
use crate::support::eventually;

#[derive(Default)]
pub struct Nemesis {
    faults: Mutex<Vec<Fault>>,
}

/// A fault that goes on until [`Nemesis::end`].
#[must_use = "a fault is ended, or explains everything that comes after"]
pub struct Begun(usize);

impl Nemesis {
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().unwrap().clone()
    }

    /// `kill -9`. Begins before the signal and ends when the process is certainly gone.
    pub async fn kill(&self, replica: Replica) -> Fault {
        let begun = self.begin(What::Killed, Some(&replica.name));
        replica.daemon.kill().await;
        self.end(begun)
    }

    /// Stops every thread of a replica where it is.
    pub async fn freeze(&self, replica: &Replica) -> Begun {
        let begun = self.begin(What::Frozen, Some(&replica.name));
        signal(replica, "-STOP").await;
        // T: stopped. The signal is only on its way when `kill` returns.
        eventually("the process is stopped", || async { (replica.daemon.state() == 'T').then_some(()) }).await;
        begun
    }

    /// Lets a frozen replica go on.
    pub async fn thaw(&self, replica: &Replica, begun: Begun) {
        signal(replica, "-CONT").await;
        self.end(begun);
    }

    pub async fn stop_database(&self, postgres: &Postgres, how: Stop) -> Begun {
        let begun = self.begin(What::DatabaseAway, None);
        postgres.stop(how).await;
        begun
    }

    pub async fn start_database(&self, postgres: &Postgres, begun: Begun) -> Fault {
        postgres.start_again().await;
        self.end(begun)
    }

    /// Ends every connection of dispatchers, whatever is under way on it, as soon as there is one.
    pub async fn cut_connections(&self, database: &PgPool) {
        let begun = self.begin(What::ConnectionsCut, None);
        eventually("a dispatcher is connected", || async {
            let cut: i64 = sqlx::query_scalar(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE application_name = 'chronos-dispatch' AND datname = current_database()",
            )
            .fetch_one(database)
            .await
            .unwrap();
            (cut > 0).then_some(())
        })
        .await;
        self.end(begun);
    }

    /// Notes that something is wrong from now on, such as what the sink was told to answer.
    pub fn begin(&self, what: What, replica: Option<&str>) -> Begun {
        let mut faults = self.faults.lock().unwrap();
        let replica = replica.map(str::to_owned);
        faults.push(Fault { what, replica, began_at: clock::system().now(), ended_at: None });
        Begun(faults.len() - 1)
    }

    pub fn end(&self, begun: Begun) -> Fault {
        let fault = &mut self.faults.lock().unwrap()[begun.0];
        fault.ended_at = Some(clock::system().now());
        fault.clone()
    }
}

async fn signal(replica: &Replica, signal: &str) {
    let pid = replica.daemon.pid().to_string();
    let sent = Command::new("kill").args([signal, &pid]).stdin(Stdio::null()).status().await.expect("kill runs");
    assert!(sent.success(), "{signal} reaches {}", replica.name);
}
