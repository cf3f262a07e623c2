//! Alarm resources: applied, edited, suspended, deleted, made again under the same name.

use std::{sync::Arc, time::Duration};

use chrono::{SubsecRound, TimeDelta};

use super::{caller::Caller, definitions, dice::Dice, now, owners::Owner, requests};
use crate::log::{Answer, Asked, Definition, Schedule};

struct Resource {
    caller: Arc<Caller>,
    owner: Arc<Owner>,
    name: String,
    suspend: bool,
    alarm: Definition,
}

/// One resource after another; some are left behind.
pub async fn keep_one(caller: Arc<Caller>, owners: Vec<Arc<Owner>>, mut dice: Dice) {
    let dice = &mut dice;
    if !caller.rest(dice.millis(0..8000)).await {
        return;
    }
    let mut again: Option<(String, Arc<Owner>)> = None;
    while !caller.is_stopping() {
        let (name, owner) = again.take().unwrap_or_else(|| {
            let owner = Arc::clone(&owners[dice.below(owners.len())]);
            (caller.name("a"), owner)
        });
        let alarm = if dice.percent(55) {
            definitions::series(dice, &name)
        } else {
            let fire_at = definitions::ahead(dice.millis(2000..9000));
            definitions::once(dice, &name, fire_at)
        };
        let mut resource = Resource { caller: Arc::clone(&caller), owner, name, suspend: false, alarm };
        if !resource.apply(dice).await {
            continue;
        }
        live(&mut resource, dice).await;
        let deletes = dice.percent(if caller.is_stopping() { 30 } else { 80 });
        if deletes && resource.delete(dice).await && dice.percent(45) {
            again = Some((resource.name, resource.owner));
            // A creationTimestamp is in whole seconds: this one must not seem to be older than the deletion.
            caller.rest_until(now().trunc_subsecs(0) + TimeDelta::seconds(1)).await;
        }
    }
}

async fn live(resource: &mut Resource, dice: &mut Dice) {
    let caller = Arc::clone(&resource.caller);
    for _ in 0..=dice.below(4) {
        let wait = match resource.alarm.schedule {
            Schedule::At(_) => dice.millis(300..5000),
            Schedule::Every { .. } | Schedule::EveryMinutes(_) => dice.millis(2000..9000),
        };
        if !caller.rest(wait).await {
            return;
        }
        match dice.below(10) {
            0..=2 => resource.alarm = definitions::other_words(dice, &resource.alarm),
            // A schedule that lies ahead also arms one that has fired.
            3..=5 => resource.alarm = definitions::other(dice, &resource.alarm),
            6..=8 => {
                resource.suspend = true;
                resource.apply(dice).await;
                caller.rest(dice.millis(500..5000)).await;
                resource.suspend = false;
            }
            _ => continue,
        }
        resource.apply(dice).await;
    }
    // So that most of those that fire once have the time to.
    if let Schedule::At(instant) = resource.alarm.schedule
        && dice.percent(80)
    {
        caller.rest_until(instant + TimeDelta::milliseconds(800)).await;
    }
}

impl Resource {
    /// Until it is there as it should be. Tells whether it is.
    async fn apply(&self, dice: &mut Dice) -> bool {
        let object = requests::resource(&self.owner, &self.name, self.suspend, &self.alarm);
        let asked = Asked::Apply { name: self.name.clone(), suspend: self.suspend, alarm: self.alarm.clone() };
        self.insist(dice, asked, || self.caller.cluster.apply("alarms", &self.name, &object)).await
    }

    async fn delete(&self, dice: &mut Dice) -> bool {
        let asked = Asked::Delete { name: self.name.clone() };
        self.insist(dice, asked, || self.caller.cluster.delete("alarms", &self.name)).await
    }

    async fn insist<F: Future<Output = Answer>>(&self, dice: &mut Dice, asked: Asked, act: impl Fn() -> F) -> bool {
        let mut last = None;
        loop {
            let number = self.caller.number();
            self.caller.write(number, &self.owner, "apiserver", asked.clone());
            let answer = act().await;
            self.caller.answered(number, answer.clone());
            if matches!(answer, Answer::Done { .. }) {
                return true;
            }
            if self.caller.is_stopping() {
                last.get_or_insert(now() + TimeDelta::seconds(3));
            }
            // Refused: by a server that is starting, has too much to do, or has lost what we asked it about.
            if last.is_some_and(|last| now() > last) {
                return false;
            }
            tokio::time::sleep(dice.millis(300..1500).max(Duration::from_millis(300))).await;
        }
    }
}
