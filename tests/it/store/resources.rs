//! Alarms that stand for resources.

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        access::Did,
        alarm::{Cause, Defaults, Draft, Status, lifecycle::NotFired},
        ids::{ClusterId, ResourceUid},
        quota::{Exceeded, Quotas},
    },
    store::{
        Store,
        agents::{Enrolled, Holder, Mirrored},
        alarms::Alarm,
        resources::{Applied, Desired, Doubt, Facts, Identity},
    },
};
use sqlx::Connection;
use uuid::Uuid;

use super::{ann, claim, create, draft, every_minute, execute, history, in_an_hour};
use crate::support::{Database, eventually};

fn tea() -> Identity {
    named(2, "tea")
}

fn named(uid: u128, name: &str) -> Identity {
    Identity {
        cluster: ClusterId::from_uuid(Uuid::from_u128(1)),
        uid: ResourceUid::from_uuid(Uuid::from_u128(uid)),
        namespace: "home".to_owned(),
        name: name.to_owned(),
    }
}

/// An Agent resource of hers in the namespace of the Alarms.
async fn enrol(store: &Store, suspended: bool, quotas: Quotas) {
    enrol_in("home", store, suspended, quotas).await;
}

async fn enrol_in(namespace: &str, store: &Store, suspended: bool, quotas: Quotas) {
    let key = hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a").unwrap();
    let mirrored = Mirrored {
        did: &ann(),
        public_key: &key.try_into().unwrap(),
        suspended,
        quotas,
        identity: &Identity { namespace: namespace.to_owned(), ..named(1, "ann") },
        created_at: DateTime::UNIX_EPOCH,
    };
    let enrolled = store.enrol_resource_unless_held(&mirrored).await.unwrap();
    assert!(matches!(enrolled, Enrolled::Stands(_)), "{enrolled:?}");
}

/// A database in which Ann is enrolled.
async fn world() -> (Database, Store) {
    let database = Database::fresh().await;
    let store = database.store().await;
    enrol(&store, false, Quotas::default()).await;
    (database, store)
}

/// A resource that was created an hour ago.
struct Resource {
    identity: Identity,
    draft: Draft,
    generation: i64,
    suspended: bool,
    fire_requested: Option<&'static str>,
    owner: Did,
}

fn resource(draft: Draft) -> Resource {
    Resource { identity: tea(), draft, generation: 1, suspended: false, fire_requested: None, owner: ann() }
}

impl Resource {
    async fn apply(&self, store: &Store) -> Applied {
        self.apply_confirmed(store, None).await
    }

    async fn apply_confirmed(&self, store: &Store, confirmed: Option<&Doubt>) -> Applied {
        let created_at = store.now().await.unwrap() - TimeDelta::hours(1);
        let defaults = Defaults { born_at: created_at, delays_from: created_at, max_failures: 5 };
        let definition = self.draft.clone().define(defaults).unwrap();
        let hash: [u8; 32] = sha2::Digest::finalize(sha2::Digest::chain_update(
            <sha2::Sha256 as sha2::Digest>::new(),
            format!("{:?}", self.draft),
        ))
        .into();
        let desired = Desired {
            identity: &self.identity,
            generation: self.generation,
            owner: &self.owner,
            definition: &definition,
            hash: &hash,
            created_at,
            suspended: self.suspended,
            fire_requested: self.fire_requested,
            confirmed,
        };
        store.apply_resource(&desired).await.unwrap()
    }

    /// What is stored, and why it was not fired.
    async fn stored(&self, store: &Store) -> (Facts, Option<NotFired>) {
        stored(self.apply(store).await)
    }

    async fn alarm(&self, store: &Store) -> Alarm {
        self.stored(store).await.0.alarm
    }

    /// As the controller does: in doubt it asks the API server, which says the same.
    async fn confirmed(&self, store: &Store) -> (Facts, Option<NotFired>) {
        let Applied::Doubtful(doubt) = self.apply(store).await else { panic!("not in doubt") };
        stored(self.apply_confirmed(store, Some(&doubt)).await)
    }
}

fn stored(applied: Applied) -> (Facts, Option<NotFired>) {
    let Applied::Stored { facts, not_fired } = applied else { panic!("not stored: {applied:?}") };
    (*facts, not_fired)
}

/// Applies a resource in its `generation`.
async fn apply(store: &Store, draft: Draft, generation: u8) -> Alarm {
    Resource { generation: generation.into(), ..resource(draft) }.alarm(store).await
}

fn at(expr: &str) -> Draft {
    Draft { cron_expr: Some(expr.to_owned()), ..draft() }
}

#[tokio::test]
async fn what_an_edit_gives_up_is_told() {
    let (database, store) = world().await;
    let alarm = apply(&store, every_minute(), 1).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', next_fire_at = next_fire_at - interval '1 h'",
    )
    .await;
    let edited = apply(&store, at("0 0 1 1 *"), 2).await;
    let [(outcome, reason, _, _, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("replanned")));
    assert_eq!(slots, Some(edited.missed_count));
    assert!(edited.missed_count >= 60, "{}", edited.missed_count);
}

#[tokio::test]
async fn what_is_over_takes_any_edit_and_stays_over() {
    let (database, store) = world().await;
    apply(&store, Draft { spread_seconds: Some(50), ..every_minute() }, 1).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'cancelled', cancelled_by = 'resource'").await;
    let narrowed = apply(&store, Draft { spread_seconds: Some(1), ..every_minute() }, 2).await;
    assert_eq!((narrowed.status, narrowed.revision), (Status::Cancelled, 2));
    execute(
        &mut db,
        "UPDATE alarms SET status = 'fired', cancelled_by = NULL, spread = '50 s', spread_offset = '40 s'",
    )
    .await;
    let past = Draft { fire_at: Some("2020-01-01T00:00:00Z".to_owned()), ..draft() };
    let instant = apply(&store, past, 3).await;
    assert_eq!((instant.status, instant.when.offset().unwrap()), (Status::Fired, TimeDelta::zero()));
}

#[tokio::test]
async fn an_edit_that_waited_for_the_row_plans_from_when_it_got_it() {
    let (database, store) = world().await;
    apply(&store, at("0 0 1 1 *"), 1).await;
    let mut other = database.connect().await;
    let mut holding = other.begin().await.unwrap();
    sqlx::query("SELECT FROM alarms FOR UPDATE").execute(&mut *holding).await.unwrap();
    let release = async {
        let blocked =
            "SELECT now() FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                       AND now() - xact_start > interval '2 s'";
        let released_at: DateTime<Utc> = eventually("the edit has waited for two seconds", || async {
            sqlx::query_scalar(blocked).fetch_optional(&mut database.connect().await).await.unwrap()
        })
        .await;
        holding.commit().await.unwrap();
        released_at
    };
    let (edited, released_at) = tokio::join!(apply(&store, at("@every 1s"), 2), release);
    assert!(edited.scheduled_for > released_at, "{} was past at {released_at}", edited.scheduled_for);
}

#[tokio::test]
async fn an_owner_whom_no_agent_of_the_namespace_holds_is_not_taken() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = resource(in_an_hour());
    assert!(matches!(alarm.apply(&store).await, Applied::NotOwned(None)));
    enrol_in("elsewhere", &store, false, Quotas::default()).await;
    let Applied::NotOwned(Some(Holder::Resource(holder))) = alarm.apply(&store).await else { panic!("taken") };
    assert_eq!(holder.namespace, "elsewhere");

    let bob = super::AgentKey::of("bob");
    let (did, key) = (bob.did.parse().unwrap(), hex::decode(bob.public_key).unwrap().try_into().unwrap());
    store.enrol_by_hand_unless_held(&did, &key, Quotas::default()).await.unwrap();
    let bobs = Resource { owner: did, ..resource(in_an_hour()) };
    assert!(matches!(bobs.apply(&store).await, Applied::NotOwned(Some(Holder::CommandLine))));
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM alarms").fetch_one(&mut database.connect().await).await.unwrap();
    assert_eq!(rows, 0, "nothing of it is stored");
}

#[tokio::test]
async fn one_that_may_not_speak_for_its_owner_any_more_is_silent_until_it_may() {
    let (_database, store) = world().await;
    let daily = resource(at("@daily"));
    daily.alarm(&store).await;
    let silent = store.silence_resource(&tea()).await.unwrap().unwrap().alarm;
    assert_eq!((silent.status, silent.paused_by()), (Status::Paused, vec![Cause::Spec]));
    let again = store.silence_resource(&tea()).await.unwrap().unwrap().alarm;
    assert_eq!(again.revision, silent.revision, "nothing is written twice");
    assert_eq!(daily.alarm(&store).await.status, Status::Active);
}

#[tokio::test]
async fn quotas_hold_for_resources_and_http_together() {
    let (_database, store) = world().await;
    enrol(&store, false, Quotas { max_active_alarms: Some(2), min_interval_seconds: Some(60) }).await;
    create(&store, &ann(), in_an_hour()).await;
    let tea = resource(in_an_hour());
    // Created an hour ago: it is due now.
    assert_eq!(tea.alarm(&store).await.status, Status::Active);
    let third = Resource { identity: named(3, "cake"), ..resource(at("@daily")) };
    let Applied::OverQuota(exceeded) = third.apply(&store).await else { panic!("taken") };
    assert_eq!(exceeded, Exceeded::ActiveAlarms { limit: 2, used: 2 });
    let fast = Resource { generation: 2, ..resource(at("@every 30s")) };
    let Applied::OverQuota(exceeded) = fast.apply(&store).await else { panic!("taken") };
    assert_eq!(exceeded, Exceeded::Interval { limit: 60, found: 30 });
    // What is missed at birth takes no place.
    let past = Draft { fire_at: Some("2020-01-01T00:00:00Z".to_owned()), ..draft() };
    let missed = Resource { identity: named(4, "past"), ..resource(past) };
    assert_eq!(missed.alarm(&store).await.status, Status::Failed);
}

#[tokio::test]
async fn of_many_resources_that_want_the_last_place_one_gets_it() {
    let (database, _) = world().await;
    let store = super::warm_store(&database).await;
    enrol(&store, false, Quotas { max_active_alarms: Some(3), min_interval_seconds: None }).await;
    let many: Vec<Resource> = (10..22)
        .map(|uid| Resource { identity: named(uid, &format!("tea-{uid}")), ..resource(at("@daily")) })
        .collect();
    let applied = futures::future::join_all(many.iter().map(|one| one.apply(&store))).await;
    assert_eq!(applied.iter().filter(|one| matches!(one, Applied::Stored { .. })).count(), 3);
    assert_eq!(applied.iter().filter(|one| matches!(one, Applied::OverQuota(_))).count(), 9);
}

#[tokio::test]
async fn a_suspended_resource_is_stored_paused_and_goes_on_ahead() {
    let (database, store) = world().await;
    let paused = Resource { suspended: true, ..resource(every_minute()) };
    let alarm = paused.alarm(&store).await;
    assert_eq!((alarm.status, alarm.paused_by()), (Status::Paused, vec![Cause::Spec]));
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', next_fire_at = next_fire_at - interval '1 h'",
    )
    .await;
    let resumed = Resource { generation: 2, ..resource(every_minute()) }.alarm(&store).await;
    assert_eq!(resumed.status, Status::Active);
    assert!(resumed.next_fire_at > store.now().await.unwrap(), "never a burst");
    let [(outcome, reason, ..)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
    let again = Resource { generation: 3, suspended: true, ..resource(every_minute()) }.alarm(&store).await;
    assert_eq!(again.paused_by(), [Cause::Spec]);
}

#[tokio::test]
async fn the_alarm_of_a_suspended_agent_is_stored_paused_and_armed_again_paused() {
    let (database, store) = world().await;
    enrol(&store, true, Quotas::default()).await;
    let alarm = resource(at("@daily")).alarm(&store).await;
    assert_eq!((alarm.status, alarm.paused_by()), (Status::Paused, vec![Cause::Agent]));
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired', paused_by = '{}'").await;
    let armed = Resource { generation: 2, ..resource(at("@hourly")) }.alarm(&store).await;
    assert_eq!((armed.status, armed.paused_by()), (Status::Paused, vec![Cause::Agent]));
    // Both causes, each of which lifts itself.
    let both = Resource { generation: 3, suspended: true, ..resource(at("@hourly")) }.alarm(&store).await;
    assert_eq!(both.paused_by(), [Cause::Agent, Cause::Spec]);
    enrol(&store, false, Quotas::default()).await;
    store.follow_agent(&ann()).await.unwrap();
    assert_eq!(store.find_resource(&tea()).await.unwrap().unwrap().alarm.paused_by(), [Cause::Spec]);
}

#[tokio::test]
async fn a_request_to_fire_that_was_there_from_the_beginning_is_seen_and_not_fired() {
    let (_database, store) = world().await;
    let asked = Resource { fire_requested: Some("a"), ..resource(at("@daily")) };
    let (facts, not_fired) = asked.stored(&store).await;
    assert_eq!((facts.fire_requested.as_deref(), not_fired), (Some("a"), None));
    assert!(facts.alarm.next_fire_at > store.now().await.unwrap());
    assert!(claim(&store).await.claims.is_empty());
}

#[tokio::test]
async fn a_new_request_fires_once_however_often_it_is_seen() {
    let (_database, store) = world().await;
    let daily = resource(at("@daily"));
    let slot = daily.alarm(&store).await.scheduled_for;
    let asked = Resource { fire_requested: Some("a"), ..resource(at("@daily")) };
    let (facts, not_fired) = asked.confirmed(&store).await;
    assert_eq!((facts.fire_requested.as_deref(), not_fired), (Some("a"), None));
    assert!(facts.alarm.next_fire_at <= store.now().await.unwrap());
    assert_eq!(asked.alarm(&store).await.revision, facts.alarm.revision, "seen again, it changes nothing");
    // Asked for again while it is due: spent, and told why.
    let again = Resource { fire_requested: Some("b"), ..resource(at("@daily")) };
    assert_eq!(again.confirmed(&store).await.1, Some(NotFired::Due));
    assert_eq!(again.stored(&store).await.1, None);
    assert_eq!(claim(&store).await.claims.len(), 1);
    assert!(slot > store.now().await.unwrap(), "the series' own slot is still to come");
}

#[tokio::test]
async fn a_request_that_was_confirmed_before_another_one_fired_is_doubted_again() {
    let (_database, store) = world().await;
    resource(at("@daily")).alarm(&store).await;
    let (old, new) = (
        Resource { fire_requested: Some("old"), ..resource(at("@daily")) },
        Resource { fire_requested: Some("new"), ..resource(at("@daily")) },
    );
    let Applied::Doubtful(doubt) = old.apply(&store).await else { panic!("not in doubt") };
    // Another controller sees a newer one meanwhile.
    new.confirmed(&store).await;
    assert!(matches!(old.apply_confirmed(&store, Some(&doubt)).await, Applied::Doubtful(_)));
    assert_eq!(store.find_resource(&tea()).await.unwrap().unwrap().fire_requested.as_deref(), Some("new"));
}

#[tokio::test]
async fn a_paused_alarm_spends_a_request_without_a_wake_now_or_later() {
    let (_database, store) = world().await;
    let paused = || Resource { suspended: true, ..resource(at("@daily")) };
    paused().alarm(&store).await;
    let (_, not_fired) = Resource { fire_requested: Some("a"), ..paused() }.confirmed(&store).await;
    assert_eq!(not_fired, Some(NotFired::NotActive(Status::Paused)));
    let resumed = Resource { fire_requested: Some("a"), generation: 2, ..resource(at("@daily")) };
    assert!(resumed.alarm(&store).await.next_fire_at > store.now().await.unwrap());
}

#[tokio::test]
async fn an_older_generation_is_applied_only_when_it_is_confirmed() {
    let (_database, store) = world().await;
    apply(&store, at("@daily"), 5).await;
    let older = Resource { generation: 3, ..resource(at("@hourly")) };
    assert!(matches!(older.apply(&store).await, Applied::Doubtful(_)));
    assert_eq!(store.find_resource(&tea()).await.unwrap().unwrap().alarm.when.cron_expr, "@daily");
    assert_eq!(older.confirmed(&store).await.0.alarm.when.cron_expr, "@hourly");
    // From now on that is its generation.
    assert_eq!(apply(&store, at("@weekly"), 4).await.when.cron_expr, "@weekly");
}

#[tokio::test]
async fn a_newer_generation_that_says_the_same_keeps_older_ones_away() {
    let (_database, store) = world().await;
    apply(&store, at("@daily"), 1).await;
    apply(&store, at("@daily"), 3).await;
    let late = Resource { generation: 2, ..resource(at("@hourly")) };
    assert!(matches!(late.apply(&store).await, Applied::Doubtful(_)));
}

#[tokio::test]
async fn what_has_fired_is_not_armed_again_by_a_snapshot_that_comes_back() {
    let (database, store) = world().await;
    let ahead = Draft { fire_at: Some("2099-01-01T00:00:00Z".to_owned()), ..draft() };
    // It was edited to fire earlier, and did; then the cluster came back from a time before the edit.
    apply(&store, in_an_hour(), 2).await;
    for over in ["status = 'fired'", "status = 'failed'", "status = 'cancelled', cancelled_by = 'resource'"] {
        execute(
            &mut database.connect().await,
            &format!("UPDATE alarms SET status = 'active', cancelled_by = NULL, resource_generation = 2; UPDATE alarms SET {over}"),
        )
        .await;
        let restored = resource(Draft { label: over.to_owned(), ..ahead.clone() });
        let alarm = restored.confirmed(&store).await.0.alarm;
        assert!(!alarm.status.is_living(), "{over}: {:?}", alarm.status);
    }
    // An edit by a person is another matter.
    execute(&mut database.connect().await, "UPDATE alarms SET status = 'fired', cancelled_by = NULL").await;
    let edited = Draft { fire_at: Some("2098-01-01T00:00:00Z".to_owned()), ..draft() };
    assert_eq!(apply(&store, edited, 7).await.status, Status::Active);
}

#[tokio::test]
async fn an_alarm_that_was_handed_over_is_taken_over_by_its_name() {
    let (database, store) = world().await;
    let old = resource(at("@daily")).alarm(&store).await;
    let mut db = database.connect().await;
    execute(
        &mut db,
        "UPDATE alarms SET adopted_at = now(), fired_count = 11, last_error = 'HTTP 503', failure_count = 2",
    )
    .await;
    let rebuilt = Resource { identity: named(77, "tea"), ..resource(at("@daily")) };
    let taken = rebuilt.alarm(&store).await;
    assert_eq!((taken.id, taken.fired_count, taken.failure_count), (old.id, 11, 2));
    let (rows, adopted): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(adopted_at) FROM alarms").fetch_one(&mut db).await.unwrap();
    assert_eq!((rows, adopted), (1, 0));
    // From now on it is a resource's like any other: made anew, it is a new alarm.
    let recreated = Resource { identity: named(78, "tea"), ..resource(at("@daily")) }.alarm(&store).await;
    assert_ne!(recreated.id, old.id);
}

#[tokio::test]
async fn a_living_double_in_another_cluster_is_told() {
    let (database, store) = world().await;
    let other = ClusterId::from_uuid(Uuid::from_u128(9));
    store.see_cluster(tea().cluster, "here").await.unwrap();
    store.see_cluster(other, "there").await.unwrap();
    let (facts, _) = resource(at("@daily")).stored(&store).await;
    assert_eq!(facts.elsewhere, None);
    let mut db = database.connect().await;
    execute(&mut db, &format!("UPDATE alarms SET cluster_id = '{other}'")).await;
    let facts = Resource { identity: named(3, "tea"), ..resource(at("@daily")) }.stored(&store).await.0;
    assert_eq!(facts.elsewhere, Some(other));
    assert_eq!(store.count_duplicates(tea().cluster).await.unwrap(), 1);
    execute(&mut db, &format!("UPDATE alarms SET status = 'fired' WHERE cluster_id = '{other}'")).await;
    assert_eq!(store.find_resource(&named(3, "tea")).await.unwrap().unwrap().elsewhere, None);
    assert_eq!(store.count_duplicates(tea().cluster).await.unwrap(), 0);
}

#[tokio::test]
async fn a_request_that_was_met_before_is_not_met_again_when_a_snapshot_shows_it() {
    let (database, store) = world().await;
    resource(at("@daily")).alarm(&store).await;
    let asking = |token| Resource { fire_requested: Some(token), ..resource(at("@daily")) };
    for token in ["a", "b"] {
        asking(token).confirmed(&store).await;
        // Delivered: it waits for its own slot again.
        let ahead = "UPDATE alarms SET scheduled_for = '2099-01-01', next_fire_at = '2099-01-01', series_at = NULL";
        execute(&mut database.connect().await, ahead).await;
    }
    let (facts, _) = asking("a").stored(&store).await;
    assert_eq!(facts.fire_requested.as_deref(), Some("b"), "the newest is what is echoed");
    assert!(facts.alarm.next_fire_at > store.now().await.unwrap());
}

#[tokio::test]
async fn an_older_resource_that_is_seen_late_does_not_silence_the_younger_one_of_its_name() {
    let (database, store) = world().await;
    let younger = Resource { identity: named(9, "tea"), ..resource(at("@daily")) }.alarm(&store).await;
    execute(&mut database.connect().await, "UPDATE alarms SET created_at = now()").await;
    assert!(matches!(resource(at("@daily")).apply(&store).await, Applied::Superseded));
    assert_eq!(store.find_resource(&named(9, "tea")).await.unwrap().unwrap().alarm.id, younger.id);
    assert_eq!(store.find_resource(&named(9, "tea")).await.unwrap().unwrap().alarm.status, Status::Active);
}

#[tokio::test]
async fn what_was_confirmed_before_another_controller_wrote_something_newer_is_doubted_again() {
    let (_database, store) = world().await;
    apply(&store, at("@daily"), 5).await;
    let old = Resource { generation: 4, ..resource(at("@hourly")) };
    let Applied::Doubtful(doubt) = old.apply(&store).await else { panic!("not in doubt") };
    Resource { generation: 6, suspended: true, ..resource(at("@daily")) }.alarm(&store).await;
    assert!(matches!(old.apply_confirmed(&store, Some(&doubt)).await, Applied::Doubtful(_)));
    assert_eq!(store.find_resource(&tea()).await.unwrap().unwrap().alarm.status, Status::Paused);
}

#[tokio::test]
async fn an_alarm_whose_agent_went_to_another_namespace_stays_paused() {
    let (database, store) = world().await;
    resource(at("@daily")).alarm(&store).await;
    let of_http = create(&store, &ann(), in_an_hour()).await;
    store.remove_agent_of_resource(tea().cluster, named(1, "ann").uid).await.unwrap();
    enrol_in("elsewhere", &store, false, Quotas::default()).await;
    assert_eq!(store.agents_astray().await.unwrap(), [ann()], "her alarm made over HTTP goes on");
    store.follow_agent(&ann()).await.unwrap();
    let alarm = store.find_resource(&tea()).await.unwrap().unwrap().alarm;
    assert_eq!((alarm.status, alarm.paused_by()), (Status::Paused, vec![Cause::Agent]));
    assert_eq!(super::read(&store, &of_http).await.status, Status::Active);
    assert!(store.agents_astray().await.unwrap().is_empty());
    drop(database);
}
