//! How Postgres goes about our statements: `EXPLAIN` of the very text that runs, on a table large enough that scanning it
//! would be a mistake.

use chronos::store::{
    alarms::LIST,
    claims::{CLAIM_DUE, UNTIL_NEXT_DUE},
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

fn flatten(row: &PgRow) -> Vec<(String, String)> {
    // Postgres calls it json, which reads as text.
    let text: String = row.try_get_unchecked(0).unwrap();
    let plan: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    nodes(&plan[0]["Plan"], &mut found);
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

#[tokio::test]
async fn the_claim_reads_due_rows_by_their_index_and_never_scans_the_table() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    for most in [1_i64, 100, 500] {
        let plan = sqlx::query(explain(CLAIM_DUE))
            .bind(uuid::Uuid::new_v4())
            .bind(most)
            .bind(120.0)
            .fetch_one(&mut db)
            .await
            .unwrap();
        let plan = flatten(&plan);
        assert!(by_index(&plan, "alarms_due_idx"), "{most}: {plan:?}");
        assert!(!scans(&plan), "{most}: {plan:?}");
        assert!(!plan.iter().any(|(node, _)| node == "Sort"), "{most}: the index has the order: {plan:?}");
    }
}

#[tokio::test]
async fn the_next_due_instant_is_read_from_the_edge_of_the_index() {
    let database = Database::fresh().await;
    let mut db = crowded(&database).await;
    let plan = flatten(&sqlx::query(explain(UNTIL_NEXT_DUE)).fetch_one(&mut db).await.unwrap());
    assert!(by_index(&plan, "alarms_due_idx") && !scans(&plan), "{plan:?}");
    assert!(plan.iter().any(|(node, _)| node == "Limit"), "one row is enough: {plan:?}");
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
