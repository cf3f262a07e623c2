//! Alarms, as their owners create, list and change them.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use chronos::{
    domain::{
        alarm::{Change, Changes, Draft, Kind, Status},
        ids::{AlarmId, DeliveryId},
        labels::Selector,
        occurrence::Outcome,
    },
    store::{
        Store,
        alarms::{Cancelled, Created, Edited, Filter, NotPatched, Patch},
    },
};
use futures::future::join_all;

use super::{
    ANYBODY, NO_LENIENCY, ann, bob, claim, create, create_with_key, done, draft, every_minute, execute, in_an_hour,
    labels, patch, read, warm_store,
};
use crate::support::Database;

async fn listed(store: &Store, filter: &Filter) -> BTreeSet<String> {
    let page = store.list_owned(&ann(), filter, None, 100).await.unwrap();
    page.alarms.into_iter().map(|alarm| alarm.label).collect()
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn an_alarm_comes_back_as_it_was_defined() {
    let store = Database::fresh().await.store().await;
    let draft = Draft {
        cron_expr: Some("30 9 * * MON-FRI".into()),
        timezone: Some("America/New_York".into()),
        starts_at: Some("2030-01-01T00:00:00.000001Z".into()),
        ends_at: Some("2040-01-01T00:00:00Z".into()),
        spread_seconds: Some(600),
        misfire: Some("fire_all".into()),
        max_lateness_seconds: Some(90),
        label: "daily é".into(),
        labels: labels(&[("team", "ops"), ("example.com/tier", "")]),
        conversation_id: "conv".into(),
        payload: Some("{\"b\": 1.50, \"a\":\"\\u00e9\"}".into()),
        max_failures: Some(3),
        ..draft()
    };
    let alarm = create(&store, &ann(), draft.clone()).await;
    let stored = read(&store, &alarm).await.definition().unwrap();
    assert_eq!(Draft::of(&stored), Draft { kind: Some(Kind::Cron), ..draft });
    // The spread: behind the nominal instant, by less than its window, and the same for whoever reads it.
    assert!(alarm.next_fire_at - alarm.scheduled_for < TimeDelta::seconds(600));
    assert_eq!(alarm.next_fire_at, alarm.scheduled_for + alarm.when.offset().unwrap());
    assert!(alarm.when.offset().unwrap() > TimeDelta::zero());
}

#[tokio::test]
async fn of_many_that_use_one_key_at_once_one_creates_and_the_others_find_it() {
    let store = warm_store(&Database::fresh().await).await;
    let (owner, other) = (ann(), bob());
    let created = join_all((0..16).map(|_| create_with_key(&store, &owner, in_an_hour(), "key"))).await;
    let (mut new, mut ids) = (0, BTreeSet::new());
    for outcome in created {
        let (alarm, is_new) = match outcome {
            Created::New(alarm) => (alarm, 1),
            Created::Known(alarm) => (alarm, 0),
            Created::OverQuota(_) | Created::Barred => panic!("anybody may: {outcome:?}"),
        };
        new += is_new;
        ids.insert(alarm.id);
    }
    assert_eq!((new, ids.len()), (1, 1));
    // A key is its owner's: another's makes another alarm.
    assert!(matches!(create_with_key(&store, &other, in_an_hour(), "key").await, Created::New(_)));
}

#[tokio::test]
async fn an_owner_sees_and_touches_nobody_elses_alarms() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, stranger) = (ann(), bob());
    let alarm = create_with_key(&store, &owner, Draft { labels: labels(&[("a", "b")]), ..in_an_hour() }, "key").await;
    let Created::New(alarm) = alarm else { panic!("is new") };

    assert!(store.get_if_owned(&stranger, alarm.id).await.unwrap().is_none());
    assert!(store.find_by_key(&stranger, "key").await.unwrap().is_none());
    assert!(store.list_owned(&stranger, &Filter::default(), None, 10).await.unwrap().alarms.is_empty());
    let changes = Changes { label: Change::Set("mine".into()), ..Changes::default() };
    let (id, patch) = (alarm.id, patch(&changes));
    assert!(matches!(store.patch_if_owned(&stranger, id, &patch).await.unwrap(), Edited::Unknown));
    assert!(matches!(store.pause_if_owned(&stranger, id).await.unwrap(), Edited::Unknown));
    assert!(matches!(store.resume_if_owned(&stranger, id).await.unwrap(), Edited::Unknown));
    assert!(matches!(store.rearm_if_owned(&stranger, id, None, NO_LENIENCY, &ANYBODY).await.unwrap(), Edited::Unknown));
    assert!(matches!(store.cancel_if_owned(&stranger, id).await.unwrap(), Cancelled::Unknown));
    let after = read(&store, &alarm).await;
    assert_eq!((after.revision, after.status, after.label.as_str()), (1, Status::Active, ""));
}

#[tokio::test]
async fn a_list_keeps_to_its_filters() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    let named_alarm = |label: &str, draft: Draft| Draft { label: label.into(), ..draft };
    let soon = create(&store, &owner, named_alarm("report soon", in_an_hour())).await;
    let late = Draft { delay_seconds: Some(7200), labels: labels(&[("team", "ops")]), ..draft() };
    create(&store, &owner, named_alarm("report late", late)).await;
    let series = create(&store, &owner, named_alarm("series", every_minute())).await;
    let over = create(&store, &owner, named_alarm("over", in_an_hour())).await;
    store.cancel_if_owned(&owner, over.id).await.unwrap();
    store.pause_if_owned(&owner, series.id).await.unwrap();

    let filter = Filter::default;
    assert_eq!(listed(&store, &filter()).await, named(&["report soon", "report late", "series", "over"]));
    let statuses = vec![Status::Paused, Status::Cancelled];
    assert_eq!(listed(&store, &Filter { statuses, ..filter() }).await, named(&["series", "over"]));
    assert_eq!(listed(&store, &Filter { kind: Some(Kind::Cron), ..filter() }).await, named(&["series"]));
    let label_prefix = Some("report".to_owned());
    assert_eq!(listed(&store, &Filter { label_prefix, ..filter() }).await, named(&["report soon", "report late"]));
    let label_prefix = Some("re%".to_owned());
    assert_eq!(listed(&store, &Filter { label_prefix, ..filter() }).await, named(&[]), "a prefix is no pattern");
    let correlation_id = Some("other".to_owned());
    assert_eq!(listed(&store, &Filter { correlation_id, ..filter() }).await, named(&[]));
    let selector = Selector::parse("team in (ops,dev)").unwrap();
    assert_eq!(listed(&store, &Filter { selector, ..filter() }).await, named(&["report late"]));
    // From is inclusive, before is not; what is not active is not due.
    let due_before = Some(soon.next_fire_at + TimeDelta::minutes(1));
    assert_eq!(listed(&store, &Filter { due_before, ..filter() }).await, named(&["report soon"]));
    let due_after = Some(soon.next_fire_at);
    assert_eq!(listed(&store, &Filter { due_after, ..filter() }).await, named(&["report soon", "report late"]));
    let due_before = Some(soon.next_fire_at);
    assert_eq!(listed(&store, &Filter { due_after, due_before, ..filter() }).await, named(&[]));
}

#[tokio::test]
async fn a_selector_means_the_same_in_the_database_as_in_the_domain() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let sets = [
        labels(&[]),
        labels(&[("a", "1")]),
        labels(&[("a", "2"), ("b", "")]),
        labels(&[("a", "3"), ("b", "x"), ("example.com/c", "y")]),
    ];
    for (index, set) in sets.iter().enumerate() {
        create(&store, &ann(), Draft { label: index.to_string(), labels: set.clone(), ..in_an_hour() }).await;
    }
    for text in [
        "a",
        "!a",
        "a=1",
        "a!=1",
        "a in (1,3)",
        "a notin (2)",
        "b=",
        "b!=",
        "b in (,x)",
        "example.com/c==y,a",
        "!b,a",
        "a in (1,2,3),b notin (x)",
        "c",
    ] {
        let selector = Selector::parse(text).unwrap();
        let expected: BTreeSet<String> =
            (0..sets.len()).filter(|index| selector.matches(&sets[*index])).map(|index| index.to_string()).collect();
        assert_eq!(listed(&store, &Filter { selector, ..Filter::default() }).await, expected, "{text}");
    }
}

#[tokio::test]
async fn pages_show_every_alarm_once_while_others_come_in() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    for _ in 0..7 {
        create(&store, &owner, in_an_hour()).await;
    }
    // Made within one microsecond, so that the id has to decide.
    execute(&mut database.connect().await, "UPDATE alarms SET created_at = '2026-01-01T00:00:00Z'").await;
    let (mut seen, mut cursor, mut pages) = (Vec::<AlarmId>::new(), None, 0);
    loop {
        let page = store.list_owned(&owner, &Filter::default(), cursor, 3).await.unwrap();
        create(&store, &owner, in_an_hour()).await;
        seen.extend(page.alarms.iter().map(|alarm| alarm.id));
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len(), pages), (7, 7, 3));
    // A page that holds exactly the rest is the last.
    let page = store.list_owned(&owner, &Filter::default(), None, 10).await.unwrap();
    assert_eq!((page.alarms.len(), page.next), (10, None));
}

#[tokio::test]
async fn an_edit_that_leaves_the_schedule_alone_keeps_the_occurrence_and_its_claim() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET next_fire_at = now() - interval '1 s', failure_count = 2",
    )
    .await;
    assert_eq!(claim(&store).await.claims.len(), 1);
    let changes = Changes {
        wake_message: Change::Set("other".into()),
        misfire: Change::Set("skip".into()),
        // The same again is no edit of the schedule.
        cron_expr: Change::Set("* * * * *".into()),
        ..Changes::default()
    };
    let after = done(store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap());
    assert_eq!(after.wake_message, "other");
    assert_eq!((after.in_flight, after.failure_count), (true, 2));
    assert_eq!((after.schedule_epoch, after.scheduled_for), (alarm.schedule_epoch, alarm.scheduled_for));
    assert_eq!(after.revision, alarm.revision + 1);
    // Saying it once more changes nothing, and says so.
    let again = store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap();
    assert!(matches!(again, Edited::Unchanged(same) if same.revision == after.revision));
}

#[tokio::test]
async fn an_edit_of_the_schedule_plans_anew_from_now_and_takes_the_claim_away() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET next_fire_at = now() - interval '1 s', failure_count = 2",
    )
    .await;
    claim(&store).await;
    let changes = Changes { cron_expr: Change::Set("0 0 1 1 *".into()), ..Changes::default() };
    let after = done(store.patch_if_owned(&ann(), alarm.id, &patch(&changes)).await.unwrap());
    assert_eq!((after.in_flight, after.failure_count, after.last_error.as_str()), (false, 0, ""));
    assert_eq!(after.schedule_epoch.0, alarm.schedule_epoch.0 + 1);
    assert!(after.scheduled_for > store.now().await.unwrap());
}

#[tokio::test]
async fn what_cannot_be_patched_is_told_and_left_alone() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    let alarm = create(&store, &owner, in_an_hour()).await;
    let refusal = async |changes: &Changes, revision| {
        let patch = Patch { revision, ..patch(changes) };
        let answer = store.patch_if_owned(&owner, alarm.id, &patch).await.unwrap();
        let Edited::Refused(why) = answer else { panic!("not refused: {answer:?}") };
        why
    };
    let label = Changes { label: Change::Set("x".into()), ..Changes::default() };
    assert_eq!(refusal(&label, Some(7)).await, NotPatched::Stale { revision: 1 });
    let past = Changes { fire_at: Change::Set("2020-01-01T00:00:00Z".into()), ..Changes::default() };
    assert!(matches!(refusal(&past, None).await, NotPatched::Past { .. }));
    let wrong = Changes { max_failures: Change::Set(-1), ..Changes::default() };
    assert!(matches!(refusal(&wrong, None).await, NotPatched::Invalid(told) if told[0].field == "max_failures"));
    assert_eq!(read(&store, &alarm).await.revision, 1);
    store.cancel_if_owned(&owner, alarm.id).await.unwrap();
    assert_eq!(refusal(&label, None).await, NotPatched::Over(Status::Cancelled));

    let series = create(&store, &owner, every_minute()).await;
    let never = Changes { cron_expr: Change::Set("0 0 30 2 *".into()), ..Changes::default() };
    let answer = store.patch_if_owned(&owner, series.id, &patch(&never)).await.unwrap();
    assert!(matches!(answer, Edited::Refused(NotPatched::NeverFires)), "{answer:?}");
}

#[tokio::test]
async fn of_many_who_patch_one_revision_at_once_one_succeeds() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let (owner, alarm) = (ann(), create(&store, &ann(), in_an_hour()).await);
    let changes: Vec<_> =
        (0..8).map(|n| Changes { label: Change::Set(format!("by {n}")), ..Changes::default() }).collect();
    let answers = join_all(changes.iter().map(|changes| {
        let (store, owner) = (&store, &owner);
        let patch = Patch { revision: Some(1), ..patch(changes) };
        async move { store.patch_if_owned(owner, alarm.id, &patch).await.unwrap() }
    }))
    .await;
    let won: Vec<_> = answers.iter().filter(|answer| matches!(answer, Edited::Done(_))).collect();
    let lost = answers.iter().filter(|answer| matches!(answer, Edited::Refused(NotPatched::Stale { revision: 2 })));
    assert_eq!((won.len(), lost.count()), (1, 7));
}

#[tokio::test]
async fn whoever_cancels_and_whoever_claims_at_once_agree_on_who_was_first() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let owner = ann();
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(create(&store, &owner, in_an_hour()).await.id);
    }
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now() - interval '1 s'").await;
    let cancels = join_all(ids.iter().map(|id| store.cancel_if_owned(&owner, *id)));
    let claims = join_all((0..4).map(|_| claim(&store)));
    let (cancels, claims) = futures::future::join(cancels, claims).await;
    let claimed: BTreeSet<AlarmId> =
        claims.iter().flat_map(|claimed| &claimed.claims).map(|claim| claim.wake.alarm_id).collect();
    for (id, cancelled) in ids.iter().zip(cancels) {
        let Cancelled::Over { alarm, in_flight } = cancelled.unwrap() else { panic!("is ann's") };
        assert_eq!(alarm.status, Status::Cancelled);
        assert_eq!(in_flight, claimed.contains(id), "in flight is said exactly of those that were claimed first");
    }
}

#[tokio::test]
async fn an_alarms_history_is_its_owners_and_comes_in_pages() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), every_minute()).await);
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    let mut db = database.connect().await;
    let pass = "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', next_fire_at = next_fire_at - interval '1 h'";
    execute(&mut db, pass).await;
    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    execute(
        &mut db,
        &format!(
            "INSERT INTO attempts (alarm_id, owner_did, claim_token, delivery_id, scheduled_for, attempt, started_at, outcome, http_status)
             SELECT '{}', '{owner}', gen_random_uuid(), gen_random_uuid(), now(), 1, now() + n * interval '1 day', 'delivered', 200
             FROM generate_series(1, 4) AS n",
            alarm.id
        ),
    )
    .await;
    let page = async |cursor, limit| store.attempts_if_owned(&owner, alarm.id, cursor, limit).await.unwrap().unwrap();
    let first = page(None, 3).await;
    let rest = page(first.next, 3).await;
    assert_eq!((first.entries.len(), rest.entries.len(), rest.next), (3, 2, None));
    let all: Vec<_> = first.entries.iter().chain(&rest.entries).collect();
    assert!(all.windows(2).all(|pair| pair[0].started_at > pair[1].started_at), "newest first: {all:?}");
    assert_eq!((all[0].outcome, all[0].run(), all[0].http_status), (Outcome::Delivered, None, Some(200)));
    let run = all[4].run().expect("the first to be written was the run");
    assert_eq!(i64::try_from(run.slots), Ok(resumed.missed_count));
    assert_eq!((all[4].attempt, all[4].reason.as_deref()), (0, Some("paused")));
    assert_eq!(all[4].delivery_id(), Some(DeliveryId::of(alarm.id, alarm.schedule_epoch, run.last)));
    assert!(store.attempts_if_owned(&bob(), alarm.id, None, 3).await.unwrap().is_none());
}

#[tokio::test]
async fn timers_are_not_among_an_owners_alarms() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), in_an_hour()).await);
    execute(
        &mut database.connect().await,
        &format!(
            "INSERT INTO service_calls (tenant_id, service_call_id) VALUES ('{owner}', 'call');
             UPDATE alarms SET subject = 'service_call', service_call_id = 'call', registered_at = now()"
        ),
    )
    .await;
    assert!(store.get_if_owned(&owner, alarm.id).await.unwrap().is_none());
    assert!(store.list_owned(&owner, &Filter::default(), None, 10).await.unwrap().alarms.is_empty());
    assert!(matches!(store.cancel_if_owned(&owner, alarm.id).await.unwrap(), Cancelled::Unknown));
    assert!(matches!(store.pause_if_owned(&owner, alarm.id).await.unwrap(), Edited::Unknown));
    assert!(store.attempts_if_owned(&owner, alarm.id, None, 3).await.unwrap().is_none());
}

#[tokio::test]
async fn history_of_one_instant_is_not_lost_between_pages() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    execute(
        &mut database.connect().await,
        &format!(
            "INSERT INTO attempts (alarm_id, owner_did, claim_token, scheduled_for, attempt, started_at, outcome,
                                   first_at, last_at, slots, reason)
             SELECT '{}', '{}', gen_random_uuid(), now(), 0, now(), 'missed', now(), now(), 1, reason
             FROM unnest(ARRAY['late', 'folded', 'retrying']) AS reason",
            alarm.id, alarm.owner_did
        ),
    )
    .await;
    let (mut seen, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = store.attempts_if_owned(&ann(), alarm.id, cursor, 1).await.unwrap().unwrap();
        seen.extend(page.entries.into_iter().filter_map(|entry| entry.reason));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, named(&["late", "folded", "retrying"]));
}
