//! One delivery: the wake goes out, the answer decides what comes next.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::Held;
use crate::{
    domain::{
        alarm::Status,
        ladder::Ladder,
        occurrence::{self, Next, Occurrence},
        trace::Trace,
    },
    router::Router,
    store::claims::Attempt,
};

pub struct Delivered {
    pub next: Next,
    pub attempt: Attempt,
    /// When the alarm wants attention again, on our own clock.
    pub wanted_at: Option<Instant>,
}

pub async fn deliver(router: &Router, ladder: &Ladder, held: &Held) -> Delivered {
    let claim = &held.claim;
    // Instants are Postgres' own: the claim's, plus what our stopwatch has run since it was here. A little behind the
    // truth, never ahead: no slot is passed over because our clock ran fast.
    let by_postgres =
        |instant: Instant| -> DateTime<Utc> { claim.claimed_at + instant.duration_since(held.answered_at) };
    let started = Instant::now();
    let trace = Trace::of(&claim.wake.correlation_id, claim.wake.delivery_id, rand::random());
    let answer = router.wake(&claim.wake, &trace).await;
    let ended = Instant::now();

    let facts = Occurrence {
        subject: claim.subject,
        status: Status::Active, // as it was when it was claimed; what became of it since is the settle's to find out
        timing: &claim.timing,
        offset: claim.offset,
        scheduled_for: claim.wake.scheduled_for,
        series_at: claim.series_at,
        missed: claim.wake.missed,
        failure_count: claim.failure_count,
        max_failures: claim.max_failures,
    };
    let now = by_postgres(ended);
    let next = occurrence::next(&facts, &answer, ladder, now, rand::random()).next;
    // In the past: at once.
    let wanted_at = next.at().map(|at| ended + (at - now).to_std().unwrap_or_default());
    let attempt = Attempt {
        started_at: by_postgres(started),
        duration: ended.duration_since(started),
        http_status: answer.http_status(),
        error: answer.error().to_owned(),
    };
    Delivered { next, attempt, wanted_at }
}
