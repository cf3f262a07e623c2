//! Sends: in order, one at a time, to one connection; capped and cooled down where the agent was not asked.

use std::time::Duration;

use chrono::TimeDelta;
use chronos::{
    domain::session::{autonomy::Restraint, effect::EffectStatus},
    store::{effects::Acknowledged, streams::NextSend, wakes::WakeRoom},
};

use super::{HASTE, RESTRAINT, Talk, send};
use crate::support::{Database, alarms::execute};

const COMPLETED: Acknowledged = Acknowledged::Now { status: EffectStatus::Completed, reason: None };

/// A session whose agent has these to say unasked.
async fn unasked(database: &Database, contents: &[&str]) -> Talk {
    let talk = Talk::new(database).await;
    talk.timer_fires().await;
    let sends: Vec<_> = contents.iter().map(|content| send(content)).collect();
    talk.processed(&sends).await;
    talk
}

/// As if so many seconds had passed since the agent last spoke unasked.
async fn seconds_pass(database: &Database, seconds: i32) {
    let statement = "UPDATE sessions SET last_autonomous_at = last_autonomous_at - make_interval(secs => $1)";
    sqlx::query(statement).bind(f64::from(seconds)).execute(&mut database.connect().await).await.unwrap();
}

#[tokio::test]
async fn sends_go_out_in_order_one_at_a_time_and_each_has_its_number() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[send("one"), send("two")]).await;
    talk.user_says("more").await;
    talk.processed(&[send("three")]).await;
    let stream = talk.open_stream().await;
    for (seq, content) in [(1, "one"), (2, "two"), (3, "three")] {
        let outgoing = talk.sent(stream, &HASTE).await;
        assert_eq!((outgoing.seq, outgoing.content.as_str()), (seq, content));
        assert_eq!(talk.next_after(stream, &outgoing, &HASTE).await, NextSend::Unanswered);
        assert_eq!(talk.acknowledge(outgoing.id, &HASTE).await, COMPLETED);
        assert_eq!(talk.acknowledge(outgoing.id, &HASTE).await, COMPLETED, "again changes nothing");
    }
    assert_eq!(talk.next_send(stream, &HASTE).await, NextSend::Wait { again_in: None });
}

#[tokio::test]
async fn what_was_not_acknowledged_is_sent_again_under_the_same_number_and_counted_once() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["psst"]).await;
    let first = talk.open_stream().await;
    let sent = talk.sent(first, &RESTRAINT).await;
    talk.store.close_stream(&talk.key, first).await.unwrap();
    assert_eq!(talk.status_of(sent.id).await, EffectStatus::Pending);
    // At once, though the cooldown runs.
    let second = talk.open_stream().await;
    let again = talk.sent(second, &RESTRAINT).await;
    assert_eq!((again.id, again.seq, &again.dedupe_key), (sent.id, sent.seq, &sent.dedupe_key));
    assert_ne!(again.token, sent.token);
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 1);
    assert_eq!(talk.acknowledge(sent.id, &RESTRAINT).await, COMPLETED);
    assert_eq!(talk.effects().await.last().unwrap().attempt_count, 2);
}

#[tokio::test]
async fn a_newer_connection_takes_over_with_what_the_older_had_not_delivered() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let elsewhere = talk.elsewhere(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[send("one"), send("two")]).await;
    let older = talk.open_stream().await;
    let sent = talk.sent(older, &HASTE).await;
    let newer = elsewhere.open_stream().await;
    assert_eq!(talk.next_send(older, &HASTE).await, NextSend::TakenOver);
    let again = elsewhere.sent(newer, &HASTE).await;
    assert_eq!((again.id, again.seq), (sent.id, sent.seq));
    // The older one's end changes nothing any more.
    talk.store.close_stream(&talk.key, older).await.unwrap();
    assert_eq!(elsewhere.next_after(newer, &again, &HASTE).await, NextSend::Unanswered);
    assert_eq!(talk.acknowledge(sent.id, &HASTE).await, COMPLETED, "it has it, wherever it got it");
    assert_eq!(elsewhere.delivered(newer, &HASTE).await.content, "two");
}

#[tokio::test]
async fn a_crash_while_a_send_is_on_its_way_strands_it_for_no_longer_than_its_lease() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[send("one")]).await;
    let stream = talk.open_stream().await;
    let sent = talk.sent(stream, &HASTE).await;
    let beat = super::beat();
    let look = super::look(&beat);
    talk.store.look(&look).await.unwrap();
    let sweep =
        async || talk.store.claim_wakes(look.worker, Duration::from_secs(120), &WakeRoom::of(10)).await.unwrap();
    sweep().await;
    assert_eq!(talk.status_of(sent.id).await, EffectStatus::Executing, "its lease holds");
    execute(&mut database.connect().await, "UPDATE effects SET claimed_until = now() WHERE status = 'executing'").await;
    sweep().await;
    assert_eq!(talk.status_of(sent.id).await, EffectStatus::Pending);
}

#[tokio::test]
async fn a_send_whose_beginning_was_not_heard_of_is_sent_again_under_the_same_number() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["psst"]).await;
    let stream = talk.open_stream().await;
    // The answer to this was lost on the way.
    let lost = talk.sent(stream, &RESTRAINT).await;
    let sent = talk.sent(stream, &RESTRAINT).await;
    assert_eq!((sent.id, sent.seq), (lost.id, lost.seq));
    assert_eq!(talk.next_after(stream, &sent, &RESTRAINT).await, NextSend::Unanswered);
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 1, "and counted once");
}

#[tokio::test]
async fn two_runners_that_take_one_outbox_from_each_other_lose_nothing_and_keep_the_order() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let elsewhere = talk.elsewhere(&database).await;
    talk.user_says("hi").await;
    let contents: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    talk.processed(&contents.iter().map(|content| send(content)).collect::<Vec<_>>()).await;
    let run = async |talk: &Talk| {
        let mut stream = talk.open_stream().await;
        let mut sent = Vec::new();
        loop {
            match talk.next_send(stream, &HASTE).await {
                NextSend::Send(outgoing) => {
                    // Of every third the client says nothing, and comes back.
                    if outgoing.seq % 3 == 0 && sent.last() != Some(&outgoing.seq) {
                        stream = talk.open_stream().await;
                    } else {
                        assert_eq!(talk.acknowledge(outgoing.id, &HASTE).await, COMPLETED);
                    }
                    sent.push(outgoing.seq);
                }
                NextSend::TakenOver => stream = talk.open_stream().await,
                NextSend::Wait { again_in: None } => return sent,
                other @ (NextSend::Unanswered | NextSend::Wait { .. } | NextSend::Barred) => panic!("{other:?}"),
            }
        }
    };
    let (one, two) = tokio::join!(run(&talk), run(&elsewhere));
    for sent in [&one, &two] {
        assert!(sent.is_sorted(), "in order, also when one is sent again: {sent:?}");
    }
    let effects = talk.effects().await;
    assert!(effects.iter().all(|effect| effect.status == EffectStatus::Completed), "{effects:?}");
    let mut numbers: Vec<i64> = one.into_iter().chain(two).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=30).collect::<Vec<_>>());
    let placed: Vec<(i32, i64)> = sqlx::query_as("SELECT position, send_seq FROM effects ORDER BY position")
        .fetch_all(&mut database.connect().await)
        .await
        .unwrap();
    assert!(placed.iter().all(|(position, seq)| i64::from(*position) + 1 == *seq), "{placed:?}");
}

#[tokio::test]
async fn beyond_the_cap_a_send_is_suppressed_until_the_user_speaks() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["1", "2", "3", "4", "5"]).await;
    let stream = talk.open_stream().await;
    for n in 1..=3 {
        assert_eq!(talk.delivered(stream, &HASTE).await.seq, n);
    }
    assert_eq!(talk.next_send(stream, &HASTE).await, NextSend::Wait { again_in: None });
    let fates = talk.fates().await;
    let capped = ("suppressed", Some("cap".to_owned()));
    assert_eq!(fates[fates.len() - 2..], [capped.clone(), capped]);
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 3);

    talk.user_says("go on").await;
    talk.processed(&[send("a reply")]).await;
    talk.timer_fires().await;
    talk.processed(&[send("6")]).await;
    assert_eq!(talk.delivered(stream, &HASTE).await.content, "a reply");
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 0, "a reply does not count");
    assert_eq!(talk.delivered(stream, &HASTE).await.content, "6");
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 1);
}

#[tokio::test]
async fn inside_the_cooldown_a_send_waits_and_a_newer_one_takes_its_place() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["1", "2"]).await;
    let stream = talk.open_stream().await;
    talk.delivered(stream, &RESTRAINT).await;
    let NextSend::Wait { again_in: Some(wait) } = talk.next_send(stream, &RESTRAINT).await else { panic!("it waits") };
    assert!(wait > Duration::from_secs(10) && wait <= Duration::from_secs(15), "{wait:?}");
    talk.timer_fires().await;
    talk.processed(&[send("3")]).await;
    let NextSend::Wait { again_in: Some(_) } = talk.next_send(stream, &RESTRAINT).await else { panic!("it waits") };
    let effects = talk.effects().await;
    let second = effects.iter().find(|effect| effect.payload.as_str().contains("\"2\"")).unwrap();
    assert_eq!((second.status.as_str(), second.reason.as_deref()), ("suppressed", Some("superseded")));
    seconds_pass(&database, 14).await;
    let NextSend::Wait { again_in: Some(wait) } = talk.next_send(stream, &RESTRAINT).await else { panic!("not yet") };
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
    seconds_pass(&database, 1).await;
    assert_eq!(talk.delivered(stream, &RESTRAINT).await.content, "3");
}

#[tokio::test]
async fn a_user_message_resets_the_cooldown() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["1"]).await;
    let stream = talk.open_stream().await;
    talk.delivered(stream, &RESTRAINT).await;
    talk.user_says("hm").await;
    talk.processed(&[]).await;
    talk.timer_fires().await;
    talk.processed(&[send("2")]).await;
    assert_eq!(talk.delivered(stream, &RESTRAINT).await.content, "2");
}

#[tokio::test]
async fn cap_and_cooldown_hold_however_many_ask_at_once() {
    let database = Database::fresh().await;
    let contents: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let talk = unasked(&database, &contents.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let elsewhere = talk.elsewhere(&database).await;
    let sends: Vec<_> =
        talk.effects().await.into_iter().filter(|effect| effect.status == EffectStatus::Pending).collect();
    // Clients without a socket, all at once, on two replicas.
    let asked = sends.iter().enumerate().map(|(n, effect)| {
        let talk = if n % 2 == 0 { &talk } else { &elsewhere };
        talk.acknowledge(effect.id, &HASTE)
    });
    let answers = futures::future::join_all(asked).await;
    assert_eq!(answers.iter().filter(|answer| **answer == COMPLETED).count(), 3, "{answers:?}");
    assert_eq!(talk.session().await.consecutive_autonomous_msgs, 3);

    let talk = Talk::with(talk.store.clone(), "bob", "other");
    talk.timer_fires().await;
    let elsewhere = talk.elsewhere(&database).await;
    talk.processed(&contents.iter().map(|content| send(content)).collect::<Vec<_>>()).await;
    let sends: Vec<_> =
        talk.effects().await.into_iter().filter(|effect| effect.status == EffectStatus::Pending).collect();
    let asked = sends.iter().enumerate().map(|(n, effect)| {
        let talk = if n % 2 == 0 { &talk } else { &elsewhere };
        talk.acknowledge(effect.id, &RESTRAINT)
    });
    let answers = futures::future::join_all(asked).await;
    assert_eq!(answers.iter().filter(|answer| **answer == COMPLETED).count(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_client_without_a_socket_is_held_to_the_same_cap_and_cooldown() {
    let database = Database::fresh().await;
    let talk = unasked(&database, &["1", "2"]).await;
    let effects = talk.effects().await;
    let sends: Vec<_> = effects.iter().filter(|effect| effect.status == EffectStatus::Pending).collect();
    // Of the wake, which is nobody's to acknowledge, and of the timer, nothing.
    for other in effects.iter().filter(|effect| effect.effect_type.as_str() != "send_message") {
        assert_eq!(talk.acknowledge(other.id, &RESTRAINT).await, Acknowledged::NotFound);
    }
    let sends: Vec<_> = sends.into_iter().filter(|effect| effect.effect_type.as_str() == "send_message").collect();
    assert_eq!(talk.acknowledge(sends[0].id, &RESTRAINT).await, COMPLETED);
    let Acknowledged::TooSoon { not_before } = talk.acknowledge(sends[1].id, &RESTRAINT).await else {
        panic!("inside the cooldown")
    };
    let last = talk.session().await.last_autonomous_at.unwrap();
    assert_eq!(not_before - last, TimeDelta::seconds(15));
    seconds_pass(&database, 15).await;
    assert_eq!(talk.acknowledge(sends[1].id, &RESTRAINT).await, COMPLETED);
    let silent = Restraint { max_consecutive: 2, ..HASTE };
    talk.timer_fires().await;
    talk.processed(&[send("3")]).await;
    let third = talk.effects().await.last().unwrap().id;
    let capped = Acknowledged::Now { status: EffectStatus::Suppressed, reason: Some("cap".to_owned()) };
    assert_eq!(talk.acknowledge(third, &silent).await, capped);
    assert_eq!(talk.acknowledge(third, &HASTE).await, capped, "for good");
}
