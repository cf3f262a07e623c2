//! Clients that are slow, greedy or odd, on connections written out by hand, and what a stop does to those that are open.

use std::time::Duration;

use chronos::http::server::{HEAD, raise_file_limit};
use reqwest::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{door, in_an_hour};
use crate::support::{AgentKey, Daemon, PATIENCE, TOKEN, World, api::Api, eventually};

/// An answer as it came.
struct Raw {
    head: String,
    body: Value,
}

impl Raw {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

async fn connect(daemon: &Daemon) -> TcpStream {
    TcpStream::connect(daemon.api.unwrap()).await.unwrap()
}

/// One answer; `None` if the connection ends before there is any of it.
async fn answer(stream: &mut TcpStream) -> Option<Raw> {
    let mut bytes = Vec::new();
    let mut more = async |bytes: &mut Vec<u8>| {
        let read = timeout(2 * PATIENCE, stream.read_buf(bytes)).await.expect("something happens in time");
        read.is_ok_and(|read| read > 0)
    };
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if !more(&mut bytes).await {
            assert!(bytes.is_empty(), "half a head: {}", String::from_utf8_lossy(&bytes));
            return None;
        }
    };
    let mut raw = Raw { head: String::from_utf8(bytes[..end].to_vec()).unwrap(), body: Value::Null };
    let length: usize = raw.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        assert!(more(&mut body).await, "the answer broke off: {}", raw.head);
    }
    if length > 0 {
        raw.body = serde_json::from_slice(&body).unwrap();
    }
    Some(raw)
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(PATIENCE, stream.read(&mut [0; 64])).await, Ok(Ok(0) | Err(_)))
}

/// The head of a `POST /v1/alarms`, up to the fields that say how its body comes.
fn post(api: &Api, framing: &str) -> String {
    let request = api.request(Method::POST, "/v1/alarms").build().unwrap();
    let agent = request.headers()["x-chronos-agent"].to_str().unwrap();
    format!(
        "POST /v1/alarms HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nx-chronos-agent: {agent}\r\n{framing}\r\n\r\n"
    )
}

/// A line of `/proc/PID/status`, in bytes.
fn memory(daemon: &Daemon, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let kilobytes = status.lines().find_map(|told| told.strip_prefix(line)?.trim().strip_suffix(" kB"));
    kilobytes.unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// What all the dripping below may cost.
const MEMORY: u64 = 64 * 1024 * 1024;
const HEAD_DRIPPERS: usize = 1000;
const BODY_DRIPPERS: usize = 300;

/// One byte a second, until the other end says something or closes.
async fn drip(mut stream: TcpStream, start: String) -> (Option<Raw>, Duration) {
    let since = Instant::now();
    stream.write_all(start.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let mut drops = interval(Duration::from_secs(1));
    drops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut any = [0; 1];
    loop {
        tokio::select! {
            _ = read.peek(&mut any) => break,
            _ = drops.tick() => if write.write_all(b"x").await.is_err() { break },
        }
    }
    let took = since.elapsed();
    (answer(&mut read.reunite(write).unwrap()).await, took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_drips_its_requests_is_cut_off_and_honest_clients_do_not_notice() {
    let files = raise_file_limit();
    assert!(files.is_none_or(|files| files > 4096), "this test needs more files than {files:?}: ulimit -n");
    let (_world, daemon, api) = door().await;
    let before = memory(&daemon, "VmRSS:");

    let served = CancellationToken::new();
    let mut honest = JoinSet::new();
    for _ in 0..4 {
        let (api, served, address) = (api.clone(), served.clone(), daemon.api.unwrap());
        honest.spawn(async move {
            let mut count = 0;
            let mut pace = interval(Duration::from_millis(100));
            while !served.is_cancelled() {
                pace.tick().await;
                timeout(PATIENCE, api.post("/v1/alarms", &in_an_hour())).await.expect("served in time").data();
                timeout(PATIENCE, api.get("/v1/alarms?limit=5")).await.expect("served in time").data();
                // And one that comes anew.
                let ask = async {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
                    answer(&mut stream).await.unwrap().status().to_owned()
                };
                assert_eq!(timeout(PATIENCE, ask).await.expect("served in time"), "200");
                count += 1;
            }
            count
        });
    }

    let (mut heads, mut bodies) = (JoinSet::new(), JoinSet::new());
    for _ in 0..HEAD_DRIPPERS {
        heads.spawn(drip(connect(&daemon).await, "GET / HTTP/1.1\r\nx-long: ".to_owned()));
    }
    for number in 0..BODY_DRIPPERS {
        let framing = if number % 2 == 0 { "content-length: 1000" } else { "transfer-encoding: chunked" };
        let begun = if number % 2 == 0 { "{" } else { "3e8\r\n{" };
        bodies.spawn(drip(connect(&daemon).await, post(&api, framing) + begun));
    }
    for (raw, took) in heads.join_all().await {
        assert!(raw.is_none(), "there is nothing to say to half a head");
        let expected = HEAD.saturating_sub(Duration::from_secs(1))..HEAD + PATIENCE;
        assert!(expected.contains(&took), "cut off after {took:?}");
    }
    for (raw, took) in bodies.join_all().await {
        let raw = raw.expect("it is told");
        assert_eq!((raw.status(), raw.header("connection")), ("408", Some("close")), "{}", raw.head);
        assert_eq!((&raw.body["ok"], &raw.body["error"]["code"]), (&false.into(), &"invalid_request".into()));
        assert!(took > Duration::from_secs(29), "cut off after {took:?}");
    }
    served.cancel();
    let rounds = honest.join_all().await;
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    let grown = memory(&daemon, "VmHWM:").saturating_sub(before);
    assert!(grown < MEMORY, "{} MiB", grown / 1024 / 1024);
}

#[tokio::test]
async fn a_connection_may_idle_for_longer_than_a_head_may_take() {
    let (_world, daemon, _) = door().await;
    let mut stream = connect(&daemon).await;
    for wait in [Duration::ZERO, HEAD + Duration::from_secs(2)] {
        // Not a wait for something to happen: nothing does.
        assert!(timeout(wait, stream.read(&mut [0; 1])).await.is_err(), "it is neither closed nor spoken to");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(answer(&mut stream).await.unwrap().status(), "200");
    }
}

#[tokio::test]
async fn a_client_that_sends_too_much_is_told_so_even_if_it_listens_only_afterwards() {
    let (_world, daemon, api) = door().await;
    let too_large = |raw: Raw| {
        assert_eq!((raw.status(), raw.header("connection")), ("413", Some("close")), "{}", raw.head);
        assert_eq!(raw.body["error"]["code"], "too_large");
    };
    // By its own word: nothing of the body is waited for.
    let mut stream = connect(&daemon).await;
    stream.write_all(post(&api, "content-length: 300000000").as_bytes()).await.unwrap();
    too_large(answer(&mut stream).await.unwrap());
    // Nor asked for.
    let mut stream = connect(&daemon).await;
    let head = post(&api, "content-length: 300000000\r\nexpect: 100-continue");
    stream.write_all(head.as_bytes()).await.unwrap();
    too_large(answer(&mut stream).await.unwrap());

    let large = vec![b' '; 4 * 1024 * 1024];
    for framing in ["content-length: 4194304", "transfer-encoding: chunked"] {
        let mut stream = connect(&daemon).await;
        stream.write_all(post(&api, framing).as_bytes()).await.unwrap();
        if framing.ends_with("chunked") {
            stream.write_all(b"400000\r\n").await.unwrap();
        }
        stream.write_all(&large).await.unwrap();
        too_large(answer(&mut stream).await.unwrap());
        assert!(is_closed(&mut stream).await);
    }
}

#[tokio::test]
async fn a_head_that_is_none_or_too_large_is_refused_and_the_connection_closed() {
    let (_world, daemon, _) = door().await;
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-many: x\r\n".repeat(200));
    for (head, status) in [(long.as_str(), "431"), (&many, "431"), ("hello\r\n\r\n", "400")] {
        let mut stream = connect(&daemon).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let raw = answer(&mut stream).await.unwrap();
        assert_eq!((raw.status(), raw.header("connection")), (status, Some("close")), "{}", raw.head);
        assert!(is_closed(&mut stream).await);
    }
}

#[tokio::test]
async fn every_answer_carries_a_request_id_and_so_does_the_log() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_LOG", "warn,chronos=info,chronos::http=debug")]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let sent = async |method: Method, path: &str, id: &str, body: String| {
        let request = api.request(method, path).header("x-request-id", id).body(body).send();
        let response = request.await.unwrap();
        (response.status().as_u16(), response.headers()["x-request-id"].to_str().unwrap().to_owned())
    };
    for (method, path, id, body, status) in [
        (Method::GET, "/v1/alarms", "mine-1", "", 200),
        (Method::GET, "/nowhere", "mine-2", "", 404),
        (Method::PUT, "/v1/alarms", "mine-3", "", 405),
        (Method::POST, "/v1/alarms", "mine-4", &*"x".repeat(300_000), 413),
        (Method::POST, "/v1/alarms", "mine-5", "{", 400),
    ] {
        assert_eq!(sent(method, path, id, body.to_owned()).await, (status, id.to_owned()));
        eventually("it is logged", || async { (daemon.said(id) > 0).then_some(()) }).await;
    }
    for odd in ["not mine", &"x".repeat(129)] {
        let (_, id) = sent(Method::GET, "/", odd, String::new()).await;
        assert!(id.parse::<uuid::Uuid>().is_ok(), "{odd}: {id}");
    }
    assert!(daemon.said(r#""route":"/v1/alarms""#) > 0);
    assert_eq!(daemon.said(TOKEN), 0, "a secret in the log");
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_closes_what_idles() {
    let (_world, daemon, api) = door().await;
    let mut idle = connect(&daemon).await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(answer(&mut idle).await.unwrap().header("connection"), None);
    let body = in_an_hour().to_string();
    let mut busy = connect(&daemon).await;
    let (start, rest) = body.split_at(10);
    // It asks for the rest: it has the head.
    let head = post(&api, &format!("content-length: {}\r\nexpect: 100-continue", body.len()));
    busy.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut busy).await.unwrap().status(), "100");
    busy.write_all(start.as_bytes()).await.unwrap();

    daemon.signal("TERM").await;
    assert!(is_closed(&mut idle).await);
    eventually("nobody is let in", || async { TcpStream::connect(daemon.api.unwrap()).await.is_err().then_some(()) })
        .await;
    busy.write_all(rest.as_bytes()).await.unwrap();
    let raw = answer(&mut busy).await.unwrap();
    assert_eq!((raw.status(), raw.header("connection")), ("200", Some("close")), "{}", raw.head);
    assert_eq!(raw.body["data"]["status"], "active");
    assert!(daemon.terminate().await.success());
}
