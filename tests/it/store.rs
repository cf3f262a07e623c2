//! The schema and its statements on the real Postgres.

use crate::support::{Database, Proxy, daemon, eventually};

#[tokio::test]
async fn many_may_migrate_at_once() {
    let database = Database::empty().await;
    let stores = futures::future::join_all((0..8).map(|_| database.store())).await;
    for migrated in futures::future::join_all(stores.iter().map(chronos::store::Store::migrate)).await {
        migrated.unwrap();
    }
    stores[0].check_schema().await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_accepted() {
    let database = Database::fresh().await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', true, '', 0)",
    )
    .execute(&mut database.connect().await)
    .await
    .unwrap();
    let store = database.store().await;
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
}

#[tokio::test]
async fn a_database_host_that_vanishes_costs_connections_and_not_the_pool() {
    let database = Database::fresh().await;
    let proxy = Proxy::in_front_of(&database).await;
    let through = Database { uri: proxy.uri.clone() };
    let store = chronos::store::Store::connect(&through.config(), "test", 2).await.unwrap();
    let both = async || futures::join!(store.now(), store.now());
    let (one, other) = both().await;
    assert!(one.is_ok() && other.is_ok());

    // Whoever is connected now hears nothing more, not even an end. Two questions fill the pool and time out.
    proxy.freeze();
    let (one, other) = both().await;
    assert!(one.is_err() && other.is_err());
    // The pool has room again: new connections reach the host that is back.
    eventually("both connections can be had again", || async {
        let (one, other) = both().await;
        (one.is_ok() && other.is_ok()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_database_without_the_schema_is_refused_with_the_command_that_helps() {
    let database = Database::empty().await;
    let refused = database.store().await.check_schema().await.unwrap_err();
    assert!(refused.to_string().contains("chronosd migrate"), "{refused}");
}

#[tokio::test]
async fn a_database_that_may_forget_is_refused_by_name() {
    // The tests' own server runs with fsync off, for speed.
    let database = Database::fresh().await;
    let careful = chronos::config::Database { allow_unsafe: false, ..database.config() };
    let refused = chronos::store::Store::connect(&careful, "test", 1).await.unwrap_err();
    assert!(refused.to_string().contains("fsync") && refused.to_string().contains("CHRONOS_ALLOW_UNSAFE_POSTGRES"));
}

#[tokio::test]
async fn the_commands_say_what_is_wrong_with_their_settings() {
    let run = async |settings: &[(&str, &str)]| {
        let output = daemon::command(settings).arg("run").output();
        let output = tokio::time::timeout(daemon::PROMPT, output).await.expect("it ends").expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&[("CHRONOS_PORT", "http"), ("CHRONOS_ROLES", "api,cook")]).await;
    assert_eq!(code, Some(1));
    for name in
        ["CHRONOS_POSTGRES_URI is not set", "CHRONOS_PORT is \"http\"", "CHRONOS_ROLES has \"cook\"", "CHRONOS_TOKEN"]
    {
        assert!(said.contains(name), "{name} in {said}");
    }
}

#[tokio::test]
async fn migrate_brings_a_database_up_to_date_and_says_so() {
    let database = Database::empty().await;
    let settings = [("CHRONOS_POSTGRES_URI", database.uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    let output = daemon::command(&settings).arg("migrate").output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "the database's schema is up to date\n");
    database.store().await.check_schema().await.unwrap();
}
