//! Alarms over HTTP: how they are made and changed.

use std::sync::Arc;

use futures::future::join_all;
use uuid::Uuid;

use super::{
    caller::{Caller, data, is_open},
    definitions,
    dice::Dice,
    owners::Owner,
    requests,
};
use crate::log::{Answer, Asked, Definition, Schedule};

/// An alarm that certainly exists, as it was last asked for.
pub struct Alarm {
    pub caller: Arc<Caller>,
    pub owner: Arc<Owner>,
    pub id: Uuid,
    pub key: Option<String>,
    pub alarm: Definition,
    /// Whether an edit may or may not have been done.
    doubtful: bool,
}

impl Alarm {
    /// `None`: it was refused, or nobody knows.
    pub async fn create(
        caller: Arc<Caller>,
        owner: Arc<Owner>,
        dice: &mut Dice,
        keyed: bool,
        define: impl FnOnce(&mut Dice, &str) -> Definition,
    ) -> Option<Self> {
        let (answer, alarm, key) = if keyed {
            let key = caller.name("k");
            let alarm = define(dice, &key);
            (create_by_key(&caller, &owner, dice, &key, &alarm).await, alarm, Some(key))
        } else {
            let number = caller.number();
            let alarm = define(dice, &format!("c{number}"));
            let asked = Asked::Create { key: None, alarm: alarm.clone() };
            (caller.ask_as(&owner, dice.below(caller.slots()), number, asked, None).await, alarm, None)
        };
        let id = id_of(&answer)?;
        caller.saw(&owner, id);
        Some(Self { caller, owner, id, key, alarm, doubtful: false })
    }

    /// Makes it by `PUT`.
    pub async fn put_new(
        caller: Arc<Caller>,
        owner: Arc<Owner>,
        dice: &mut Dice,
        define: impl FnOnce(&mut Dice, &str) -> Definition,
    ) -> Option<Self> {
        let key = caller.name("k");
        let alarm = define(dice, &key);
        let asked = Asked::Put { key: key.clone(), alarm: alarm.clone() };
        let answer = caller.insist(&owner, dice, asked, useful_until(&alarm)).await;
        let id = id_of(&answer)?;
        caller.saw(&owner, id);
        Some(Self { caller, owner, id, key: Some(key), alarm, doubtful: false })
    }

    pub async fn cancel(&self, dice: &mut Dice) {
        // A series that goes on would be more load than there should be.
        let insists = !matches!(self.alarm.schedule, Schedule::At(_)) || dice.percent(70);
        self.ask(dice, Asked::Cancel { id: self.id }, insists).await;
    }

    pub async fn pause(&self, dice: &mut Dice) {
        let insists = dice.percent(60);
        self.ask(dice, Asked::Pause { id: self.id }, insists).await;
    }

    pub async fn resume(&self, dice: &mut Dice) {
        // One that stays paused is no load.
        let insists = dice.percent(90);
        self.ask(dice, Asked::Resume { id: self.id }, insists).await;
    }

    /// By `PATCH`, or by `PUT` if it has a key.
    pub async fn edit(&mut self, dice: &mut Dice) {
        if let Some(key) = self.key.clone().filter(|_| dice.percent(40)) {
            let alarm = definitions::other(dice, &self.alarm);
            let asked = Asked::Put { key, alarm: alarm.clone() };
            let answer = self.caller.insist(&self.owner, dice, asked, useful_until(&alarm)).await;
            self.was_asked_for(alarm, &answer);
            return;
        }
        let only_words = dice.percent(50);
        let alarm = if only_words {
            definitions::other_words(dice, &self.alarm)
        } else {
            definitions::other(dice, &self.alarm)
        };
        let asked = Asked::Patch { id: self.id, alarm: alarm.clone() };
        // What is left out stays as it is: that is only known of one that is not in doubt.
        let body = (only_words && !self.doubtful).then(|| requests::words_patch(&alarm));
        let number = self.caller.number();
        let slot = dice.below(self.caller.slots());
        let mut answer = self.caller.ask_as(&self.owner, slot, number, asked.clone(), body).await;
        if is_open(&answer) && dice.percent(60) {
            answer = self.caller.insist(&self.owner, dice, asked, useful_until(&alarm)).await;
        }
        self.was_asked_for(alarm, &answer);
    }

    fn was_asked_for(&mut self, alarm: Definition, answer: &Answer) {
        match answer {
            Answer::Done { .. } => (self.alarm, self.doubtful) = (alarm, false),
            Answer::Unknown { .. } => (self.alarm, self.doubtful) = (alarm, true),
            Answer::Refused { .. } => {}
        }
    }

    pub async fn ask(&self, dice: &mut Dice, asked: Asked, insists: bool) -> Answer {
        if insists {
            self.caller.insist(&self.owner, dice, asked, None).await
        } else {
            self.caller.ask(&self.owner, dice.below(self.caller.slots()), asked).await
        }
    }
}

/// Asked for once, or by several at once; again until there is an answer.
async fn create_by_key(caller: &Caller, owner: &Owner, dice: &mut Dice, key: &str, alarm: &Definition) -> Answer {
    let asked = Asked::Create { key: Some(key.to_owned()), alarm: alarm.clone() };
    if dice.percent(25) {
        let (here, there) = caller.two_slots(dice);
        let slots = if dice.percent(40) { vec![here, there, here] } else { vec![here, there] };
        let answers = join_all(slots.into_iter().map(|slot| caller.ask(owner, slot, asked.clone()))).await;
        if let Some(done) = answers.iter().find(|answer| data(answer).is_some()) {
            return done.clone();
        }
        if !answers.iter().any(is_open) {
            return answers.into_iter().next().expect("two were asked at least");
        }
    }
    caller.insist(owner, dice, asked, None).await
}

/// What is asked for again when its instant has passed would fire once more.
fn useful_until(alarm: &Definition) -> Option<chrono::DateTime<chrono::Utc>> {
    match alarm.schedule {
        Schedule::At(instant) => Some(instant - chrono::TimeDelta::milliseconds(1500)),
        Schedule::Every { .. } | Schedule::EveryMinutes(_) => None,
    }
}

fn id_of(answer: &Answer) -> Option<Uuid> {
    data(answer)?["id"].as_str()?.parse().ok()
}
