//! One look at the table: beat, see the peers, claim what is due. One statement, so that an idle dispatcher costs one a tick.
//!
//! Which rows a claim takes: the oldest due, as many as there is room for in rows and bytes, no more of one owner than that
//! owner has room for. There are two ways to find them.
//!
//! - *The oldest*, along `alarms_due_idx`, behind what the looks before have seen. The way of all days. Where an owner turns out to have more due than room, it is
//!   reported as crowded, and has a backlog. So is the owner of due rows whose agent is suspended: it has no room at all.
//! - *Past backlogs*. A backlog's rows are the oldest of all, and along `alarms_due_idx` there is no way around them. So rows are
//!   found by owner: the owners of rows that became due since the last look (the rest was seen then), those whose backlog has
//!   room again, and once in a while every owner there is, because a hint may be lost and a row may come with an instant
//!   long past.
//!
//! Either way a row is locked with `SKIP LOCKED` and stamped in the same statement: two dispatchers never take the same one.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Postgres, Row as _, postgres::PgArguments, query::Query, types::Json};
use uuid::Uuid;

use super::{Claim, Unreadable, random_uuid, read, token_of};
use crate::{
    domain::{
        ids::{AlarmId, WorkerId},
        peers::Sighting,
    },
    mutants::{self, Mutant},
    store::{Result, Store},
};

/// The claim of the oldest, as `EXPLAIN` sees it too.
pub const CLAIM_OLDEST: &str = concat!(
    include_str!("../sql/look_begin.sql"),
    include_str!("../sql/due_oldest.sql"),
    include_str!("../sql/look_end.sql")
);
/// The claim past backlogs.
pub const CLAIM_PAST_BACKLOGS: &str = concat!(
    include_str!("../sql/look_begin.sql"),
    include_str!("../sql/due_past_backlogs.sql"),
    include_str!("../sql/look_end.sql")
);

/// From so many claims without a result on, a row is claimed alone: what kills its dispatcher must not take others along.
pub(super) const SUSPECT_CLAIMS: i32 = 4;

/// What a dispatcher says of itself when it beats.
#[derive(Clone, Debug)]
pub struct Beat {
    pub version: &'static str,
    pub host: String,
}

/// How much a claim may take.
#[derive(Clone, Debug)]
pub struct Room<'a> {
    pub rows: usize,
    pub bytes: usize,
    /// Of one owner, where `owners` does not say otherwise.
    pub of_owner: usize,
    /// Owners with deliveries in flight, and the room each has left.
    pub owners: Vec<(&'a str, usize)>,
}

/// Where an alarm stands among those that are due: the oldest first, and in the order of their ids at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub due_at: DateTime<Utc>,
    pub id: AlarmId,
}

impl Place {
    /// Behind all that were due by then.
    pub fn last_at(instant: DateTime<Utc>) -> Self {
        Self { due_at: instant, id: AlarmId::from_uuid(Uuid::max()) }
    }
}

/// Who has a backlog, and what else to look at.
#[derive(Clone, Debug)]
pub struct Backlog<'a> {
    pub owners: Vec<&'a str>,
    /// What was due by then has been seen.
    pub seen_until: DateTime<Utc>,
    /// Look at every owner.
    pub survey: bool,
}

#[derive(Clone, Debug)]
pub struct Look<'a> {
    pub worker: WorkerId,
    /// `Some` when a beat is due.
    pub beat: Option<&'a Beat>,
    pub lease: Duration,
    pub room: Room<'a>,
    /// Whether to take rows, one at a time, that were claimed again and again without a result.
    pub suspects: bool,
    /// Whether to take sessions' timers.
    pub sessions: bool,
    /// Along the oldest: only what lies behind this one.
    pub after: Option<Place>,
    /// `None`: nobody is known to have one.
    pub backlog: Option<Backlog<'a>>,
}

#[derive(Debug)]
pub struct Found {
    /// Postgres' time of the look.
    pub looked_at: DateTime<Utc>,
    /// Dispatch is held: nothing was claimed.
    pub held: bool,
    /// The other dispatchers, if this look was a beat.
    pub peers: Option<Vec<Sighting>>,
    pub claims: Vec<Claim>,
    pub unreadable: Vec<Unreadable>,
    /// Owners that have more due than room.
    pub crowded: Vec<String>,
    /// Those of them that have no room because they are suspended, whatever lands.
    pub suspended: Vec<String>,
    /// Some that are taken alone were due: others, or they, are still waiting.
    pub suspects: bool,
    /// Nothing else was left that this look could have found.
    pub whole: bool,
    /// The earliest alarm still ahead.
    pub next_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Looks. Rows that another dispatcher is claiming at this moment are passed over without waiting; rows whose lease has
    /// ended are free again.
    pub async fn look(&self, look: &Look<'_>) -> Result<Found> {
        self.ask_always("looking for due alarms", async |db| found(db, look).await).await
    }
}

async fn found(db: &mut PgConnection, look: &Look<'_>) -> Result<Found, sqlx::Error> {
    let statement = if look.backlog.is_some() { CLAIM_PAST_BACKLOGS } else { oldest() };
    let early = ("next_fire_at <= now()", "next_fire_at <= now() + interval '700 ms'");
    let statement = mutants::changed(Mutant::FireEarly, statement, &[early]);
    let mut query = bind(sqlx::query(statement), look);
    query = match &look.backlog {
        Some(backlog) => {
            let owners: BTreeMap<&str, bool> = backlog.owners.iter().map(|owner| (*owner, true)).collect();
            query.bind(Json(owners)).bind(backlog.seen_until).bind(backlog.survey)
        }
        None => query.bind(look.after.map(|place| place.due_at)).bind(look.after.map(|place| place.id.as_uuid())),
    };
    let rows = query.fetch_all(db).await?;
    // The look itself stands in every row, and in one of its own when nothing was claimed.
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let mut found = Found {
        looked_at: first.try_get("looked_at")?,
        held: first.try_get("held")?,
        peers: if look.beat.is_some() { Some(peers(first)?) } else { None },
        claims: Vec::with_capacity(rows.len()),
        unreadable: Vec::new(),
        crowded: first.try_get::<Option<_>, _>("crowded")?.unwrap_or_default(),
        suspended: first.try_get::<Option<_>, _>("suspended")?.unwrap_or_default(),
        suspects: first.try_get("suspects")?,
        whole: first.try_get("whole")?,
        next_at: first.try_get("next_at")?,
    };
    for row in &rows {
        let Some(id) = row.try_get::<Option<Uuid>, _>("id")?.map(AlarmId::from_uuid) else { break };
        let token = token_of(row.try_get("claim_token")?);
        // The driver panics at instants that no clock of ours can hold. One such row must not end the process, and end it again
        // whoever claims it next.
        let read = std::panic::catch_unwind(|| read(id, token, row));
        match read.unwrap_or_else(|_| Err("a column holds what no type of ours can".to_owned())) {
            Ok(claim) => found.claims.push(claim),
            Err(why) => found.unreadable.push(Unreadable { id, token, why }),
        }
    }
    Ok(found)
}

fn oldest() -> &'static str {
    let paused =
        ("status = 'active'\n      AND next_fire_at", "status IN ('active', 'paused')\n      AND next_fire_at");
    mutants::changed(Mutant::PauseIgnored, CLAIM_OLDEST, &[paused])
}

fn bind<'q>(query: Query<'q, Postgres, PgArguments>, look: &'q Look<'_>) -> Query<'q, Postgres, PgArguments> {
    // Whatever does not fit is more than there can be.
    let int = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let rooms: BTreeMap<&str, i32> = look.room.owners.iter().map(|(owner, room)| (*owner, int(*room))).collect();
    query
        .bind(look.worker.as_uuid())
        .bind(look.beat.map_or("", |beat| beat.version))
        .bind(look.beat.map_or("", |beat| beat.host.as_str()))
        .bind(look.beat.is_some())
        .bind(i64::try_from(look.room.rows).unwrap_or(i64::MAX))
        .bind(look.lease.as_secs_f64())
        .bind(i64::try_from(look.room.bytes).unwrap_or(i64::MAX))
        .bind(Json(rooms))
        .bind(std::iter::repeat_with(random_uuid).take(look.room.rows).collect::<Vec<_>>())
        .bind(int(look.room.of_owner))
        .bind(SUSPECT_CLAIMS)
        .bind(look.suspects)
        .bind(look.sessions)
}

fn peers(row: &sqlx::postgres::PgRow) -> Result<Vec<Sighting>, sqlx::Error> {
    let workers: Vec<Uuid> = row.try_get::<Option<_>, _>("peers")?.unwrap_or_default();
    let beats: Vec<i64> = row.try_get::<Option<_>, _>("peers_beats")?.unwrap_or_default();
    let started: Vec<DateTime<Utc>> = row.try_get::<Option<_>, _>("peers_started_at")?.unwrap_or_default();
    let marks = beats.into_iter().zip(started);
    Ok(workers
        .into_iter()
        .zip(marks)
        .map(|(worker, (beats, started_at))| Sighting { worker: WorkerId::from_uuid(worker), beats, started_at })
        .collect())
}
