//! `docs/guides/service-calls.md`, from the first block to the last.

use std::collections::HashMap;

use super::{
    page::{Page, Role, alike},
    router::{assert_headers, without_layout},
    terminal::{Folder, Terminal},
};
use crate::support::{AgentKey, TOKEN, World, eventually};

const SECRET: &str = "whsec_bmV3LXNlY3JldC1vZi1tb3JlLXRoYW4tMjQtYnl0ZXM=";

#[tokio::test]
async fn who_follows_the_service_calls_guide_sees_what_it_shows_and_gets_the_event() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_WAKE_SIGNING_SECRET", SECRET)]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let agent = api.credentials().pop().unwrap().1;
    let folder = Folder::new();
    let (mut terminal, mut printed): (Option<Terminal>, String) = (None, String::new());
    for block in Page::read("service-calls.md").blocks {
        eprintln!("{}: {:?}", block.place, block.role);
        match &block.role {
            Role::Set => {
                let names =
                    block.text.lines().map(|line| line.strip_prefix("export ").unwrap().split_once('=').unwrap());
                let value = |name: &str| match name {
                    "CHRONOS_URL" => daemon.api_url(),
                    "CHRONOS_TOKEN" => TOKEN.to_owned(),
                    "CHRONOS_AGENT" => agent.clone(),
                    _ => panic!("{}: the reader cannot know what to set {name} to", block.place),
                };
                let settings: HashMap<String, String> = names.map(|(name, _)| (name.to_owned(), value(name))).collect();
                terminal = Some(folder.terminal(&settings).await);
            }
            Role::Run => printed = terminal.as_mut().unwrap().run(&block.text).await,
            Role::Output => block.assert_shows(&printed),
            Role::Headers => assert_headers(&block.text, &world.sink.wakes(1).await[0].headers),
            Role::Body => {
                let event = &world.sink.wakes(1).await[0];
                let (shown, seen) = (without_layout(&block.text), std::str::from_utf8(&event.bytes).unwrap());
                assert!(alike(&shown, seen), "shown\n{shown}\nand seen\n{seen}");
                // A reader is slower than the note that the event was taken.
                let path = "/v1/service-calls/payment-7/timer";
                let reached = async || (api.get(path).await.data()["state"] == "Reached").then_some(());
                eventually("the timer is reached", reached).await;
            }
            Role::Program(_)
            | Role::Wake
            | Role::NotRun
            | Role::Applied
            | Role::Serve(_)
            | Role::Woken
            | Role::Alarm => {
                panic!("{}: nobody runs this on this page", block.place)
            }
        }
    }
}
