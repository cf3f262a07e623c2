//! Many timers due at one instant, of sessions and of service calls, beside as many alarms of agents.

use std::sync::Arc;

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt};
use sqlx::Executor;

use super::{
    ROUNDS,
    rates::until_nothing_is_open,
    talk::{Door, timer},
};
use crate::{
    field::{PATIENCE, float, late, rate, sleep_until},
    report::{Report, all, grouped, median, percentile},
    sink::Sink,
    world::World,
};

const SESSIONS: i64 = 200;
const TIMERS_EACH: i64 = 10;
const TIMERS: i64 = SESSIONS * TIMERS_EACH;
const CALLS: i64 = 5000;
const PAYLOAD: i32 = 1024;
/// Until the rows of a round are there.
const LEAD: TimeDelta = TimeDelta::seconds(3);
/// Callers at once.
const CALLERS: usize = 32;

pub async fn bursts(world: &World, door: &Arc<Door>, sink: &Sink, report: &mut Report) -> anyhow::Result<()> {
    let (mut promotions, mut wakes, mut alarms) = (Vec::new(), Vec::new(), Vec::new());
    let (mut calls, mut agents) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        alarms.push(burst(world, sink, TIMERS, Whose::Agents).await?.1);
        let (promoted, woken) = promoted(world, door, sink, round).await?;
        promotions.push(promoted);
        wakes.push(woken);
        agents.push(burst(world, sink, CALLS, Whose::Agents).await?.0);
        calls.push(burst(world, sink, CALLS, Whose::ServiceCalls).await?.0);
    }
    report.title(&format!(
        "sessions: {} timers of {SESSIONS} sessions due at one instant; behind it, in ms",
        grouped(float(TIMERS))
    ));
    behind(report, "promoted (the event in the log, by Postgres' clock)", &promotions);
    behind(report, "their wakes at the sink", &wakes);
    behind(report, "wakes of as many agents' alarms at the sink", &alarms);
    report.title(&format!(
        "service calls: {} timers due at one instant, 1 KB payload, to the sink",
        grouped(float(CALLS))
    ));
    report.line("agents' alarms, drain", &format!("{:>8} /s   ({})", grouped(median(&agents)), all(&agents)));
    let ratio = median(&calls) / median(&agents);
    report.line(
        "timers of service calls, drain",
        &format!("{:>8} /s   ({})   {ratio:.2} x", grouped(median(&calls)), all(&calls)),
    );
    Ok(())
}

/// Each round: the median of all, the slowest of a hundred, and the last.
fn behind(report: &mut Report, what: &str, rounds: &[Vec<i64>]) {
    let all = |percent: f64| all(&rounds.iter().map(|late| percentile(late, percent) / 1e3).collect::<Vec<_>>());
    report.line(what, &format!("p50 {}   p99 {}   last {}", all(50.0), all(99.0), all(100.0)));
}

/// How far behind their instant the timers were events, and how far their wakes at the sink: microseconds, sorted.
async fn promoted(world: &World, door: &Arc<Door>, sink: &Sink, round: usize) -> anyhow::Result<(Vec<i64>, Vec<i64>)> {
    let talks: Vec<_> = (0..SESSIONS).map(|number| door.talk(&format!("timed{round}x{number}"))).collect();
    futures::stream::iter(&talks)
        .map(async |talk| talk.user_says("remind me").await.map(|_| ()))
        .buffer_unordered(CALLERS)
        .try_collect::<()>()
        .await?;
    let at = world.now().await? + LEAD;
    let effects: Vec<_> = (0..TIMERS_EACH).map(|number| timer(&format!("t{number}"), at)).collect();
    futures::stream::iter(&talks)
        .map(async |talk| talk.checkpoint(1, &effects).await)
        .buffer_unordered(CALLERS)
        .try_collect::<()>()
        .await?;
    world.pool.execute("VACUUM ANALYZE alarms, effects, events").await?;
    in_time(world, at).await?;
    sleep_until(world, at).await?;
    sink.wait_for(usize::try_from(TIMERS)?, PATIENCE).await?;
    until_nothing_is_open(world).await?;
    let keys: Vec<&str> = talks.iter().map(|talk| talk.key.as_str()).collect();
    let promoted: Vec<i64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM created_at - $2) * 1e6)::bigint FROM events
         WHERE session_key = ANY ($1) AND type = 'timer' ORDER BY created_at",
    )
    .bind(keys)
    .bind(at)
    .fetch_all(&world.pool)
    .await?;
    ensure!(promoted.len() == usize::try_from(TIMERS)?, "{TIMERS} timers, {} promoted", promoted.len());
    ensure!(promoted[0] >= 0, "one was promoted {} us early", -promoted[0]);
    let woken = late(sink, TIMERS, |_| true).await?;
    world.settle_down().await?;
    Ok((promoted, woken))
}

async fn in_time(world: &World, at: DateTime<Utc>) -> anyhow::Result<()> {
    ensure!(world.now().await? < at, "the timers were not there in time: the machine is busy with something else");
    Ok(())
}

#[derive(Clone, Copy)]
enum Whose {
    Agents,
    ServiceCalls,
}

/// One round: a second until the last is settled, and how late each came.
async fn burst(world: &World, sink: &Sink, rows: i64, whose: Whose) -> anyhow::Result<(f64, Vec<i64>)> {
    let at = world.now().await? + LEAD;
    sqlx::query(
        "WITH timers AS MATERIALIZED (
             SELECT format('did:matrix:user%s:%s', n % 1000, substr(md5((n % 1000)::text), 1, 16)) AS owner, format('user%s', n % 1000) AS username,
                    format('call-%s', n) AS call,
                    json_build_object('text', substr((SELECT string_agg(md5(n::text || piece), '') FROM generate_series(0, $3 / 32) AS piece), 1, $3)) AS payload
             FROM generate_series(1, $1) AS n
         ), calls AS (
             INSERT INTO service_calls (tenant_id, service_call_id) SELECT owner, call FROM timers WHERE $4 ON CONFLICT DO NOTHING
         )
         INSERT INTO alarms (owner_did, user_id, correlation_id, subject, service_call_id, registered_at, kind, fire_at, scheduled_for, next_fire_at, payload)
         SELECT owner, username, call, CASE WHEN $4 THEN 'service_call' ELSE 'agent' END, CASE WHEN $4 THEN call END, CASE WHEN $4 THEN now() END,
                'once', $2, $2, $2, payload
         FROM timers",
    )
    .bind(rows)
    .bind(at)
    .bind(PAYLOAD)
    .bind(matches!(whose, Whose::ServiceCalls))
    .execute(&world.pool)
    .await?;
    world.pool.execute("VACUUM ANALYZE alarms").await?;
    in_time(world, at).await?;
    let begun = sleep_until(world, at).await?;
    sink.wait_for(usize::try_from(rows)?, PATIENCE).await?;
    world.until_drained().await?;
    let rate = rate(rows, begun);
    world.check_delivered(rows).await?;
    let late = late(sink, rows, |_| true).await?;
    world.settle_down().await?;
    Ok((rate, late))
}
