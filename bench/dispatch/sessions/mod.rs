//! What sessions cost: events, sends, timers, and the daily volume of their document (`reference/004`), replayed as fast as it goes.
//!
//! `chronosd` is one process with the roles api and dispatch, at its default settings but for the rate of one owner, which is not what is
//! measured, and the cooldown, which nobody wants to wait for. Users and agents talk to it over HTTP, clients over sockets, wakes go
//! to the sink.
//!
//! | file | asks |
//! |---|---|
//! | [`rates`] | events and sends a second, beside the bare transactions that they end in |
//! | [`bursts`] | many timers due at one instant, of sessions and of service calls, beside as many alarms |
//! | [`day`] | whether a day adds up |
//! | [`talk`] | who talks to a session |
//! | [`bare`] | the bare transactions |

mod bare;
mod bursts;
mod day;
mod rates;
mod talk;

use bare::Bare;
use talk::{Door, SECRET, TOKEN};

use crate::{
    report::Report,
    sink::Sink,
    world::{Daemon, WAKE_TOKEN, World},
};

/// How often each figure is taken; the median counts.
const ROUNDS: usize = 3;
/// Between two autonomous sends of a session.
const COOLDOWN_MS: &str = "1000";

pub async fn sessions(world: &World, report: &mut Report) -> anyhow::Result<()> {
    let sink = Sink::start()?;
    let daemon = start(world, &sink).await?;
    let door = Door::of(&daemon)?;
    let bare = Bare::new(&world.uri).await?;
    rates::events(world, &door, &bare, report).await?;
    rates::sends(world, &door, &bare, report).await?;
    bursts::bursts(world, &door, &sink, report).await?;
    day::day(world, &daemon, &door, &sink, report).await
}

async fn start(world: &World, sink: &Sink) -> anyhow::Result<Daemon> {
    let url = sink.url();
    world
        .chronosd(&[
            ("CHRONOS_ROLES", "api,dispatch"),
            ("CHRONOS_PORT", "0"),
            ("CHRONOS_TOKEN", TOKEN),
            ("CHRONOS_AGENT_AUTH_SECRET", SECRET),
            ("CHRONOS_ENROLMENT", "open"),
            ("CHRONOS_DEV", "true"),
            ("CHRONOS_OWNER_RATE", "0"),
            ("CHRONOS_AUTONOMY_COOLDOWN_MS", COOLDOWN_MS),
            ("CHRONOS_WAKE_TOKEN", WAKE_TOKEN),
            ("CHRONOS_ROUTER_WAKE_URL", &url),
        ])
        .await
}
