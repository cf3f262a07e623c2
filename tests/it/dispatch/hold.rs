//! The maintenance switch, as an operator turns it.

use std::process::Stdio;

use crate::{
    support::{
        World,
        alarms::{ann, create, execute, in_an_hour},
        daemon::{PROMPT, command},
        eventually,
    },
    telemetry::scrape::count,
};

async fn switch(world: &World, to: &str) -> String {
    let settings = [("CHRONOS_POSTGRES_URI", world.database.uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    let mut chronosd = command(&settings);
    let ending = chronosd.args(["dispatch", to]).env("USER", "ann").stderr(Stdio::inherit()).output();
    let ended = tokio::time::timeout(PROMPT, ending).await.unwrap().unwrap();
    assert!(ended.status.success());
    String::from_utf8(ended.stdout).unwrap()
}

#[tokio::test]
async fn nothing_goes_out_while_dispatch_is_held_and_everything_when_it_is_released() {
    let world = World::new().await;
    let store = world.database.store().await;
    let held = switch(&world, "hold").await;
    assert!(held.starts_with("dispatch is held by ann@"), "{held}");
    create(&store, &ann(), in_an_hour()).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let daemon = world.chronosd("dispatch").await;
    let (status, words) = daemon.readiness().await;
    assert_eq!((status, words.contains("dispatch is held by ann@")), (200, true), "{words}");
    let told = async || count(&daemon, "chronos_dispatch_held", &[]).await;
    eventually("its metrics say so, too", || async { (told().await == 1).then_some(()) }).await;
    assert_eq!(switch(&world, "hold").await, held, "the first hold stands");
    assert!(world.sink.received().is_empty());

    let released = switch(&world, "release").await;
    assert!(released.starts_with("dispatch goes on; it was held by ann@"), "{released}");
    world.sink.wakes(1).await;
    eventually("its metrics say so, too", || async { (told().await == 0).then_some(()) }).await;
    assert_eq!(switch(&world, "release").await, "dispatch was not held\n");
}
