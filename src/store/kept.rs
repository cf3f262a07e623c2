//! One connection beside the pool, kept for one purpose: nobody else has it, and what is prepared on it stays prepared.
//!
//! A pool asks a connection whether it still stands whenever it gets it back, and waits for the answer as long as it takes. For one of many that costs
//! little. Where there is only one, whoever wants it next would wait, too: for a quarter of an hour, if the host has vanished.

use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};
use tokio::{sync::Mutex, time::Instant};

use super::{ACQUIRE_TIMEOUT, tell};

/// As long as a pool keeps one: what a server has put aside for it does not grow for ever.
const LIFETIME: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
pub(super) struct Kept {
    /// What it is told when it is made, besides what every connection is told.
    settings: &'static [&'static str],
    /// Taken out while a question is asked. What is not put back, because there was no answer or nobody waits for it any more, is closed.
    connection: Mutex<Option<(PgConnection, Instant)>>,
}

impl Kept {
    pub(super) fn new(settings: &'static [&'static str]) -> Self {
        Self { settings, connection: Mutex::default() }
    }

    /// Asks a question over it. Another who wants it waits for this one.
    pub(super) async fn ask<T>(
        &self,
        pool: &PgPool,
        within: Duration,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed> {
        let mut place = self.connection.lock().await;
        let (mut connection, made_at) = match place.take().filter(|(_, made_at)| made_at.elapsed() < LIFETIME) {
            Some(kept) => kept,
            None => match self.connect(pool).await {
                Ok(connection) => (connection, Instant::now()),
                Err(error) => return Ok(Err(error)),
            },
        };
        let answer = tokio::time::timeout(within, question(&mut connection)).await?;
        // A server that goes away says so as if it refused something. Another is made in milliseconds.
        if answer.is_ok() {
            *place = Some((connection, made_at));
        }
        Ok(answer)
    }

    /// To where the pool connects now: its address may have been renewed.
    async fn connect(&self, pool: &PgPool) -> Result<PgConnection, sqlx::Error> {
        let options = pool.connect_options();
        let made = async {
            let mut connection = PgConnection::connect_with(&options).await?;
            tell(&mut connection, self.settings).await?;
            Ok(connection)
        };
        tokio::time::timeout(ACQUIRE_TIMEOUT, made).await.map_err(|_elapsed| sqlx::Error::PoolTimedOut)?
    }

    /// Idle, and in use.
    pub(super) fn connections(&self) -> (u32, u32) {
        self.connection.try_lock().map_or((0, 1), |place| (u32::from(place.is_some()), 0))
    }

    pub(super) async fn close(&self) {
        if let Some((connection, _)) = self.connection.lock().await.take() {
            // It is gone either way.
            drop(tokio::time::timeout(ACQUIRE_TIMEOUT, connection.close()).await);
        }
    }
}
