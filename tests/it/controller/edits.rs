//! What a person changes in a resource: suspend, run now, another schedule.

use chronos::crd::Phase;

use super::{Cluster, cluster, conditions};
use crate::support::Reply;

#[tokio::test]
async fn a_suspended_alarm_is_ready_and_silent_and_goes_on_ahead() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '@every 1s'\n  suspend: true").await;
    let paused = cluster.phase("tea", Phase::Paused).await;
    assert_eq!(conditions(&paused), [("Ready", "True", "Paused")]);
    assert_eq!(paused.conditions[0].message, "paused: spec.suspend is true");
    assert_eq!((paused.next_fire_time, paused.upcoming.len()), (None, 0));

    cluster.apply("tea", "  cronExpr: '@every 1s'").await;
    cluster.phase("tea", Phase::Active).await;
    cluster.world.sink.wakes(1).await;
    cluster.apply("tea", "  cronExpr: '@every 1s'\n  suspend: true").await;
    cluster.phase("tea", Phase::Paused).await;
    let skipped: i64 = cluster.ask("SELECT count(*) FROM alarms WHERE paused_by = '{spec}'").await;
    assert_eq!(skipped, 1);
}

#[tokio::test]
async fn a_once_alarm_whose_instant_passed_while_it_was_suspended_fires_when_it_is_resumed() {
    let cluster = cluster().await;
    cluster.apply("tea", "  delaySeconds: 1\n  suspend: true").await;
    cluster.phase("tea", Phase::Paused).await;
    let passed =
        || async { cluster.ask::<bool>("SELECT bool_and(next_fire_at < now()) FROM alarms").await.then_some(()) };
    crate::support::eventually("its instant has passed", passed).await;
    assert!(cluster.world.sink.received().is_empty());
    cluster.apply("tea", "  delaySeconds: 1").await;
    cluster.world.sink.wakes(1).await;
    cluster.phase("tea", Phase::Fired).await;
}

#[tokio::test]
async fn a_request_to_fire_wakes_once_now_and_is_echoed() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    let waiting = cluster.phase("tea", Phase::Active).await;
    assert_eq!(waiting.fire_requested_at, None);

    cluster.request("tea", "2026-11-17T10:00:00Z").await;
    let wake = cluster.world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["alarm_id"].as_str(), waiting.alarm_id.as_deref());
    let echoed = cluster.namespace.status("tea", "echoes the request", |status| status.fired_count == 1).await;
    assert_eq!(echoed.fire_requested_at.as_deref(), Some("2026-11-17T10:00:00Z"));
    assert_eq!(echoed.next_fire_time, waiting.next_fire_time, "its own slot stays");

    // A controller that starts anew sees the same request, and leaves it.
    let Cluster { world, namespace, ann, daemon } = cluster;
    daemon.terminate().await;
    let daemon = super::serve(&world, &namespace, "controller,dispatch").await;
    let cluster = Cluster { world, namespace, ann, daemon };
    cluster.request("tea", "second").await;
    cluster.namespace.status("tea", "has fired again", |status| status.fired_count == 2).await;
    assert_eq!(cluster.world.sink.received().len(), 2);
}

#[tokio::test]
async fn a_request_that_is_there_at_first_sight_is_echoed_and_not_fired() {
    let cluster = cluster().await;
    let alarm = cluster
        .alarm("tea", "  cronExpr: '0 0 1 1 *'")
        .replace("{name: tea}", "{name: tea, annotations: {chronos.dev/fire-requested-at: long ago}}");
    cluster.namespace.apply(&alarm).await.unwrap();
    let seen = cluster.phase("tea", Phase::Active).await;
    assert_eq!((seen.fire_requested_at.as_deref(), seen.fired_count), (Some("long ago"), 0));
    // Whatever comes after it was looked at after it.
    cluster.request("tea", "now").await;
    cluster.world.sink.wakes(1).await;
    cluster.namespace.status("tea", "has fired once", |status| status.fired_count == 1).await;
    assert_eq!(cluster.world.sink.received().len(), 1);
}

#[tokio::test]
async fn a_request_that_cannot_be_met_is_spent_and_told() {
    let cluster = cluster().await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'\n  suspend: true").await;
    cluster.phase("tea", Phase::Paused).await;
    cluster.request("tea", "now").await;
    cluster.namespace.status("tea", "echoes", |status| status.fire_requested_at.as_deref() == Some("now")).await;
    crate::support::eventually("an event tells why", || async {
        let events = cluster.namespace.events_of("tea").await;
        events.into_iter().find(|(kind, reason, note)| {
            kind == "Warning"
                && reason == "FireRefused"
                && note.contains("the alarm is paused; only an active one is fired")
        })
    })
    .await;
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'").await;
    cluster.phase("tea", Phase::Active).await;
    assert!(cluster.world.sink.received().is_empty(), "not even later");
}

#[tokio::test]
async fn an_edited_schedule_never_fires_backwards() {
    let cluster = cluster().await;
    cluster.apply("tea", "  fireAt: 2099-01-01T00:00:00Z").await;
    let before = cluster.phase("tea", Phase::Active).await;
    // An instant that has passed is missed, not caught up on; a series begins with its next slot.
    cluster.apply("tea", "  fireAt: 2020-01-01T00:00:00Z").await;
    let missed = cluster.phase("tea", Phase::Failed).await;
    assert!(missed.last_error.starts_with("missed: due 2020-01-01T00:00:00Z"), "{}", missed.last_error);
    cluster.apply("tea", "  cronExpr: '0 0 1 1 *'\n  startsAt: 2020-01-01T00:00:00Z\n  misfire: fire_all").await;
    let armed = cluster.phase("tea", Phase::Active).await;
    assert_eq!(armed.alarm_id, before.alarm_id);
    assert!(armed.next_fire_time.is_some_and(|next| next.as_str() > "2027"));
    assert!(cluster.world.sink.received().is_empty());
}

#[tokio::test]
async fn a_delay_counts_from_creation_also_after_an_edit() {
    let cluster = cluster().await;
    cluster.apply("tea", "  delaySeconds: 3600").await;
    cluster.phase("tea", Phase::Active).await;
    let created = cluster.namespace.alarms().get("tea").await.unwrap().metadata.creation_timestamp.unwrap().0;
    cluster.apply("tea", "  delaySeconds: 7200").await;
    let later = cluster.namespace.status("tea", "is planned anew", |status| status.observed_generation == 2).await;
    let due: chrono::DateTime<chrono::Utc> = later.next_fire_time.unwrap().parse().unwrap();
    assert_eq!(due.timestamp(), created.as_second() + 7200);
}

#[tokio::test]
async fn labels_policies_and_windows_of_a_resource_reach_its_alarm() {
    let cluster = cluster().await;
    let spec = "  cronExpr: '0 9 * * *'\n  timezone: Europe/Berlin\n  startsAt: 2030-01-01T00:00:00Z\n  endsAt: 2031-01-01T00:00:00Z\n  \
                spreadSeconds: 600\n  misfire: skip\n  maxLatenessSeconds: 30\n  maxFailures: 2";
    let alarm = cluster.alarm("tea", spec).replace("{name: tea}", "{name: tea, labels: {team: portfolio}}");
    cluster.namespace.apply(&alarm).await.unwrap();
    let status = cluster.phase("tea", Phase::Active).await;
    assert!(status.upcoming.len() == 5 && status.upcoming[0].starts_with("2030-01-01T08:"), "{:?}", status.upcoming);
    assert!(status.conditions[0].message.ends_with(" Europe/Berlin"), "{}", status.conditions[0].message);
    let row: String = cluster
        .ask(
            "SELECT concat_ws(' ', labels ->> 'team', timezone, extract(year FROM starts_at AT TIME ZONE 'UTC'),
                              extract(year FROM ends_at AT TIME ZONE 'UTC'), spread, misfire, max_lateness, max_failures) FROM alarms",
        )
        .await;
    assert_eq!(row, "portfolio Europe/Berlin 2030 2031 00:10:00 skip 00:00:30 2");
}

#[tokio::test]
async fn an_edit_of_the_message_while_a_wake_is_under_way_keeps_its_claim() {
    let cluster = cluster().await;
    cluster.world.sink.reply([Reply::Hold]);
    cluster.apply("tea", "  delaySeconds: 1\n  label: green").await;
    cluster.world.sink.wakes(1).await;
    cluster.apply("tea", "  delaySeconds: 1\n  label: black").await;
    let edited = || async { cluster.ask::<bool>("SELECT bool_and(label = 'black') FROM alarms").await.then_some(()) };
    crate::support::eventually("the edit is stored", edited).await;
    cluster.world.sink.release();
    let fired = cluster.phase("tea", Phase::Fired).await;
    assert_eq!((fired.fired_count, fired.attempts.len()), (1, 1));
    assert_eq!(cluster.world.sink.received().len(), 1);
}
