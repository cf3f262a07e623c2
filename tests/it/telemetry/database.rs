//! Whether the database is there, as `/metrics` of every role tells it.

use crate::{
    gauntlet::postgres::{Postgres, Stop},
    support::{Daemon, Namespace, World, eventually},
    telemetry::scrape::count,
};

async fn all_tell(daemons: &[Daemon], reachable: u64) {
    for daemon in daemons {
        let what = format!("the replica at {} tells {reachable}", daemon.probes);
        let told = || async { (count(daemon, "chronos_database_reachable", &[]).await == reachable).then_some(()) };
        eventually(&what, told).await;
    }
}

#[tokio::test]
async fn every_role_tells_that_the_database_is_away_and_that_it_is_back() {
    let (world, namespace, postgres) = tokio::join!(World::new(), Namespace::fresh(), Postgres::start());
    let settings = [
        ("CHRONOS_POSTGRES_URI", postgres.uri.as_str()),
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
    ];
    let mut daemons = Vec::new();
    for roles in ["controller", "dispatch", "api"] {
        let daemon = Daemon::start(&world, roles, &settings).await;
        assert_eq!(count(&daemon, "chronos_database_reachable", &[]).await, 1, "from the first scrape on");
        daemons.push(daemon);
    }
    postgres.stop(Stop::Fast).await;
    all_tell(&daemons, 0).await;
    postgres.start_again().await;
    all_tell(&daemons, 1).await;
}
