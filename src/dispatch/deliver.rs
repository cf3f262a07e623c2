//! One delivery: the wake goes out, the answer decides what comes next.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::{
    domain::{
        ladder::Ladder,
        occurrence::{self, Next, Occurrence},
    },
    router::Router,
    store::claims::{Attempt, Claim},
};

pub struct Delivered {
    pub next: Next,
    pub attempt: Attempt,
}

pub async fn deliver(router: &Router, ladder: &Ladder, claim: &Claim, asked_at: Instant) -> Delivered {
    // Instants are Postgres' own: the claim's, plus what our stopwatch has run since.
    let by_postgres = |instant: Instant| -> DateTime<Utc> { claim.claimed_at + instant.duration_since(asked_at) };
    let started = Instant::now();
    let answer = router.wake(&claim.wake).await;
    let ended = Instant::now();

    let facts = Occurrence {
        schedule: &claim.schedule,
        scheduled_for: claim.wake.scheduled_for,
        failure_count: claim.failure_count,
        max_failures: claim.max_failures,
    };
    let next = occurrence::next(&facts, &answer, ladder, by_postgres(ended), rand::random());
    let attempt = Attempt {
        started_at: by_postgres(started),
        duration: ended.duration_since(started),
        http_status: answer.http_status(),
        error: answer.error().to_owned(),
    };
    Delivered { next, attempt }
}
