//! How Postgres goes about our statements: `EXPLAIN` of the very text that runs, on a table large enough that scanning it
//! would be a mistake.

use chronos::{
    domain::ids::AlarmId,
    store::{
        ON_LOOK_CONNECT,
        agents::ASTRAY,
        alarms::LIST,
        claims::{CLAIM_OLDEST, CLAIM_PAST_BACKLOGS, Place},
    },
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row, postgres::PgRow};

use super::{ann, execute};
use crate::support::Database;

/// Alarms of ann's that lie ahead, of others, and a few that are due. Enough that an index pays.
async fn crowded(database: &Database) -> PgConnection {
    let mut db = database.connect().await;
    for (due, owner, many) in
        [("1 day", "ann", 2_000), ("2 days", "crowd-' || n % 97 || '", 30_000), ("-1 s", "ann", 300)]
    {
        execute(
            &mut db,
            &format!(
                "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
                 SELECT 'did:matrix:{owner}:d75a980182b10ab7', 'u', 'c', 'once', at, 'm', at, at
                 FROM generate_series(1, {many}) AS n, LATERAL (SELECT now() + interval '{due}' + n * interval '1 s' * 0.001 AS at) AS t"
            ),
        )
        .await;
    }
    execute(&mut db, "ANALYZE alarms").await;
    // As the store's own connections have it.
    execute(&mut db, "SET plan_cache_mode = force_custom_plan").await;
    db
}

/// Every node of a plan: what it does, and by which index.
fn nodes(plan: &Value, found: &mut Vec<(String, String)>) {
    let text = |key: &str| plan[key].as_str().unwrap_or_default().to_owned();
    let (node, index) = (text("Node Type"), text("Index Name"));
    let relation = text("Relation Name");
    found.push((node, if index.is_empty() { relation } else { index }));
    for inner in plan["Plans"].as_array().into_iter().flatten() {
        nodes(inner, found);
    }
}

fn plan_in(row: &PgRow) -> Value {
    // Postgres calls it json, which reads as text.
    let text: String = row.try_get_unchecked(0).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0]["Plan"].clone()
}

fn flatten(row: &PgRow) -> Vec<(String, String)> {
    let mut found = Vec::new();
    nodes(&plan_in(row), &mut found);
    found
}

fn explain(statement: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) {statement}"))
}

fn by_index(plan: &[(String, String)], index: &str) -> bool {
    plan.iter().any(|(node, name)| node.contains("Index") && name == index)
}

fn scans(plan: &[(String, String)]) -> bool {
    plan.iter().any(|(node, name)| node == "Seq Scan" && name == "alarms")
}

/// Twenty thousand of ann's that were due an hour ago, and one of somebody else's since.
const BACKLOG: &str =
    "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
     SELECT CASE WHEN n = 20000 THEN 'did:matrix:bob:d75a980182b10ab7' ELSE 'did:matrix:ann:d75a980182b10ab7' END,
            'u', 'c', 'once', at, 'm', at, at
     FROM generate_series(1, 20000) AS n, LATERAL (SELECT now() - interval '1 h' + n * interval '1 ms' AS at) AS t";

/// How many rows of the table a plan read, by whatever way.
fn rows_read(plan: &Value) -> u64 {
    let number = |key: &str| plan[key].as_f64().unwrap_or_default();
    let own = (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck"))
        * number("Actual Loops");
    let is_scan =
        plan["Relation Name"] == "alarms" && plan["Node Type"].as_str().is_some_and(|node| node.contains("Scan"));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rows")]
    let own = if is_scan { own.round() as u64 } else { 0 };
    own + plan["Plans"].as_array().into_iter().flatten().map(rows_read).sum::<u64>()
}

/// Makes a connection like those that look, and prepares both kinds of claims on it. They are planned when they are first executed, once, for
/// any values.
async fn prepare_claims(db: &mut PgConnection) {
    let common = "uuid, text, text, bool, bigint, float8, bigint, jsonb, uuid[], int, int, bool, bool";
    execute(db, "SET jit = off").await;
    execute(db, ON_LOOK_CONNECT).await;
    execute(db, &format!("PREPARE oldest ({common}, timestamptz, uuid) AS {CLAIM_OLDEST}")).await;
    execute(db, &format!("PREPARE past ({common}, jsonb, timestamptz, bool) AS {CLAIM_PAST_BACKLOGS}")).await;
}

/// The claim's parameters: so many rows at most, and room for so many of ann's.
fn claim_of(most: i64, room: i32) -> String {
    let tokens: Vec<String> = (0..most).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    let rooms = serde_json::json!({ann().as_str(): room});
    format!(
        "gen_random_uuid(), '0.1.0', 'here', true, {most}, 120, 1073741824, '{rooms}', '{{{}}}', 32, 4, true, true",
        tokens.join(",")
    )
}

/// Along the oldest, behind this one.
fn oldest(most: i64, after: Option<Place>) -> String {
    let (due_at, id) = after.map_or_else(
        || ("NULL".to_owned(), "NULL".to_owned()),
        |place| (format!("'{}'", place.due_at.to_rfc3339()), format!("'{}'", place.id)),
    );
    format!("EXECUTE oldest ({}, {due_at}, {id})", claim_of(most, 32))
}

/// Past ann's backlog.
fn past(most: i64, room: i32, survey: bool) -> String {
    let backlogs = serde_json::json!({ann().as_str(): true});
    format!("EXECUTE past ({}, '{backlogs}', '2000-01-01T00:00:00Z', {survey})", claim_of(most, room))
}

/// Its plan, and how many rows it read, with nothing claimed by it.
async fn claim(db: &mut PgConnection, claim: &str) -> (Vec<(String, String)>, u64) {
    execute(db, "BEGIN").await;
    let row = sqlx::query(AssertSqlSafe(format!("EXPLAIN (ANALYZE, FORMAT JSON) {claim}"))).fetch_one(&mut *db).await;
    execute(db, "ROLLBACK").await;
    let row = row.unwrap();
    (flatten(&row), rows_read(&plan_in(&row)))
}

#[tokio::test]
async fn the_claim_behind_the_last_one_reads_nothing_of_what_is_in_flight_though_all_are_due_at_one_instant() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    execute(
        &mut db,
        "UPDATE alarms SET next_fire_at = date_trunc('hour', now() - interval '1 h') WHERE next_fire_at < now();
         UPDATE alarms SET claimed_at = now(), claimed_until = now() + interval '1 min', claim_token = gen_random_uuid(),
                claimed_by = gen_random_uuid(), claims = 1, first_claimed_at = now()
         WHERE id IN (SELECT id FROM alarms WHERE next_fire_at < now() ORDER BY id LIMIT 200);
         ANALYZE alarms",
    )
    .await;
    let last =
        "SELECT next_fire_at, id FROM alarms WHERE claimed_at IS NOT NULL ORDER BY next_fire_at DESC, id DESC LIMIT 1";
    let (due_at, id): (chrono::DateTime<chrono::Utc>, uuid::Uuid) =
        sqlx::query_as(last).fetch_one(&mut db).await.unwrap();
    let after = Place { due_at, id: AlarmId::from_uuid(id) };
    prepare_claims(&mut db).await;
    // Found by the index, and of ann, who has room for 32 of them, those once more by their ids; and the next that is due.
    assert_eq!(claim(&mut db, &oldest(50, Some(after))).await.1, 50 + 32 + 1);
    assert_eq!(claim(&mut db, &oldest(50, None)).await.1, 200 + 50 + 32 + 1);
}

#[tokio::test]
async fn the_claim_reads_due_rows_by_their_index_and_never_scans_the_table() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    prepare_claims(&mut db).await;
    for most in [1, 100, 500] {
        let (plan, _) = claim(&mut db, &oldest(most, None)).await;
        assert!(by_index(&plan, "alarms_due_idx"), "{most}: {plan:?}");
        assert!(!scans(&plan), "{most}: {plan:?}");
    }
}

/// By which index alarms are found in a plan, and how often.
fn ways(plan: &[(String, String)]) -> Vec<(&str, usize)> {
    let count = |index| plan.iter().filter(|(node, name)| node.contains("Index") && name == index).count();
    ["alarms_due_idx", "alarms_owner_due_idx", "alarms_pkey"].map(|index| (index, count(index))).to_vec()
}

/// A plan is kept until the table is analysed, which may be long after it was filled, or after very many have become due.
#[tokio::test]
async fn claims_find_rows_the_same_way_whatever_the_table_was_like_when_they_were_planned() {
    const AHEAD: &str = "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, cron_expr, wake_message, scheduled_for, next_fire_at)
        SELECT 'did:matrix:crowd-' || n % 97 || ':d75a980182b10ab7', 'u', 'c', 'cron', '0 9 * * *', 'm', at, at
        FROM generate_series(1, 3000) AS n, LATERAL (SELECT now() + interval '1 day' + n * interval '1 s' AS at) AS t;
        ANALYZE alarms";
    const OWNERS: u64 = 99;
    const ALL_DUE: &str = "UPDATE alarms SET next_fire_at = next_fire_at - interval '3 days'";
    for (when_planned, then) in [
        ("", AHEAD.to_owned() + ";" + BACKLOG + ";" + ALL_DUE),
        (AHEAD, BACKLOG.to_owned() + ";" + ALL_DUE),
        (&(BACKLOG.to_owned() + ";" + AHEAD + ";" + ALL_DUE + "; ANALYZE alarms"), String::new()),
    ] {
        let database = Database::fresh().await;
        let mut db = database.connect().await;
        execute(&mut db, when_planned).await;
        prepare_claims(&mut db).await;
        for planned in [oldest(100, None), past(100, 5, true)] {
            claim(&mut db, &planned).await;
        }
        execute(&mut db, &then).await;
        let (plan, read) = claim(&mut db, &oldest(500, None)).await;
        // What is due, and when the next is; what there is room for, by its id.
        assert_eq!(ways(&plan), [("alarms_due_idx", 2), ("alarms_owner_due_idx", 0), ("alarms_pkey", 1)], "{plan:?}");
        assert!(
            (500..=1000).contains(&read),
            "500 by the index, those that there is room for once more by their ids: {read}"
        );
        let (plan, read) = claim(&mut db, &past(500, 5, true)).await;
        // What became due, and when the next is; every owner's first twice, a backlog's, an owner's; those chosen are locked, and claimed.
        assert_eq!(ways(&plan), [("alarms_due_idx", 2), ("alarms_owner_due_idx", 4), ("alarms_pkey", 2)], "{plan:?}");
        assert!(read <= 1_000 + OWNERS * (2 + 33) + 2 * 500 + 2, "{read}");
    }
}

#[tokio::test]
async fn the_claim_past_backlogs_finds_rows_by_owner_and_reads_none_of_the_backlog() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    execute(&mut db, BACKLOG).await;
    execute(&mut db, "ANALYZE alarms").await;
    // Ann's rows are the oldest, and she has no room, or little. The owner who is due behind her has.
    prepare_claims(&mut db).await;
    for (survey, room) in [(false, 0), (true, 0), (false, 5)] {
        let (plan, read) = claim(&mut db, &past(100, room, survey)).await;
        assert!(by_index(&plan, "alarms_owner_due_idx") && !scans(&plan), "{survey}: {plan:?}");
        assert!(read < 2_000, "of 20,000 rows of a backlog {read} were read");
    }
}

#[tokio::test]
async fn a_suspended_owners_backlog_is_found_out_by_index_and_not_read_through() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    execute(&mut db, BACKLOG).await;
    // One in ten of many agents, and ann.
    execute(
        &mut db,
        "INSERT INTO agents (did, public_key, suspended, source)
         SELECT 'did:matrix:' || name || ':d75a980182b10ab7', 'd75a980182b10ab7' || repeat('0', 48), suspended, 'cli'
         FROM (SELECT 'crowd-' || n, n % 10 = 1 FROM generate_series(0, 5000) AS n UNION ALL SELECT 'ann', true)
              AS names (name, suspended);
         ANALYZE alarms; ANALYZE agents; ANALYZE shut_out",
    )
    .await;
    let is_scanned = |plan: &[(String, String)]| plan.iter().any(|(node, name)| node == "Seq Scan" && name == "alarms");
    prepare_claims(&mut db).await;
    let (plan, _) = claim(&mut db, &oldest(100, None)).await;
    assert!(by_index(&plan, "alarms_due_idx") && !scans(&plan) && !is_scanned(&plan), "{plan:?}");
    // Of those who are shut out each is looked up, or all are read when they are few: never the agents.
    assert!(!plan.iter().any(|(_, name)| name == "agents"), "{plan:?}");
    for survey in [false, true] {
        let (plan, read) = claim(&mut db, &past(100, 32, survey)).await;
        assert!(by_index(&plan, "alarms_owner_due_idx") && !scans(&plan) && !is_scanned(&plan), "{survey}: {plan:?}");
        assert!(read < 2_000, "of 20,000 rows of a backlog {read} were read");
    }
}

#[tokio::test]
async fn a_page_of_a_list_is_read_by_the_owners_index() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    let cursor = "2026-01-01T00:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    for after in [None, Some(cursor)] {
        let plan = sqlx::query(explain(LIST))
            .bind(ann().as_str())
            .bind(None::<Vec<String>>)
            .bind(None::<String>)
            .bind(None::<String>)
            .bind(None::<String>)
            .bind(None::<chrono::DateTime<chrono::Utc>>)
            .bind(None::<chrono::DateTime<chrono::Utc>>)
            .bind(None::<String>)
            .bind(after)
            .bind(after.map(|_| uuid::Uuid::nil()))
            .bind(101_i64)
            .fetch_one(&mut db)
            .await
            .unwrap();
        let plan = flatten(&plan);
        assert!(by_index(&plan, "alarms_owner_idx") && !scans(&plan), "{after:?}: {plan:?}");
    }
}

#[tokio::test]
async fn agents_whose_alarms_do_not_follow_them_are_found_by_index_and_nothing_is_read_while_all_do() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    // A tenth of the crowd is suspended and follows; ann's owner has paused a crowd of her own.
    execute(
        &mut db,
        "INSERT INTO agents (did, public_key, suspended, source)
         SELECT 'did:matrix:' || name || ':d75a980182b10ab7', 'd75a980182b10ab7' || repeat('0', 48), name LIKE 'crowd-1%', 'cli'
         FROM (SELECT 'crowd-' || n AS name FROM generate_series(0, 96) AS n UNION ALL SELECT 'ann') AS names;
         UPDATE alarms SET status = 'paused', paused_by = '{agent}' WHERE owner_did LIKE 'did:matrix:crowd-1%';
         UPDATE alarms SET status = 'paused', paused_by = '{owner}' WHERE owner_did LIKE 'did:matrix:ann:%';
         ANALYZE alarms; ANALYZE agents",
    )
    .await;
    let row = sqlx::query(AssertSqlSafe(format!("EXPLAIN (ANALYZE, FORMAT JSON) {ASTRAY}"))).fetch_one(&mut db).await;
    let row = row.unwrap();
    let plan = flatten(&row);
    for index in ["alarms_owner_due_idx", "alarms_owner_paused_idx"] {
        assert!(by_index(&plan, index) && !scans(&plan), "{index}: {plan:?}");
    }
    let read = rows_read(&plan_in(&row));
    assert_eq!(read, 0, "of thousands that are paused none is read: {plan:?}");
}
