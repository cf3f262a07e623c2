//! The schema as a whole: how it comes about, which binaries fit it, and what holds for all its tables.

use chronos::store::{Error, Store};
use sqlx::Connection;

use super::{ann, create, execute, in_an_hour};
use crate::support::{Database, PATIENCE, Proxy, daemon, eventually};

#[tokio::test]
async fn many_may_migrate_at_once() {
    let database = Database::empty().await;
    let stores = futures::future::join_all((0..8).map(|_| database.store())).await;
    for migrated in futures::future::join_all(stores.iter().map(Store::migrate)).await {
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

const LEAVE_ALL_BEHIND: &str = "UPDATE settings SET min_compatible_version = 9999, min_compatible_release = '9.9.9'";

#[tokio::test]
async fn a_schema_that_has_left_this_binary_behind_is_refused_with_both_versions() {
    let database = Database::fresh().await;
    execute(&mut database.connect().await, LEAVE_ALL_BEHIND).await;
    let store = database.store().await;
    for refused in [store.migrate().await, store.check_schema().await] {
        assert!(matches!(&refused, Err(Error::LeftBehind { needed: 9999, .. })), "{refused:?}");
    }
    let settings = [
        ("CHRONOS_POSTGRES_URI", database.uri.as_str()),
        ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true"),
        ("CHRONOS_ROLES", "dispatch"),
        ("CHRONOS_WAKE_TOKEN", "wake-token-of-the-tests-000000001"),
    ];
    for command in ["migrate", "run"] {
        let output = daemon::command(&settings).arg(command).output();
        let output = tokio::time::timeout(daemon::PROMPT, output).await.expect("it ends").expect("it starts");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("chronosd 9.9.9 or later") && said.contains("this is chronosd 0.1.0"), "{said}");
    }
}

#[tokio::test]
async fn a_binary_that_is_left_behind_while_it_waits_to_migrate_notices() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut newer = database.connect().await;
    let mut migrating = newer.begin().await.unwrap();
    execute(&mut migrating, "LOCK TABLE _sqlx_migrations").await;
    let newer_first = async {
        eventually("the older one waits", || async {
            let waits = sqlx::query(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            );
            waits.fetch_optional(&mut database.connect().await).await.unwrap()
        })
        .await;
        execute(&mut migrating, LEAVE_ALL_BEHIND).await;
        migrating.commit().await.unwrap();
    };
    let (refused, ()) = tokio::join!(store.migrate(), newer_first);
    assert!(matches!(refused, Err(Error::LeftBehind { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_migration_that_failed_leaves_no_lock_behind() {
    let database = Database::fresh().await;
    let (failing, other) = tokio::join!(database.store(), database.store());
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE _sqlx_migrations SET checksum = '' WHERE version = 1").await;
    assert!(matches!(failing.migrate().await, Err(Error::Migrate(_))));

    // The first one's connections are all still there.
    let again = tokio::time::timeout(PATIENCE, other.migrate()).await.expect("nobody holds the lock");
    assert!(matches!(again, Err(Error::Migrate(_))));
    failing.close().await;
}

#[tokio::test]
async fn every_table_view_and_function_says_what_it_is_for() {
    let database = Database::fresh().await;
    database.store().await.make_attempt_partitions(0).await.unwrap();
    let silent: Vec<String> = sqlx::query_scalar(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
         AND obj_description(oid, 'pg_class') IS NULL AND relname <> '_sqlx_migrations'
         UNION ALL
         SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
         AND obj_description(oid, 'pg_proc') IS NULL",
    )
    .fetch_all(&mut database.connect().await)
    .await
    .unwrap();
    assert_eq!(silent, Vec::<String>::new());
}

#[tokio::test]
async fn a_database_host_that_vanishes_costs_connections_and_not_the_pool() {
    const POOL: usize = 2;
    let database = Database::fresh().await;
    let proxy = Proxy::in_front_of(&database).await;
    let through = Database { uri: proxy.uri.clone() };
    let store = Store::connect(&through.config(), "test", u32::try_from(POOL).unwrap()).await.unwrap();
    let owner = ann();
    let id = create(&store, &owner, in_an_hour()).await.id;

    // Every connection waits for an answer, because somebody holds the row, and then the host is gone.
    let mut holder = database.connect().await;
    let mut holding = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM alarms FOR UPDATE").execute(&mut *holding).await.unwrap();
    let waiting = futures::future::join_all((0..POOL).map(|_| store.cancel_if_owned(&owner, id)));
    let vanish = async {
        eventually("all wait for the row", || async {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(&mut database.connect().await)
            .await
            .unwrap();
            (usize::try_from(waiting) == Ok(POOL)).then_some(())
        })
        .await;
        proxy.freeze();
    };
    let (answers, ()) = tokio::join!(waiting, vanish);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    holding.rollback().await.unwrap();

    // The pool is whole again: as many questions as before are answered at once, by the host that is back.
    eventually("every connection can be had again", || async {
        let answers = futures::future::join_all((0..POOL).map(|_| store.now())).await;
        answers.iter().all(Result::is_ok).then_some(())
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
    let refused = Store::connect(&careful, "test", 1).await.unwrap_err();
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
