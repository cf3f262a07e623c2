//! Alarms that fire once, and what may happen to them on the way.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};

use super::{alarms::Alarm, caller::Caller, definitions, dice::Dice, now, owners::Owner};
use crate::log::{Answer, Asked, Schedule};

/// One alarm, from its creation until nothing more is asked of it.
pub async fn live(caller: Arc<Caller>, owner: Arc<Owner>, mut dice: Dice) {
    let dice = &mut dice;
    let lot = dice.below(100);
    let wait = match lot {
        0..=7 => Duration::ZERO,
        8..=63 => dice.millis(200..6000),
        64..=73 => dice.millis(10_000..18_000),
        74..=78 => dice.millis(800..3000),
        79..=84 => dice.millis(2500..8000),
        85..=91 => dice.millis(2000..12_000),
        92..=95 => dice.millis(3000..10_000),
        _ => dice.millis(300..3000),
    };
    let define = |dice: &mut Dice, label: &str| definitions::once(dice, label, definitions::ahead(wait));
    let by_put = matches!(lot, 92..=95);
    let alarm = if by_put {
        Alarm::put_new(caller, owner, dice, define).await
    } else {
        let keyed = dice.percent(50);
        Alarm::create(caller, owner, dice, keyed, define).await
    };
    let Some(alarm) = alarm else { return };
    match lot {
        0..=63 => {}
        64..=73 => cancelled(alarm, dice).await,
        74..=78 => cancelled_when_due(alarm, dice).await,
        79..=84 => paused(alarm, dice).await,
        85..=95 => edited(alarm, dice).await,
        _ => rearmed(alarm, dice).await,
    }
}

async fn cancelled(alarm: Alarm, dice: &mut Dice) {
    alarm.caller.rest(dice.millis(200..6000)).await;
    alarm.cancel(dice).await;
    // Again: what is over stays as it is.
    if dice.percent(15) {
        alarm.cancel(dice).await;
    }
}

/// The cancel and the wake meet.
async fn cancelled_when_due(alarm: Alarm, dice: &mut Dice) {
    let off = TimeDelta::from_std(dice.millis(0..200)).expect("milliseconds") - TimeDelta::milliseconds(50);
    alarm.caller.rest_until(due(&alarm) + off).await;
    alarm.cancel(dice).await;
}

async fn paused(alarm: Alarm, dice: &mut Dice) {
    if dice.percent(50) {
        // The pause and the wake meet.
        let off = TimeDelta::from_std(dice.millis(0..400)).expect("milliseconds") - TimeDelta::milliseconds(50);
        alarm.caller.rest_until(due(&alarm) + off).await;
    } else {
        alarm.caller.rest(dice.millis(100..2500)).await;
    }
    alarm.pause(dice).await;
    // Before its instant, or after.
    alarm.caller.rest(dice.millis(500..9000)).await;
    alarm.resume(dice).await;
}

async fn edited(mut alarm: Alarm, dice: &mut Dice) {
    for _ in 0..=dice.below(2) {
        if !alarm.caller.rest(dice.millis(200..2500)).await {
            break;
        }
        alarm.edit(dice).await;
    }
}

/// Fires, and is told to fire once more.
async fn rearmed(alarm: Alarm, dice: &mut Dice) {
    let mut when = due(&alarm) + TimeDelta::milliseconds(700);
    for _ in 0..3 {
        if !alarm.caller.rest_until(when).await {
            break;
        }
        let fire_at = definitions::ahead(dice.millis(300..4000));
        let asked = Asked::Rearm { id: alarm.id, fire_at };
        if !matches!(alarm.ask(dice, asked, false).await, Answer::Refused { .. }) {
            break;
        }
        // It has not fired yet.
        when = now() + TimeDelta::from_std(dice.millis(1000..4000)).expect("milliseconds");
    }
}

fn due(alarm: &Alarm) -> DateTime<Utc> {
    match alarm.alarm.schedule {
        Schedule::At(instant) => instant,
        Schedule::Every { .. } | Schedule::EveryMinutes(_) => now(),
    }
}
