//! What the schema can do at best: two connections, each claiming 500 rows and settling them again, with the fence, the payload
//! read and an attempt written for each. No judging, no fairness, no beats, no router, nobody waits for anybody: this is the limit that the dispatcher is held
//! against. (It would not do for real: who dies in it is noticed when the lease ends.)

use sqlx::{PgPool, Row};
use uuid::Uuid;

const BATCH: i64 = 500;
/// As many as performance figures of batch loops on two cores have been taken with; a claim and a settle overlap.
const CONNECTIONS: usize = 2;

const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM alarms
        WHERE status = 'active' AND next_fire_at <= now() AND (claimed_until IS NULL OR claimed_until <= now())
        ORDER BY next_fire_at LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE alarms SET claimed_at = now(), claimed_until = now() + interval '2 minutes', claim_token = gen_random_uuid(), claimed_by = $2,
        claims = claims + 1, first_claimed_at = coalesce(first_claimed_at, now())
    FROM due WHERE alarms.id = due.id
    RETURNING alarms.id, claim_token, schedule_epoch, owner_did, scheduled_for, wake_message, payload::text AS payload";

const SETTLE: &str = "
    WITH settled AS (
        UPDATE alarms SET status = 'fired', fired_count = fired_count + 1, last_fired_at = now(), updated_at = now(),
            claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
        FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS result (id, token, epoch)
        WHERE alarms.id = result.id AND claim_token = result.token AND schedule_epoch = result.epoch AND status IN ('active', 'paused')
        RETURNING alarms.id, result.token, owner_did, scheduled_for
    )
    INSERT INTO attempts (alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome, http_status, worker)
    SELECT id, token, owner_did, gen_random_uuid(), scheduled_for, 1, now(), 'delivered', 200, $4 FROM settled";

/// Until nothing is due any more.
pub async fn drain(pool: &PgPool) -> anyhow::Result<()> {
    let workers = (0..CONNECTIONS).map(|_| tokio::spawn(work(pool.clone())));
    for worker in futures::future::join_all(workers).await {
        worker??;
    }
    Ok(())
}

async fn work(pool: PgPool) -> anyhow::Result<()> {
    let mut db = pool.acquire().await?;
    let worker = Uuid::new_v4();
    loop {
        let rows = sqlx::query(CLAIM).bind(BATCH).bind(worker).fetch_all(&mut *db).await?;
        if rows.is_empty() {
            return Ok(());
        }
        let (mut ids, mut tokens, mut epochs): (Vec<Uuid>, Vec<Uuid>, Vec<i64>) = Default::default();
        let mut bytes = 0;
        for row in &rows {
            ids.push(row.try_get("id")?);
            tokens.push(row.try_get("claim_token")?);
            epochs.push(row.try_get("schedule_epoch")?);
            bytes += row.try_get::<&str, _>("payload")?.len() + row.try_get::<&str, _>("wake_message")?.len();
        }
        std::hint::black_box(bytes);
        sqlx::query(SETTLE).bind(ids).bind(tokens).bind(epochs).bind(worker).execute(&mut *db).await?;
    }
}
