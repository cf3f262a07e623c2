//! Every promise, while things break: real processes are killed and frozen, a real Postgres is stopped and its connections
//! cut, the router misbehaves, clocks disagree. Each test ends with the checker of the gauntlet, which reads what everybody
//! saw and must have nothing to say.

mod clocks;
mod database;
mod freeze;
mod kill;
mod locks;
mod replicas;
mod router;
mod stop;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::{
    gauntlet::{Gauntlet, Replica},
    support::Namespace,
};

/// Peers notice a death in three beats. Not less than a second each: a replica that is slow on a busy machine is not dead.
/// The lease stays at its two minutes: who recovers in time does so by beats.
const SWIFT: &[(&str, &str)] = &[("CHRONOS_BEAT_MS", "1000")];
/// A lease that a test can wait for, shorter than three beats of five seconds, with a wake timeout long enough to freeze the
/// dispatcher within it on a busy machine.
const SHORT_LEASE: &[(&str, &str)] = &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "4"), ("CHRONOS_LEASE_SECONDS", "6")];
/// Retries at once, so that a test climbs the ladder in moments.
const QUICK: &[(&str, &str)] = &[("CHRONOS_RETRY_BASE_MS", "20"), ("CHRONOS_RETRY_CAP_MS", "40")];

/// Several groups of settings as one.
fn all<'a>(groups: &[&[(&'a str, &'a str)]]) -> Vec<(&'a str, &'a str)> {
    groups.concat()
}

/// Of replicas that elect the one that claims, by a Lease in this namespace.
fn elected(namespace: &Namespace) -> [(&str, &str); 2] {
    [("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()), ("CHRONOS_NAMESPACE", &namespace.name)]
}

/// From now on claims wait for a lock, with the whole question in Postgres' hands, until what this returns is let go. For longer
/// than a dispatcher waits for a lock by itself.
async fn claims_wait(gauntlet: &Gauntlet) -> Transaction<'static, Postgres> {
    updates_wait(gauntlet, "new.claim_token IS NOT NULL").await
}

/// The same for settles.
async fn settles_wait(gauntlet: &Gauntlet) -> Transaction<'static, Postgres> {
    updates_wait(gauntlet, "new.claim_token IS NULL").await
}

async fn updates_wait(gauntlet: &Gauntlet, when: &'static str) -> Transaction<'static, Postgres> {
    let trigger = format!(
        "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
         CREATE TRIGGER updates_wait BEFORE UPDATE ON alarms FOR EACH ROW
             WHEN (new.claim_token IS DISTINCT FROM old.claim_token AND {when})
             EXECUTE FUNCTION wait_for_the_test()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(trigger)).execute(&gauntlet.database).await.unwrap();
    let mut lock = gauntlet.database.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *lock).await.unwrap();
    lock
}

/// Stops everything, and holds the history against every promise.
async fn every_promise_was_kept(gauntlet: Gauntlet, replicas: impl IntoIterator<Item = Replica>) {
    let violations = gauntlet.close(replicas).await;
    assert!(violations.is_empty(), "promises were broken:\n{}", violations.join("\n"));
}

/// Asserts that each of these alarms has woken the router so many times.
fn each_was_woken(gauntlet: &Gauntlet, alarms: &[Uuid], times: usize) {
    let wakes = gauntlet.sink().log();
    let count = |alarm: Uuid| wakes.iter().filter(|wake| wake.alarm_id == alarm).count();
    let others: Vec<_> =
        alarms.iter().map(|alarm| (*alarm, count(*alarm))).filter(|(_, count)| *count != times).collect();
    assert!(others.is_empty(), "not woken {times} times: {others:?}");
}
