//! What owners do to alarms between their occurrences: pause, resume, re-arm, plan anew.

use chrono::TimeDelta;
use chronos::{
    domain::{
        alarm::{Change, Changes, Draft, Status, lifecycle::NotRearmed},
        occurrence::{Verdict, judge},
    },
    store::{
        alarms::{Cancelled, Edited},
        claims::Claim,
    },
};

use super::{
    ANYBODY, NO_LENIENCY, ann, claim, create, done, draft, every_minute, execute, history, in_an_hour, patch, read,
};
use crate::support::Database;

#[tokio::test]
async fn a_paused_alarm_is_not_claimed_and_a_resumed_series_skips_what_passed() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), every_minute()).await);
    let paused = done(store.pause_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!(paused.status, Status::Paused);
    assert!(matches!(store.pause_if_owned(&owner, alarm.id).await.unwrap(), Edited::Unchanged(_)));
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', next_fire_at = next_fire_at - interval '1 h'",
    )
    .await;
    assert!(claim(&store).await.claims.is_empty());

    let due = read(&store, &alarm).await.scheduled_for;
    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!(resumed.status, Status::Active);
    assert!(resumed.next_fire_at > store.now().await.unwrap());
    // An hour's, or one more if a minute began meanwhile.
    let skipped = (resumed.scheduled_for - due).num_minutes();
    assert!((60..=61).contains(&skipped), "{skipped}");
    assert_eq!(resumed.missed_count, skipped);
    let [(outcome, reason, first_at, last_at, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
    assert_eq!((first_at, slots), (Some(due), Some(skipped)));
    assert_eq!(last_at, Some(resumed.scheduled_for - TimeDelta::minutes(1)));
    assert!(matches!(store.resume_if_owned(&owner, alarm.id).await.unwrap(), Edited::Unchanged(_)));
}

#[tokio::test]
async fn a_once_alarm_whose_instant_passed_in_a_pause_is_due_at_once_or_missed() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    let fires = create(&store, &owner, Draft { max_lateness_seconds: Some(1), ..in_an_hour() }).await;
    let skips = create(&store, &owner, Draft { misfire: Some("skip".into()), ..in_an_hour() }).await;
    for alarm in [&fires, &skips] {
        store.pause_if_owned(&owner, alarm.id).await.unwrap();
    }
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET fire_at = fire_at - interval '2 h', scheduled_for = scheduled_for - interval '2 h',
                           next_fire_at = next_fire_at - interval '2 h'",
    )
    .await;
    let fires = done(store.resume_if_owned(&owner, fires.id).await.unwrap());
    assert_eq!(fires.status, Status::Active);
    assert!(fires.next_fire_at > fires.scheduled_for, "due from now on, so that it is not late");
    assert_eq!(claim(&store).await.claims.len(), 1);
    let skips = done(store.resume_if_owned(&owner, skips.id).await.unwrap());
    assert_eq!((skips.status, skips.last_error.as_str()), (Status::Failed, "missed: paused"));
    assert_eq!(history(&database, &skips).await[0].0, "missed");
}

#[tokio::test]
async fn resuming_what_is_in_flight_lifts_the_pause_and_nothing_else() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), every_minute()).await);
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now() - interval '1 s'").await;
    claim(&store).await;
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!((resumed.status, resumed.in_flight), (Status::Active, true));
    assert_eq!(resumed.scheduled_for, alarm.scheduled_for);
    assert!(history(&database, &alarm).await.is_empty());
}

#[tokio::test]
async fn only_what_is_over_is_armed_again_and_then_under_a_new_delivery() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), in_an_hour()).await);
    let rearm = async |instant| store.rearm_if_owned(&owner, alarm.id, instant, NO_LENIENCY, &ANYBODY).await.unwrap();
    assert!(matches!(rearm(None).await, Edited::Refused(NotRearmed::Living(Status::Active))));
    store.cancel_if_owned(&owner, alarm.id).await.unwrap();
    // Its instant still lies ahead.
    let again = done(rearm(None).await);
    assert_eq!((again.status, again.cancelled_by.as_deref()), (Status::Active, None));
    assert_eq!(again.scheduled_for, alarm.scheduled_for);
    assert_eq!(again.schedule_epoch.0, alarm.schedule_epoch.0 + 1, "another occurrence, another delivery id");

    execute(
        &mut database.connect().await,
        "UPDATE alarms SET status = 'failed', fire_at = '2020-01-01', failure_count = 6",
    )
    .await;
    assert!(matches!(rearm(None).await, Edited::Refused(NotRearmed::NeedsInstant)));
    let instant = store.now().await.unwrap() + TimeDelta::hours(1);
    let armed = done(rearm(Some(instant)).await);
    assert_eq!((armed.when.fire_at, armed.next_fire_at, armed.failure_count), (Some(instant), instant, 0));
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_told_and_can_still_be_paused_and_cancelled() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), every_minute()).await);
    execute(&mut database.connect().await, "UPDATE alarms SET timezone = 'Mars/Olympus'").await;
    let changes = Changes { label: Change::Set("x".into()), ..Changes::default() };
    let answer = store.patch_if_owned(&owner, alarm.id, &patch(&changes)).await.unwrap();
    assert!(matches!(&answer, Edited::Unreadable(why) if why.contains("Mars/Olympus")), "{answer:?}");
    done(store.pause_if_owned(&owner, alarm.id).await.unwrap());
    assert!(matches!(store.resume_if_owned(&owner, alarm.id).await.unwrap(), Edited::Unreadable(_)));
    let cancelled = store.cancel_if_owned(&owner, alarm.id).await.unwrap();
    assert!(matches!(cancelled, Cancelled::Over { alarm, .. } if alarm.status == Status::Cancelled));
}

/// Lets an hour pass for every alarm.
const AN_HOUR_LATER: &str = "UPDATE alarms SET scheduled_for = scheduled_for - interval '1 h', \
                             next_fire_at = next_fire_at - interval '1 h', fire_at = fire_at - interval '1 h', \
                             claimed_until = claimed_until - interval '1 h'";

#[tokio::test]
async fn what_an_edit_of_the_schedule_gives_up_is_told() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    let series = create(&store, &owner, every_minute()).await;
    let once = create(&store, &owner, Draft { delay_seconds: Some(60), ..draft() }).await;
    store.pause_if_owned(&owner, once.id).await.unwrap();
    execute(&mut database.connect().await, AN_HOUR_LATER).await;

    let due = read(&store, &series).await.scheduled_for;
    let changes = Changes { cron_expr: Change::Set("0 0 1 1 *".into()), ..Changes::default() };
    let after = done(store.patch_if_owned(&owner, series.id, &patch(&changes)).await.unwrap());
    let [(outcome, reason, first_at, last_at, slots)] = history(&database, &series).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref(), first_at), ("skipped", Some("replanned"), Some(due)));
    let told = (last_at.unwrap() - due).num_minutes() + 1;
    assert!((60..=61).contains(&told), "{told}");
    assert_eq!((slots, after.missed_count), (Some(told), told));

    let changes = Changes { delay_seconds: Change::Set(3600), ..Changes::default() };
    done(store.patch_if_owned(&owner, once.id, &patch(&changes)).await.unwrap());
    let [(outcome, reason, ..)] = history(&database, &once).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
}

#[tokio::test]
async fn an_occurrence_whose_lease_ended_in_a_pause_goes_on_without_a_burst_behind_it() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, alarm) = (ann(), create(&store, &ann(), every_minute()).await);
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now() - interval '1 s'").await;
    let first = claim(&store).await.claims.remove(0);
    assert!(read(&store, &alarm).await.in_flight);
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    // The dispatcher died with it, before or after it sent the wake.
    execute(&mut db, AN_HOUR_LATER).await;
    let stands = read(&store, &alarm).await;
    assert!(!stands.in_flight);
    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!((resumed.status, resumed.scheduled_for), (Status::Active, stands.scheduled_for));
    let again = claim(&store).await.claims.remove(0);
    assert_eq!(again.wake.scheduled_for, stands.scheduled_for, "its wake may not have arrived");
    assert_eq!(again.first_claimed_at, first.claimed_at, "judged as it was");
    // What follows it begins where the pause ended.
    let [(outcome, reason, _, last_at, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
    assert_eq!((Some(again.series_at), Some(resumed.missed_count)), (last_at, slots));
}

#[tokio::test]
async fn an_occurrence_whose_dispatcher_was_found_dead_in_a_pause_goes_on_without_a_burst_though_its_lease_stands() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, draft) = (ann(), Draft { misfire: Some("fire_all".into()), ..every_minute() });
    let alarm = create(&store, &owner, draft).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now() - interval '1 s'").await;
    claim(&store).await;
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    execute(&mut db, "DELETE FROM dispatchers").await;
    execute(&mut db, AN_HOUR_LATER).await;
    execute(&mut db, "UPDATE alarms SET claimed_until = now() + interval '1 minute'").await;

    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    let again = claim(&store).await.claims.remove(0);
    assert_eq!(again.wake.scheduled_for, resumed.scheduled_for, "at once, not when the lease ends");
    let [(outcome, reason, _, last_at, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!((outcome.as_str(), reason.as_deref()), ("skipped", Some("paused")));
    assert_eq!((Some(again.series_at), Some(resumed.missed_count)), (last_at, slots));
}

#[tokio::test]
async fn what_was_begun_is_not_judged_by_another_policy_than_its_first_claim_was() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let owner = ann();
    let alarm = create(&store, &owner, Draft { misfire: Some("fire_all".into()), ..every_minute() }).await;
    let mut db = database.connect().await;
    let changes = Changes { max_lateness_seconds: Change::Set(9000), ..Changes::default() };
    done(store.patch_if_owned(&owner, alarm.id, &patch(&changes)).await.unwrap());
    let begun: bool =
        sqlx::query_scalar("SELECT first_claimed_at IS NOT NULL FROM alarms").fetch_one(&mut db).await.unwrap();
    assert!(!begun, "nobody has claimed it");
    execute(&mut db, AN_HOUR_LATER).await;
    let first = claim(&store).await.claims.remove(0);
    let judged = |claim: &Claim| judge(&claim.occurrence(), claim.due_at, claim.first_claimed_at);
    assert_eq!(judged(&first), Verdict::Fire, "the oldest of sixty goes out, and the others follow it");
    // The dispatcher died with it, before or after it sent the wake.
    execute(&mut db, "UPDATE alarms SET claimed_until = now()").await;
    let again = async |misfire: &str, seconds: i64| {
        let changes = Changes {
            misfire: Change::Set(misfire.into()),
            max_lateness_seconds: Change::Set(seconds),
            ..Changes::default()
        };
        done(store.patch_if_owned(&owner, alarm.id, &patch(&changes)).await.unwrap());
        claim(&store).await.claims.remove(0)
    };
    assert_eq!(judged(&again("fire_once", 7200).await), Verdict::Fire, "not folded: it may have arrived");
    execute(&mut db, "UPDATE alarms SET claimed_until = now()").await;
    assert_eq!(judged(&again("skip", 1).await), Verdict::Fire, "nor missed");
}

#[tokio::test]
async fn a_pause_on_the_ladder_is_not_followed_by_a_burst() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, draft) = (ann(), Draft { misfire: Some("fire_all".into()), ..every_minute() });
    let alarm = create(&store, &owner, draft).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET failure_count = 1").await;
    store.pause_if_owned(&owner, alarm.id).await.unwrap();
    execute(&mut db, AN_HOUR_LATER).await;
    let resumed = done(store.resume_if_owned(&owner, alarm.id).await.unwrap());
    assert_eq!((resumed.status, resumed.failure_count), (Status::Active, 1));
    let claimed = claim(&store).await.claims.remove(0);
    assert_eq!(claimed.wake.scheduled_for, resumed.scheduled_for, "the same occurrence goes on");
    // What follows it begins where the pause ended.
    let [(_, _, _, last_at, slots)] = history(&database, &alarm).await.try_into().unwrap();
    assert_eq!(Some(claimed.series_at), last_at);
    assert_eq!(slots, Some(resumed.missed_count));
}

#[tokio::test]
async fn an_occurrence_keeps_the_time_of_its_first_claim_until_it_has_a_result() {
    let database = Database::fresh().await;
    let store = database.store().await;
    create(&store, &ann(), every_minute()).await;
    let mut db = database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now() - interval '1 s'").await;
    let first_claimed_at = async |db: &mut sqlx::PgConnection| -> Option<chrono::DateTime<chrono::Utc>> {
        sqlx::query_scalar("SELECT first_claimed_at FROM alarms").fetch_one(db).await.unwrap()
    };
    let first = claim(&store).await.claims.remove(0);
    assert_eq!(first_claimed_at(&mut db).await, Some(first.claimed_at));
    execute(&mut db, "UPDATE alarms SET claimed_until = now()").await;
    let second = claim(&store).await.claims.remove(0);
    assert!(second.claimed_at > first.claimed_at);
    assert_eq!(first_claimed_at(&mut db).await, Some(first.claimed_at));
    // Given back unsent, the first claim's count stays; a second give-back forgets it.
    store.give_back_under_token(&[&second]).await.unwrap();
    assert_eq!(first_claimed_at(&mut db).await, Some(first.claimed_at));
}
