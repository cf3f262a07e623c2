//! Sessions in plain collections, one step at a time, written from section 10 of the design and not from the code that it is held
//! against: no clock, no claims that race, no SQL. Types of the store are used for words only.

use std::collections::BTreeMap;

use chronos::{
    domain::session::{
        autonomy::EventType,
        effect::{EffectStatus, EffectType},
    },
    store::session_timers::State,
};

use super::steps::{
    Answer, CAP, CARRIED, CLAIMS, COOLDOWN, EffectView, Fate, Place, REFUSED, Step, TIMERS, Told, Turn, View, When,
    Wish, said,
};

#[derive(Clone, Debug, Default)]
pub struct Plain {
    pub talks: [Option<Talk>; 2],
    /// Every claim of a timer there ever was; its place is its token.
    pub claims: Vec<Claim>,
    /// The same for wakes: session and event.
    pub wakes: Vec<(usize, i64)>,
    pub checkpoints: u32,
    /// The user of this case is one of few words.
    pub quiet: bool,
    pub answer: Answer,
}

#[derive(Clone, Debug)]
pub struct Claim {
    pub session: usize,
    pub timer: usize,
    /// What was recorded of it, for good.
    pub outcome: Option<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub struct Talk {
    pub events: Vec<Event>,
    pub processed: i64,
    pub checkpoints: BTreeMap<u32, Checkpoint>,
    pub effects: Vec<Effect>,
    pub timers: BTreeMap<usize, Timer>,
    pub consecutive: i32,
    pub spoke_ago: Option<i64>,
    pub opened: usize,
    pub stream: Option<usize>,
    pub sends: i64,
}

#[derive(Clone, Debug)]
pub struct Event {
    kind: EventType,
    id: Option<u8>,
    text: u8,
    payload: String,
}

#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub event_seq: i64,
    pub wishes: Vec<Wish>,
    answer: Answer,
}

#[derive(Clone, Debug)]
pub struct Effect {
    pub place: Place,
    /// `None`: a wake.
    checkpoint: Option<u32>,
    wish: Option<Wish>,
    status: EffectStatus,
    reason: Option<String>,
    attempts: i32,
    pub autonomous: bool,
    counted: bool,
    number: Option<i64>,
    /// Its lease has ended, and nobody has noticed yet.
    lapsed: bool,
    /// Of a wake: whose it is.
    token: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Timer {
    when: When,
    carries: bool,
    pub state: State,
    /// Who has it claimed; how often it was since it was planned.
    claim: Option<usize>,
    lapsed: bool,
    claims: u32,
}

impl Plain {
    pub fn does(&mut self, step: &Step) -> Answer {
        match step {
            Step::Happens { session, kind, id, text, spaced } => {
                self.talks[*session].get_or_insert_default().happens(*kind, *id, *text, *spaced)
            }
            Step::Checkpoint { session, id, turn, wishes } => {
                self.checkpoints = self.checkpoints.max(id + 1);
                self.talk(*session, |talk| talk.checkpoint(*id, *turn, wishes))
            }
            Step::Claim => self.claim(),
            Step::Promote { claims } => self.promote(claims),
            Step::TimersLapse { session } => {
                self.talk(*session, |talk| {
                    let claimed = talk.timers.values_mut().filter(|timer| timer.claim.is_some());
                    claimed.filter(|timer| timer.claims < CLAIMS).for_each(|timer| timer.lapsed = true);
                    Answer::Nothing
                });
                Answer::Nothing
            }
            Step::Cancel { session, timer } => self.talk(*session, |talk| match talk.timers.get_mut(timer) {
                None => Answer::NotFound,
                Some(timer) => {
                    timer.cancel();
                    Answer::Cancelled(timer.state)
                }
            }),
            Step::Open { session } => self.talk(*session, |talk| {
                talk.give_back();
                talk.stream = Some(talk.opened);
                talk.opened += 1;
                Answer::Nothing
            }),
            Step::Close { session, back } => {
                self.talk(*session, |talk| {
                    if talk.holds(*back) {
                        talk.give_back();
                        talk.stream = None;
                    }
                    Answer::Nothing
                });
                Answer::Nothing
            }
            Step::NextSend { session, back } => match &mut self.talks[*session] {
                None => Answer::Barred,
                Some(talk) if !talk.holds(*back) => Answer::TakenOver,
                Some(talk) => talk.next_send(),
            },
            Step::Acknowledge { session, of, .. } if session != of => Answer::NotFound,
            Step::Acknowledge { session, place, .. } => self.talk(*session, |talk| talk.acknowledge(*place)),
            Step::Passes { session, seconds } => {
                if let Some(Talk { spoke_ago: Some(ago), .. }) = &mut self.talks[*session] {
                    *ago += seconds;
                }
                Answer::Nothing
            }
            Step::EffectsLapse { session, swept } => {
                let effects = self.talks[*session].iter_mut().flat_map(|talk| &mut talk.effects);
                effects.filter(|one| one.status == EffectStatus::Executing).for_each(|one| one.lapsed = true);
                if *swept {
                    self.sweep();
                }
                Answer::Nothing
            }
            Step::ClaimWakes => self.claim_wakes(),
            Step::SettleWake { claim, fate } => self.settle_wake(*claim, *fate),
            Step::Stranger { .. } => Answer::Nothing,
        }
    }

    fn talk(&mut self, session: usize, does: impl FnOnce(&mut Talk) -> Answer) -> Answer {
        self.talks[session].as_mut().map_or(Answer::NotFound, does)
    }

    /// Claims that lapsed, of timers that somebody else has claimed since and that were not planned anew: the token alone fences.
    pub fn lost_claims(&self) -> Vec<usize> {
        let is_lost = |(token, claim): &(usize, &Claim)| {
            let timer = self.talks[claim.session].as_ref().map(|talk| &talk.timers[&claim.timer]);
            timer.is_some_and(|timer| timer.claims > 1 && timer.claim.is_some_and(|holder| holder != *token))
        };
        self.claims.iter().enumerate().filter(is_lost).map(|(token, _)| token).collect()
    }

    fn claim(&mut self) -> Answer {
        let mut claimed = Vec::new();
        for (session, talk) in self.talks.iter_mut().enumerate() {
            for (name, timer) in talk.iter_mut().flat_map(|talk| &mut talk.timers) {
                if timer.is_free() {
                    timer.claim = Some(self.claims.len());
                    timer.lapsed = false;
                    timer.claims += 1;
                    self.claims.push(Claim { session, timer: *name, outcome: None });
                    claimed.push((session, TIMERS[*name].to_owned()));
                }
            }
        }
        Answer::Claimed(claimed)
    }

    /// Exactly once, and only by who has the claim.
    fn promote(&mut self, tokens: &[usize]) -> Answer {
        let tokens: Vec<usize> = tokens.iter().copied().filter(|token| *token < self.claims.len()).collect();
        let mut standing = Vec::new();
        for &token in &tokens {
            let Claim { session, timer: name, .. } = self.claims[token];
            let timer = self.talks[session].as_mut().and_then(|talk| talk.timers.get_mut(&name));
            let timer = timer.expect("what was claimed is never removed");
            if timer.state == State::Pending && timer.claim == Some(token) {
                timer.state = State::Promoted;
                timer.claim = None;
                self.claims[token].outcome = Some("delivered");
                standing.push((timer.second(name), session, name));
            }
        }
        standing.sort_unstable();
        for (_, session, name) in standing {
            self.talks[session].as_mut().expect("it has a timer").fired(name);
        }
        let mut outcomes = Vec::new();
        for &token in &tokens {
            let claim = &mut self.claims[token];
            let timer = self.talks[claim.session].as_ref().map(|talk| &talk.timers[&claim.timer]);
            let is_cancelled = timer.is_some_and(|timer| timer.state == State::Cancelled);
            outcomes.push(*claim.outcome.get_or_insert(if is_cancelled { "cancelled" } else { "fenced" }));
        }
        Answer::Promoted(outcomes)
    }

    fn sweep(&mut self) {
        let effects = self.talks.iter_mut().flatten().flat_map(|talk| &mut talk.effects);
        effects.filter(|effect| effect.lapsed).for_each(Effect::give_back);
    }

    fn claim_wakes(&mut self) -> Answer {
        let mut claimed = Vec::new();
        for (session, talk) in self.talks.iter_mut().enumerate() {
            let effects = talk.iter_mut().flat_map(|talk| &mut talk.effects);
            // One that says why the last try was not taken waits for its next rung, longer than any case takes.
            let wakes = effects.filter(|effect| effect.wish.is_none() && effect.reason.is_none());
            for wake in wakes.filter(|wake| wake.status == EffectStatus::Pending) {
                wake.status = EffectStatus::Executing;
                wake.attempts += 1;
                wake.token = Some(self.wakes.len());
                self.wakes.push((session, wake.place.0));
                claimed.push((session, wake.place.0));
            }
        }
        // What a crash has left behind is free for the next one who comes.
        self.sweep();
        Answer::ClaimedWakes(claimed)
    }

    fn settle_wake(&mut self, token: usize, fate: Fate) -> Answer {
        let effects = self.talks.iter_mut().flatten().flat_map(|talk| &mut talk.effects);
        let Some(wake) = effects.into_iter().find(|effect| effect.token == Some(token)) else {
            return Answer::Settled(false);
        };
        wake.give_back();
        let (status, reason) = match fate {
            Fate::Completed => (EffectStatus::Completed, None),
            Fate::Retry => (EffectStatus::Pending, Some(REFUSED)),
            Fate::Failed => (EffectStatus::Failed, Some(REFUSED)),
        };
        (wake.status, wake.reason) = (status, reason.map(str::to_owned));
        Answer::Settled(true)
    }
}

impl Talk {
    pub fn last_seq(&self) -> i64 {
        i64::try_from(self.events.len()).expect("a few")
    }

    pub fn cools(&self) -> bool {
        self.spoke_ago.is_some_and(|ago| ago < COOLDOWN)
    }

    fn happens(&mut self, kind: EventType, id: Option<u8>, text: u8, spaced: bool) -> Answer {
        let known = self.events.iter().position(|event| id.is_some() && event.id == id);
        if let Some(known) = known {
            let event = &self.events[known];
            let seq = i64::try_from(known + 1).expect("a few");
            let same = (event.kind, event.text) == (kind, text);
            return if same { Answer::Appended { seq, new: false } } else { Answer::Conflict };
        }
        self.events.push(Event { kind, id, text, payload: said(text, spaced) });
        if kind == EventType::UserMessage {
            self.timers.values_mut().for_each(Timer::cancel);
            for effect in self.effects.iter_mut().filter(|effect| effect.autonomous && effect.is_open()) {
                effect.give_back();
                effect.over(EffectStatus::Cancelled, "user_message");
            }
            (self.consecutive, self.spoke_ago) = (0, None);
        }
        Answer::Appended { seq: self.last_seq(), new: true }
    }

    fn checkpoint(&mut self, id: u32, turn: Turn, wishes: &[Wish]) -> Answer {
        let event_seq = match turn {
            Turn::After(distance) => self.processed + distance,
            Turn::Of(seq) => seq,
        };
        if let Some(known) = self.checkpoints.get(&id) {
            let same = (known.event_seq, &known.wishes[..]) == (event_seq, wishes);
            return if same { known.answer.clone() } else { Answer::Conflict };
        }
        if event_seq != self.processed + 1 || event_seq > self.last_seq() {
            return Answer::OutOfTurn { event_seq: self.processed, last_seq: self.last_seq() };
        }
        self.processed = event_seq;
        let (until, since) = self.events.split_at(usize::try_from(event_seq).expect("from 1 on"));
        let answers = until.iter().rev().find(|event| event.kind != EventType::ToolResult);
        let autonomous = answers.is_none_or(|event| event.kind != EventType::UserMessage);
        let late = since.iter().any(|event| event.kind == EventType::UserMessage);
        let (mut born, mut replaced) = (Vec::new(), Vec::new());
        for (position, wish) in wishes.iter().enumerate() {
            let mut effect = Effect::new((event_seq, i32::try_from(position).expect("a few")), Some(id));
            effect.wish = Some(wish.clone());
            match wish {
                Wish::Send(_) => {
                    effect.autonomous = autonomous;
                    if autonomous && late {
                        effect.over(EffectStatus::Cancelled, "user_message");
                    }
                }
                Wish::Timer { timer, when, carries } => {
                    let is_same = |other: &Wish| matches!(other, Wish::Timer { timer: name, .. } if name == timer);
                    let again = wishes[position + 1..].iter().any(is_same);
                    if again && !replaced.contains(&TIMERS[*timer].to_owned()) {
                        replaced.push(TIMERS[*timer].to_owned());
                    }
                    if late {
                        effect.over(EffectStatus::Cancelled, "user_message");
                    } else if again {
                        effect.over(EffectStatus::Cancelled, "replaced");
                    } else {
                        effect.status = EffectStatus::Completed;
                        self.timers.insert(*timer, Timer::new(*when, *carries));
                    }
                }
            }
            born.push(effect.told());
            self.effects.push(effect);
        }
        let answer = Answer::Stored { event_seq, born, replaced };
        let known = Checkpoint { event_seq, wishes: wishes.to_vec(), answer: answer.clone() };
        self.checkpoints.insert(id, known);
        answer
    }

    /// The event, and the wake that follows.
    fn fired(&mut self, timer: usize) {
        let carried = if self.timers[&timer].carries { format!(",\"payload\":{CARRIED}") } else { String::new() };
        let payload = format!("{{\"timer_id\":\"{}\"{carried}}}", TIMERS[timer]);
        self.events.push(Event { kind: EventType::Timer, id: None, text: 0, payload });
        self.effects.push(Effect::new((self.last_seq(), 0), None));
    }

    fn holds(&self, back: usize) -> bool {
        self.stream.is_some() && self.opened.checked_sub(back + 1) == self.stream
    }

    /// What was sent without an answer is to be sent again.
    fn give_back(&mut self) {
        let executing = self.effects.iter_mut().filter(|effect| effect.status == EffectStatus::Executing);
        executing.filter(|effect| effect.wish.is_some()).for_each(Effect::give_back);
    }

    /// What has not reached the client, in order.
    fn open_sends(&self) -> Vec<usize> {
        let sends = (0..self.effects.len()).filter(|&n| self.effects[n].is_send() && self.effects[n].is_open());
        sends.collect()
    }

    /// Whether a later one waits to be said unasked.
    fn is_superseded(&self, effect: usize) -> bool {
        let later = self.open_sends().into_iter().filter(|&other| other > effect);
        later.into_iter().any(|other| self.effects[other].is_restrained())
    }

    fn next_send(&mut self) -> Answer {
        if self.effects.iter().any(Effect::is_on_its_way) {
            return Answer::Unanswered;
        }
        for place in self.open_sends() {
            if self.effects[place].is_restrained() {
                if self.consecutive >= CAP {
                    self.effects[place].over(EffectStatus::Suppressed, "cap");
                    continue;
                }
                if self.cools() && self.is_superseded(place) {
                    self.effects[place].over(EffectStatus::Suppressed, "superseded");
                    continue;
                }
                if self.cools() {
                    return Answer::Wait(self.spoke_ago.map(|ago| COOLDOWN - ago));
                }
            }
            self.goes_out(place);
            let effect = &mut self.effects[place];
            effect.attempts += 1;
            (effect.status, effect.lapsed) = (EffectStatus::Executing, false);
            let Some(Wish::Send(content)) = effect.wish else { unreachable!("it is a send") };
            let number = effect.number.expect("it went out");
            return Answer::Sent { place: effect.place, number, content: content.to_string() };
        }
        Answer::Wait(None)
    }

    /// Numbered once, counted once.
    fn goes_out(&mut self, place: usize) {
        let effect = &mut self.effects[place];
        if effect.number.is_none() {
            self.sends += 1;
            effect.number = Some(self.sends);
        }
        if effect.is_restrained() {
            effect.counted = true;
            self.consecutive += 1;
            self.spoke_ago = Some(0);
        }
    }

    fn acknowledge(&mut self, place: Place) -> Answer {
        let found = self.effects.iter().position(|effect| effect.is_send() && effect.place == place);
        let Some(found) = found else { return Answer::NotFound };
        let (is_superseded, cools) = (self.is_superseded(found), self.cools());
        let effect = &mut self.effects[found];
        if effect.is_open() {
            if effect.is_restrained() && self.consecutive >= CAP {
                effect.over(EffectStatus::Suppressed, "cap");
            } else if effect.is_restrained() && cools && is_superseded {
                effect.over(EffectStatus::Suppressed, "superseded");
            } else if effect.is_restrained() && cools {
                return Answer::TooSoon;
            } else {
                self.goes_out(found);
                let effect = &mut self.effects[found];
                effect.attempts = effect.attempts.max(1);
                (effect.status, effect.lapsed) = (EffectStatus::Completed, false);
            }
        }
        let effect = &self.effects[found];
        Answer::Acknowledged(effect.status, effect.reason.clone())
    }

    pub fn view(&self) -> View {
        let pending = |effect: &&Effect| effect.status == EffectStatus::Pending;
        let mut effects: Vec<&Effect> = self.effects.iter().collect();
        effects.sort_by_key(|effect| effect.place); // a wake is there before the checkpoint of its event
        let mut timers: Vec<_> = self.timers.iter().map(|(name, timer)| timer.view(*name)).collect();
        timers.sort_by_key(|(name, second, ..)| (*second, name.clone()));
        let pending_timers = timers.iter().filter(|timer| timer.3 == State::Pending).count();
        View {
            last_seq: self.last_seq(),
            event_seq: self.processed,
            consecutive: self.consecutive,
            spoke_ago: self.spoke_ago,
            pending_timers: i64::try_from(pending_timers).expect("a few"),
            pending_effects: i64::try_from(self.effects.iter().filter(pending).count()).expect("a few"),
            events: (1..).zip(&self.events).map(|(seq, event)| (seq, event.kind, event.payload.clone())).collect(),
            effects: effects.into_iter().map(Effect::view).collect(),
            timers,
        }
    }
}

impl Effect {
    fn new(place: Place, checkpoint: Option<u32>) -> Self {
        Self {
            place,
            checkpoint,
            wish: None,
            status: EffectStatus::Pending,
            reason: None,
            attempts: 0,
            autonomous: false,
            counted: false,
            number: None,
            lapsed: false,
            token: None,
        }
    }

    pub fn is_send(&self) -> bool {
        matches!(self.wish, Some(Wish::Send(_)))
    }

    pub fn is_open(&self) -> bool {
        matches!(self.status, EffectStatus::Pending | EffectStatus::Executing)
    }

    /// To the client, which has not answered yet.
    pub fn is_on_its_way(&self) -> bool {
        self.is_send() && self.status == EffectStatus::Executing && !self.lapsed
    }

    /// Whether the cap and the cooldown are asked.
    fn is_restrained(&self) -> bool {
        self.autonomous && !self.counted
    }

    fn over(&mut self, status: EffectStatus, reason: &str) {
        (self.status, self.reason) = (status, Some(reason.to_owned()));
    }

    fn give_back(&mut self) {
        (self.status, self.lapsed, self.token) = (EffectStatus::Pending, false, None);
    }

    fn told(&self) -> Told {
        let kind = match self.wish {
            None => EffectType::Wake,
            Some(Wish::Send(_)) => EffectType::SendMessage,
            Some(Wish::Timer { .. }) => EffectType::ScheduleTimer,
        };
        (kind, self.status, self.reason.clone())
    }

    fn view(&self) -> EffectView {
        EffectView {
            place: self.place,
            // A wake's has the event's id.
            checkpoint: self.checkpoint.map_or(format!("timer:{}", self.place.0), |id| format!("c{id}")),
            payload: self.wish.as_ref().map(Wish::payload).unwrap_or_default(),
            told: self.told(),
            attempts: self.attempts,
            autonomous: self.autonomous,
            counted: self.counted,
            number: self.number,
        }
    }
}

impl Timer {
    const fn new(when: When, carries: bool) -> Self {
        Self { when, carries, state: State::Pending, claim: None, lapsed: false, claims: 0 }
    }

    /// Only one that is pending.
    fn cancel(&mut self) {
        if self.state == State::Pending {
            (self.state, self.claim) = (State::Cancelled, None);
        }
    }

    pub fn is_due(&self) -> bool {
        matches!(self.when, When::Past(_)) && self.state == State::Pending
    }

    /// Due, and nobody's.
    pub fn is_free(&self) -> bool {
        self.is_due() && (self.claim.is_none() || self.lapsed)
    }

    /// Under a claim that may lapse.
    pub fn is_held(&self) -> bool {
        self.claim.is_some() && !self.lapsed && self.claims < CLAIMS
    }

    fn second(&self, name: usize) -> i64 {
        self.when.second(name)
    }

    fn view(&self, name: usize) -> (String, i64, String, State) {
        let payload = if self.carries { CARRIED } else { "null" };
        (TIMERS[name].to_owned(), self.second(name), payload.to_owned(), self.state)
    }
}
