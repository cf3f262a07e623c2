//! `/livez` and `/readyz` while something is away.

use super::scrape::scrape;
use crate::{
    gauntlet::{
        postgres::{Postgres, Stop},
        sink::Sink,
    },
    support::{Database, World, eventually},
};

#[tokio::test]
async fn while_postgres_is_away_a_process_lives_and_is_not_ready() {
    let (postgres, sink) = tokio::join!(Postgres::start(), Sink::start());
    let world = World { database: Database { uri: postgres.uri.clone() }, sink };
    let daemon = world.chronosd("api,dispatch").await;
    let fine = (200, "ok\n".to_owned());
    assert_eq!(daemon.probe("/livez").await, fine);
    for how in [Stop::Fast, Stop::Immediate] {
        postgres.stop(how).await;
        assert_eq!(daemon.readiness().await, (503, "the database does not answer\n".to_owned()), "{how:?}");
        // Restarting it would not mend Postgres, and its metrics are wanted now.
        assert_eq!(daemon.probe("/livez").await, fine, "{how:?}");
        scrape(&daemon).await;
        postgres.start_again().await;
        eventually("it is ready again", || async { (daemon.readiness().await == fine).then_some(()) }).await;
    }
}
