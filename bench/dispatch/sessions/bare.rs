//! The bare transactions that sessions are held against, on a pool of the facade's size: nobody is asked who they are, nothing is cancelled,
//! capped or sent, and there is no index that is not needed here.

use sqlx::{Executor, PgPool, postgres::PgPoolOptions};

/// Connections of the facade at its default settings.
const POOL: u32 = 10;

pub struct Bare {
    pool: PgPool,
}

impl Bare {
    pub async fn new(uri: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(POOL).test_before_acquire(false).connect(uri).await?;
        for statement in [
            "CREATE TABLE bare_counters (key text PRIMARY KEY, last_seq bigint NOT NULL) WITH (fillfactor = 70)",
            "CREATE TABLE bare_events (key text, seq bigint, payload json NOT NULL, created_at timestamptz NOT NULL, PRIMARY KEY (key, seq))",
            "CREATE TABLE bare_sends (id bigint PRIMARY KEY, payload json NOT NULL, status text NOT NULL, token uuid) WITH (fillfactor = 70)",
            "INSERT INTO bare_counters SELECT n::text, 0 FROM generate_series(0, 999) AS n",
        ] {
            pool.execute(statement).await?;
        }
        Ok(Self { pool })
    }

    /// Locks and counts, then writes the row.
    pub async fn append(&self, counter: i64, payload: &str) -> anyhow::Result<()> {
        let key = counter.to_string();
        let mut transaction = self.pool.begin().await?;
        let seq: i64 =
            sqlx::query_scalar("UPDATE bare_counters SET last_seq = last_seq + 1 WHERE key = $1 RETURNING last_seq")
                .bind(&key)
                .fetch_one(&mut *transaction)
                .await?;
        sqlx::query("INSERT INTO bare_events VALUES ($1, $2, $3::json, clock_timestamp())")
            .bind(&key)
            .bind(seq)
            .bind(payload)
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }

    /// Sends that wait, and none but these.
    pub async fn queue(&self, sends: i64, payload: &str) -> anyhow::Result<()> {
        self.pool.execute("TRUNCATE bare_sends").await?;
        sqlx::query("INSERT INTO bare_sends SELECT n, $2::json, 'pending' FROM generate_series(0, $1 - 1) AS n")
            .bind(sends)
            .bind(payload)
            .execute(&self.pool)
            .await?;
        self.pool.execute("VACUUM ANALYZE bare_sends").await?;
        Ok(())
    }

    /// It goes out, and it has arrived: two transactions, however little is in them.
    pub async fn execute(&self, id: i64) -> anyhow::Result<()> {
        let (payload, token): (String, uuid::Uuid) = sqlx::query_as(
            "UPDATE bare_sends SET status = 'executing', token = gen_random_uuid() WHERE id = $1 AND status = 'pending'
             RETURNING payload::text, token",
        )
        .bind(id)
        .fetch_one(&self.pool)
        .await?;
        std::hint::black_box(payload);
        let done = sqlx::query("UPDATE bare_sends SET status = 'completed', token = NULL WHERE id = $1 AND token = $2")
            .bind(id)
            .bind(token)
            .execute(&self.pool)
            .await?;
        anyhow::ensure!(done.rows_affected() == 1, "nobody else has it");
        Ok(())
    }
}
