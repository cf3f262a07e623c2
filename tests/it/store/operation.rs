//! Tables `dispatchers`, `clusters` and `settings`.

use chronos::domain::ids::{ClusterId, WorkerId};
use uuid::Uuid;

use super::{refused_by, warm_store};
use crate::support::Database;

fn worker() -> WorkerId {
    WorkerId::from_uuid(Uuid::new_v4())
}

#[tokio::test]
async fn a_dispatchers_beats_are_counted_where_its_peers_see_them() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let (one, other) = (worker(), worker());
    store.beat(one, "0.1.0", "host-a").await.unwrap();
    assert_eq!(store.peers(one).await.unwrap(), [], "it is not its own peer");

    let first = store.peers(other).await.unwrap();
    futures::future::try_join_all((0..20).map(|_| store.beat(one, "0.1.0", "host-a"))).await.unwrap();
    let later = store.peers(other).await.unwrap();
    let [(before, after)] = &*first.iter().zip(&later).collect::<Vec<_>>() else { panic!("{first:?} {later:?}") };
    assert_eq!((after.worker, after.beats, after.started_at), (one, before.beats + 20, before.started_at));
    assert_eq!((after.version.as_str(), after.host.as_str()), ("0.1.0", "host-a"));
}

#[tokio::test]
async fn a_dispatcher_that_beat_again_is_not_forgotten_as_dead() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (dead, watcher) = (worker(), worker());
    store.beat(dead, "0.1.0", "host").await.unwrap();
    store.beat(watcher, "0.1.0", "host").await.unwrap();
    let seen = store.peers(watcher).await.unwrap()[0].beats;

    store.beat(dead, "0.1.0", "host").await.unwrap();
    assert!(!store.forget_if_still_at(dead, seen).await.unwrap());
    assert!(store.forget_if_still_at(dead, seen + 1).await.unwrap());
    assert_eq!(store.peers(watcher).await.unwrap(), []);

    store.sign_off(watcher).await.unwrap();
    assert_eq!(store.peers(dead).await.unwrap(), []);
}

#[tokio::test]
async fn a_cluster_is_listed_under_its_newest_name() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let [blue, green] = [1, 2].map(|n| ClusterId::from_uuid(Uuid::from_u128(n)));
    store.see_cluster(blue, "blue").await.unwrap();
    store.see_cluster(green, "").await.unwrap();
    store.see_cluster(blue, "azure").await.unwrap();
    let clusters = store.list_clusters().await.unwrap();
    let names: Vec<_> = clusters.iter().map(|cluster| (cluster.id, cluster.name.as_str())).collect();
    assert_eq!(names, [(blue, "azure"), (green, "")]);
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
