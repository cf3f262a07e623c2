//! `docs/guides/sessions.md`, from the first block to the last, and that its agent does nothing twice.

use std::collections::HashMap;

use reqwest::Client;
use serde_json::json;
use sqlx::PgPool;

use super::{
    page::{Page, Role, alike},
    router::{free_port, without_layout},
    terminal::{Folder, Served, Terminal, told},
};
use crate::support::{AgentKey, World, eventually, with_tls};

/// A whole agent: more than a glance, less than two pages.
const LONGEST_PROGRAM: usize = 60;

const PROGRAM: &str = "followup.py";

#[tokio::test]
async fn who_follows_the_sessions_guide_has_an_agent_that_follows_up_and_does_nothing_twice() {
    let folder = Folder::new();
    let port = free_port();
    // What the reader has in every terminal; and an impatient Chronos, so that a lost acknowledgement does not take long.
    let mut settings = HashMap::from([
        ("PORT".to_owned(), port.to_string()),
        ("CHRONOS_AUTONOMY_ACK_MS".to_owned(), "2000".to_owned()),
    ]);
    let (mut chronosd, mut agent): (Option<Served>, Option<Served>) = (None, None);
    let (mut terminal, mut printed): (Option<Terminal>, String) = (None, String::new());
    let mut ready = HashMap::new();
    let page = Page::read("sessions.md");
    for block in &page.blocks {
        eprintln!("{}: {:?}", block.place, block.role);
        match &block.role {
            Role::Serve(None) => {
                let mut served = folder.serve(&block.text, &settings);
                let mut lines = String::new();
                while !lines.contains(" wake_url ") {
                    lines += &(served.line().await + "\n");
                }
                (ready, chronosd) = (told(&lines), Some(served));
            }
            Role::Set => {
                for line in block.text.lines() {
                    let name = line.strip_prefix("export ").unwrap().split_once('=').unwrap().0;
                    let value = match name {
                        "CHRONOS_URL" => &ready["api_url"],
                        "CHRONOS_TOKEN" => &ready["token"],
                        "CHRONOS_WAKE_TOKEN" => &ready["wake_token"],
                        _ => panic!("{}: the reader cannot know what to set {name} to", block.place),
                    };
                    settings.insert(name.to_owned(), value.clone());
                }
                terminal = Some(folder.terminal(&settings).await);
            }
            Role::Program(name) => {
                let lines = block.text.lines().count();
                assert!(lines <= LONGEST_PROGRAM, "the program at {} has {lines} lines", block.place);
                folder.save(name, &block.text);
            }
            Role::Serve(Some(name)) => {
                assert_eq!(name, PROGRAM);
                let mut served = folder.serve(&block.text, &settings);
                printed = follow_up(&mut served).await;
                all_is_noted(&ready["postgres_uri"]).await;
                agent = Some(served);
            }
            Role::Run => printed = terminal.as_mut().unwrap().run(&block.text).await,
            Role::Output => block.assert_shows(&printed),
            // The test below.
            Role::Body => {}
            Role::NotRun => {}
            Role::Applied | Role::Wake | Role::Woken | Role::Alarm | Role::Headers => {
                panic!("{}: nobody runs this on this page", block.place)
            }
        }
    }

    // A wake that comes again is known, and one of a stranger is refused.
    let mut agent = agent.unwrap();
    let terminal = terminal.as_mut().unwrap();
    let known = terminal.run("call $kitchen/effects | jq -r '.data.effects[2].payload.delivery_id'").await;
    let wake = |bearer, delivery, timer| wake(port, bearer, delivery, timer);
    assert_eq!(wake("somebody-else", "another", "forged").await, 401);
    assert_eq!(wake(&ready["wake_token"], known.trim(), "again").await, 202);
    assert_eq!(wake(&ready["wake_token"], "another", "another").await, 202);
    assert_eq!(agent.line().await, "woken: another", "and nothing in between");
    drop(agent);

    // A send whose acknowledgement was lost comes again, over another connection, and is shown once.
    let program = page.text(&Role::Program(PROGRAM.to_owned()));
    let acknowledge = r#"socket.send(json.dumps({"ack": send["effect_id"]}))"#;
    let but_the_first = "if vars(stream).setdefault('lost', []) or stream.lost.append(1):";
    let forgetful = program.replace(acknowledge, &format!("{but_the_first} {acknowledge}"));
    assert_ne!(program, forgetful, "the program acknowledges as it did");
    folder.save("forgetful.py", &forgetful);
    let mut agent = folder.serve("python3 forgetful.py 'More water.'", &settings);
    assert_eq!(follow_up(&mut agent).await, "agent: I will ask.\nwoken: ask\nagent: Is the tea ready?\n");
    all_is_noted(&ready["postgres_uri"]).await;
    let sends =
        "call $kitchen/effects | jq -c '[.data.effects[4:][] | select(.type == \"send_message\") | .attempt_count]'";
    assert_eq!(terminal.run(sends).await, "[2,1]\n");
    chronosd.unwrap().interrupt().await;
}

/// What the agent prints of a message of the user and what follows from it.
async fn follow_up(agent: &mut Served) -> String {
    let mut lines = Vec::new();
    for _ in 0..3 {
        lines.push(agent.line().await);
    }
    // Two threads print: on a slow machine the wake may be told of before the reply, though never after what comes of it.
    if lines[0].starts_with("woken") {
        lines.swap(0, 1);
    }
    lines.join("\n") + "\n"
}

/// A reader is slower than the note that a send was acknowledged, or a wake taken.
async fn all_is_noted(database: &str) {
    let database = PgPool::connect(database).await.unwrap();
    eventually("nothing is open", || async {
        let open = "SELECT count(*) FROM effects WHERE status IN ('pending', 'executing')";
        (sqlx::query_scalar::<_, i64>(open).fetch_one(&database).await.unwrap() == 0).then_some(())
    })
    .await;
}

/// What the guide's router answers to a wake of its session.
async fn wake(port: u16, bearer: &str, delivery: &str, timer: &str) -> u16 {
    with_tls();
    let body = json!({ "session_key": "ann:tea:kitchen", "timer_id": timer, "delivery_id": delivery });
    let request = Client::new().post(format!("http://127.0.0.1:{port}/internal/wake")).bearer_auth(bearer);
    request.body(body.to_string()).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn the_wake_of_a_sessions_timer_looks_as_the_sessions_guide_shows_it() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", &[]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let porch = "/v1/sessions/ann:tea:porch";
    let said = json!({ "type": "user_message", "payload": { "text": "Tea at five?" } });
    api.post_text(&format!("{porch}/events"), &said.to_string()).await.data();
    let timer = json!({ "timer_id": "five", "fire_at": "2026-01-01T16:55:00Z", "payload": { "cups": 2 } });
    let effects = json!([{ "type": "schedule_timer", "payload": timer }]);
    let checkpoint = json!({ "checkpoint_id": "first", "event_seq": 1, "effects": effects });
    api.post_text(&format!("{porch}/checkpoints"), &checkpoint.to_string()).await.data();

    let wake = &world.sink.wakes(1).await[0];
    assert_eq!(wake.headers["ce-type"], "dev.chronos.session.timer-promoted");
    let (page, seen) = (Page::read("sessions.md"), std::str::from_utf8(&wake.bytes).unwrap());
    let shown = without_layout(page.text(&Role::Body));
    assert!(alike(&shown, seen), "shown\n{shown}\nand seen\n{seen}");
}
