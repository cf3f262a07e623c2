//! Table `clusters`, and what becomes of the rows of a cluster that is gone.

mod adopt;
mod forget;

use chronos::{
    domain::{
        access::Did,
        alarm::Draft,
        ids::{AlarmId, ClusterId},
    },
    store::{Store, alarms::Alarm, clusters::Cluster},
};
use serde_json::Value;
use uuid::Uuid;

use super::{ann, bob, create, did_of, every_minute, execute, in_an_hour};
use crate::support::Database;

const BLUE: ClusterId = ClusterId::from_uuid(Uuid::from_u128(0xb1));
const GREEN: ClusterId = ClusterId::from_uuid(Uuid::from_u128(0x92));
const RED: ClusterId = ClusterId::from_uuid(Uuid::from_u128(0x3d));

/// A controller of the cluster was seen so many seconds ago.
async fn seen(database: &Database, store: &Store, cluster: ClusterId, seconds_ago: u32) {
    store.see_cluster(cluster, "").await.unwrap();
    let then =
        format!("UPDATE clusters SET last_seen = now() - interval '{seconds_ago} s' WHERE cluster_id = '{cluster}'");
    execute(&mut database.connect().await, &then).await;
}

/// From now on a controller of the cluster is seen whenever an alarm is written: it comes back in the middle of whatever is done.
async fn comes_back_with_the_next_write(database: &Database, cluster: ClusterId) {
    let comes_back = format!(
        "CREATE FUNCTION come_back() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN UPDATE clusters SET last_seen = now() WHERE cluster_id = '{cluster}'; RETURN NULL; END $$;
         CREATE TRIGGER come_back AFTER UPDATE ON alarms FOR EACH STATEMENT EXECUTE FUNCTION come_back()"
    );
    execute(&mut database.connect().await, &comes_back).await;
}

/// An alarm of ann's that stands for the resource `home/<name>` of a cluster.
async fn stored(database: &Database, store: &Store, cluster: ClusterId, name: &str, draft: Draft) -> Alarm {
    stored_for(database, store, &ann(), cluster, name, draft).await
}

async fn stored_for(
    database: &Database,
    store: &Store,
    owner: &Did,
    cluster: ClusterId,
    name: &str,
    draft: Draft,
) -> Alarm {
    let alarm = create(store, owner, draft).await;
    let manage = format!(
        "UPDATE alarms SET source = 'kubernetes', cluster_id = '{cluster}', resource_uid = gen_random_uuid(),
                resource_namespace = 'home', resource_name = '{name}', resource_generation = 1,
                definition_hash = decode(md5('{cluster}'), 'hex')
         WHERE id = '{}'",
        alarm.id
    );
    execute(&mut database.connect().await, &manage).await;
    alarm
}

/// So many alarms of ann's, `home/tea-1` and so on.
async fn stored_many(database: &Database, cluster: ClusterId, many: u32) {
    let insert = format!(
        "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at,
                             source, cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash)
         SELECT '{}', 'ann', 'c', 'once', at, 'm', at, at,
                'kubernetes', '{cluster}', gen_random_uuid(), 'home', 'tea-' || n, 1, '\\x00'
         FROM generate_series(1, {many}) AS n, LATERAL (SELECT now() + interval '1 day' AS at) AS t",
        ann()
    );
    execute(&mut database.connect().await, &insert).await;
}

/// An agent that the resource `home/<user>` of a cluster holds.
async fn enrolled(database: &Database, cluster: ClusterId, user: &str) -> Did {
    let did = did_of(user);
    let insert = format!(
        "INSERT INTO agents (did, public_key, source, cluster_id, resource_uid, resource_namespace, resource_name, resource_created_at)
         VALUES ('{did}', rpad('{}', 64, '0'), 'kubernetes', '{cluster}', gen_random_uuid(), 'home', '{user}', now())",
        did.fingerprint()
    );
    execute(&mut database.connect().await, &insert).await;
    did
}

/// A whole row, as JSON. `None`: it is gone.
async fn row(database: &Database, id: AlarmId) -> Option<Value> {
    let text: Option<String> = sqlx::query_scalar("SELECT to_jsonb(alarms)::text FROM alarms WHERE id = $1")
        .bind(id.as_uuid())
        .fetch_optional(&mut database.connect().await)
        .await
        .unwrap();
    text.map(|text| serde_json::from_str(&text).unwrap())
}

/// A row without these columns.
async fn row_but(database: &Database, alarm: &Alarm, columns: &[&str]) -> Value {
    let mut row = row(database, alarm.id).await.expect("is there");
    for column in columns {
        row.as_object_mut().unwrap().remove(*column).expect("is a column");
    }
    row
}

/// Every row of alarms and agents that a cluster has.
async fn everything_of(database: &Database, cluster: ClusterId) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT to_jsonb(alarms)::text FROM alarms WHERE cluster_id = $1
         UNION ALL SELECT to_jsonb(agents)::text FROM agents WHERE cluster_id = $1
         UNION ALL SELECT to_jsonb(clusters)::text FROM clusters WHERE cluster_id = $1 ORDER BY 1",
    )
    .bind(cluster.as_uuid())
    .fetch_all(&mut database.connect().await)
    .await
    .unwrap()
}

async fn count(database: &Database, condition: &str) -> i64 {
    let statement = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM alarms WHERE {condition}"));
    sqlx::query_scalar(statement).fetch_one(&mut database.connect().await).await.unwrap()
}

/// Ids of the clusters that have a line.
async fn lines(store: &Store) -> Vec<ClusterId> {
    let clusters = store.list_clusters().await.unwrap();
    clusters.iter().filter(|cluster| cluster.last_seen.is_some()).map(|cluster| cluster.id).collect()
}

#[tokio::test]
async fn a_cluster_is_listed_under_its_newest_name() {
    let database = Database::fresh().await;
    let store = database.store().await;
    store.see_cluster(BLUE, "blue").await.unwrap();
    store.see_cluster(GREEN, "").await.unwrap();
    store.see_cluster(BLUE, "azure").await.unwrap();
    let clusters = store.list_clusters().await.unwrap();
    let names: Vec<_> = clusters.iter().map(|cluster| (cluster.id, cluster.name.as_str())).collect();
    assert_eq!(names, [(BLUE, "azure"), (GREEN, "")]);
}

#[tokio::test]
async fn clusters_are_listed_with_what_they_have_also_those_that_only_rows_tell_of() {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 200).await;
    seen(&database, &store, GREEN, 20).await;
    stored(&database, &store, BLUE, "tea", every_minute()).await;
    stored(&database, &store, BLUE, "cake", in_an_hour()).await;
    let fired = stored(&database, &store, BLUE, "bread", in_an_hour()).await;
    execute(
        &mut database.connect().await,
        &format!(
            "UPDATE alarms SET status = 'fired' WHERE id = '{}';
             UPDATE alarms SET status = 'paused', paused_by = '{{owner}}' WHERE resource_name = 'cake'",
            fired.id
        ),
    )
    .await;
    create(&store, &ann(), in_an_hour()).await; // no cluster's
    enrolled(&database, RED, "bob").await;

    let clusters = store.list_clusters().await.unwrap();
    let told = |cluster: &Cluster| {
        let tens_ago = cluster.seen_ago().map(|ago| ago.num_seconds() / 10);
        (cluster.id, tens_ago, cluster.is_at_work(), (cluster.living, cluster.ended, cluster.agents))
    };
    let told: Vec<_> = clusters.iter().map(told).collect();
    assert_eq!(
        told,
        [(GREEN, Some(2), true, (0, 0, 0)), (BLUE, Some(20), false, (2, 1, 0)), (RED, None, false, (0, 0, 1))]
    );
}
