//! The schema refuses what the types refuse.

use chronos::domain::payload::LONGEST;

use super::{ann, claim, create, every_minute, execute, in_an_hour, refused_by};
use crate::support::Database;

/// What no alarm may become, and the constraint that says so. `once` and `cron` are the rows it is tried on.
const REFUSED: &[(&str, &str, &str)] = &[
    ("once", "subject = 'nobody'", "alarms_subject_known"),
    ("once", "kind = 'sometimes'", "alarms_kind_known"),
    ("once", "fire_at = NULL", "alarms_once_has_an_instant"),
    ("cron", "cron_expr = ''", "alarms_cron_has_an_expression"),
    ("cron", "subject = 'service_call', service_call_id = 'c', registered_at = now()", "alarms_timers_are_once"),
    ("once", "timer_id = 't'", "alarms_subject_has_its_names"),
    ("once", "starts_at = now()", "alarms_window_is_of_cron"),
    ("cron", "starts_at = now(), ends_at = now()", "alarms_window_is_in_order"),
    ("cron", "spread = '-1 s'", "alarms_spread_offset_is_within"),
    ("cron", "spread = '1 s', spread_offset = '1 s'", "alarms_spread_offset_is_within"),
    ("cron", "misfire = 'never'", "alarms_misfire_known"),
    ("cron", "max_lateness = '-1 s'", "alarms_max_lateness_is_not_negative"),
    ("once", "status = 'asleep'", "alarms_status_known"),
    ("once", "status = 'paused', paused_by = '{moon}'", "alarms_paused_by_known"),
    ("once", "status = 'paused', paused_by = '{owner,owner}'", "alarms_paused_by_each_once"),
    ("once", "status = 'paused'", "alarms_paused_has_a_cause"),
    ("once", "claims = 1", "alarms_first_claim_is_of_a_claim"),
    ("once", "user_id = repeat('x', 257)", "alarms_texts_are_capped"),
    ("once", "paused_by = '{owner}'", "alarms_active_has_no_pause"),
    ("once", "status = 'cancelled', cancelled_by = 'moon'", "alarms_cancelled_by_known"),
    ("once", "status = 'cancelled'", "alarms_cancelled_says_by_whom"),
    ("once", "claimed_at = now()", "alarms_claim_is_whole"),
    (
        "once",
        "status = 'fired', claimed_at = now(), claimed_until = now(), claim_token = gen_random_uuid(), claimed_by = gen_random_uuid()",
        "alarms_claim_is_of_the_living",
    ),
    ("once", "max_failures = 101", "alarms_max_failures_in_range"),
    ("once", "failure_count = -1", "alarms_counts_are_not_negative"),
    ("once", "source = 'moon'", "alarms_source_known"),
    ("once", "resource_name = 'tea'", "alarms_resource_is_whole"),
    ("once", "fire_requested = 'now'", "alarms_only_resources_are_asked_to_fire"),
    ("once", "adopted_at = now()", "alarms_only_resources_are_adopted"),
    ("once", "labels = '[]'", "alarms_labels_are_a_map"),
    ("once", "label = repeat('x', 257)", "alarms_texts_are_capped"),
    ("once", "correlation_id = ''", "alarms_texts_are_capped"),
    ("once", "wake_message = repeat('x', 32769)", "alarms_texts_are_capped"),
];

/// What history may not say.
const REFUSED_IN_HISTORY: &[(&str, &str)] = &[
    ("1, 'celebrated', NULL, NULL, NULL, NULL", "attempts_outcome_known"),
    ("-1, 'delivered', NULL, NULL, NULL, NULL", "attempts_number_in_range"),
    ("0, 'missed', now(), now(), 1, NULL", "attempts_try_or_run"),
    ("1, 'delivered', now(), now(), 1, 'late'", "attempts_try_or_run"),
    ("0, 'missed', now(), now(), 0, 'late'", "attempts_run_is_in_order"),
    ("0, 'missed', now(), now() - interval '1 s', 2, 'late'", "attempts_run_is_in_order"),
];

#[tokio::test]
async fn an_alarm_that_makes_no_sense_is_refused_by_name() {
    let database = Database::fresh().await;
    let store = database.store().await;
    create(&store, &ann(), in_an_hour()).await;
    create(&store, &ann(), every_minute()).await;
    let mut db = database.connect().await;
    for (row, change, constraint) in REFUSED {
        let statement = format!("UPDATE alarms SET {change} WHERE kind = '{row}'");
        assert_eq!(refused_by(&mut db, &statement).await, *constraint, "{change}");
    }
}

#[tokio::test]
async fn an_attempt_that_makes_no_sense_is_refused_by_name() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    for (values, constraint) in REFUSED_IN_HISTORY {
        let statement = format!(
            "INSERT INTO attempts (alarm_id, owner_did, claim_token, delivery_id, scheduled_for, started_at,
                                   attempt, outcome, first_at, last_at, slots, reason)
             VALUES (gen_random_uuid(), 'd', gen_random_uuid(), gen_random_uuid(), now(), now(), {values})"
        );
        assert_eq!(refused_by(&mut db, &statement).await, *constraint, "{values}");
    }
}

#[tokio::test]
async fn the_largest_payload_is_kept_and_one_byte_more_is_refused() {
    let database = Database::fresh().await;
    let store = database.store().await;
    create(&store, &ann(), in_an_hour()).await;
    let mut db = database.connect().await;
    // A text of so many characters, between its quotes.
    let payload = |bytes: usize| format!("UPDATE alarms SET payload = to_json(repeat('x', {}))", bytes - 2);
    execute(&mut db, &payload(LONGEST)).await;
    // Its row can be written afterwards, too, and is read whole.
    execute(&mut db, "UPDATE alarms SET next_fire_at = now()").await;
    let [claim] = claim(&store).await.claims.try_into().unwrap();
    assert_eq!(claim.wake.payload.as_str().len(), LONGEST);
    assert_eq!(refused_by(&mut db, &payload(LONGEST + 1)).await, "alarms_texts_are_capped");
}
