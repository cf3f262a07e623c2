//! `chronosd run` as one process: what it refuses to start with, and that it does not live on by halves.

use crate::{
    gauntlet::postgres::Postgres,
    support::{
        Database, WAKE_TOKEN, World,
        alarms::execute,
        daemon::{PROMPT, command},
        eventually,
    },
};

/// What it says about settings that it cannot work with, though everything else is fine.
async fn refused(database: &str, settings: &[(&str, &str)]) -> String {
    let fine = [
        ("CHRONOS_ROLES", "dispatch"),
        ("CHRONOS_POSTGRES_URI", database),
        ("CHRONOS_METRICS_PORT", "0"),
        ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN),
    ];
    let settings: Vec<_> = fine.into_iter().chain(settings.iter().copied()).collect();
    let output = command(&settings).arg("run").output();
    let ended = tokio::time::timeout(PROMPT, output).await.expect("it ends in time").expect("it starts");
    assert_eq!(ended.status.code(), Some(1));
    String::from_utf8(ended.stderr).expect("it prints text")
}

#[tokio::test]
async fn a_setting_that_cannot_be_worked_with_is_named_and_nothing_starts() {
    let database = Database::fresh().await;
    for (name, value, told) in [
        (
            "CHRONOS_ROUTER_WAKE_URL",
            "router:8088/internal/wake",
            "is \"router:8088/internal/wake\"; expected an address",
        ),
        ("CHRONOS_ROUTER_WAKE_URL", "http://", "is \"http://\"; expected an address"),
        ("CHRONOS_POSTGRES_URI", "mysql://chronos:hunter2@localhost/chronos", "does not begin with postgres://"),
        ("CHRONOS_POSTGRES_URI", "postgres://chronos:hunter2@localhost:here/chronos", "cannot be understood"),
        ("CHRONOS_LEASE_SECONDS", "61", "is 61 s, shorter than CHRONOS_WAKE_TIMEOUT_SECONDS (60 s)"),
        ("CHRONOS_TIMER_SINK_TOKEN", "", "is empty; set it to the bearer that the timer sink expects, or unset it"),
        ("CHRONOS_BATCH", "0", "is \"0\"; expected a whole number between 1 and 10000"),
        (
            "CHRONOS_DISPATCH_POOL",
            "2",
            "is 2; a dispatcher claims, settles and listens at the same time, so give it 3 connections or more",
        ),
    ] {
        let said = refused(&database.uri, &[("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true"), (name, value)]).await;
        assert!(said.contains(&format!("{name} {told}")), "{said}");
        assert!(!said.contains("hunter2"), "a password: {said}");
    }
}

#[tokio::test]
async fn a_database_that_may_forget_is_refused_whichever_way_it_forgets() {
    let refusals = ["fsync", "full_page_writes", "synchronous_commit"].map(|setting| async move {
        let postgres = Postgres::start_without(setting).await;
        let said = refused(&postgres.uri, &[]).await;
        assert!(said.contains(&format!("the database runs with {setting} = off")), "{said}");
        assert!(said.contains("CHRONOS_ALLOW_UNSAFE_POSTGRES=true"), "{said}");
    });
    futures::future::join_all(refusals).await;
}

#[tokio::test]
async fn a_process_ends_when_one_of_its_tasks_has_panicked() {
    let world = World::new().await;
    let mut daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_BEAT_MS", "100")]).await;
    // A peer as no replica writes it: its instant is beyond what the client of the database can hold, which panics.
    let odd =
        "INSERT INTO dispatchers (worker, version, host, started_at) VALUES (gen_random_uuid(), 'v', 'h', 'infinity')";
    execute(&mut world.database.connect().await, odd).await;
    assert_eq!(daemon.ended().await.code(), Some(1));
    eventually("it says why", || async { (daemon.said("a task panicked") > 0).then_some(()) }).await;
}
