//! `docs/guides/router.md`: what a wake looks like, and two receivers that know a forged one and handle none twice.

use std::{collections::HashMap, net::TcpListener};

use chronos::clock;
use reqwest::{Client, header::HeaderMap};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    page::{Page, Role, alike},
    terminal::{Folder, told},
};
use crate::support::{AgentKey, World, eventually, with_tls};

const OTHER_SECRET: &str = "whsec_bmV3LXNlY3JldC1vZi1tb3JlLXRoYW4tMjQtYnl0ZXM=";

const PROGRAMS: [&str; 2] = ["receiver.py", "receiver.mts"];

#[test]
fn the_routers_guide_has_nothing_that_the_tests_below_pass_over() {
    for block in Page::read("router.md").blocks {
        let run = match &block.role {
            Role::Program(name) | Role::Serve(Some(name)) => PROGRAMS.contains(&name.as_str()),
            Role::Run | Role::Output | Role::Serve(None) | Role::Woken => true,
            Role::Alarm | Role::Headers | Role::Body | Role::NotRun => true,
            Role::Set | Role::Wake | Role::Applied => false,
        };
        assert!(run, "{}: nobody runs this on this page", block.place);
    }
}

#[tokio::test]
async fn a_wake_looks_as_the_routers_guide_shows_it() {
    let page = Page::read("router.md");
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_WAKE_SIGNING_SECRET", OTHER_SECRET)]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    api.post_text("/v1/alarms", page.text(&Role::Alarm)).await.data();
    let wake = &world.sink.wakes(1).await[0];

    let seen = std::str::from_utf8(&wake.bytes).unwrap();
    let shown = without_layout(page.text(&Role::Body));
    assert!(alike(&shown, seen), "shown\n{shown}\nand seen\n{seen}");

    assert_headers(page.text(&Role::Headers), &wake.headers);
}

/// That these are the headers that a guide shows: all of them, and no others but those that every request has.
pub fn assert_headers(shown: &str, seen: &HeaderMap) {
    let mut shown: HashMap<&str, &str> = shown.lines().skip(1).map(|line| line.split_once(": ").unwrap()).collect();
    let every_request_has = ["host", "accept", "content-length"];
    for (name, value) in seen.iter().filter(|(name, _)| !every_request_has.contains(&name.as_str())) {
        let shown = shown.remove(name.as_str()).unwrap_or_else(|| panic!("the guide shows no header {name}"));
        assert!(alike(shown, value.to_str().unwrap()), "{name} is shown as {shown:?} and is {value:?}");
    }
    assert_eq!(shown, HashMap::new(), "the guide shows headers that do not come");
}

#[tokio::test]
async fn the_receiver_in_python_takes_wakes_once_and_refuses_forgeries() {
    takes_wakes_once_and_refuses_forgeries(PROGRAMS[0]).await;
}

#[tokio::test]
async fn the_receiver_in_typescript_takes_wakes_once_and_refuses_forgeries() {
    takes_wakes_once_and_refuses_forgeries(PROGRAMS[1]).await;
}

async fn takes_wakes_once_and_refuses_forgeries(program: &str) {
    let page = Page::read("router.md");
    let folder = Folder::new();
    let port = free_port();
    let settings = HashMap::from([("PORT".to_owned(), port.to_string())]);
    let mut terminal = folder.terminal(&settings).await;
    terminal.run(page.text(&Role::Run)).await;
    folder.save(program, page.text(&Role::Program(program.to_owned())));

    let mut receiver = folder.serve(page.text(&Role::Serve(Some(program.to_owned()))), &settings);
    assert_eq!(receiver.line().await + "\n", page.text(&Role::Output));
    let mut chronosd = folder.serve(page.text(&Role::Serve(None)), &settings);
    let mut lines = String::new();
    while !lines.contains(" token ") || !lines.contains(" api_url ") {
        lines += &(chronosd.line().await + "\n");
    }
    let ready = told(&lines);

    // A wake of Chronos' own, taken.
    let api = AgentKey::of("ann").sign_in_with(&ready["api_url"], &ready["token"]).await;
    let id = api.post_text("/v1/alarms", page.text(&Role::Alarm)).await.data()["id"].as_str().unwrap().to_owned();
    assert_eq!(receiver.line().await + "\n", page.text(&Role::Woken));
    let history = eventually("the alarm is fired", || async {
        let alarm = api.get(&format!("/v1/alarms/{id}")).await.data();
        let history = api.get(&format!("/v1/alarms/{id}/attempts")).await.data();
        (alarm["status"] == "fired").then_some(history["attempts"].clone())
    })
    .await;
    assert_eq!((history.as_array().unwrap().len(), &history[0]["outcome"]), (1, &Value::from("delivered")));

    // And others that look like it.
    let secrets = terminal.run(". ./wake.env; echo \"$CHRONOS_WAKE_TOKEN $CHRONOS_WAKE_SIGNING_SECRET\"").await;
    let (token, secret) = secrets.trim().split_once(' ').unwrap();
    let now = clock::system().now().timestamp();
    let fine = Sent { url: format!("http://127.0.0.1:{port}/internal/wake"), token, secret, sent_at: now };
    let old = Sent { sent_at: now - 400, ..fine.clone() };
    let early = Sent { sent_at: now + 400, ..fine.clone() };
    let stranger = Sent { token: "somebody-else", ..fine.clone() };
    let forger = Sent { secret: OTHER_SECRET, ..fine.clone() };
    for (sender, what) in [(&old, "old"), (&early, "early"), (&stranger, "wrong bearer"), (&forger, "wrong signature")]
    {
        assert_eq!(sender.wake("forged", "forged").await, 401, "{what}");
    }
    let signature = fine.signature("id", "one text");
    assert_eq!(fine.send("id", "another text", &signature).await, 401, "the body was changed");
    assert_eq!(fine.send("id", "text", "").await, 401, "no signature");
    // A sender that breaks off takes nobody along.
    let mut line = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    line.write_all(b"POST /internal/wake HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    drop(line);

    assert_eq!(fine.wake("one", "one").await, 202);
    assert_eq!(receiver.line().await, "woken: one");
    assert_eq!(fine.wake("one", "again").await, 202, "known");
    assert_eq!(fine.wake(history[0]["delivery_id"].as_str().unwrap(), "again").await, 202, "known from Chronos");
    // During a rotation: a secret that it does not know yet, and one that it does.
    let text = body("two");
    let both = format!("{} {}", forger.signature("two", &text), fine.signature("two", &text));
    assert_eq!(fine.send("two", &text, &both).await, 202);
    assert_eq!(receiver.line().await, "woken: two", "and nothing in between: neither forgeries nor repeats");
    chronosd.interrupt().await;
}

/// Whoever says that it is Chronos.
#[derive(Clone)]
struct Sent<'a> {
    url: String,
    token: &'a str,
    secret: &'a str,
    sent_at: i64,
}

impl Sent<'_> {
    async fn wake(&self, id: &str, message: &str) -> u16 {
        let body = body(message);
        self.send(id, &body, &self.signature(id, &body)).await
    }

    /// By the library of Standard Webhooks, not by ours.
    fn signature(&self, id: &str, body: &str) -> String {
        Webhook::new(self.secret).unwrap().sign(id, self.sent_at, body.as_bytes()).unwrap()
    }

    async fn send(&self, id: &str, body: &str, signature: &str) -> u16 {
        with_tls();
        let mut request = Client::new()
            .post(&self.url)
            .header("authorization", format!("Bearer {}", self.token))
            .header("webhook-id", id)
            .header("webhook-timestamp", self.sent_at);
        if !signature.is_empty() {
            request = request.header("webhook-signature", signature);
        }
        request.body(body.to_owned()).send().await.unwrap().status().as_u16()
    }
}

fn body(message: &str) -> String {
    format!(r#"{{"user_id":"ann","message":"{message}"}}"#)
}

/// JSON without the spaces and line breaks that make it readable.
pub fn without_layout(json: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    let mut keep = |character: char| {
        let kept = inside || !character.is_whitespace();
        if character == '"' && !escaped {
            inside = !inside;
        }
        escaped = inside && character == '\\' && !escaped;
        kept
    };
    json.chars().filter(|character| keep(*character)).collect()
}

/// One that the kernel gives to nobody who asks for any: below its range of ports.
pub fn free_port() -> u16 {
    let tries = std::iter::repeat_with(|| 20_000 + rand::random::<u16>() % 10_000);
    tries.take(100).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
