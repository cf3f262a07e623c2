//! `chronosd migrate --wait`.

use std::process::Stdio;

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
};

use super::{Ended, run};
use crate::{
    gauntlet::postgres::{Postgres, Stop},
    support::{Database, PATIENCE, daemon::command},
};

async fn migrate(uri: &str, arguments: &[&str]) -> Ended {
    let settings = [("CHRONOS_POSTGRES_URI", uri), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    run(command(&settings), "", &[&["migrate"], arguments].concat()).await
}

/// What it says last: the lines before are its log.
fn last_words(ended: &Ended) -> &str {
    ended.stderr.lines().last().unwrap_or_default()
}

#[tokio::test]
async fn a_database_that_comes_up_meanwhile_is_waited_for() {
    let postgres = Postgres::start().await;
    postgres.stop(Stop::Fast).await;
    let mut waiting = command(&[("CHRONOS_POSTGRES_URI", postgres.uri.as_str())]);
    waiting.args(["migrate", "--wait", "10m"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut waiting = waiting.spawn().unwrap();
    let mut log = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let told = tokio::time::timeout(PATIENCE, log.next_line()).await.expect("it says that it waits").unwrap().unwrap();
    assert!(told.contains("the database is not there yet; waiting for it, 600 s at most"), "{told}");
    postgres.start_again().await;
    let ended = tokio::time::timeout(PATIENCE, waiting.wait_with_output()).await.expect("it ends in time").unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "the database's schema is up to date\n");
}

#[tokio::test]
async fn one_that_does_not_come_up_is_told_with_where_it_was_looked_for_and_for_how_long() {
    // A port that nobody listens on any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = format!("postgres://user:very-secret@{gone}/chronos");
    let ended = migrate(&away, &["--wait", "1s"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let told = format!("chronosd: waited 1 s for the database: cannot connect to the database at {gone}: ");
    assert!(last_words(&ended).starts_with(&told), "{}", ended.stderr);
    assert!(!ended.stderr.contains("very-secret"), "{}", ended.stderr);

    let ended = migrate(&away, &[]).await;
    let told = format!("chronosd: cannot connect to the database at {gone}: ");
    assert!(ended.code == Some(1) && ended.stderr.starts_with(&told), "nobody asked it to wait: {}", ended.stderr);
}

#[tokio::test]
async fn one_that_is_there_and_does_not_know_us_is_not_waited_for() {
    let database = Database::fresh().await;
    let (user, address) = database.uri.split_once('@').expect("an address with a password");
    let (user, _password) = user.rsplit_once(':').expect("user and password");
    for wrong in [format!("{user}:wrong@{address}"), format!("{}-not-there", database.uri)] {
        // Longer than the test lets it.
        let ended = migrate(&wrong, &["--wait", "10m"]).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("chronosd: cannot connect to the database at "), "{}", ended.stderr);
    }
}
