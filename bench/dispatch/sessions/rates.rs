//! Events and sends a second, each beside the bare thing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use futures::future::try_join_all;
use serde_json::json;
use sqlx::Executor;
use tokio::time::Instant;

use super::{
    ROUNDS,
    bare::Bare,
    talk::{Door, Talk, send},
};
use crate::{
    field::float,
    report::{Report, all, grouped, median},
    world::World,
};

/// How long events are told in one round.
const ROUND: Duration = Duration::from_secs(2);
/// Callers at once of one session, and of a thousand.
const FEW: i64 = 8;
const MANY: i64 = 32;
const SESSIONS: i64 = 1000;
/// What waits in one session, and in each of many.
const QUEUED: i64 = 500;
const STREAMS: i64 = 100;
const QUEUED_EACH: i64 = 20;
/// Effects of one checkpoint, at most.
const OF_ONE: i64 = 100;

/// What somebody says, as a rule.
fn text() -> String {
    "0123456789abcdef".repeat(16)
}

pub async fn events(world: &World, door: &Arc<Door>, bare: &Bare, report: &mut Report) -> anyhow::Result<()> {
    let text = text();
    let payload = json!({ "text": text }).to_string();
    let talks: Vec<Talk> = (0..SESSIONS).map(|number| door.talk(&format!("teller{number}"))).collect();
    let talk = |number: i64| &talks[usize::try_from(number % SESSIONS).expect("counted from 0")];
    // Made before the clock runs: a session is made once and talked to for long.
    at_once(MANY, SESSIONS, async |number| talk(number).user_says("hello").await.map(|_| ())).await?;

    let mut told = SESSIONS;
    let mut figures = vec![Vec::new(); 4];
    for _ in 0..ROUNDS {
        for (place, figures) in figures.iter_mut().enumerate() {
            world.pool.execute("CHECKPOINT").await?;
            let (count, rate) = match place {
                0 => for_a_while(FEW, async |_| bare.append(0, &payload).await).await?,
                1 => for_a_while(FEW, async |_| talk(0).user_says(&text).await.map(|_| ())).await?,
                2 => for_a_while(MANY, async |number| bare.append(number % SESSIONS, &payload).await).await?,
                _ => for_a_while(MANY, async |number| talk(number).user_says(&text).await.map(|_| ())).await?,
            };
            told += if place % 2 == 1 { count } else { 0 };
            figures.push(rate);
        }
    }
    report.title(
        "sessions: events over HTTP, each beside a transaction that counts and inserts, on a pool of the same size",
    );
    compared(report, "one counter, 8 callers, rows/s", &figures[0], "one session, 8 callers, events/s", &figures[1]);
    compared(
        report,
        "1 000 counters, 32 callers, rows/s",
        &figures[2],
        "1 000 sessions, 32 callers, events/s",
        &figures[3],
    );

    let (events, gaps): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM events),
                (SELECT count(*) FROM sessions WHERE last_seq <> (SELECT count(*) FROM events WHERE events.session_key = sessions.session_key))",
    )
    .fetch_one(&world.pool)
    .await?;
    ensure!((events, gaps) == (told, 0), "{told} events were told, {events} are there, and {gaps} sessions have gaps");
    Ok(())
}

pub async fn sends(world: &World, door: &Arc<Door>, bare: &Bare, report: &mut Report) -> anyhow::Result<()> {
    let payload = json!({ "content": text() }).to_string();
    let mut figures = vec![Vec::new(); 4];
    for round in 0..ROUNDS {
        let lone = vec![door.talk(&format!("lone{round}"))];
        let many: Vec<Talk> = (0..STREAMS).map(|number| door.talk(&format!("hearer{round}x{number}"))).collect();
        bare.queue(QUEUED, &payload).await?;
        world.pool.execute("CHECKPOINT").await?;
        figures[0].push(at_once(1, QUEUED, async |id| bare.execute(id).await).await?);
        figures[1].push(sent(world, &lone, QUEUED).await?);
        bare.queue(STREAMS * QUEUED_EACH, &payload).await?;
        world.pool.execute("CHECKPOINT").await?;
        figures[2].push(at_once(STREAMS, STREAMS * QUEUED_EACH, async |id| bare.execute(id).await).await?);
        figures[3].push(sent(world, &many, QUEUED_EACH).await?);
    }
    report.title("sessions: replies over WebSockets to clients that acknowledge at once, beside the two transactions that each costs at least");
    let queued = |number| grouped(float(number));
    compared(
        report,
        &format!("{} rows, one after another, pairs/s", queued(QUEUED)),
        &figures[0],
        &format!("one session, {} replies waiting, sends/s", queued(QUEUED)),
        &figures[1],
    );
    compared(
        report,
        &format!("{} rows, 100 at once, pairs/s", queued(STREAMS * QUEUED_EACH)),
        &figures[2],
        &format!("100 sessions, {QUEUED_EACH} replies waiting in each, sends/s"),
        &figures[3],
    );
    Ok(())
}

/// Replies wait in each of these sessions when their clients connect; sends a second until the last is completed.
async fn sent(world: &World, talks: &[Talk], each: i64) -> anyhow::Result<f64> {
    try_join_all(talks.iter().map(async |talk| {
        let mut left = each;
        while left > 0 {
            let seq = talk.user_says("go on").await?;
            let effects: Vec<_> = (0..left.min(OF_ONE)).map(|_| send(&text())).collect();
            talk.checkpoint(seq, &effects).await?;
            left -= OF_ONE;
        }
        anyhow::Ok(())
    }))
    .await?;
    for statement in ["VACUUM ANALYZE effects", "CHECKPOINT"] {
        world.pool.execute(statement).await?;
    }
    let begun = Instant::now();
    let hearing = talks.iter().cloned().map(|talk| {
        tokio::spawn(async move {
            let mut client = talk.connect().await?;
            client.hear(usize::try_from(each)?).await?;
            // The connection stays until all is written: one that ends takes the last send back.
            anyhow::Ok(client)
        })
    });
    let mut clients = Vec::new();
    for client in futures::future::join_all(hearing).await {
        clients.push(client??);
    }
    until_nothing_is_open(world).await?;
    let seconds = begun.elapsed().as_secs_f64();
    for client in &clients {
        ensure!(client.heard.iter().map(|heard| heard.seq).eq(1..=each), "{}: not in order, or not once", client.key);
    }
    let keys: Vec<&str> = talks.iter().map(|talk| talk.key.as_str()).collect();
    let all = each * i64::try_from(talks.len())?;
    let completed: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM effects WHERE session_key = ANY ($1) AND status = 'completed' AND attempt_count = 1",
    )
    .bind(keys)
    .fetch_one(&world.pool)
    .await?;
    ensure!(completed == all, "{all} replies, of which {completed} were completed at the first attempt");
    Ok(float(all) / seconds)
}

/// No effect is pending or executing, of whichever session.
pub async fn until_nothing_is_open(world: &World) -> anyhow::Result<()> {
    let patience = Instant::now() + Duration::from_secs(60);
    let open = "SELECT count(*) FROM effects WHERE status IN ('pending', 'executing')";
    loop {
        let left: i64 = sqlx::query_scalar(open).fetch_one(&world.pool).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < patience, "{left} effects are still open a minute later");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// By so many at once, again and again; how often in all, and a second. Each is told its number.
async fn for_a_while(callers: i64, it: impl AsyncFn(i64) -> anyhow::Result<()>) -> anyhow::Result<(i64, f64)> {
    let done = AtomicI64::new(0);
    let begun = Instant::now();
    try_join_all((0..callers).map(async |_| {
        while begun.elapsed() < ROUND {
            it(done.fetch_add(1, Ordering::Relaxed)).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    let done = done.into_inner();
    Ok((done, float(done) / begun.elapsed().as_secs_f64()))
}

/// So often, by so many at once; a second.
async fn at_once(callers: i64, times: i64, it: impl AsyncFn(i64) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let next = AtomicI64::new(0);
    let begun = Instant::now();
    try_join_all((0..callers).map(async |_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= times {
                return anyhow::Ok(());
            }
            it(number).await?;
        }
    }))
    .await?;
    Ok(float(times) / begun.elapsed().as_secs_f64())
}

fn compared(report: &mut Report, theirs: &str, bare: &[f64], ours: &str, figures: &[f64]) {
    let mut line = |what: &str, figures: &[f64], ratio: &str| {
        report.line(what, &format!("{:>8} /s   ({}){ratio}", grouped(median(figures)), all(figures)));
    };
    line(&format!("bare: {theirs}"), bare, "");
    line(ours, figures, &format!("   {:.2} x the bare one", median(figures) / median(bare)));
}
