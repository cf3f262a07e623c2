//! Service calls and their timers.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use chronos::{
    domain::{
        access::Did,
        ids::{ClaimToken, ServiceCallId},
        occurrence::Outcome,
        payload::Payload,
    },
    store::{
        Store,
        claims::Claim,
        service_calls::{Command, Deleted, State, Timer},
    },
};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    claims::{accepted, worker},
    columns_of, did_of, execute, plan_of, refused_by, warm_store,
};
use crate::support::Database;

const CLAIM: &str = "UPDATE alarms SET claimed_at = now(), claimed_until = now() + interval '1 min', \
                     claim_token = gen_random_uuid(), claimed_by = gen_random_uuid(), claims = 1, first_claimed_at = now(), \
                     failure_count = 2, last_error = 'HTTP 503'";
const REACH: &str = "UPDATE alarms SET status = 'fired', last_fired_at = now()";

fn call(id: &str) -> ServiceCallId {
    id.parse().unwrap()
}

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(4_000_000_000 + second, 500_000_000).unwrap()
}

/// An instant that has passed long ago.
fn past() -> DateTime<Utc> {
    DateTime::from_timestamp(1_500_000_000, 0).unwrap()
}

/// Commands of one tenant about one call, which differ in a field or two.
struct Caller<'a> {
    store: &'a Store,
    tenant: Did,
    call: ServiceCallId,
}

impl<'a> Caller<'a> {
    /// A tenant with a registered call.
    async fn registered(store: &'a Store, user: &str) -> Self {
        let caller = Self { store, tenant: did_of(user), call: call("call-1") };
        store.register_service_call(&caller.tenant, &caller.call).await.unwrap();
        caller
    }

    async fn schedule(&self, due_at: DateTime<Utc>, correlation_id: Option<&str>, payload: &str) -> Option<Timer> {
        let command = Command {
            tenant: &self.tenant,
            call: &self.call,
            due_at,
            correlation_id,
            fallback_correlation_id: "made-up",
            payload: &Payload::parse(payload.to_owned()).unwrap(),
        };
        self.store.schedule_timer_if_registered(&command).await.unwrap()
    }

    async fn find(&self) -> Option<Timer> {
        self.store.find_timer(&self.tenant, &self.call).await.unwrap()
    }

    async fn delete(&self) -> Deleted {
        self.store.delete_service_call(&self.tenant, &self.call).await.unwrap()
    }
}

/// What no timer shows: epoch, claim, failures, payload.
#[derive(Debug, PartialEq, sqlx::FromRow)]
struct Hidden {
    schedule_epoch: i64,
    claimed: bool,
    claims: i32,
    failure_count: i32,
    last_error: String,
    payload: String,
    next_fire_at: DateTime<Utc>,
}

async fn hidden(db: &mut PgConnection) -> Hidden {
    sqlx::query_as(
        "SELECT schedule_epoch, claim_token IS NOT NULL AS claimed, claims, failure_count, last_error,
                payload::text AS payload, next_fire_at FROM alarms",
    )
    .fetch_one(db)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_timer_belongs_to_a_registered_call() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let caller = Caller { store: &store, tenant: did_of("ann"), call: call("call-1") };
    assert_eq!(caller.schedule(at(0), None, "{}").await, None);

    store.register_service_call(&caller.tenant, &caller.call).await.unwrap();
    store.register_service_call(&caller.tenant, &caller.call).await.unwrap();
    assert_eq!(caller.find().await, None);
    let timer = caller.schedule(at(0), Some("request-7"), "{}").await.unwrap();
    let expected = Timer {
        tenant: caller.tenant.clone(),
        call: caller.call.clone(),
        correlation_id: "request-7".to_owned(),
        due_at: at(0),
        registered_at: timer.registered_at,
        reached_at: None,
        state: State::Scheduled,
    };
    assert_eq!(timer, expected);
    assert_eq!(caller.find().await, Some(expected));
}

#[tokio::test]
async fn the_same_command_again_renews_the_registration_and_nothing_else() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    let first = caller.schedule(at(0), Some("request-7"), r#"{"b": 1, "a":1e2}"#).await.unwrap();
    execute(&mut db, CLAIM).await;
    let before = hidden(&mut db).await;

    for correlation_id in [Some("request-7"), None] {
        let again = caller.schedule(at(0), correlation_id, r#"{"b": 1, "a":1e2}"#).await.unwrap();
        assert!(again.registered_at > first.registered_at);
        assert_eq!(Timer { registered_at: first.registered_at, ..again }, first);
        assert_eq!(hidden(&mut db).await, before, "the claim stands");
    }
    assert_eq!(before.payload, r#"{"b": 1, "a":1e2}"#);
}

#[tokio::test]
async fn another_command_plans_the_timer_anew_and_fences_what_is_in_flight() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    caller.schedule(at(0), Some("request-7"), "{}").await.unwrap();

    let others = [(at(5), None, "{}"), (at(5), Some("request-8"), "{}"), (at(5), None, "{ }")];
    for (epoch, (due_at, correlation_id, payload)) in (1..).zip(others) {
        execute(&mut db, CLAIM).await;
        let timer = caller.schedule(due_at, correlation_id, payload).await.unwrap();
        assert_eq!((timer.due_at, timer.state, timer.reached_at), (due_at, State::Scheduled, None));
        assert_eq!(timer.correlation_id, if epoch == 1 { "request-7" } else { "request-8" });
        let expected = Hidden {
            schedule_epoch: epoch,
            claimed: false,
            claims: 0,
            failure_count: 0,
            last_error: String::new(),
            payload: payload.to_owned(),
            next_fire_at: due_at,
        };
        assert_eq!(hidden(&mut db).await, expected);
    }
}

#[tokio::test]
async fn a_timer_that_was_reached_is_scheduled_again_even_by_the_same_command() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    let first = caller.schedule(at(0), None, "{}").await.unwrap();
    assert_eq!(first.correlation_id, "made-up");
    execute(&mut db, REACH).await;
    let reached = caller.find().await.unwrap();
    assert_eq!((reached.state, reached.reached_at.is_some()), (State::Reached, true));

    let again = caller.schedule(at(0), None, "{}").await.unwrap();
    assert_eq!((again.state, again.reached_at), (State::Scheduled, None));
    assert_eq!(hidden(&mut db).await.schedule_epoch, 1, "another delivery id");
}

#[tokio::test]
async fn of_many_equal_commands_at_once_one_plans() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let caller = Caller::registered(&store, "ann").await;
    let timers = futures::future::join_all((0..12).map(|_| caller.schedule(at(0), Some("r"), "{}"))).await;
    assert!(timers.iter().all(Option::is_some));
    assert_eq!(hidden(&mut database.connect().await).await.schedule_epoch, 0);
}

#[derive(Debug, PartialEq, sqlx::FromRow)]
struct Trace {
    alarm_id: Uuid,
    scheduled_for: DateTime<Utc>,
    attempt: i32,
    outcome: String,
    first_at: DateTime<Utc>,
    last_at: DateTime<Utc>,
    slots: i64,
    reason: String,
}

async fn traces(db: &mut PgConnection, tenant: &Did) -> Vec<Trace> {
    sqlx::query_as(
        "SELECT alarm_id, scheduled_for, attempt, outcome, first_at, last_at, slots, reason FROM attempts
         WHERE owner_did = $1",
    )
    .bind(tenant.as_str())
    .fetch_all(db)
    .await
    .unwrap()
}

#[tokio::test]
async fn deleting_a_call_deletes_its_timer_and_leaves_a_trace() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    caller.schedule(at(0), None, "{}").await.unwrap();
    caller.schedule(at(5), None, "{}").await.unwrap();
    let id: Uuid = sqlx::query_scalar("SELECT id FROM alarms").fetch_one(&mut db).await.unwrap();

    assert_eq!(caller.delete().await, Deleted { deleted: true, in_flight: false });
    assert_eq!(caller.find().await, None);
    let trace = Trace {
        alarm_id: id,
        scheduled_for: at(5),
        attempt: 0,
        outcome: "cancelled".to_owned(),
        first_at: at(5),
        last_at: at(5),
        slots: 1,
        reason: "deleted".to_owned(),
    };
    assert_eq!(traces(&mut db, &caller.tenant).await, [trace]);
    assert_eq!(caller.delete().await, Deleted { deleted: false, in_flight: false });
    assert_eq!(caller.schedule(at(0), None, "{}").await, None, "the call is gone");
}

#[tokio::test]
async fn deleting_a_call_says_whether_its_event_may_still_arrive() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    caller.schedule(at(0), None, "{}").await.unwrap();
    execute(&mut db, CLAIM).await;
    assert_eq!(caller.delete().await, Deleted { deleted: true, in_flight: true });
}

#[tokio::test]
async fn a_delete_by_hand_leaves_its_trace_too_and_that_of_a_reached_timer_none() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let (living, reached) = (Caller::registered(&store, "ann").await, Caller::registered(&store, "bob").await);
    reached.schedule(at(0), None, "{}").await.unwrap();
    execute(&mut db, REACH).await;
    living.schedule(at(0), None, "{}").await.unwrap();
    execute(&mut db, "DELETE FROM service_calls").await;
    assert_eq!(traces(&mut db, &living.tenant).await.len(), 1);
    assert_eq!(traces(&mut db, &reached.tenant).await, []);
}

#[tokio::test]
async fn commands_and_deletes_at_once_end_in_one_or_the_other() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let caller = Caller::registered(&store, "ann").await;
    let commands = futures::future::join_all((0..10).map(|n| caller.schedule(at(n), None, "{}")));
    let deletes = futures::future::join_all((0..3).map(|_| caller.delete()));
    let (_, answers) = tokio::join!(commands, deletes);
    assert_eq!(answers.iter().filter(|deleted| deleted.deleted).count(), 1);
    assert_eq!(caller.find().await, None, "no timer outlives its call");
}

#[tokio::test]
async fn tenants_never_see_or_touch_each_others_calls() {
    let database = Database::fresh().await;
    let store = database.store().await;
    // The same call id and the same correlation id.
    let (ann, bob) = (Caller::registered(&store, "ann").await, Caller::registered(&store, "bob").await);
    let ours = ann.schedule(at(0), Some("shared"), "{}").await.unwrap();
    assert_eq!(bob.find().await, None);
    let theirs = bob.schedule(at(9), Some("shared"), "{}").await.unwrap();

    let traced = async |tenant: &Did| store.timers_by_correlation(tenant, "shared", 100).await.unwrap();
    assert_eq!(traced(&ann.tenant).await, std::slice::from_ref(&ours));
    assert_eq!(traced(&bob.tenant).await, [theirs]);
    assert_eq!(traced(&did_of("ann")).await, [], "another DID of the same user is another tenant");

    assert!(bob.delete().await.deleted);
    assert_eq!(ann.find().await, Some(ours));
}

/// Every WHERE of the file and of its statements begins with the tenant.
#[test]
fn the_tenant_comes_first_in_every_where() {
    let sources = [
        include_str!("../../../src/store/service_calls.rs"),
        include_str!("../../../src/store/sql/plan_timer.sql"),
        include_str!("../../../src/store/sql/timers_by_correlation.sql"),
    ];
    let code = sources.map(|source| {
        let lines = source.lines().filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("--"));
        lines.collect::<Vec<_>>().join(" ")
    });
    let conditions: Vec<&str> = code.iter().flat_map(|code| code.split("WHERE ").skip(1)).collect();
    assert!(conditions.len() >= 7, "{conditions:?}");
    for condition in conditions {
        // The last is no condition of a query: it names the unique index of an upsert, which begins with the tenant.
        let allowed = ["owner_did = $1", "tenant_id = $1", "service_call_id IS NOT NULL DO UPDATE"];
        assert!(allowed.iter().any(|start| condition.starts_with(start)), "WHERE {condition}");
    }
}

#[tokio::test]
async fn the_view_has_the_columns_and_words_of_the_timers_document() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    assert_eq!(
        columns_of(&mut db, "timer_schedules").await,
        ["tenant_id", "service_call_id", "correlation_id", "due_at", "registered_at", "reached_at", "state"]
    );
    let caller = Caller::registered(&store, "ann").await;
    caller.schedule(at(0), Some("request-7"), "{}").await.unwrap();
    execute(&mut db, "UPDATE alarms SET registered_at = '2030-01-02 03:04:05.6+00'").await;
    // A retry's time is not the timer's.
    execute(&mut db, "UPDATE alarms SET next_fire_at = next_fire_at + interval '1 hour'").await;
    execute(&mut db, "SET timezone = 'Asia/Kathmandu'").await;
    let shown: String =
        sqlx::query_scalar("SELECT row_to_json(t)::text FROM timer_schedules t").fetch_one(&mut db).await.unwrap();
    let expected = |rest: &str| {
        let (tenant, head) = (&caller.tenant, r#""service_call_id":"call-1","correlation_id":"request-7""#);
        let times = r#""due_at":"2096-10-02T07:06:40.500Z","registered_at":"2030-01-02T03:04:05.600Z""#;
        format!(r#"{{"tenant_id":"{tenant}",{head},{times},{rest}}}"#)
    };
    assert_eq!(shown, expected(r#""reached_at":null,"state":"Scheduled""#));

    execute(&mut db, "UPDATE alarms SET status = 'fired', last_fired_at = '2096-10-02 07:06:40.9876+00'").await;
    let shown: String =
        sqlx::query_scalar("SELECT row_to_json(t)::text FROM timer_schedules t").fetch_one(&mut db).await.unwrap();
    assert_eq!(shown, expected(r#""reached_at":"2096-10-02T07:06:40.987Z","state":"Reached""#));
}

#[tokio::test]
async fn our_statements_find_timers_by_their_indexes() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    // Two hundred tenants with fifty timers and a hundred agent's alarms each.
    execute(
        &mut db,
        "INSERT INTO service_calls SELECT 'tenant-' || n % 200, 'call-' || n FROM generate_series(1, 10000) n;
         INSERT INTO alarms (owner_did, user_id, subject, service_call_id, registered_at, correlation_id, kind, fire_at,
                             scheduled_for, next_fire_at, status)
         SELECT tenant_id, 'u', 'service_call', service_call_id, now(), 'request-' || n % 3000, 'once', due, due, due,
                CASE WHEN n % 3 = 0 THEN 'active' ELSE 'fired' END
         FROM (SELECT *, row_number() OVER () AS n, now() + random() * interval '1 day' AS due FROM service_calls) AS c;
         INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, scheduled_for, next_fire_at)
         SELECT 'tenant-' || n % 200, 'u', 'request-' || n % 3000, 'once', due, due, due
         FROM (SELECT n, now() + random() * interval '1 day' AS due FROM generate_series(1, 20000) n) AS a;
         ANALYZE alarms;",
    )
    .await;
    let plans = BTreeMap::from([
        (
            "idx_timer_schedules_correlation_id",
            plan_of(
                &mut db,
                &include_str!("../../../src/store/sql/timers_by_correlation.sql").replace("$3", "100"),
                &["tenant-7", "request-7"],
            )
            .await,
        ),
        (
            "idx_timer_schedules_due_at",
            plan_of(
                &mut db,
                "SELECT id FROM alarms WHERE owner_did = $1 AND subject = 'service_call' AND status = 'active'
                 AND next_fire_at <= now() + interval '1 hour' ORDER BY next_fire_at LIMIT 100",
                &["tenant-7"],
            )
            .await,
        ),
        (
            // What the cascade asks, in its own words.
            "alarms_service_call_idx",
            plan_of(
                &mut db,
                "DELETE FROM ONLY alarms WHERE $1 OPERATOR(pg_catalog.=) owner_did AND $2 OPERATOR(pg_catalog.=) service_call_id",
                &["tenant-7", "call-7"],
            )
            .await,
        ),
    ]);
    for (index, plan) in plans {
        assert!(plan.contains(index), "{index} in\n{plan}");
    }

    // The command: an equal one is looked for, and the rest is an upsert. Both find the timer by its call.
    let renewed = "UPDATE alarms SET registered_at = now() WHERE owner_did = $1 AND service_call_id = $2
                   AND subject = 'service_call' AND status = 'active'";
    let renewed = plan_of(&mut db, renewed, &["tenant-7", "call-7"]).await;
    assert!(renewed.contains("Index Scan using alarms_service_call_idx"), "{renewed}");
    let upsert = [include_str!("../../../src/store/sql/plan_timer.sql"), "id"].concat();
    let given = ["'tenant-7'", "'u'", "'call-7'", "NULL", "'made-up'", "now()", "'{}'"];
    let upsert = given.iter().zip(1..).fold(upsert, |sql, (value, number)| sql.replace(&format!("${number}"), value));
    let upsert = plan_of(&mut db, &upsert, &[]).await;
    assert!(upsert.contains("Conflict Arbiter Indexes: alarms_service_call_idx"), "{upsert}");

    // The mark: by the alarm's own id.
    let id: Uuid = sqlx::query_scalar("SELECT id FROM alarms LIMIT 1").fetch_one(&mut db).await.unwrap();
    let mark = include_str!("../../../src/store/sql/settle.sql");
    let value = |number: u32| match number {
        1 => format!("'{{{id}}}'"),
        21 => "NULL::uuid".to_owned(),
        31 => "'hints'".to_owned(),
        _ => "'{NULL}'".to_owned(),
    };
    // Backwards, so that $1 is not found in $12.
    let mark = (1..=31).rev().fold(mark.to_owned(), |sql, number| sql.replace(&format!("${number}"), &value(number)));
    let mark = plan_of(&mut db, &mark, &[]).await;
    assert!(mark.contains("Index Scan using alarms_pkey") && !mark.contains("Seq Scan on alarms"), "{mark}");
}

#[tokio::test]
async fn a_mark_that_is_sent_twice_or_too_late_changes_nothing() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let caller = Caller::registered(&store, "ann").await;
    let row = async || -> String {
        let mut db = database.connect().await;
        sqlx::query_scalar("SELECT row_to_json(a)::text FROM alarms AS a").fetch_one(&mut db).await.unwrap()
    };
    caller.schedule(past(), None, "{}").await.unwrap();
    let [claim] = super::claim(&store).await.claims.try_into().unwrap();
    let mark = accepted(&claim);
    let marked = async || store.settle_under_token(worker(), &[(&claim, &mark)]).await.unwrap();
    assert_eq!(marked().await, [Outcome::Delivered]);
    let after = row().await;
    assert_eq!(caller.find().await.unwrap().reached_at, Some(claim.claimed_at));
    assert_eq!((marked().await, row().await), (vec![Outcome::Delivered], after.clone()), "the same answer");

    // Another who published the same: its claim is not the one that stands.
    let late = Claim { token: ClaimToken::from_uuid(Uuid::new_v4()), ..claim.clone() };
    let outcomes = store.settle_under_token(worker(), &[(&late, &accepted(&late))]).await.unwrap();
    assert_eq!((&*outcomes, row().await), (&[Outcome::Fenced][..], after));

    // Scheduled anew, its due time long past: from now on, not ahead of what others were promised earlier.
    caller.schedule(past(), None, "{}").await.unwrap();
    let (due, next): (DateTime<Utc>, DateTime<Utc>) =
        sqlx::query_as("SELECT scheduled_for, next_fire_at FROM alarms").fetch_one(&mut db).await.unwrap();
    assert_eq!(due, past());
    assert!(next > claim.claimed_at, "{next}");
    let before = row().await;
    assert_eq!((marked().await, row().await), (vec![Outcome::Delivered], before), "of the timer before");
    let [again] = super::claim(&store).await.claims.try_into().unwrap();
    assert_ne!(again.wake.delivery_id, claim.wake.delivery_id, "another event");
}

#[tokio::test]
async fn the_schema_refuses_what_no_type_could_hold() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    let odd_id = "INSERT INTO service_calls VALUES ('did', 'a b')";
    let no_call =
        "INSERT INTO alarms (owner_did, user_id, subject, service_call_id, registered_at, correlation_id, kind,
                                       fire_at, scheduled_for, next_fire_at)
                   VALUES ('did', 'u', 'service_call', 'none', now(), 'c', 'once', now(), now(), now())";
    assert_eq!(refused_by(&mut db, odd_id).await, "service_calls_id_is_well_formed");
    assert_eq!(refused_by(&mut db, no_call).await, "alarms_service_call_fkey");
}
