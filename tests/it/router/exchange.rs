//! The exchange itself: connections that are kept, answers that go astray.

use std::time::Duration;

use chronos::domain::occurrence::Answer;

use super::{TRACE, router, wake};
use crate::{
    gauntlet::dead_end::DeadEnd,
    support::{
        AgentKey, PATIENCE, World, eventually,
        raw::{Act, RawSink},
    },
};

const ACCEPTED: Answer = Answer::Accepted { http_status: 202 };
/// Short enough to wait for, long enough for an answer that does come.
const SHORT: Duration = Duration::from_secs(1);
/// More than is read of an answer.
const TOO_LONG: usize = 80 * 1024;

fn broke_off(answer: &Answer) -> bool {
    matches!(answer, Answer::Unavailable { why, http_status: None, retry_after: None } if why.starts_with("the exchange broke off"))
}

#[tokio::test]
async fn wakes_one_after_another_share_one_connection() {
    let chunked = "HTTP/1.1 202 Accepted\r\ntransfer-encoding: chunked\r\n\r\n5\r\ntaken\r\n0\r\n\r\n".to_owned();
    let empty = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
    let nearly_too_long = Act::answer("202 Accepted", "", &"x".repeat(60 * 1024));
    let sink =
        RawSink::start([Act::Say(chunked), Act::Say(empty), nearly_too_long, Act::answer("503 Busy", "", "busy")])
            .await;
    let router = router(&sink.url, PATIENCE);
    for _ in 0..20 {
        router.wake(&wake(), &TRACE).await;
    }
    assert_eq!((sink.requests(), sink.connections()), (20, 1));
}

#[tokio::test]
async fn wakes_at_once_leave_connections_that_the_next_ones_use() {
    const AT_ONCE: usize = 64;
    let sink = RawSink::start([]).await;
    let router = router(&sink.url, PATIENCE);
    let (first, trace) = (wake(), TRACE);
    for round in 1..=3 {
        let answers = futures::future::join_all((0..AT_ONCE).map(|_| router.wake(&first, &trace))).await;
        assert!(answers.iter().all(|answer| *answer == ACCEPTED));
        assert_eq!(sink.requests(), round * AT_ONCE);
    }
    assert!(sink.connections() <= AT_ONCE, "{} connections for {AT_ONCE} at once", sink.connections());
}

#[tokio::test]
async fn a_connection_that_the_router_closed_costs_no_attempt() {
    let bye = "HTTP/1.1 202 Accepted\r\ncontent-length: 5\r\n\r\ntaken".to_owned();
    let sink = RawSink::start([Act::SayAndClose(bye)]).await;
    let router = router(&sink.url, PATIENCE);
    for _ in 0..2 {
        assert_eq!(router.wake(&wake(), &TRACE).await, ACCEPTED);
        // The client sees the end of an idle connection when its task runs: let everything that can run, run.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!((sink.requests(), sink.connections()), (2, 2));
}

#[tokio::test]
async fn a_wake_that_was_written_is_not_repeated_behind_the_ladders_back() {
    let sink = RawSink::start([Act::answer("202 Accepted", "", ""), Act::SayAndClose(String::new())]).await;
    let router = router(&sink.url, PATIENCE);
    assert_eq!(router.wake(&wake(), &TRACE).await, ACCEPTED);
    // Over the connection that was kept: taken whole, and closed without a word.
    let answer = router.wake(&wake(), &TRACE).await;
    assert!(broke_off(&answer), "{answer:?}");
    assert_eq!((sink.requests(), sink.connections()), (2, 1));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = RawSink::start([]).await;
    for status in [301, 302, 303, 307, 308] {
        let location = format!("location: {}\r\n", elsewhere.url);
        let sink = RawSink::start([Act::answer(&format!("{status} Elsewhere"), &location, "over there")]).await;
        let answer = router(&sink.url, PATIENCE).wake(&wake(), &TRACE).await;
        let why = format!("HTTP {status}: over there");
        assert_eq!(answer, Answer::Unavailable { why, http_status: Some(status), retry_after: None });
    }
    assert_eq!(elsewhere.connections(), 0, "the bearer goes to the configured address alone");
}

#[tokio::test]
async fn an_answer_longer_than_is_read_is_not_waited_for() {
    let endless = format!("HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n{}", "x".repeat(TOO_LONG));
    let sink = RawSink::start([Act::SayAndHang(endless)]).await;
    // Without a deadline that would end it.
    let answer = tokio::time::timeout(PATIENCE, async { router(&sink.url, PATIENCE * 10).wake(&wake(), &TRACE).await });
    assert_eq!(answer.await.unwrap(), Answer::Accepted { http_status: 200 });
}

#[tokio::test]
async fn one_deadline_covers_headers_and_body() {
    let unfinished = "HTTP/1.1 503 Busy\r\ncontent-length: 10\r\n\r\nnot".to_owned();
    let half_a_head = "HTTP/1.1 200 OK\r\ncontent-le".to_owned();
    let acts = [Act::SayAndHang(String::new()), Act::SayAndHang(half_a_head), Act::SayAndHang(unfinished)];
    let sink = RawSink::start(acts).await;
    let router = router(&sink.url, SHORT);
    let none = Answer::Unavailable { why: "no answer within 1 s".into(), http_status: None, retry_after: None };
    assert_eq!(router.wake(&wake(), &TRACE).await, none, "silence");
    assert_eq!(router.wake(&wake(), &TRACE).await, none, "half a head");
    let why = "HTTP 503: not".into();
    let busy = Answer::Unavailable { why, http_status: Some(503), retry_after: None };
    assert_eq!(router.wake(&wake(), &TRACE).await, busy, "the status was said, the rest was not");
}

#[tokio::test]
async fn the_deadline_covers_the_connection_too() {
    let dead_end = DeadEnd::start().await;
    // Nobody refuses it and nobody lets it in: without a deadline it would wait for minutes.
    let answer = tokio::time::timeout(PATIENCE, async { router(&dead_end.url, SHORT).wake(&wake(), &TRACE).await });
    let none = Answer::Unavailable { why: "no answer within 1 s".into(), http_status: None, retry_after: None };
    assert_eq!(answer.await.unwrap(), none);
}

#[tokio::test]
async fn a_torn_connection_is_told_and_a_status_that_was_said_counts() {
    let begun = "HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\ntak".to_owned();
    let half_a_head = "HTTP/1.1 202 Acc".to_owned();
    let sink =
        RawSink::start([Act::SayAndReset(String::new()), Act::SayAndReset(half_a_head), Act::SayAndReset(begun)]).await;
    let router = router(&sink.url, PATIENCE);
    for _ in 0..2 {
        let answer = router.wake(&wake(), &TRACE).await;
        assert!(broke_off(&answer), "{answer:?}");
    }
    assert_eq!(router.wake(&wake(), &TRACE).await, ACCEPTED);
    assert_eq!(sink.requests(), 3);
}

#[tokio::test]
async fn every_way_to_fail_is_an_attempt_in_the_history() {
    let begun = "HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\ntak".to_owned();
    let sink = RawSink::start([
        Act::SayAndHang(String::new()),
        Act::SayAndReset(String::new()),
        Act::answer("302 Found", "location: http://127.0.0.1:1/\r\n", ""),
        Act::answer("500 Oh", "", &"é".repeat(TOO_LONG)),
        Act::SayAndReset(begun),
    ])
    .await;
    let world = World::new().await;
    let settings = [
        ("CHRONOS_ROUTER_WAKE_URL", sink.url.as_str()),
        ("CHRONOS_WAKE_TIMEOUT_SECONDS", "1"),
        ("CHRONOS_RETRY_BASE_MS", "20"),
        ("CHRONOS_RETRY_CAP_MS", "40"),
    ];
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let body = r#"{"kind":"once","delay_seconds":1,"wake_message":"m"}"#;
    let id = api.post_text("/v1/alarms", body).await.data()["id"].as_str().unwrap().to_owned();
    eventually("the alarm has fired", || async {
        (api.get(&format!("/v1/alarms/{id}")).await.data()["status"] == "fired").then_some(())
    })
    .await;
    let rows: Vec<(String, Option<i32>, String)> =
        sqlx::query_as("SELECT outcome, http_status, error FROM attempts WHERE alarm_id = $1::uuid ORDER BY attempt")
            .bind(&id)
            .fetch_all(&mut world.database.connect().await)
            .await
            .unwrap();
    let cut = format!("HTTP 500: {}", "é".repeat(290));
    let told: Vec<_> =
        rows.iter().map(|(outcome, status, error)| (outcome.as_str(), *status, error.as_str())).collect();
    assert!(told[1].2.starts_with("the exchange broke off: "), "{told:?}");
    assert_eq!(
        told,
        [
            ("retrying", None, "no answer within 1 s"),
            ("retrying", None, told[1].2),
            ("retrying", Some(302), "HTTP 302"),
            ("retrying", Some(500), cut.as_str()),
            ("delivered", Some(202), ""),
        ]
    );
}

#[tokio::test]
async fn a_proxy_in_the_environment_never_sees_a_wake() {
    let proxy = RawSink::start([]).await;
    let url = proxy.url.trim_end_matches("/internal/wake");
    let names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let mut settings: Vec<(&str, &str)> = names.map(|name| (name, url)).to_vec();
    // Nor may an exception of the machine's be what keeps it away.
    settings.extend([("NO_PROXY", ""), ("no_proxy", "")]);
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    api.post_text("/v1/alarms", r#"{"kind":"once","delay_seconds":1,"wake_message":"m"}"#).await.data();
    world.sink.wakes(1).await;
    assert_eq!(proxy.connections(), 0);
}
