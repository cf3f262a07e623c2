//! Claims and settles, statement by statement.

use std::time::Duration;

use chronos::{
    config,
    domain::{
        alarm::{Draft, Status, Subject},
        ids::{ServiceCallId, WorkerId},
        ladder::Ladder,
        occurrence::{self, Answer, Outcome},
        wake::Addressee,
    },
    store::{
        self, Store,
        alarms::Alarm,
        claims::{Attempt, Backlog, Claim, Found, Look, Room, SessionTimer, Settlement},
    },
};
use uuid::Uuid;

use super::{a_beat, ann, bob, create, did_of, execute, history, in_an_hour, look, read};
use crate::support::{Database, Proxy};

const LADDER: Ladder = Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.0 };

/// What the router's answer comes to, two seconds after the claim.
pub fn settlement(claim: &Claim, answer: &Answer) -> Settlement {
    let now = claim.claimed_at + Duration::from_secs(2);
    let settled = occurrence::next(&claim.occurrence(), answer, &LADDER, now, 0.5);
    let attempt = Attempt {
        started_at: claim.claimed_at + Duration::from_secs(1),
        duration: Duration::from_secs(1),
        http_status: answer.http_status(),
        error: answer.error().to_owned(),
    };
    Settlement::answered(claim, settled, now, attempt)
}

pub fn accepted(claim: &Claim) -> Settlement {
    settlement(claim, &Answer::Accepted { http_status: 202 })
}

pub fn worker() -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(9))
}

async fn claim_with(store: &Store, room: Room<'_>) -> Found {
    store.look(&Look { room, ..look(&a_beat()) }).await.unwrap()
}

fn room() -> Room<'static> {
    Room { rows: 100, bytes: usize::MAX, of_owner: 100, owners: Vec::new() }
}

/// Alarms due one after another, a second apart, the first the oldest.
pub async fn due(database: &Database, store: &Store, drafts: Vec<Draft>) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    for (number, draft) in drafts.into_iter().enumerate() {
        let alarm = create(store, &ann(), draft).await;
        let due = format!(
            "UPDATE alarms SET next_fire_at = now() - interval '1 min' + interval '{number} s' WHERE id = '{}'",
            alarm.id
        );
        execute(&mut database.connect().await, &due).await;
        alarms.push(alarm);
    }
    alarms
}

fn ids(claims: &[Claim]) -> Vec<Uuid> {
    let mut ids: Vec<_> = claims.iter().map(|claim| claim.wake.alarm_id.as_uuid()).collect();
    ids.sort();
    ids
}

fn ids_of(alarms: &[&Alarm]) -> Vec<Uuid> {
    let mut ids: Vec<_> = alarms.iter().map(|alarm| alarm.id.as_uuid()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn an_occurrence_claimed_four_times_without_a_result_is_claimed_alone_from_then_on() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarms = due(&database, &store, vec![in_an_hour(), in_an_hour(), in_an_hour()]).await;
    let suspect = |number: usize| {
        format!("UPDATE alarms SET claims = 4, first_claimed_at = now() WHERE id = '{}'", alarms[number].id)
    };
    // Not the oldest: the others go first, without it.
    execute(&mut database.connect().await, &suspect(1)).await;
    assert_eq!(ids(&claim_with(&store, room()).await.claims), ids_of(&[&alarms[0], &alarms[2]]));
    let alone = claim_with(&store, room()).await.claims;
    assert_eq!((ids(&alone), alone[0].claims), (ids_of(&[&alarms[1]]), 5));
    assert!(claim_with(&store, room()).await.claims.is_empty());

    // The oldest: it goes first, and nothing with it.
    let fresh = due(&database, &store, vec![in_an_hour(), in_an_hour()]).await;
    let oldest = format!("UPDATE alarms SET claims = 4, first_claimed_at = now() WHERE id = '{}'", fresh[0].id);
    execute(&mut database.connect().await, &oldest).await;
    let beat = a_beat();
    let without = Look { suspects: false, ..look(&beat) };
    assert_eq!(
        ids(&store.look(&without).await.unwrap().claims),
        ids_of(&[&fresh[1]]),
        "while another one is in flight"
    );
    assert_eq!(ids(&claim_with(&store, room()).await.claims), ids_of(&[&fresh[0]]));
}

#[tokio::test]
async fn a_claim_takes_no_more_than_fits_in_memory_and_always_the_oldest() {
    let database = Database::fresh().await;
    let store = database.store().await;
    // Random, so that it is as large in the table as it is.
    let noise: String = (0..1_000).map(|_| Uuid::new_v4().simple().to_string()).collect();
    let large = || Draft { wake_message: noise.clone(), ..in_an_hour() };
    let alarms = due(&database, &store, vec![large(), large(), large()]).await;
    let first = claim_with(&store, Room { bytes: 1, ..room() }).await.claims;
    assert_eq!(ids(&first), ids_of(&[&alarms[0]]), "one at least");
    let rest = claim_with(&store, Room { bytes: 40_000, ..room() }).await.claims;
    assert_eq!(ids(&rest), ids_of(&[&alarms[1], &alarms[2]]));
}

#[tokio::test]
async fn a_payload_that_repeats_itself_weighs_what_it_weighs_in_memory() {
    /// Without the words around it.
    const EACH: usize = 200_000;
    let database = Database::fresh().await;
    let store = database.store().await;
    let payload = format!("{{\"again\":\"{}\"}}", "and again ".repeat(EACH / 10));
    let large = || Draft { payload: Some(payload.clone()), ..in_an_hour() };
    let alarms = due(&database, &store, (0..20).map(|_| large()).collect()).await;
    let found = claim_with(&store, Room { bytes: 5 * EACH, ..room() }).await.claims;
    assert_eq!(ids(&found), ids_of(&alarms[..5].iter().collect::<Vec<_>>()));
}

#[tokio::test]
async fn an_owner_with_more_due_than_room_is_told_of_and_takes_no_more() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarms = due(&database, &store, vec![in_an_hour(), in_an_hour(), in_an_hour()]).await;
    let other = create(&store, &bob(), in_an_hour()).await;
    execute(
        &mut database.connect().await,
        &format!("UPDATE alarms SET next_fire_at = now() WHERE id = '{}'", other.id),
    )
    .await;
    let ann = ann();
    let found = claim_with(&store, Room { owners: vec![(ann.as_str(), 2)], ..room() }).await;
    assert_eq!(ids(&found.claims), ids_of(&[&alarms[0], &alarms[1], &other]));
    assert_eq!(found.crowded, [ann.as_str()]);
}

#[tokio::test]
async fn a_settle_that_is_sent_again_changes_nothing_and_answers_the_same() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let [alarm] = due(&database, &store, vec![in_an_hour()]).await.try_into().unwrap();
    let [claim] = claim_with(&store, room()).await.claims.try_into().unwrap();
    let delivered = accepted(&claim);
    for _ in 0..3 {
        let outcomes = store.settle_under_token(worker(), &[(&claim, &delivered)]).await.unwrap();
        assert_eq!(outcomes, [Outcome::Delivered]);
    }
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.status, stored.fired_count), (Status::Fired, 1));
    assert_eq!(history(&database, &alarm).await.len(), 1);
}

#[tokio::test]
async fn of_a_batch_each_is_settled_by_its_own_claim_whatever_became_of_the_others() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarms = due(&database, &store, (0..4).map(|_| in_an_hour()).collect()).await;
    let claims = claim_with(&store, room()).await.claims;
    let of = |alarm: &Alarm| claims.iter().find(|claim| claim.wake.alarm_id == alarm.id).unwrap();
    store.cancel_if_owned(&ann(), alarms[1].id).await.unwrap();
    // Lost, and claimed again by somebody else.
    let expired = format!("UPDATE alarms SET claimed_until = now() WHERE id = '{}'", alarms[2].id);
    execute(&mut database.connect().await, &expired).await;
    let [again] = claim_with(&store, room()).await.claims.try_into().unwrap();
    let gone = format!("DELETE FROM alarms WHERE id = '{}'", alarms[3].id);
    execute(&mut database.connect().await, &gone).await;

    let settlements: Vec<_> = alarms.iter().map(|alarm| (of(alarm), accepted(of(alarm)))).collect();
    let mut batch: Vec<_> = settlements.iter().map(|(claim, settlement)| (*claim, settlement)).collect();
    // Both claims of one alarm may come to one batch.
    let second = accepted(&again);
    batch.push((&again, &second));
    let outcomes = store.settle_under_token(worker(), &batch).await.unwrap();
    assert_eq!(
        outcomes,
        [Outcome::Delivered, Outcome::Cancelled, Outcome::Fenced, Outcome::Cancelled, Outcome::Delivered]
    );
    assert_eq!(read(&store, &alarms[1]).await.status, Status::Cancelled);
    let stored = read(&store, &alarms[2]).await;
    assert_eq!((stored.status, stored.fired_count), (Status::Fired, 1));
    let told: Vec<String> = history(&database, &alarms[2]).await.into_iter().map(|entry| entry.0).collect();
    assert_eq!(told, ["fenced", "delivered"]);
}

#[tokio::test]
async fn a_retry_keeps_the_occurrence_and_what_its_wake_tells_of() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let [alarm] = due(&database, &store, vec![in_an_hour()]).await.try_into().unwrap();
    execute(&mut database.connect().await, "UPDATE alarms SET occurrence_missed = 3").await;
    let [claim] = claim_with(&store, room()).await.claims.try_into().unwrap();
    let answer = Answer::Unavailable { why: "HTTP 503".into(), http_status: Some(503), retry_after: None };
    store.settle_under_token(worker(), &[(&claim, &settlement(&claim, &answer))]).await.unwrap();
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.failure_count, stored.last_error.as_str()), (1, "HTTP 503"));
    assert_eq!(stored.next_fire_at, claim.claimed_at + Duration::from_secs(32));
    execute(&mut database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let [again] = claim_with(&store, room()).await.claims.try_into().unwrap();
    assert_eq!((again.wake.delivery_id, again.wake.attempt, again.wake.missed), (claim.wake.delivery_id, 2, 3));
}

#[tokio::test]
async fn past_a_backlog_what_became_due_since_is_found_at_once_and_what_was_overlooked_by_the_survey() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (ann, bob, carol) = (ann(), bob(), did_of("carol"));
    due(&database, &store, vec![in_an_hour(), in_an_hour()]).await;
    let (fresh, overlooked) = (create(&store, &bob, in_an_hour()).await, create(&store, &carol, in_an_hour()).await);
    let statement = format!(
        "UPDATE alarms SET next_fire_at = now() WHERE id = '{}';
         UPDATE alarms SET next_fire_at = now() - interval '1 h' WHERE id = '{}'",
        fresh.id, overlooked.id
    );
    execute(&mut database.connect().await, &statement).await;
    let seen_until = store.now().await.unwrap() - Duration::from_secs(30);
    let beat = a_beat();
    let past = |survey, room_of_ann| Look {
        room: Room { owners: vec![(ann.as_str(), room_of_ann)], ..room() },
        backlog: Some(Backlog { owners: vec![ann.as_str()], seen_until, survey }),
        ..look(&beat)
    };
    let found = store.look(&past(false, 0)).await.unwrap();
    assert_eq!((ids(&found.claims), found.crowded.len(), found.whole), (ids_of(&[&fresh]), 0, true));
    let found = store.look(&past(true, 0)).await.unwrap();
    assert_eq!((ids(&found.claims), found.crowded.len()), (ids_of(&[&overlooked]), 0));
    let found = store.look(&past(false, 1)).await.unwrap();
    assert_eq!((found.claims.len(), &*found.crowded), (1, &[ann.as_str().to_owned()][..]), "room for one of two");
    let found = store.look(&past(false, 1)).await.unwrap();
    assert_eq!((found.claims.len(), found.crowded.len()), (1, 0), "the last");
}

#[tokio::test]
async fn a_suspended_owners_rows_are_passed_over_and_told_of_whichever_way_is_looked() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let (ann, beat) = (ann(), a_beat());
    due(&database, &store, vec![in_an_hour(), in_an_hour()]).await;
    let other = create(&store, &bob(), in_an_hour()).await;
    execute(&mut db, &format!("UPDATE alarms SET next_fire_at = now() WHERE id = '{}'", other.id)).await;
    execute(
        &mut db,
        &format!(
            "INSERT INTO agents (did, public_key, suspended, source)
             VALUES ('{}', 'd75a980182b10ab7' || repeat('0', 48), true, 'cli')",
            ann.as_str()
        ),
    )
    .await;
    let waiting = store.due().await.unwrap();
    assert!(waiting.alarms == 1 && waiting.oldest_seconds < 30.0, "nobody is late who must wait: {waiting:?}");
    let found = claim_with(&store, room()).await;
    assert_eq!(ids(&found.claims), ids_of(&[&other]));
    assert_eq!((&*found.crowded, &*found.suspended), (&[ann.to_string()][..], &[ann.to_string()][..]));

    // Past backlogs, whether or not it is known to have one: who is not told of would be looked for along the oldest again.
    let seen_until = store.now().await.unwrap();
    for (owners, survey) in [(vec![ann.as_str()], false), (vec![ann.as_str()], true), (vec!["nobody"], true)] {
        let past = Look { backlog: Some(Backlog { owners, seen_until, survey }), ..look(&beat) };
        let found = store.look(&past).await.unwrap();
        assert!(found.claims.is_empty() && found.whole, "{found:?}");
        assert_eq!((&*found.crowded, &*found.suspended), (&[ann.to_string()][..], &[ann.to_string()][..]));
    }
    execute(&mut db, "UPDATE agents SET suspended = false").await;
    let past = Backlog { owners: vec![ann.as_str()], seen_until, survey: false };
    let found = store.look(&Look { backlog: Some(past), ..look(&beat) }).await.unwrap();
    assert_eq!((found.claims.len(), found.crowded.len(), found.suspended.len()), (2, 0, 0));
}

#[tokio::test]
async fn timers_are_claimed_like_alarms_and_say_whose_they_are() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let (ann, beat) = (ann(), a_beat());
    let call: ServiceCallId = "call-1".parse().unwrap();
    store.register_service_call(&ann, &call).await.unwrap();
    let names = "owner_did, user_id, correlation_id, kind, fire_at, scheduled_for, next_fire_at";
    let values = format!("'{ann}', 'ann', 'request-7', 'once', now(), now(), now()");
    execute(
        &mut db,
        &format!(
            "INSERT INTO alarms (subject, service_call_id, registered_at, {names})
             VALUES ('service_call', 'call-1', now(), {values});
             INSERT INTO sessions (session_key, owner_did, user_id) VALUES ('ann:agent:thread', '{ann}', 'ann');
             INSERT INTO alarms (subject, source, session_key, timer_id, {names})
             VALUES ('session', 'session', 'ann:agent:thread', 'tea', {values})"
        ),
    )
    .await;

    let oldest = Look { sessions: false, ..look(&beat) };
    let [timer] = store.look(&oldest).await.unwrap().claims.try_into().unwrap();
    assert_eq!(timer.wake.to, Addressee::ServiceCall { id: call, reached_at: timer.claimed_at });
    assert_eq!((timer.subject, &timer.session), (Subject::ServiceCall, &None));
    let past = Backlog { owners: vec![ann.as_str()], seen_until: timer.claimed_at, survey: true };
    let past = Look { backlog: Some(past), ..oldest };
    assert!(store.look(&past).await.unwrap().claims.is_empty(), "sessions' timers wait until they are asked for");

    let [session] = store.look(&Look { sessions: true, ..past }).await.unwrap().claims.try_into().unwrap();
    let promoted = SessionTimer { session: "ann:agent:thread".parse().unwrap(), timer_id: "tea".to_owned() };
    assert_eq!((session.subject, session.session), (Subject::Session, Some(promoted)));

    // What the event said is what the row says, however long the answer took.
    let outcomes = store.settle_under_token(worker(), &[(&timer, &accepted(&timer))]).await.unwrap();
    assert_eq!(outcomes, [Outcome::Delivered]);
    let reached = store.find_timer(&ann, &"call-1".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(reached.reached_at, Some(timer.claimed_at));
}

#[tokio::test]
async fn a_claim_behind_a_place_takes_what_is_due_later_and_at_that_instant_what_has_a_greater_id() {
    let database = Database::fresh().await;
    let store = database.store().await;
    execute(
        &mut database.connect().await,
        "INSERT INTO alarms (id, owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
         SELECT lpad(n::text, 32, '0')::uuid, 'did:matrix:ann:d75a980182b10ab7', 'ann', 'c', 'once', at, 'm', at, at
         FROM generate_series(1, 6) AS n, LATERAL (SELECT date_trunc('hour', now()) - (CASE WHEN n < 5 THEN 2 ELSE 1 END) * interval '1 h' AS at) AS t",
    )
    .await;
    let (first, beat) = (Room { rows: 2, ..room() }, a_beat());
    let two = claim_with(&store, first).await.claims;
    let place = two.iter().map(Claim::place).max();
    store.give_back_under_token(&two.iter().collect::<Vec<_>>()).await.unwrap();
    let behind = store.look(&Look { room: room(), after: place, ..look(&beat) }).await.unwrap().claims;
    let mut ids: Vec<u128> = behind.iter().map(|claim| claim.wake.alarm_id.as_uuid().as_u128()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [3, 4, 5, 6]);
}

#[tokio::test]
async fn a_look_says_whether_all_that_was_due_by_then_is_taken() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let add = "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
               SELECT 'did:matrix:ann:d75a980182b10ab7', 'ann', 'c', 'once', at, 'm', at, at
               FROM generate_series(1, 4), LATERAL (SELECT now() - interval '1 h' AS at) AS t";
    let mut db = database.connect().await;
    let cases = [
        ("there was room for more", room(), 4, true),
        ("there was room for these, and nobody has looked behind them", Room { rows: 4, ..room() }, 4, false),
        ("of bytes for one", Room { bytes: 1, ..room() }, 1, false),
        ("of the owner for three", Room { of_owner: 3, ..room() }, 3, false),
    ];
    for (what, room, claimed, whole) in cases {
        execute(&mut db, "TRUNCATE alarms CASCADE").await;
        execute(&mut db, add).await;
        let found = claim_with(&store, room).await;
        assert_eq!((found.claims.len(), found.whole), (claimed, whole), "{what}");
    }
    execute(
        &mut db,
        "UPDATE alarms SET claimed_until = NULL, claimed_at = NULL, claimed_by = NULL, claim_token = NULL, claims = 10, first_claimed_at = now()",
    )
    .await;
    let found = claim_with(&store, room()).await;
    assert_eq!((found.claims.len(), found.whole), (1, false), "suspects are taken one by one");
    // Nobody sees it, and it must not claim before it has beaten again.
    execute(&mut db, "TRUNCATE alarms CASCADE; DELETE FROM dispatchers").await;
    let beat = a_beat();
    let found = store.look(&Look { beat: None, ..look(&beat) }).await.unwrap();
    assert_eq!((found.held, found.whole), (false, false), "nothing was looked at");
}

/// On which page of the table each row lies.
async fn pages(database: &Database) -> Vec<(Uuid, i64)> {
    sqlx::query_as("SELECT id, ((ctid::text::point)[0])::bigint FROM alarms ORDER BY id")
        .fetch_all(&mut database.connect().await)
        .await
        .unwrap()
}

/// A HOT update: no index is touched by it, and the log has one page. On another page it would be neither.
#[tokio::test]
async fn a_claim_rewrites_every_row_on_its_own_page_however_large_the_payload() {
    for bytes in [0, 500, 1024, 1500] {
        let database = Database::fresh().await;
        let store = database.store().await;
        execute(
            &mut database.connect().await,
            &format!(
                "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at, payload)
                 SELECT 'did:matrix:ann:d75a980182b10ab7', 'ann', 'c', 'once', at, 'm', at, at, to_json(repeat('x', {bytes}))
                 FROM generate_series(1, 60) AS n, LATERAL (SELECT now() - n * interval '1 s' AS at) AS t"
            ),
        )
        .await;
        let before = pages(&database).await;
        let found = claim_with(&store, room()).await;
        assert_eq!(found.claims.len(), 60);
        assert_eq!(pages(&database).await, before, "payloads of {bytes} bytes");
    }
}

/// A host that vanishes says nothing, not even that it is gone. The connection that looks is one: it must not be waited for.
#[tokio::test]
async fn a_dispatcher_whose_database_vanished_between_two_looks_looks_over_another_connection() {
    const CONNECTIONS: u32 = 4;
    let database = Database::fresh().await;
    let proxy = Proxy::in_front_of(&database).await;
    let through = Database { uri: proxy.uri.clone() };
    let config = config::Database { hints: Some(Duration::from_secs(1)), ..through.config() };
    let store = Store::connect(&config, store::DISPATCH, CONNECTIONS).await.unwrap();
    let alarms = due(&database, &store, vec![in_an_hour()]).await;
    let beat = a_beat();
    let nothing = Room { rows: 0, ..room() };
    store.look(&Look { room: nothing.clone(), ..look(&beat) }).await.unwrap();
    // Kept for the next look, of as many as there may be.
    assert_eq!((store.connections().0 > 0, store.most_connections()), (true, CONNECTIONS));

    proxy.freeze();
    let lost = store.look(&Look { room: nothing, ..look(&beat) }).await.unwrap_err();
    assert!(lost.is_timeout(), "{lost}");
    let found = store.look(&Look { room: room(), ..look(&beat) }).await.unwrap();
    assert_eq!(ids(&found.claims), [alarms[0].id.as_uuid()]);
    store.close().await;
    assert_eq!(store.connections(), (0, 0));
}
