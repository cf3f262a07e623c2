//! `docs/guides/agents.md`, from the first block to the last.

use std::collections::HashMap;

use sqlx::PgPool;
use uuid::Uuid;

use super::{
    page::{Page, Role},
    terminal::{Folder, Served, Terminal, told},
};
use crate::support::eventually;

#[tokio::test]
async fn who_follows_the_agents_guide_sees_what_it_shows_and_every_wake() {
    let folder = Folder::new();
    let mut chronosd: Option<Served> = None;
    let mut terminal: Option<Terminal> = None;
    // What chronosd told at its start, and what the last command printed.
    let (mut ready, mut printed) = (HashMap::new(), String::new());
    let mut wakes = 0;
    for block in Page::read("agents.md").blocks {
        eprintln!("{}: {:?}", block.place, block.role);
        match &block.role {
            Role::Serve(None) => chronosd = Some(folder.serve(&block.text, &HashMap::new())),
            Role::Output if ready.is_empty() => {
                let mut lines = String::new();
                for _ in block.text.lines() {
                    lines += &(chronosd.as_mut().unwrap().line().await + "\n");
                }
                block.assert_shows(&lines);
                ready = told(&lines);
            }
            Role::Set => {
                let names =
                    block.text.lines().map(|line| line.strip_prefix("export ").unwrap().split_once('=').unwrap());
                let value = |name: &str| match name {
                    "CHRONOS_URL" => ready["api_url"].clone(),
                    "CHRONOS_TOKEN" => ready["token"].clone(),
                    "CHRONOS_POSTGRES_URI" => ready["postgres_uri"].clone(),
                    _ => panic!("{}: the reader cannot know what to set {name} to", block.place),
                };
                let settings: HashMap<String, String> = names.map(|(name, _)| (name.to_owned(), value(name))).collect();
                // The first opens the terminal; what is set later is typed into it.
                match &mut terminal {
                    None => terminal = Some(folder.terminal(&settings).await),
                    Some(terminal) => {
                        for (name, value) in settings {
                            terminal.run(&format!("export {name}='{value}'")).await;
                        }
                    }
                }
            }
            Role::Run => printed = terminal.as_mut().unwrap().run(&block.text).await,
            Role::Output => block.assert_shows(&printed),
            Role::Program(name) => folder.save(name, &block.text),
            Role::Wake => {
                let wake = chronosd.as_mut().unwrap().line_like(&block.text).await;
                let (_, behind) = wake.split_once("(alarm ").unwrap();
                let id = behind.split_once(',').unwrap().0;
                assert!(printed.contains(id), "{}: it is the wake of the alarm just made: {printed}", block.place);
                settled(&ready["postgres_uri"], id.parse().unwrap()).await;
                wakes += 1;
            }
            Role::NotRun => {}
            Role::Applied | Role::Serve(Some(_)) | Role::Woken | Role::Alarm | Role::Headers | Role::Body => {
                panic!("{}: nobody runs this on this page", block.place)
            }
        }
    }
    assert_eq!(wakes, 3, "one each from curl, Python and TypeScript");
    chronosd.unwrap().interrupt().await;
}

/// A reader is slower than the note that a wake was taken.
async fn settled(database: &str, alarm: Uuid) {
    let database = PgPool::connect(database).await.unwrap();
    eventually("the alarm is fired", || async {
        let status = sqlx::query_scalar::<_, String>("SELECT status FROM alarms WHERE id = $1").bind(alarm);
        (status.fetch_one(&database).await.unwrap() == "fired").then_some(())
    })
    .await;
}
