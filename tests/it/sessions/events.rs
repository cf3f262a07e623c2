//! The log: append-only, and what a user's message does beside being in it.

use chronos::domain::session::autonomy::EventType;
use sqlx::AssertSqlSafe;

use super::{HASTE, Talk, send, timer_in_an_hour};
use crate::support::{Database, alarms::execute};

#[tokio::test]
async fn nobody_rewrites_what_happened_and_a_log_goes_only_with_its_session_or_by_retention() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.user_says("ho").await;
    let mut db = database.connect().await;
    for statement in [
        "UPDATE events SET payload = '{}'",
        "UPDATE events SET seq = seq + 1",
        "DELETE FROM events WHERE seq = 1",
        "TRUNCATE events CASCADE",
        "BEGIN; SET LOCAL chronos.retention = 'off'; DELETE FROM events; COMMIT",
    ] {
        let refused = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut db).await.expect_err(statement);
        assert!(refused.to_string().contains("append-only"), "{statement}: {refused}");
        execute(&mut db, "ROLLBACK").await;
    }
    assert_eq!(talk.events().await.len(), 2);
    execute(&mut db, "BEGIN; SET LOCAL chronos.retention = 'on'; DELETE FROM events WHERE seq = 1; COMMIT").await;
    assert_eq!(talk.events().await.len(), 1);
    execute(&mut db, "DELETE FROM sessions").await;
    assert_eq!(super::count(&mut db, "SELECT count(*) FROM events").await, 0);
}

#[tokio::test]
async fn a_user_message_ends_all_that_the_agent_meant_to_do_by_itself_and_nothing_else() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[send("a reply"), timer_in_an_hour("later")]).await;
    talk.timer_fires().await;
    talk.processed(&[send("unasked one"), send("unasked two"), timer_in_an_hour("more")]).await;
    let stream = talk.open_stream().await;
    talk.delivered(stream, &HASTE).await;
    let on_its_way = talk.sent(stream, &HASTE).await;
    let before = talk.session().await;
    assert_eq!((before.consecutive_autonomous_msgs, before.pending_timers), (1, 2));
    assert!(before.last_autonomous_at.is_some());

    talk.user_says("stop").await;
    let after = talk.session().await;
    assert_eq!((after.consecutive_autonomous_msgs, after.last_autonomous_at, after.pending_timers), (0, None, 0));
    let fates = talk.fates().await;
    let cancelled = ("cancelled", Some("user_message".to_owned()));
    // The reply stands, the timers were set, the wake of the one that fired goes out all the same.
    let expected = [
        ("completed", None),
        ("completed", None),
        ("completed", None),
        ("pending", None),
        cancelled.clone(),
        cancelled,
        ("completed", None),
    ];
    assert_eq!(fates, expected, "{:?}", talk.effects().await);
    // A late acknowledgement answers and changes nothing.
    let late = talk.acknowledge(on_its_way.id, &HASTE).await;
    let told = chronos::store::effects::Acknowledged::Now {
        status: chronos::domain::session::effect::EffectStatus::Cancelled,
        reason: Some("user_message".to_owned()),
    };
    assert_eq!(late, told);
    assert_eq!(talk.fates().await, expected);
}

#[tokio::test]
async fn what_a_tool_says_cancels_nothing() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.timer_fires().await;
    talk.processed(&[send("unasked"), timer_in_an_hour("later")]).await;
    talk.happens(EventType::ToolResult, "42").await;
    let session = talk.session().await;
    assert_eq!(session.pending_timers, 1);
    assert_eq!(session.pending_effects, 2, "the wake of the timer, and the send");
}

#[tokio::test]
async fn retention_takes_a_processed_prefix_and_keeps_what_is_still_needed() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    for n in 0..3 {
        talk.user_says(&n.to_string()).await;
        talk.processed(&[send(&n.to_string())]).await;
    }
    talk.happens(EventType::ToolResult, "a tool").await;
    talk.processed(&[]).await;
    talk.user_says("not processed yet").await;
    // All of it a month old.
    execute(
        &mut db,
        "ALTER TABLE events DISABLE TRIGGER events_append_only; UPDATE events SET created_at = now() - interval '30 days';
         ALTER TABLE events ENABLE TRIGGER events_append_only",
    )
    .await;
    let seqs = async || talk.events().await.iter().map(|event| event.seq).collect::<Vec<_>>();
    let remove = async |days| talk.store.remove_processed_for(days, None).await.unwrap().0;
    assert_eq!(remove(31).await, 0, "not old enough");
    assert_eq!(remove(7).await, 0, "the first send is still to be delivered");
    let stream = talk.open_stream().await;
    talk.delivered(stream, &HASTE).await;
    assert_eq!((remove(7).await, seqs().await), (1, vec![2, 3, 4, 5]));
    talk.delivered(stream, &HASTE).await;
    talk.delivered(stream, &HASTE).await;
    // The user's message stays that says what a send for the tool's result would answer.
    assert_eq!((remove(7).await, seqs().await), (1, vec![3, 4, 5]));
    assert_eq!(remove(7).await, 0);
    assert_eq!(super::count(&mut db, "SELECT count(*) FROM checkpoints").await, 2);
    assert_eq!(talk.effects().await.len(), 1);
    // The log goes on where it was.
    assert_eq!(talk.user_says("more").await.seq, 6);
    talk.processed(&[send("goes on")]).await;
}
