//! A day of a million daily alarms, replayed in minutes.
//!
//! Postgres' own clock decides what is due, and it does not run faster. So the instants are moved together instead: what is due at 09:00 of
//! the day is due at 9/24 of the replay. The rows are cron rows as any other, `M H * * *`; when one has fired it is planned for its real next slot. Their
//! windows begin tomorrow, so that no real slot comes in between.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::Executor;

use crate::{
    contender::Contender,
    field::{PAYLOAD, float},
    report::{Report, Round, grouped, percentile},
    sink::{Arrival, Sink},
    world::World,
};

const ALARMS: i64 = 1_000_000;
/// What a day takes here: 144 times as fast.
const DAY: TimeDelta = TimeDelta::minutes(10);
/// How long after the day anybody is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
/// Rows of one INSERT.
const CHUNK: i64 = 100_000;

/// When people want to be woken: of ten, six at any minute, three at a full hour, one at nine.
const INSERT: &str = "
    INSERT INTO alarms (id, owner_did, user_id, label, correlation_id, kind, cron_expr, starts_at, scheduled_for, next_fire_at, wake_message, payload)
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
           format('did:matrix:user%s:%s', n % 1000, substr(md5((n % 1000)::text), 1, 16)), format('user%s', n % 1000), 'daily', format('bench-%s', n),
           'cron', format('%s %s * * *', minute % 60, minute / 60), now() + interval '1 day', due, due, 'Look after what you were told to look after.',
           json_build_object('text', substr((SELECT string_agg(md5(piece::text), '') FROM generate_series(0, 511) AS piece), 1 + (n * 31 % 7000)::int, $5))
    FROM generate_series($1::bigint, $2) AS n,
         LATERAL (SELECT ('x' || substr(md5(n::text), 1, 7))::bit(28)::int AS dice) AS thrown,
         LATERAL (SELECT CASE WHEN n % 10 < 6 THEN dice % 1440 WHEN n % 10 < 9 THEN dice % 24 * 60 ELSE 540 END AS minute) AS chosen,
         LATERAL (SELECT $3 + minute * $4::bigint * interval '1 microsecond' AS due) AS instant";

pub async fn day(world: &World, report: &mut Report) -> anyhow::Result<()> {
    let sink = Sink::start()?;
    let workers = Contender::Chronos.start(world, 1, Some(&sink)).await?;
    let dawn = world.now().await? + TimeDelta::seconds(10) + TimeDelta::microseconds(ALARMS * 150);
    let minute = DAY.num_microseconds().unwrap_or(0) / 1440;
    for from in (0..ALARMS).step_by(usize::try_from(CHUNK)?) {
        let chunk = sqlx::query(INSERT).bind(from).bind(from + CHUNK - 1).bind(dawn).bind(minute).bind(PAYLOAD);
        chunk.execute(&world.pool).await?;
    }
    world.pool.execute("VACUUM ANALYZE alarms").await?;
    world.pool.execute("CHECKPOINT").await?;
    anyhow::ensure!(
        world.now().await? < dawn,
        "the rows were not there in time: the machine is busy with something else"
    );
    let before = (workers.cpu()?, world.postgres_cpu(), size(world).await?, world.wal().await?);
    let begun = crate::field::sleep_until(world, dawn).await?;
    sink.wait_for(usize::try_from(ALARMS)?, DAY.to_std()? + PATIENCE).await?;
    world.until_drained().await?;
    let seconds = begun.elapsed().as_secs_f64().max(DAY.as_seconds_f64());
    let after = (workers.cpu()?, world.postgres_cpu(), size(world).await?, world.wal().await?);
    let memory = workers.peak_memory()? / 1e6;
    workers.stop().await?;

    let arrivals = sink.take().await?;
    check(world, &arrivals).await?;
    let mut late: Vec<i64> = arrivals.iter().map(|(late, ..)| *late).collect();
    late.sort_unstable();
    let percent = |percent| percentile(&late, percent) / 1e3;
    // Most of the day, without the minutes in which very many are due at once and some have to wait for others.
    let mut by_themselves: Vec<i64> =
        arrivals.iter().filter(|(_, due, _)| is_calm(*due, dawn, minute)).map(|(late, ..)| *late).collect();
    by_themselves.sort_unstable();
    let share = |cpu: f64| cpu / seconds * 100.0;
    report.title(&format!(
        "A day of {} daily alarms in {} minutes: 600 000 at any minute, 300 000 at a full hour, 100 000 at nine",
        grouped(float(ALARMS)),
        DAY.num_minutes()
    ));
    report.line("wakes, each once", &grouped(float(i64::try_from(arrivals.len())?)));
    report.line(
        "late, all",
        &format!("p50 {:.1}  p99 {:.1}  max {:.1} ms", percent(50.0), percent(99.0), percent(100.0)),
    );
    let calm = |percent| percentile(&by_themselves, percent) / 1e3;
    report.line(
        "late, those of no full hour and not behind the crowd of nine",
        &format!("p50 {:.1}  p99 {:.1}  max {:.1} ms", calm(50.0), calm(99.0), calm(100.0)),
    );
    let (cpu, postgres) = (share(after.0 - before.0), share(after.1 - before.1));
    report.line(
        "cost over the replay",
        &format!(
            "chronosd {cpu:.0} % of a core, {memory:.0} MB at most; Postgres {postgres:.0} %, {:.0} B of log an alarm; table {:.0} MB before, {:.0} after",
            (after.3 - before.3) / float(ALARMS),
            before.2,
            after.2
        ),
    );
    let figures = [
        ("fired", float(ALARMS)),
        ("seconds", seconds),
        ("cpu_percent", cpu),
        ("postgres_percent", postgres),
        ("memory_mb", memory),
        ("table_mb", after.2),
        ("calm_p50_ms", calm(50.0)),
        ("calm_p99_ms", calm(99.0)),
    ];
    report.record(&Round { scenario: "day", who: "chronosd", config: "", number: 1 }, &figures, Some(&late));
    Ok(())
}

/// Of a minute that is no full hour, nor within the hour in which nine's crowd is worked off.
fn is_calm(due: i64, dawn: DateTime<Utc>, minute: i64) -> bool {
    let minutes = (due - dawn.timestamp_micros()) / minute;
    minutes % 60 != 0 && !(540..600).contains(&minutes)
}

/// Every alarm fired once, and waits for its next day.
async fn check(world: &World, arrivals: &[Arrival]) -> anyhow::Result<()> {
    let ids: std::collections::HashSet<&str> = arrivals.iter().map(|(.., id)| id.as_str()).collect();
    let all = usize::try_from(ALARMS)?;
    anyhow::ensure!((arrivals.len(), ids.len()) == (all, all), "{} arrivals of {}", arrivals.len(), ids.len());
    anyhow::ensure!(arrivals.iter().all(|(late, ..)| *late >= 0), "some came early");
    let planned: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM alarms WHERE status = 'active' AND fired_count = 1 AND next_fire_at > now() + interval '12 hours'",
    )
    .fetch_one(&world.pool)
    .await?;
    anyhow::ensure!(planned == ALARMS, "{planned} alarms are planned for another day");
    Ok(())
}

/// MB of the table and its indexes.
async fn size(world: &World) -> anyhow::Result<f64> {
    let bytes: i64 = sqlx::query_scalar("SELECT pg_total_relation_size('alarms')").fetch_one(&world.pool).await?;
    Ok(float(bytes) / 1e6)
}
