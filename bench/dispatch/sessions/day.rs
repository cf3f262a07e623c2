//! The document's daily volume: 100 sessions, 10 events an hour each, 2 effects an event. Replayed as fast as it goes; at the end it must
//! all add up, in the tables, at the clients and at the sink.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use chronos::clock;
use sqlx::FromRow;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    rates::until_nothing_is_open,
    talk::{Client, Door, Talk, send, timer},
};
use crate::{
    field::float,
    report::{Report, grouped},
    sink::Sink,
    world::{Daemon, World},
};

const SESSIONS: i64 = 100;
/// Of each session: 24 hours, 10 an hour.
const EVENTS: i64 = 240;
/// The user speaks so often, and the agent answers; then the agent follows up so often by itself, once more than the cap lets it.
const SPOKEN: i64 = 20;
const FOLLOW_UPS: i64 = 4;
/// Every answer sets the session's one timer anew: this far ahead while the user goes on talking.
const LATER: TimeDelta = TimeDelta::hours(6);
/// Before a follow-up it is soon, in turns behind the cooldown and within it: the patient agent runs into the cap. Of the hurried one's
/// follow-ups newer ones supersede older ones, and the user speaks before the last has gone out. (With all sessions at once an event takes
/// a few tenths of a second: the cooldown is longer than that.)
const PATIENT: TimeDelta = TimeDelta::milliseconds(1200);
const HURRIED: TimeDelta = TimeDelta::milliseconds(5);
/// Within which a timer that is due is an event.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn day(
    world: &World,
    daemon: &Daemon,
    door: &Arc<Door>,
    sink: &Sink,
    report: &mut Report,
) -> anyhow::Result<()> {
    sink.take().await?;
    let before = (daemon.cpu()?, world.postgres_cpu());
    let begun = Instant::now();
    let stop = CancellationToken::new();
    let (mut talking, mut listening) = (JoinSet::new(), JoinSet::new());
    for number in 0..SESSIONS {
        let (talk, stop) = (door.talk(&format!("day{number}")), stop.clone());
        let (connected, connection) = tokio::sync::oneshot::channel();
        // Half of them wait while the others talk.
        let moods = if number % 2 == 0 { [PATIENT, HURRIED] } else { [HURRIED, PATIENT] };
        talking.spawn(live(talk, moods, connected));
        listening.spawn(async move { connection.await?.listen(stop).await });
    }
    while let Some(lived) = talking.join_next().await {
        lived??;
    }
    let talked = begun.elapsed().as_secs_f64();
    until_nothing_is_open(world).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let after = (daemon.cpu()?, world.postgres_cpu());
    stop.cancel();
    let mut clients = Vec::new();
    while let Some(client) = listening.join_next().await {
        clients.push(client??);
    }

    let events = check_events(world).await?;
    let fates = check_sends(world, &clients).await?;
    check_wakes(world, sink, events.timers).await?;
    let sends = events.all;
    let effects = 2 * events.all + events.timers;
    report.title(&format!(
        "sessions: a day of the document, {} events of {SESSIONS} sessions, replayed: all of it adds up",
        grouped(float(events.all))
    ));
    report.line(
        "took",
        &format!(
            "{seconds:.1} s ({talked:.1} s until the last checkpoint), {:.0} x as fast as the day",
            86_400.0 / seconds
        ),
    );
    let a_second = |count: i64| grouped(float(count) / seconds);
    report.line(
        "events",
        &format!(
            "{:>8} /s   ({} of the user, {} timers promoted)",
            a_second(events.all),
            grouped(float(events.all - events.timers)),
            grouped(float(events.timers))
        ),
    );
    report.line(
        "effects",
        &format!(
            "{:>8} /s   ({} sends, {} timers set, {} wakes)",
            a_second(effects),
            grouped(float(sends)),
            grouped(float(sends)),
            grouped(float(events.timers))
        ),
    );
    report.line("sends", &fates.iter().map(|(fate, count)| format!("{count} {fate}")).collect::<Vec<_>>().join(", "));
    let cost = |cpu: f64| cpu * 1e3 / float(events.all);
    report.line(
        "CPU an event, with its checkpoint and its send",
        &format!("chronosd {:.2} ms, Postgres {:.2} ms", cost(after.0 - before.0), cost(after.1 - before.1)),
    );
    Ok(())
}

/// One session, from its first message to its last checkpoint.
async fn live(
    talk: Talk,
    moods: [TimeDelta; 2],
    connected: tokio::sync::oneshot::Sender<Client>,
) -> anyhow::Result<()> {
    let mut seq = talk.user_says("hello").await?;
    drop(connected.send(talk.connect().await?)); // whoever has it listens until the end
    for soon in moods.into_iter().cycle() {
        for spoken in 1..=SPOKEN {
            let ahead = if spoken == SPOKEN { soon } else { LATER };
            answer(&talk, seq, "reply", ahead).await?;
            if spoken < SPOKEN {
                seq = talk.user_says("and another thing").await?;
            }
        }
        for follow_up in 1..=FOLLOW_UPS {
            seq += 1;
            timeout(PATIENCE, until_it_happens(&talk, seq)).await??;
            answer(&talk, seq, "follow-up", if follow_up == FOLLOW_UPS { LATER } else { soon }).await?;
        }
        if seq == EVENTS {
            break;
        }
        seq = talk.user_says("back again").await?;
    }
    Ok(())
}

async fn answer(talk: &Talk, seq: i64, what: &str, ahead: TimeDelta) -> anyhow::Result<()> {
    let fire_at: DateTime<Utc> = clock::system().now() + ahead;
    talk.checkpoint(seq, &[send(&format!("{what} {seq}")), timer("follow-up", fire_at)]).await
}

async fn until_it_happens(talk: &Talk, seq: i64) -> anyhow::Result<()> {
    while !talk.has_happened(seq).await? {
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

struct Events {
    all: i64,
    timers: i64,
}

/// Without gaps, all processed, and no more timers than sessions.
async fn check_events(world: &World) -> anyhow::Result<Events> {
    let (all, timers): (i64, i64) = sqlx::query_as(
        "SELECT count(*), count(*) FILTER (WHERE type = 'timer') FROM events WHERE starts_with(session_key, 'day')",
    )
    .fetch_one(&world.pool)
    .await?;
    let whole: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sessions
         WHERE starts_with(session_key, 'day') AND last_seq = $1 AND event_seq = $1
           AND (SELECT array_agg(seq ORDER BY seq) FROM events WHERE events.session_key = sessions.session_key)
               = (SELECT array_agg(n) FROM generate_series(1, $1) AS n)
           AND (SELECT count(*) FROM checkpoints WHERE checkpoints.session_key = sessions.session_key) = $1
           AND (SELECT count(*) FROM alarms WHERE alarms.session_key = sessions.session_key) = 1",
    )
    .bind(EVENTS)
    .fetch_one(&world.pool)
    .await?;
    let expected = (SESSIONS, SESSIONS * EVENTS, SESSIONS * EVENTS / (SPOKEN + FOLLOW_UPS) * FOLLOW_UPS);
    ensure!(
        (whole, all, timers) == expected,
        "sessions, events, timers: {:?} and not {expected:?}",
        (whole, all, timers)
    );
    Ok(Events { all, timers })
}

#[derive(FromRow)]
struct Sent {
    id: Uuid,
    session_key: String,
    event_seq: i64,
    send_seq: Option<i64>,
    autonomous: bool,
    status: String,
    reason: Option<String>,
    attempt_count: i32,
}

/// Every reply was completed, at the first attempt; every follow-up has an end. Each client heard its own, once and in order.
async fn check_sends(world: &World, clients: &[Client]) -> anyhow::Result<Vec<(String, usize)>> {
    let open: i64 =
        sqlx::query_scalar("SELECT count(*) FROM effects WHERE status NOT IN ('completed', 'cancelled', 'suppressed')")
            .fetch_one(&world.pool)
            .await?;
    ensure!(open == 0, "{open} effects have no end, or failed");
    let sends: Vec<Sent> = sqlx::query_as(
        "SELECT id, session_key, event_seq, send_seq, autonomous, status, reason, attempt_count FROM effects
         WHERE starts_with(session_key, 'day') AND type = 'send_message' ORDER BY session_key, event_seq",
    )
    .fetch_all(&world.pool)
    .await?;
    let timers: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM effects WHERE starts_with(session_key, 'day') AND type = 'schedule_timer' AND status = 'completed'",
    )
    .fetch_one(&world.pool)
    .await?;
    let asked = SESSIONS * EVENTS;
    ensure!(
        (i64::try_from(sends.len())?, timers) == (asked, asked),
        "{} sends, {timers} timers of {asked}",
        sends.len()
    );

    let mut fates: HashMap<String, usize> = HashMap::new();
    let mut went_out: HashMap<&str, Vec<(i64, Uuid, String)>> = HashMap::new();
    for sent in &sends {
        let Sent { id, session_key, event_seq, autonomous, status, reason, .. } = sent;
        ensure!(*autonomous || status == "completed", "{session_key}: the reply to {event_seq} is {status}");
        ensure!(
            sent.attempt_count <= 1,
            "{session_key}: the answer to {event_seq} went out {} times",
            sent.attempt_count
        );
        ensure!(
            status != "completed" || sent.attempt_count == 1,
            "{session_key}: {event_seq} is completed and never went out"
        );
        let what = if *autonomous { "follow-up" } else { "reply" };
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        *fates.entry(format!("{what} {status}{why}")).or_default() += 1;
        if let Some(send_seq) = sent.send_seq {
            went_out.entry(session_key).or_default().push((send_seq, *id, format!("{what} {event_seq}")));
        }
    }
    ensure!(clients.len() == usize::try_from(SESSIONS)?, "every session has its client");
    for Client { key, heard, .. } in clients {
        // In the order of their events, which must be that of their numbers, from 1 on; a follow-up may have been cancelled on its way.
        let expected = went_out.remove(key.as_str()).unwrap_or_default();
        ensure!(
            expected.iter().map(|(seq, ..)| *seq).eq(1..=i64::try_from(expected.len())?),
            "{key}: sends are not numbered in order"
        );
        let heard = heard.iter().map(|heard| (heard.seq, heard.effect_id, heard.content.as_str()));
        let expected = expected.iter().map(|(seq, id, content)| (*seq, *id, content.as_str()));
        ensure!(
            heard.clone().eq(expected.clone()),
            "{key}: heard {:?}, and not {:?}",
            heard.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>()
        );
    }
    let mut fates: Vec<_> = fates.into_iter().collect();
    fates.sort_by(|one, other| one.1.cmp(&other.1).reverse());
    Ok(fates)
}

/// Every timer that was promoted has its wake at the sink, once.
async fn check_wakes(world: &World, sink: &Sink, timers: i64) -> anyhow::Result<()> {
    let told: Vec<String> = sqlx::query_scalar(
        "SELECT wake.payload ->> 'delivery_id' FROM effects AS wake JOIN events USING (session_key)
         WHERE starts_with(session_key, 'day') AND wake.type = 'wake' AND wake.status = 'completed'
           AND events.seq = wake.event_seq AND events.type = 'timer' AND wake.checkpoint_id = format('timer:%s', events.id)",
    )
    .fetch_all(&world.pool)
    .await?;
    let wakes = sink.take().await?;
    let came: HashSet<&str> = wakes.iter().map(|(.., id)| id.as_str()).collect();
    let counts = (told.len(), wakes.len(), came.len());
    let timers = usize::try_from(timers)?;
    ensure!(counts == (timers, timers, timers), "{timers} timers; wakes completed, come, come once: {counts:?}");
    ensure!(told.iter().all(|id| came.contains(id.as_str())), "a wake came that is not one of these");
    Ok(())
}
