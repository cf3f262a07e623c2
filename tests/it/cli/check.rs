//! `chronosd check`.

use tokio::net::TcpListener;

use super::{Ended, run};
use crate::support::{AGENT_AUTH_SECRET, Database, Namespace, Sink, TOKEN, WAKE_TOKEN, daemon::command};

/// Runs it with all that it needs, but for what a test sets otherwise; an empty value takes a setting away.
async fn check(database: &Database, sink: &Sink, settings: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut all = vec![
        ("CHRONOS_ROLES", "dispatch,api"),
        ("CHRONOS_POSTGRES_URI", database.uri.as_str()),
        ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true"),
        ("CHRONOS_TOKEN", TOKEN),
        ("CHRONOS_AGENT_AUTH_SECRET", AGENT_AUTH_SECRET),
        ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN),
        ("CHRONOS_ROUTER_WAKE_URL", sink.url.as_str()),
        ("CHRONOS_ENROLMENT", "open"),
        ("CHRONOS_DEV", "true"),
    ];
    for (name, value) in settings {
        all.retain(|(known, _)| known != name);
        if !value.is_empty() {
            all.push((name, value));
        }
    }
    run(command(&all), "", &[&["check"], arguments].concat()).await
}

/// The line about one thing.
fn line<'a>(ended: &'a Ended, thing: &str) -> &'a str {
    let found = ended.stdout.lines().find(|line| line.contains(&format!("  {thing}: ")));
    found.unwrap_or_else(|| panic!("{thing}: {} {}", ended.stdout, ended.stderr))
}

/// Every line begins with a verdict, there is one for everything, and the exit code is their sum.
fn lines(ended: &Ended) -> Vec<&str> {
    let verdicts: Vec<&str> = ended.stdout.lines().map(|line| line.split("  ").next().unwrap()).collect();
    let things: Vec<&str> =
        ended.stdout.lines().map(|line| line.split(": ").next().unwrap().split("  ").last().unwrap().trim()).collect();
    assert_eq!(things, ["configuration", "database", "schema", "CRDs", "router"], "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(i32::from(verdicts.contains(&"FAIL"))), "{}", ended.stdout);
    verdicts
}

#[tokio::test]
async fn when_all_is_there_every_line_is_ok_and_no_wake_was_sent() {
    let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
    let ended = check(&database, &sink, &[], &[]).await;
    assert_eq!(lines(&ended), ["ok"; 5], "{}", ended.stdout);
    assert_eq!(line(&ended, "configuration"), "ok    configuration: complete for dispatch, api");
    assert!(line(&ended, "database").starts_with("ok    database: reachable, Postgres 1"), "{}", ended.stdout);
    assert_eq!(line(&ended, "schema"), "ok    schema: this version can work with it");
    assert_eq!(line(&ended, "CRDs"), "ok    CRDs: no cluster: skipped");
    let origin = sink.url.trim_end_matches("/internal/wake");
    assert_eq!(line(&ended, "router"), format!("ok    router: {origin} takes connections; no wake was sent"));
    assert!(sink.received().is_empty());
}

#[tokio::test]
async fn a_timer_sink_elsewhere_has_a_line_of_its_own() {
    let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
    let other = Sink::start().await;
    let own = ("CHRONOS_TIMER_SINK_TOKEN", "the-sinks-own-token-of-32-chars-");
    let ended = check(&database, &sink, &[("CHRONOS_TIMER_SINK_URL", &other.url), own], &[]).await;
    let origin = other.url.trim_end_matches("/internal/wake");
    assert_eq!(line(&ended, "timer sink"), format!("ok    timer sink: {origin} takes connections; no wake was sent"));
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);

    // What is wrong with its token does not keep anybody from looking at it.
    drop(other);
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = format!("http://{gone}/timers");
    let ended = check(&database, &sink, &[("CHRONOS_TIMER_SINK_URL", &away)], &[]).await;
    assert!(line(&ended, "configuration").contains("CHRONOS_TIMER_SINK_TOKEN is not set"), "{}", ended.stdout);
    let told = format!("FAIL  timer sink: http://{gone} does not take connections: ");
    assert!(line(&ended, "timer sink").starts_with(&told), "{}", ended.stdout);
    assert!(line(&ended, "timer sink").ends_with("start it, or set CHRONOS_TIMER_SINK_URL"), "{}", ended.stdout);
    assert_eq!(ended.code, Some(1));
}

#[tokio::test]
async fn each_thing_is_looked_at_whatever_is_wrong_with_the_others() {
    let (database, sink) = tokio::join!(Database::empty(), Sink::start());
    // A port that nobody listens on any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = format!("http://{gone}/internal/wake");
    let settings = [("CHRONOS_TOKEN", ""), ("CHRONOS_BATCH", "many"), ("CHRONOS_ROUTER_WAKE_URL", away.as_str())];
    let ended = check(&database, &sink, &settings, &[]).await;
    assert_eq!(lines(&ended), ["FAIL", "ok", "FAIL", "ok", "FAIL"], "{}", ended.stdout);
    let configuration = line(&ended, "configuration");
    assert!(configuration.contains("CHRONOS_TOKEN") && configuration.contains("CHRONOS_BATCH"), "{configuration}");
    assert!(line(&ended, "schema").ends_with("run `chronosd migrate` first"), "{}", ended.stdout);
    assert!(
        line(&ended, "router").starts_with(&format!("FAIL  router: http://{gone} does not take connections: ")),
        "{}",
        ended.stdout
    );
}

#[tokio::test]
async fn a_database_that_is_away_is_told_with_where_it_was_looked_for() {
    let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = format!("postgres://user:very-secret@{gone}/chronos");
    let ended = check(&database, &sink, &[("CHRONOS_POSTGRES_URI", &away)], &[]).await;
    assert_eq!(lines(&ended), ["ok", "FAIL", "FAIL", "ok", "ok"], "{}", ended.stdout);
    assert!(
        line(&ended, "database").contains(&format!("cannot connect to the database at {gone}")),
        "{}",
        ended.stdout
    );
    assert_eq!(line(&ended, "schema"), "FAIL  schema: not looked at: there is no database to look into");
    assert!(!ended.stdout.contains("very-secret"));

    let ended = check(&database, &sink, &[("CHRONOS_POSTGRES_URI", "")], &[]).await;
    assert_eq!(lines(&ended), ["FAIL", "FAIL", "FAIL", "ok", "ok"], "{}", ended.stdout);
    assert!(
        line(&ended, "database").starts_with("FAIL  database: not looked at: CHRONOS_POSTGRES_URI "),
        "{}",
        ended.stdout
    );
}

#[tokio::test]
async fn settings_that_may_lose_alarms_are_a_problem_of_the_database() {
    let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
    let ended = check(&database, &sink, &[("CHRONOS_ALLOW_UNSAFE_POSTGRES", "")], &[]).await;
    // The tests' own server runs without fsync.
    assert!(line(&ended, "database").contains("may lose committed alarms in a crash"), "{}", ended.stdout);
}

#[tokio::test]
async fn what_no_role_needs_is_skipped_and_a_controller_needs_a_cluster() {
    let (database, sink) = tokio::join!(Database::fresh(), Sink::start());
    let away = [("CHRONOS_ROLES", "api"), ("CHRONOS_ROUTER_WAKE_URL", "http://127.0.0.1:1/")];
    let ended = check(&database, &sink, &away, &[]).await;
    assert_eq!(lines(&ended), ["ok"; 5], "{}", ended.stdout);
    assert_eq!(line(&ended, "router"), "ok    router: skipped: only role dispatch talks to it");

    let ended = check(&database, &sink, &[("CHRONOS_ROLES", "controller")], &[]).await;
    assert_eq!(lines(&ended), ["ok", "ok", "ok", "FAIL", "ok"], "{}", ended.stdout);
    assert!(line(&ended, "CRDs").contains("role controller needs one"), "{}", ended.stdout);
}

#[tokio::test]
async fn a_real_api_server_is_asked_what_it_serves() {
    let (database, sink, namespace) = tokio::join!(Database::fresh(), Sink::start(), Namespace::fresh());
    let kubeconfig = namespace.kubeconfig.to_str().unwrap();
    let ended = check(&database, &sink, &[("CHRONOS_ROLES", "controller")], &["--kubeconfig", kubeconfig]).await;
    assert_eq!(line(&ended, "CRDs"), "ok    CRDs: Alarm and Agent are served as chronos.dev/v1alpha1");
    assert_eq!(lines(&ended), ["ok"; 5], "{}", ended.stdout);

    let ended = check(&database, &sink, &[], &["--kubeconfig", "/nowhere"]).await;
    assert!(
        line(&ended, "CRDs").starts_with("FAIL  CRDs: the cluster's credentials cannot be used: "),
        "{}",
        ended.stdout
    );
}
