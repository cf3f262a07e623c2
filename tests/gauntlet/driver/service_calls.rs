//! Service calls and their timers.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::{caller::Caller, definitions, dice::Dice, owners::Owner};
use crate::log::{Answer, Asked};

/// One call after another; half of them are left behind.
pub async fn keep_one(caller: Arc<Caller>, owners: Vec<Arc<Owner>>, mut dice: Dice) {
    let dice = &mut dice;
    if !caller.rest(dice.millis(0..5000)).await {
        return;
    }
    while !caller.is_stopping() {
        let owner = &owners[dice.below(owners.len())];
        let call = caller.name("s");
        let registered = caller.insist(owner, dice, Asked::Register { call: call.clone() }, None).await;
        if matches!(registered, Answer::Done { .. }) {
            live(&caller, owner, dice, &call).await;
        }
        if dice.percent(50) {
            deregister(&caller, owner, dice, call).await;
        }
        caller.rest(dice.millis(0..500)).await;
    }
}

async fn live(caller: &Caller, owner: &Owner, dice: &mut Dice, call: &str) {
    for _ in 0..2 + dice.below(4) {
        let mut due_at = set(caller, owner, dice, call).await;
        // Before it is due, mostly.
        if dice.percent(30) && caller.rest(dice.millis(100..1500)).await {
            due_at = set(caller, owner, dice, call).await;
        }
        if dice.percent(10) {
            // Its timer goes with it, at whatever moment that is.
            let off = TimeDelta::from_std(dice.millis(0..400)).expect("milliseconds");
            caller.rest_until(due_at - TimeDelta::milliseconds(300) + off).await;
            return deregister(caller, owner, dice, call.to_owned()).await;
        }
        let after = TimeDelta::from_std(dice.millis(100..900)).expect("milliseconds");
        if !caller.rest_until(due_at + after).await {
            return;
        }
    }
}

async fn set(caller: &Caller, owner: &Owner, dice: &mut Dice, call: &str) -> DateTime<Utc> {
    let wait = if dice.percent(8) { dice.millis(0..2) } else { dice.millis(300..3500) };
    let due_at = definitions::ahead(wait);
    let payload = definitions::payload(dice, call);
    let asked = Asked::Timer { call: call.to_owned(), due_at, payload };
    // Set once more after it was reached, it would be reached once more.
    let until = due_at - TimeDelta::milliseconds(1500);
    caller.insist(owner, dice, asked, Some(until)).await;
    due_at
}

async fn deregister(caller: &Caller, owner: &Owner, dice: &mut Dice, call: String) {
    let asked = Asked::Deregister { call };
    if dice.percent(70) {
        caller.insist(owner, dice, asked, None).await;
    } else {
        caller.ask(owner, dice.below(caller.slots()), asked).await;
    }
}
