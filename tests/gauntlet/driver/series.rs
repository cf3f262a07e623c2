//! Alarms that fire again and again.

use std::{sync::Arc, time::Duration};

use super::{alarms::Alarm, caller::Caller, definitions, dice::Dice, owners::Owner};
use crate::log::{Definition, Schedule};

/// One series after another; a few live as long as the run.
pub async fn keep_one(caller: Arc<Caller>, owners: Vec<Arc<Owner>>, mut dice: Dice, minutely: bool) {
    let dice = &mut dice;
    if !caller.rest(dice.millis(0..20_000)).await {
        return;
    }
    while !caller.is_stopping() {
        let owner = Arc::clone(&owners[dice.below(owners.len())]);
        let keyed = dice.percent(85);
        let define = |dice: &mut Dice, label: &str| {
            let series = definitions::series(dice, label);
            if minutely {
                let (schedule, spread_seconds) = (Schedule::EveryMinutes(1), None);
                return Definition { schedule, spread_seconds, ..series };
            }
            series
        };
        let Some(series) = Alarm::create(Arc::clone(&caller), owner, dice, keyed, define).await else {
            caller.rest(Duration::from_secs(2)).await;
            continue;
        };
        live(series, dice, minutely).await;
    }
}

async fn live(mut series: Alarm, dice: &mut Dice, minutely: bool) {
    let caller = Arc::clone(&series.caller);
    let stays = minutely || dice.percent(40);
    for _ in 0..if stays { usize::MAX } else { 1 + dice.below(4) } {
        if !caller.rest(dice.millis(4000..25_000)).await {
            break;
        }
        match dice.below(10) {
            0..=2 => {
                series.pause(dice).await;
                caller.rest(dice.millis(300..6000)).await;
                series.resume(dice).await;
            }
            3..=5 => series.edit(dice).await,
            _ => {}
        }
    }
    // At the end of the run some stay.
    if caller.is_stopping() && dice.percent(15) {
        return;
    }
    series.cancel(dice).await;
}
