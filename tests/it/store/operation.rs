//! Tables `dispatchers` and `settings`.

use chronos::{
    domain::{ids::WorkerId, peers::Sighting},
    store::{
        Store,
        claims::{Look, Room},
    },
};
use uuid::Uuid;

use super::{a_beat, ann, claim, create, execute, in_an_hour, look, read, refused_by, warm_store};
use crate::support::Database;

fn worker() -> WorkerId {
    WorkerId::from_uuid(Uuid::new_v4())
}

/// Beats as this worker, and sees the others.
async fn beat(store: &Store, worker: WorkerId) -> Vec<Sighting> {
    store.look(&Look { worker, ..look(&a_beat()) }).await.unwrap().peers.expect("it was a beat")
}

#[tokio::test]
async fn a_dispatchers_beats_are_counted_where_its_peers_see_them() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let (one, other) = (worker(), worker());
    assert_eq!(beat(&store, one).await, [], "it is not its own peer");

    let first = beat(&store, other).await;
    futures::future::join_all((0..20).map(|_| beat(&store, one))).await;
    let later = beat(&store, other).await;
    let [(before, after)] = &*first.iter().zip(&later).collect::<Vec<_>>() else { panic!("{first:?} {later:?}") };
    assert_eq!((after.worker, after.beats, after.started_at), (one, before.beats + 20, before.started_at));
}

#[tokio::test]
async fn a_dispatcher_that_beat_again_keeps_its_claims_and_a_dead_one_loses_them() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (dead, watcher) = (worker(), worker());
    let alarm = create(&store, &ann(), in_an_hour()).await;
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let claimed = store.look(&Look { worker: dead, ..look(&a_beat()) }).await.unwrap();
    assert_eq!(claimed.claims.len(), 1);
    let [seen] = beat(&store, watcher).await.try_into().unwrap();

    beat(&store, dead).await;
    assert_eq!(store.release_if_still_at(&seen).await.unwrap(), None, "it lives");
    assert!(read(&store, &alarm).await.in_flight);

    let [seen] = beat(&store, watcher).await.try_into().unwrap();
    assert_eq!(store.release_if_still_at(&seen).await.unwrap(), Some(1));
    assert_eq!(store.release_if_still_at(&seen).await.unwrap(), None, "somebody was faster");
    let [again] = claim(&store).await.claims.try_into().unwrap();
    assert_eq!((again.wake.delivery_id, again.claims), (claimed.claims[0].wake.delivery_id, 2));
    assert_eq!(again.first_claimed_at, claimed.claims[0].first_claimed_at, "it is judged as it was before");
}

#[tokio::test]
async fn a_worker_that_its_peers_cannot_see_claims_nothing() {
    let database = Database::fresh().await;
    let store = database.store().await;
    create(&store, &ann(), in_an_hour()).await;
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let unseen = worker();
    let beat = a_beat();
    let look = Look { worker: unseen, ..look(&beat) };
    let silent = Look { beat: None, ..look.clone() };
    assert!(store.look(&silent).await.unwrap().claims.is_empty());
    store.look(&Look { room: Room { rows: 0, ..look.room.clone() }, ..look.clone() }).await.unwrap();
    assert_eq!(store.look(&silent).await.unwrap().claims.len(), 1, "once it has beaten it does");
    store.sign_off(unseen).await.unwrap();
    assert_eq!(self::beat(&store, worker()).await, []);
}

#[tokio::test]
async fn nothing_is_claimed_while_dispatch_is_held() {
    let database = Database::fresh().await;
    let store = database.store().await;
    create(&store, &ann(), in_an_hour()).await;
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    store.hold_dispatch("ann").await.unwrap();
    let found = claim(&store).await;
    assert_eq!((found.held, found.claims.len()), (true, 0));
    store.release_dispatch().await.unwrap();
    let found = claim(&store).await;
    assert_eq!((found.held, found.claims.len()), (false, 1));
}

#[tokio::test]
async fn a_hold_says_who_and_since_when_until_it_is_released() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    assert_eq!(store.dispatch_hold().await.unwrap(), None);

    let hold = store.hold_dispatch("ann").await.unwrap();
    assert_eq!(hold.by, "ann");
    assert_eq!(store.hold_dispatch("bob").await.unwrap(), hold, "the first hold stands");
    assert_eq!(store.dispatch_hold().await.unwrap(), Some(hold.clone()));

    let released = futures::future::try_join_all((0..4).map(|_| store.release_dispatch())).await.unwrap();
    assert_eq!(released.into_iter().flatten().collect::<Vec<_>>(), [hold], "one of them lifted it");
    assert_eq!(store.dispatch_hold().await.unwrap(), None);
}

#[tokio::test]
async fn zone_rules_are_never_replaced_by_older_ones() {
    let database = Database::fresh().await;
    let store = database.store().await;
    assert_eq!(store.zone_database().await.unwrap(), None);
    assert_eq!(store.advance_zone_database("2025c").await.unwrap().as_deref(), Some("2025c"));
    assert_eq!(store.advance_zone_database("2026a").await.unwrap().as_deref(), Some("2026a"));
    assert_eq!(store.advance_zone_database("2025c").await.unwrap().as_deref(), Some("2026a"));
    assert_eq!(store.zone_database().await.unwrap().as_deref(), Some("2026a"));
}

#[tokio::test]
async fn there_is_one_row_of_settings() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    let second =
        "INSERT INTO settings (only_row, min_compatible_version, min_compatible_release) VALUES (false, 1, '0.1.0')";
    assert_eq!(refused_by(&mut db, second).await, "settings_are_one_row");
    assert_eq!(refused_by(&mut db, "UPDATE settings SET held_by = 'ann'").await, "settings_hold_is_whole");
}
