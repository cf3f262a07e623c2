//! Checkpoints: one after another, each with its effects or not at all, and as often as one likes.

use chronos::{
    domain::session::{SessionKey, autonomy::EventType},
    store::{
        checkpoints::{Checkpointed, Receipt, Request},
        session_timers::State,
    },
};

use super::{Talk, count, send, timer, timer_in_an_hour};
use crate::support::{AgentKey, Database, alarms::execute};

fn told(receipt: &Receipt) -> Vec<(&'static str, &'static str, Option<&str>)> {
    let effects = receipt.effects.iter();
    effects.map(|one| (one.effect_type.as_str(), one.status.as_str(), one.reason.as_deref())).collect()
}

#[tokio::test]
async fn a_checkpoint_sets_its_timers_and_puts_its_sends_into_the_outbox() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    let receipt = talk.processed(&[send("one"), timer_in_an_hour("t"), send("two")]).await;
    let expected =
        [("send_message", "pending", None), ("schedule_timer", "completed", None), ("send_message", "pending", None)];
    assert_eq!(told(&receipt), expected);
    assert_eq!((receipt.event_seq, &receipt.replaced_timers), (1, &vec![]));
    let session = talk.session().await;
    assert_eq!((session.event_seq, session.pending_timers, session.pending_effects), (1, 1, 2));
    let stored = talk.effects().await;
    assert!(
        stored.iter().zip(&receipt.effects).all(|(row, born)| (row.id, &row.dedupe_key) == (born.id, &born.dedupe_key))
    );
    assert_eq!(stored[0].payload.as_str(), r#"{"content":"one"}"#);
}

#[tokio::test]
async fn a_repeated_checkpoint_has_the_same_answer_whatever_has_become_of_it_since() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    let effects = [send("one"), timer("t", 0)];
    let first = talk.checkpoint("c1", 1, &effects).await;
    let stream = talk.open_stream().await;
    talk.delivered(stream, &super::HASTE).await;
    talk.user_says("more").await;
    talk.processed(&[]).await;
    for _ in 0..3 {
        assert_eq!(talk.checkpoint("c1", 1, &effects).await, first);
    }
    assert_eq!(talk.effects().await.len(), 2, "and nothing was done twice");
    assert_eq!(talk.checkpoint("c1", 1, &effects[..1]).await, Checkpointed::Conflict);
    assert_eq!(talk.checkpoint("c1", 2, &effects).await, Checkpointed::Conflict);
}

#[tokio::test]
async fn a_checkpoint_out_of_turn_is_told_which_one_is_next_and_leaves_nothing() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let out_of_turn = |event_seq, last_seq| Checkpointed::OutOfTurn { event_seq, last_seq };
    assert_eq!(talk.checkpoint("c", 1, &[]).await, Checkpointed::NotOwned, "no session yet");
    talk.user_says("one").await;
    talk.user_says("two").await;
    for event_seq in [0, 2, 3, i64::MAX] {
        assert_eq!(talk.checkpoint("c", event_seq, &[send("x"), timer_in_an_hour("t")]).await, out_of_turn(0, 2));
    }
    talk.processed(&[]).await;
    assert_eq!(talk.checkpoint("c", 1, &[send("x")]).await, out_of_turn(1, 2), "stale");
    talk.processed(&[]).await;
    assert_eq!(talk.checkpoint("c", 3, &[send("x")]).await, out_of_turn(2, 2), "that event does not exist yet");
    let session = talk.session().await;
    assert_eq!((session.event_seq, session.pending_timers, session.pending_effects), (2, 0, 0));
}

#[tokio::test]
async fn of_many_that_process_one_event_at_once_one_does() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let other = talk.elsewhere(&database).await;
    talk.user_says("hi").await;
    let ids: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let effects = [send("x"), timer_in_an_hour("t")];
    let many = ids.iter().enumerate().map(|(n, id)| {
        let talk = if n % 2 == 0 { &talk } else { &other };
        talk.checkpoint(id, 1, &effects)
    });
    let answers = futures::future::join_all(many).await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Checkpointed::Done(_))).count(), 1, "{answers:?}");
    let late = Checkpointed::OutOfTurn { event_seq: 1, last_seq: 1 };
    assert_eq!(answers.iter().filter(|answer| **answer == late).count(), 7);
    assert_eq!(talk.effects().await.len(), 2);

    // And of the same one sent many times at once, each has the same answer.
    talk.user_says("again").await;
    let same = (0..8).map(|n| if n % 2 == 0 { &talk } else { &other }.checkpoint("same", 2, &effects));
    let answers = futures::future::join_all(same).await;
    assert!(matches!(answers[0], Checkpointed::Done(_)));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(talk.effects().await.len(), 4);
}

#[tokio::test]
async fn a_checkpoint_is_stored_whole_or_not_at_all() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    let mut db = database.connect().await;
    // Whatever of it the database refuses, the rest goes too.
    for (table, column) in [("effects", "payload"), ("checkpoints", "answer"), ("alarms", "payload")] {
        let broken = format!("ALTER TABLE {table} ADD CONSTRAINT broken CHECK ({column} IS NULL) NOT VALID");
        sqlx::raw_sql(sqlx::AssertSqlSafe(broken)).execute(&mut db).await.unwrap();
        let effects = [send("x"), timer_in_an_hour("t")];
        let request = Request { checkpoint_id: "c", event_seq: 1, effects: &effects };
        talk.store.checkpoint_if_owned(&talk.owner, &talk.key, &request).await.expect_err(table);
        let mended = format!("ALTER TABLE {table} DROP CONSTRAINT broken");
        sqlx::raw_sql(sqlx::AssertSqlSafe(mended)).execute(&mut db).await.unwrap();
        let session = talk.session().await;
        assert_eq!((session.event_seq, session.pending_timers, session.pending_effects), (0, 0, 0), "{table}");
        assert_eq!(count(&mut db, "SELECT count(*) FROM checkpoints").await, 0, "{table}");
    }
    talk.processed(&[send("x"), timer_in_an_hour("t")]).await;
}

#[tokio::test]
async fn once_the_user_has_spoken_again_only_replies_are_kept() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.user_says("and this").await;
    let late = ("schedule_timer", "cancelled", Some("user_message"));
    let receipt = talk.processed(&[send("a reply"), timer_in_an_hour("t")]).await;
    assert_eq!(told(&receipt), [("send_message", "pending", None), late], "a reply to the user is still sent");
    assert_eq!(talk.session().await.pending_timers, 0);

    talk.processed(&[]).await;
    talk.timer_fires().await;
    talk.user_says("wait").await;
    let receipt = talk.processed(&[send("unasked"), timer_in_an_hour("t")]).await;
    assert_eq!(told(&receipt), [("send_message", "cancelled", Some("user_message")), late]);
    assert_eq!(talk.session().await.pending_timers, 0);
}

#[tokio::test]
async fn of_two_timers_with_one_key_in_a_checkpoint_the_last_stands_and_the_answer_says_so() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    let receipt = talk.processed(&[timer("t", 0), timer_in_an_hour("u"), timer_in_an_hour("t")]).await;
    assert_eq!(receipt.replaced_timers, ["t"]);
    let set = ("schedule_timer", "completed", None);
    assert_eq!(told(&receipt), [("schedule_timer", "cancelled", Some("replaced")), set, set]);
    assert_eq!(super::promote_due(&talk.store).await, [""; 0], "the earlier one would have been due");
    assert_eq!(talk.session().await.pending_timers, 2);
}

#[tokio::test]
async fn a_send_is_autonomous_unless_it_answers_the_user() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    // 1: nothing but a tool. 2: the user. 3: a tool, on the user's behalf. 4: a timer. 5: a tool, on the timer's behalf.
    talk.happens(EventType::ToolResult, "unasked").await;
    talk.processed(&[send("1")]).await;
    talk.user_says("hi").await;
    talk.processed(&[send("2")]).await;
    talk.happens(EventType::ToolResult, "42").await;
    talk.processed(&[send("3"), timer("t", 0)]).await;
    super::promote_due(&talk.store).await;
    talk.processed(&[send("4")]).await;
    talk.happens(EventType::ToolResult, "43").await;
    talk.processed(&[send("5")]).await;
    let autonomous: Vec<(i64, bool)> =
        sqlx::query_as("SELECT event_seq, autonomous FROM effects WHERE type = 'send_message' ORDER BY event_seq")
            .fetch_all(&mut db)
            .await
            .unwrap();
    assert_eq!(autonomous, [(1, true), (2, false), (3, false), (4, true), (5, true)]);
}

#[tokio::test]
async fn nobody_else_checkpoints_or_sees_or_cancels_anything_in_a_session() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[send("x"), timer_in_an_hour("t")]).await;
    talk.user_says("more").await;
    let before = (talk.session().await, talk.effects().await);
    for stranger in ["ann", "bob"].map(|user| AgentKey::of(user).did.parse().unwrap()) {
        let key: &SessionKey = &talk.key;
        let store = &talk.store;
        let effects = [send("y")];
        let request = Request { checkpoint_id: "c9", event_seq: 2, effects: &effects };
        assert_eq!(store.checkpoint_if_owned(&stranger, key, &request).await.unwrap(), Checkpointed::NotOwned);
        assert_eq!(store.session_timers_if_owned(&stranger, key, 10).await.unwrap(), None);
        assert_eq!(store.find_session_timer_if_owned(&stranger, key, "t").await.unwrap(), None);
        assert_eq!(store.cancel_session_timer_if_owned(&stranger, key, "t").await.unwrap(), None);
        assert_eq!(store.open_stream_if_owned(&stranger, key).await.unwrap(), None);
        let acknowledged =
            store.acknowledge_if_owned(&stranger, key, before.1[0].id, &super::HASTE, None).await.unwrap();
        assert_eq!(acknowledged, chronos::store::effects::Acknowledged::NotFound);
        assert_eq!(store.effects_if_owned(&stranger, key, None, 10).await.unwrap(), None);
    }
    assert_eq!((talk.session().await, talk.effects().await), before);
}

#[tokio::test]
async fn a_cancelled_timer_stays_so_and_one_that_is_over_is_told_as_it_is() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[timer_in_an_hour("t"), timer("u", 0)]).await;
    super::promote_due(&talk.store).await;
    let cancel = async |id| talk.store.cancel_session_timer_if_owned(&talk.owner, &talk.key, id).await.unwrap();
    for _ in 0..2 {
        assert_eq!(cancel("t").await.unwrap().status, State::Cancelled);
    }
    assert_eq!(cancel("u").await.unwrap().status, State::Promoted);
    assert_eq!(cancel("v").await, None);
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now() WHERE status = 'cancelled'").await;
    assert_eq!(super::promote_due(&talk.store).await, [""; 0]);
}
