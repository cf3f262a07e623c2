//! A timer comes due: an event of its session, exactly once, and a wake that tells the agent.

use std::time::Duration;

use chronos::{
    domain::{
        ids::WorkerId,
        occurrence::{Next, Outcome, Settled},
        session::{autonomy::EventType, effect::EffectType},
        wake::Addressee,
    },
    store::{
        Store,
        claims::{Attempt, Claim, Settlement},
        session_timers::State,
        streams::NextSend,
        wakes::{WakeFate, WakeResult, WakeRoom},
    },
};
use uuid::Uuid;

use super::{Talk, beat, count, look, promote_due, send, timer, timer_at, timer_in_an_hour};
use crate::support::{Database, alarms::execute};

const LEASE: Duration = Duration::from_secs(120);

/// Promotes what these claims give the right to; the outcomes.
pub async fn promote(store: &Store, worker: WorkerId, claims: &[Claim]) -> Vec<&'static str> {
    let settlements: Vec<Settlement> = claims
        .iter()
        .map(|claim| {
            let attempt = Attempt {
                started_at: claim.claimed_at,
                duration: Duration::ZERO,
                http_status: None,
                error: String::new(),
            };
            Settlement::answered(
                claim,
                Settled { next: Next::Fired, passed: None, missed: 0 },
                claim.claimed_at,
                attempt,
            )
        })
        .collect();
    let both: Vec<_> = claims.iter().zip(&settlements).collect();
    store.promote_under_token(worker, &both).await.unwrap().into_iter().map(Outcome::as_str).collect()
}

#[tokio::test]
async fn a_timer_that_comes_due_becomes_an_event_and_a_wake_in_one_transaction() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("remind me").await;
    talk.processed(&[timer("tea", 0), timer_in_an_hour("cake")]).await;
    assert_eq!(promote_due(&talk.store).await, ["delivered"]);

    let events = talk.events().await;
    assert_eq!((events[1].seq, events[1].event_type), (2, EventType::Timer));
    assert_eq!(events[1].payload.as_str(), r#"{"timer_id":"tea","payload":{"n": 1e1}}"#, "to the byte");
    let timers = talk.store.session_timers_if_owned(&talk.owner, &talk.key, 10).await.unwrap().unwrap();
    let told: Vec<_> = timers.iter().map(|timer| (timer.timer_id.as_str(), timer.status)).collect();
    assert_eq!(told, [("tea", State::Promoted), ("cake", State::Pending)]);
    let wake = talk.effects().await.into_iter().find(|effect| effect.effect_type == EffectType::Wake).unwrap();
    assert_eq!(wake.checkpoint_id, format!("timer:{}", events[1].id));

    let worker = WorkerId::from_uuid(Uuid::new_v4());
    assert!(
        talk.store.claim_wakes(worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.is_empty(),
        "a worker that does not beat has nobody to take over from it"
    );
    let beat = beat();
    let look = look(&beat);
    talk.store.look(&look).await.unwrap();
    let claims = talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims;
    assert_eq!(claims.len(), 1);
    let told = &claims[0].wake;
    let to = Addressee::Session { key: talk.key.clone(), timer_id: "tea".to_owned(), event_seq: 2 };
    assert_eq!((&told.to, told.conversation_id.as_str(), told.message.as_str()), (&to, "thread", ""));
    assert_eq!((told.user_id.as_str(), told.payload.as_str(), told.attempt), ("ann", "{\"n\": 1e1}", 1));
    assert_eq!(told.owner_did, talk.owner.as_str());
    let done = [WakeResult { id: claims[0].id, token: claims[0].token, fate: WakeFate::Completed }];
    assert_eq!(talk.store.settle_wakes_under_token(&done).await.unwrap(), 1);
    assert_eq!(talk.store.settle_wakes_under_token(&done).await.unwrap(), 0, "a second time changes nothing");
    assert_eq!(
        count(&mut database.connect().await, "SELECT count(*) FROM attempts WHERE outcome = 'delivered'").await,
        1
    );
}

#[tokio::test]
async fn a_promotion_that_is_repeated_because_its_answer_was_lost_happens_once() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    talk.processed(&[timer("a", 0), timer("b", 1), timer("c", 2)]).await;
    let beat = beat();
    let look = look(&beat);
    let claims = talk.store.look(&look).await.unwrap().claims;
    for _ in 0..3 {
        assert_eq!(promote(&talk.store, look.worker, &claims).await, ["delivered"; 3]);
    }
    let events = talk.events().await;
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let due: Vec<_> = events[1..].iter().map(|event| event.payload.as_str().chars().nth(13).unwrap()).collect();
    assert_eq!(due, ['a', 'b', 'c'], "in the order in which they were due");
    assert_eq!(talk.effects().await.iter().filter(|effect| effect.effect_type == EffectType::Wake).count(), 3);
    assert_eq!(count(&mut database.connect().await, "SELECT count(*) FROM attempts").await, 3);
}

#[tokio::test]
async fn whoever_lost_the_claim_promotes_nothing() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    let beat = beat();
    talk.user_says("hi").await;

    // Its lease ended, and another has it.
    talk.processed(&[timer("t", 0)]).await;
    let late = look(&beat);
    let lost = talk.store.look(&late).await.unwrap().claims;
    execute(&mut db, "UPDATE alarms SET claimed_until = now() WHERE status = 'active'").await;
    let other = look(&beat);
    let claims = talk.store.look(&other).await.unwrap().claims;
    assert_eq!(promote(&talk.store, late.worker, &lost).await, ["fenced"]);
    assert_eq!(talk.events().await.len(), 1);
    assert_eq!(promote(&talk.store, other.worker, &claims).await, ["delivered"]);
    assert_eq!(promote(&talk.store, late.worker, &lost).await, ["fenced"]);
    assert_eq!(talk.events().await.len(), 2);

    // It was planned anew.
    talk.processed(&[timer("t", 0)]).await;
    let claims = talk.store.look(&other).await.unwrap().claims;
    talk.happens(EventType::ToolResult, "again").await;
    talk.processed(&[timer_in_an_hour("t")]).await;
    assert_eq!(promote(&talk.store, other.worker, &claims).await, ["fenced"]);

    // Its owner cancelled it.
    talk.happens(EventType::ToolResult, "again").await;
    talk.processed(&[timer("t", 0)]).await;
    let claims = talk.store.look(&other).await.unwrap().claims;
    let cancelled = talk.store.cancel_session_timer_if_owned(&talk.owner, &talk.key, "t").await.unwrap().unwrap();
    assert_eq!(cancelled.status, State::Cancelled);
    assert_eq!(promote(&talk.store, other.worker, &claims).await, ["cancelled"]);
    assert_eq!(talk.events().await.len(), 4);
    assert_eq!(talk.effects().await.iter().filter(|effect| effect.effect_type == EffectType::Wake).count(), 1);
}

#[tokio::test]
async fn a_user_message_that_races_a_promotion_comes_before_it_or_after_it() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let other = talk.elsewhere(&database).await;
    talk.user_says("hi").await;
    let (mut promoted, mut cancelled) = (0, 0);
    for round in 0..20 {
        talk.processed(&[timer("t", round)]).await;
        let beat = beat();
        let look = look(&beat);
        let claims = talk.store.look(&look).await.unwrap().claims;
        assert_eq!(claims.len(), 1);
        let before = talk.session().await.last_seq;
        let (outcomes, message) = if round % 2 == 0 {
            tokio::join!(promote(&other.store, look.worker, &claims), talk.user_says("stop"))
        } else {
            let (message, outcomes) = tokio::join!(talk.user_says("stop"), promote(&other.store, look.worker, &claims));
            (outcomes, message)
        };
        let state = talk.store.find_session_timer_if_owned(&talk.owner, &talk.key, "t").await.unwrap().unwrap().status;
        let fired = match outcomes[..] {
            ["delivered"] => true,
            ["cancelled"] => false,
            _ => panic!("{outcomes:?}"),
        };
        assert_eq!(state, if fired { State::Promoted } else { State::Cancelled });
        assert_eq!(talk.session().await.last_seq, before + 1 + i64::from(fired));
        assert_eq!(message.seq, before + 1 + i64::from(fired), "a promotion that won came first");
        promoted += i32::from(fired);
        cancelled += i32::from(!fired);
        while talk.session().await.event_seq + 1 < talk.session().await.last_seq {
            talk.processed(&[]).await;
        }
    }
    assert_eq!(promoted + cancelled, 20);
    let seqs: Vec<i64> = talk.events().await.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=i64::try_from(seqs.len()).unwrap()).collect::<Vec<_>>());
}

#[tokio::test]
async fn one_key_is_one_timer_however_often_it_is_set() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    for n in 0..3 {
        talk.happens(EventType::ToolResult, "go").await;
        talk.processed(&[timer_in_an_hour("t"), timer("u", n)]).await;
    }
    let mut db = database.connect().await;
    let rows = "SELECT count(*) FROM autonomy_timers";
    assert_eq!(count(&mut db, rows).await, 2);
    let pending = "SELECT count(*) FROM autonomy_timers WHERE status = 'pending'";
    assert_eq!(count(&mut db, pending).await, 2);
    assert_eq!(promote_due(&talk.store).await, ["delivered"]);
    assert_eq!(promote_due(&talk.store).await, [""; 0], "once");
    // One that fired is set again, and fires again.
    talk.processed(&[timer("u", 9)]).await;
    assert_eq!(promote_due(&talk.store).await, ["delivered"]);
    assert_eq!((count(&mut db, rows).await, count(&mut db, pending).await), (2, 1));
    let delivery_ids = "SELECT count(DISTINCT delivery_id) FROM attempts";
    assert_eq!(count(&mut db, delivery_ids).await, 2, "another occurrence, another id");
}

#[tokio::test]
async fn timers_of_many_sessions_are_promoted_together_and_none_touches_another() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let talks: Vec<Talk> = (0..20).map(|n| Talk::with(store.clone(), "ann", &n.to_string())).collect();
    for talk in &talks {
        talk.user_says("hi").await;
        talk.processed(&[timer("t", 0), timer("u", 1)]).await;
    }
    assert_eq!(promote_due(&store).await, ["delivered"; 40]);
    for talk in &talks {
        assert_eq!(talk.events().await.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(talk.session().await.last_seq, 3);
    }
}

#[tokio::test]
async fn a_wake_climbs_its_ladder_and_is_given_up_and_a_crash_strands_none() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    talk.timer_fires().await;
    let beat = beat();
    let look = look(&beat);
    talk.store.look(&look).await.unwrap();
    let claim = async || talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap();
    let first = claim().await.claims.remove(0);
    assert!(claim().await.claims.is_empty(), "it is claimed");

    // Claimed and not sent, however often, is no attempt.
    let not_sent = WakeResult { id: first.id, token: first.token, fate: WakeFate::NotSent };
    assert_eq!(talk.store.settle_wakes_under_token(&[not_sent]).await.unwrap(), 1);
    let wake = talk.effects().await.into_iter().find(|effect| effect.effect_type == EffectType::Wake).unwrap();
    assert_eq!((wake.status.as_str(), wake.attempt_count, wake.last_attempt_at), ("pending", 0, None));
    let first = claim().await.claims.remove(0);
    assert_eq!((first.failure_count, first.unanswered), (0, 1));

    // The lease of one whose worker died ends: it is pending for a moment, and claimed again under another token.
    execute(&mut db, "UPDATE effects SET claimed_until = now() WHERE status = 'executing'").await;
    assert_eq!(claim().await.next_in, Some(Duration::ZERO));
    let again = claim().await.claims.remove(0);
    assert_eq!((again.id, again.wake.delivery_id), (first.id, first.wake.delivery_id));
    assert_eq!((again.failure_count, again.unanswered), (0, 2));
    let retry = |claim: &chronos::store::wakes::WakeClaim| WakeResult {
        id: claim.id,
        token: claim.token,
        fate: WakeFate::Retry { after: Duration::from_secs(60), why: "HTTP 503".to_owned() },
    };
    assert_eq!(talk.store.settle_wakes_under_token(&[retry(&first)]).await.unwrap(), 0, "fenced");
    assert_eq!(talk.store.settle_wakes_under_token(&[retry(&again)]).await.unwrap(), 1);
    let wait = claim().await.next_in.unwrap();
    assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(60), "{wait:?}");
    execute(&mut db, "UPDATE effects SET not_before = now() WHERE type = 'wake'").await;
    let third = claim().await.claims.remove(0);
    assert_eq!((third.failure_count, third.wake.attempt, third.wake.delivery_id), (1, 2, first.wake.delivery_id));
    let failed = WakeResult { id: third.id, token: third.token, fate: WakeFate::Failed { why: "HTTP 503".to_owned() } };
    talk.store.settle_wakes_under_token(&[failed]).await.unwrap();
    let wake = talk.effects().await.into_iter().find(|effect| effect.effect_type == EffectType::Wake).unwrap();
    assert_eq!((wake.status.as_str(), wake.reason.as_deref(), wake.attempt_count), ("failed", Some("HTTP 503"), 3));
}

#[tokio::test]
async fn two_dispatchers_on_one_outbox_never_deliver_the_same_wake() {
    let database = Database::fresh().await;
    let (one, other) = (Talk::new(&database).await, database.store().await);
    one.user_says("hi").await;
    let names: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    one.processed(&names.iter().map(|name| timer(name, 0)).collect::<Vec<_>>()).await;
    assert_eq!(promote_due(&one.store).await.len(), 50);
    let run = async |store: &Store| {
        let beat = beat();
        let look = look(&beat);
        store.look(&look).await.unwrap();
        let mut ids = Vec::new();
        loop {
            let claims = store.claim_wakes(look.worker, LEASE, &WakeRoom::of(3)).await.unwrap().claims;
            if claims.is_empty() {
                return ids;
            }
            let results =
                claims.iter().map(|claim| WakeResult { id: claim.id, token: claim.token, fate: WakeFate::Completed });
            let results: Vec<WakeResult> = results.collect();
            assert_eq!(store.settle_wakes_under_token(&results).await.unwrap(), results.len() as u64);
            ids.extend(claims.into_iter().map(|claim| claim.id));
        }
    };
    let (mut ids, more) = tokio::join!(run(&one.store), run(&other));
    ids.extend(more);
    assert_eq!(ids.len(), 50);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 50);
}

#[tokio::test]
async fn what_a_dead_dispatcher_held_is_free_as_soon_as_it_is_found_dead() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.timer_fires().await;
    let beat = beat();
    let (dead, heir) = (look(&beat), look(&beat));
    talk.store.look(&dead).await.unwrap();
    assert_eq!(talk.store.claim_wakes(dead.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.len(), 1);
    let peers = talk.store.look(&heir).await.unwrap().peers.unwrap();
    let seen = peers.iter().find(|peer| peer.worker == dead.worker).unwrap();
    talk.store.release_if_still_at(seen).await.unwrap().expect("it was there");
    assert_eq!(talk.store.claim_wakes(heir.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.len(), 1);
}

#[tokio::test]
async fn timers_and_wakes_of_a_suspended_agent_wait() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    talk.timer_fires().await;
    talk.processed(&[timer("u", 0)]).await;
    let enrol = format!(
        "INSERT INTO agents (did, public_key, source, suspended)
         VALUES ('{}', right('{0}', 16) || repeat('0', 48), 'cli', true)",
        talk.owner
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(enrol)).execute(&mut db).await.unwrap();
    let beat = beat();
    let look = look(&beat);
    assert!(talk.store.look(&look).await.unwrap().claims.is_empty());
    assert!(talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.is_empty());
    execute(&mut db, "UPDATE agents SET suspended = false").await;
    assert_eq!(talk.store.look(&look).await.unwrap().claims.len(), 1);
    assert_eq!(talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.len(), 1);
}

#[tokio::test]
async fn whoever_is_removed_is_woken_no_more_and_enrolled_again_finds_what_waited() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    let mut db = database.connect().await;
    let enrol = format!(
        "INSERT INTO agents (did, public_key, source) VALUES ('{}', right('{0}', 16) || repeat('0', 48), 'cli')",
        talk.owner
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(enrol.clone())).execute(&mut db).await.unwrap();
    talk.timer_fires().await;
    talk.processed(&[send("unasked"), timer("u", 0)]).await;
    let stream = talk.open_stream().await;
    execute(&mut db, "DELETE FROM agents").await;
    let beat = beat();
    let look = look(&beat);
    assert!(talk.store.look(&look).await.unwrap().claims.is_empty());
    assert!(talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.is_empty());
    assert_eq!(talk.next_send(stream, &super::HASTE).await, NextSend::Barred);
    sqlx::raw_sql(sqlx::AssertSqlSafe(enrol)).execute(&mut db).await.unwrap();
    assert_eq!(talk.store.look(&look).await.unwrap().claims.len(), 1);
    assert_eq!(talk.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap().claims.len(), 1);
    assert_eq!(talk.sent(stream, &super::HASTE).await.content, "unasked");
}

#[tokio::test]
async fn one_owners_crowd_of_wakes_leaves_room_for_the_others() {
    let database = Database::fresh().await;
    let ann = Talk::new(&database).await;
    let bob = Talk::with(ann.store.clone(), "bob", "thread");
    ann.user_says("hi").await;
    let names: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    ann.processed(&names.iter().map(|name| timer(name, 0)).collect::<Vec<_>>()).await;
    promote_due(&ann.store).await;
    bob.timer_fires().await;
    let beat = beat();
    let look = look(&beat);
    ann.store.look(&look).await.unwrap();
    let mut room = WakeRoom { wakes: 30, of_owner: 8, owners: Vec::new() };
    let owners = async |room: &WakeRoom| {
        let claims = ann.store.claim_wakes(look.worker, LEASE, room).await.unwrap().claims;
        claims.into_iter().map(|claim| claim.wake.user_id).collect::<Vec<_>>()
    };
    let first = owners(&room).await;
    assert_eq!((first.len(), first.iter().filter(|user| *user == "bob").count()), (9, 1), "{first:?}");
    // She has as many in flight as she may.
    room.owners = vec![(ann.owner.as_str().to_owned(), 0)];
    assert!(owners(&room).await.is_empty());
    room.owners = vec![(ann.owner.as_str().to_owned(), 3)];
    assert_eq!(owners(&room).await, ["ann"; 3]);
}

#[tokio::test]
async fn no_payload_keeps_anybody_elses_wake_from_going_out() {
    let database = Database::fresh().await;
    let eve = Talk::new(&database).await;
    let bob = Talk::with(eve.store.clone(), "bob", "thread");
    let past = "2020-01-01T00:00:00Z".parse().unwrap();
    eve.user_says("hi").await;
    // Half of a pair: JSON, though no text, and Postgres stumbles over it when it unescapes.
    eve.processed(&[timer_at("half", past, Some(r#""\ud800""#))]).await;
    bob.user_says("hi").await;
    bob.processed(&[timer("whole", 0)]).await;
    assert_eq!(promote_due(&eve.store).await, ["delivered"; 2]);
    let beat = beat();
    let look = look(&beat);
    eve.store.look(&look).await.unwrap();
    let found = eve.store.claim_wakes(look.worker, LEASE, &WakeRoom::of(10)).await.unwrap();
    let mut payloads: Vec<_> = found.claims.iter().map(|claim| claim.wake.payload.as_str()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, [r#""\ud800""#, "{\"n\": 1e1}"]);
}

#[tokio::test]
async fn a_timer_without_a_payload_says_so_everywhere() {
    let database = Database::fresh().await;
    let talk = Talk::new(&database).await;
    talk.user_says("hi").await;
    let past = "2020-01-01T00:00:00Z".parse().unwrap();
    talk.processed(&[timer_at("bare", past, None), timer_at("empty", past, Some("{}")), send("x")]).await;
    promote_due(&talk.store).await;
    let events = talk.events().await;
    let mut payloads: Vec<_> = events[1..].iter().map(|event| event.payload.as_str()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, [r#"{"timer_id":"bare"}"#, r#"{"timer_id":"empty","payload":{}}"#]);
    let mut db = database.connect().await;
    let none = "SELECT count(*) FROM autonomy_timers WHERE payload IS NULL AND timer_id = 'bare'";
    assert_eq!(count(&mut db, none).await, 1);
    let timer = talk.store.find_session_timer_if_owned(&talk.owner, &talk.key, "bare").await.unwrap().unwrap();
    assert_eq!(timer.payload.as_str(), "null");
}
