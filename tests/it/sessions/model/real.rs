//! The same steps on the store, its answers in the model's words, and what must hold whatever the model says.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{
    domain::{
        access::Did,
        ids::{ClaimToken, EffectId, EventId, StreamId, WorkerId},
        payload::Payload,
        session::{
            SessionKey,
            autonomy::{EventType, Restraint},
            effect::{EffectStatus, EffectType},
        },
        wake::Addressee,
    },
    store::{
        Store,
        checkpoints::{Asked, Checkpointed, Receipt, Request, What},
        claims::Claim,
        effects::{Acknowledged, Effect},
        events::{Appended, Event, Happening},
        session_timers::State,
        streams::NextSend,
        wakes::{WakeClaim, WakeFate, WakeResult, WakeRoom},
    },
};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::{
    super::{ACK, beat, look, promotion::promote},
    plain::{Plain, Talk},
    steps::{
        Answer, CAP, CARRIED, CLAIMS, COOLDOWN, EffectView, Fate, Place, REFUSED, Step, TICK, TIMERS, Turn, View, Wish,
        said,
    },
};
use crate::support::{AgentKey, Database};

const RESTRAINT: Restraint = Restraint { max_consecutive: CAP.unsigned_abs(), cooldown: TimeDelta::seconds(COOLDOWN) };
const LEASE: Duration = Duration::from_secs(600);
const ALL: i64 = 1000;

/// One database for all cases.
static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (store, pool) = runtime.block_on(async {
        let database = Database::fresh().await;
        (database.store().await, sqlx::PgPool::connect(&database.uri).await.unwrap())
    });
    World { runtime, store, pool }
});
static CASES: AtomicU32 = AtomicU32::new(0);

struct World {
    runtime: Runtime,
    store: Store,
    /// For what no store function asks.
    pool: sqlx::PgPool,
}

/// Two sessions of one owner, and what the outside knows of them.
pub struct Real {
    store: Store,
    owner: Did,
    keys: [SessionKey; 2],
    worker: WorkerId,
    streams: [Vec<StreamId>; 2],
    /// What went out last.
    awaited: [Option<ClaimToken>; 2],
    claims: Vec<Claim>,
    wakes: Vec<WakeClaim>,
    places: [BTreeMap<Place, EffectId>; 2],
    receipts: HashMap<(usize, u32), Receipt>,
    /// In the order in which they first went out.
    sent: [Vec<EffectId>; 2],
    /// Effects of which nothing can become any more, as they were then.
    over: HashMap<EffectId, Effect>,
    processed: [i64; 2],
}

impl Real {
    pub fn new() -> Self {
        let case = CASES.fetch_add(1, Ordering::Relaxed);
        WORLD.runtime.block_on(async {
            // Of a case that failed too: its timers would be claimed along.
            execute("DELETE FROM sessions", &[]).await;
            let beat = beat();
            let look = look(&beat);
            WORLD.store.look(&look).await.unwrap();
            Self {
                store: WORLD.store.clone(),
                owner: AgentKey::of("ann").did.parse().unwrap(),
                keys: [0, 1].map(|n| format!("ann:agent:{case}-{n}").parse().unwrap()),
                worker: look.worker,
                streams: [Vec::new(), Vec::new()],
                awaited: [None, None],
                claims: Vec::new(),
                wakes: Vec::new(),
                places: [BTreeMap::new(), BTreeMap::new()],
                receipts: HashMap::new(),
                sent: [Vec::new(), Vec::new()],
                over: HashMap::new(),
                processed: [0, 0],
            }
        })
    }

    /// Takes the step, and compares the answer and all that can be seen afterwards with the model.
    pub fn follows(&mut self, plain: &Plain, step: &Step) {
        WORLD.runtime.block_on(async {
            let answer = self.does(step).await;
            assert_eq!(answer, plain.answer, "store (left) and model (right) answer otherwise to {step:?}");
            for (session, talk) in plain.talks.iter().enumerate() {
                let view = Box::pin(self.view(session)).await;
                assert_eq!(
                    view,
                    talk.as_ref().map(Talk::view),
                    "store (left) and model (right) stand otherwise in session {session} after {step:?}"
                );
            }
        });
    }

    async fn does(&mut self, step: &Step) -> Answer {
        match step {
            Step::Happens { session, kind, id, text, spaced } => {
                let payload = json(&said(*text, *spaced));
                // The same ids in both sessions: they are none of each other's business.
                let id = id.map(|id| EventId::from_uuid(Uuid::from_u128(u128::from(id))));
                let happening = Happening { id, event_type: *kind, payload: &payload };
                let key = &self.keys[*session];
                match self.store.append_event_if_owned(&self.owner, key, &happening).await.unwrap() {
                    Appended::New(event) => Answer::Appended { seq: event.seq, new: true },
                    Appended::Known(event) => Answer::Appended { seq: event.seq, new: false },
                    Appended::Conflict => Answer::Conflict,
                    Appended::NotOwned => Answer::NotFound,
                }
            }
            Step::Checkpoint { session, id, turn, wishes } => self.checkpoint(*session, *id, *turn, wishes).await,
            Step::Claim => self.claim().await,
            Step::Promote { claims } => {
                let claims: Vec<Claim> = claims.iter().filter_map(|&claim| self.claims.get(claim).cloned()).collect();
                Answer::Promoted(promote(&self.store, self.worker, &claims).await)
            }
            Step::TimersLapse { session } => {
                let statement = format!(
                    "UPDATE alarms SET claimed_until = now()
                     WHERE session_key = $1 AND claim_token IS NOT NULL AND claims < {CLAIMS}"
                );
                execute(&statement, &[self.keys[*session].as_str()]).await;
                Answer::Nothing
            }
            Step::Cancel { session, timer } => {
                let key = &self.keys[*session];
                let timer = self.store.cancel_session_timer_if_owned(&self.owner, key, TIMERS[*timer]).await.unwrap();
                timer.map_or(Answer::NotFound, |timer| Answer::Cancelled(timer.status))
            }
            Step::Open { session } => {
                let opened = self.store.open_stream_if_owned(&self.owner, &self.keys[*session]).await.unwrap();
                self.streams[*session].extend(opened);
                opened.map_or(Answer::NotFound, |_| Answer::Nothing)
            }
            Step::Close { session, back } => {
                self.store.close_stream(&self.keys[*session], self.stream(*session, *back)).await.unwrap();
                Answer::Nothing
            }
            Step::NextSend { session, back } => self.next_send(*session, *back).await,
            Step::Acknowledge { session, of, place } => self.acknowledge(*session, *of, *place).await,
            Step::Passes { session, seconds } => {
                let statement = format!(
                    "UPDATE sessions SET last_autonomous_at = last_autonomous_at - interval '{seconds} seconds'
                     WHERE session_key = $1"
                );
                execute(&statement, &[self.keys[*session].as_str()]).await;
                Answer::Nothing
            }
            Step::EffectsLapse { session, swept } => {
                let statement =
                    "UPDATE effects SET claimed_until = now() WHERE session_key = $1 AND status = 'executing'";
                execute(statement, &[self.keys[*session].as_str()]).await;
                if *swept {
                    assert_eq!(
                        self.store.claim_wakes(self.worker, LEASE, &WakeRoom::of(0)).await.unwrap().claims.len(),
                        0
                    );
                }
                Answer::Nothing
            }
            Step::ClaimWakes => self.claim_wakes().await,
            Step::SettleWake { claim, fate } => {
                let Some(claim) = self.wakes.get(*claim) else { return Answer::Settled(false) };
                let why = REFUSED.to_owned();
                let fate = match fate {
                    Fate::Completed => WakeFate::Completed,
                    Fate::Retry => WakeFate::Retry { after: Duration::from_secs(3600), why },
                    Fate::Failed => WakeFate::Failed { why },
                };
                let result = WakeResult { id: claim.id, token: claim.token, fate };
                Answer::Settled(self.store.settle_wakes_under_token(&[result]).await.unwrap() == 1)
            }
            Step::Stranger { session, same_user } => self.stranger(*session, *same_user).await,
        }
    }

    async fn checkpoint(&mut self, session: usize, id: u32, turn: Turn, wishes: &[Wish]) -> Answer {
        let event_seq = match turn {
            Turn::After(distance) => self.processed[session] + distance,
            Turn::Of(seq) => seq,
        };
        let effects: Vec<Asked> = wishes.iter().map(asked).collect();
        let checkpoint_id = format!("c{id}");
        let request = Request { checkpoint_id: &checkpoint_id, event_seq, effects: &effects };
        let stored = self.store.checkpoint_if_owned(&self.owner, &self.keys[session], &request).await.unwrap();
        match stored {
            Checkpointed::Done(receipt) => {
                let first = self.receipts.entry((session, id)).or_insert_with(|| receipt.clone());
                assert_eq!(*first, receipt, "repeated, it is answered as it was");
                for (position, born) in (0..).zip(&receipt.effects) {
                    self.places[session].insert((receipt.event_seq, position), born.id);
                }
                let born = receipt.effects.into_iter().map(|born| (born.effect_type, born.status, born.reason));
                Answer::Stored { event_seq, born: born.collect(), replaced: receipt.replaced_timers }
            }
            Checkpointed::Conflict => Answer::Conflict,
            Checkpointed::OutOfTurn { event_seq, last_seq } => Answer::OutOfTurn { event_seq, last_seq },
            Checkpointed::NotOwned => Answer::NotFound,
        }
    }

    async fn claim(&mut self) -> Answer {
        let beat = beat();
        let look = chronos::store::claims::Look { worker: self.worker, lease: LEASE, ..look(&beat) };
        let found = self.store.look(&look).await.unwrap();
        assert!(found.unreadable.is_empty(), "{:?}", found.unreadable);
        let which = |claim: &Claim| {
            let timer = claim.session.as_ref().expect("there are no others");
            (self.session_of(&timer.session), timer.timer_id.clone())
        };
        let mut claims: Vec<_> = found.claims.into_iter().map(|claim| (which(&claim), claim)).collect();
        claims.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (told, claims): (Vec<_>, Vec<_>) = claims.into_iter().unzip();
        self.claims.extend(claims);
        Answer::Claimed(told)
    }

    async fn next_send(&mut self, session: usize, back: usize) -> Answer {
        let stream = self.stream(session, back);
        let awaited = self.awaited[session];
        match self.store.next_send(&self.keys[session], stream, awaited, &RESTRAINT, ACK).await.unwrap() {
            NextSend::Send(outgoing) => {
                self.awaited[session] = Some(outgoing.token);
                self.goes_out(session, outgoing.id);
                let place = self.places[session].iter().find(|(_, id)| **id == outgoing.id).expect("it was asked for");
                Answer::Sent { place: *place.0, number: outgoing.seq, content: outgoing.content }
            }
            NextSend::Wait { again_in } => {
                Answer::Wait(again_in.map(|wait| i64::try_from(wait.as_secs()).unwrap() / TICK * TICK + TICK))
            }
            NextSend::Unanswered => Answer::Unanswered,
            NextSend::TakenOver => Answer::TakenOver,
            NextSend::Barred => Answer::Barred,
        }
    }

    async fn acknowledge(&mut self, session: usize, of: usize, place: Place) -> Answer {
        let known = self.places[of].get(&place).copied();
        let id = known.unwrap_or_else(|| EffectId::from_uuid(Uuid::new_v4()));
        match self.store.acknowledge_if_owned(&self.owner, &self.keys[session], id, &RESTRAINT, None).await.unwrap() {
            Acknowledged::Now { status, reason } => {
                if status == EffectStatus::Completed {
                    self.goes_out(session, id);
                }
                Answer::Acknowledged(status, reason)
            }
            Acknowledged::TooSoon { not_before } => {
                let key = &self.keys[session];
                let found = self.store.find_session_if_owned(&self.owner, key).await.unwrap().unwrap();
                assert_eq!(not_before - found.last_autonomous_at.unwrap(), TimeDelta::seconds(COOLDOWN));
                Answer::TooSoon
            }
            Acknowledged::NotFound => Answer::NotFound,
        }
    }

    async fn claim_wakes(&mut self) -> Answer {
        let found = self.store.claim_wakes(self.worker, LEASE, &WakeRoom::of(100)).await.unwrap();
        assert!(found.unreadable.is_empty(), "{:?}", found.unreadable);
        let which = |claim: &WakeClaim| match &claim.wake.to {
            Addressee::Session { key, event_seq, .. } => (self.session_of(key), *event_seq),
            other @ (Addressee::Agent | Addressee::ServiceCall { .. }) => panic!("{other:?}"),
        };
        let mut claims: Vec<_> = found.claims.into_iter().map(|claim| (which(&claim), claim)).collect();
        claims.sort_by_key(|(which, _)| *which);
        let (told, claims): (Vec<_>, Vec<_>) = claims.into_iter().unzip();
        self.wakes.extend(claims);
        Answer::ClaimedWakes(told)
    }

    /// Somebody else, of the same user or not, gets nothing and changes nothing.
    async fn stranger(&self, session: usize, same_user: bool) -> Answer {
        let (store, key) = (&self.store, &self.keys[session]);
        let stranger: Did = AgentKey::of(if same_user { "ann" } else { "bob" }).did.parse().unwrap();
        let exists = store.find_session_if_owned(&self.owner, key).await.unwrap().is_some();
        // Of the same user, the first who comes makes the session.
        if exists || !same_user {
            for event_type in [EventType::UserMessage, EventType::ToolResult] {
                let payload = json("{}");
                let happening = Happening { id: None, event_type, payload: &payload };
                let appended = store.append_event_if_owned(&stranger, key, &happening).await.unwrap();
                assert_eq!(appended, Appended::NotOwned);
            }
        }
        let effects = [asked(&Wish::Send(0))];
        for (checkpoint_id, event_seq) in [("stranger", self.processed[session] + 1), ("c0", 1)] {
            let request = Request { checkpoint_id, event_seq, effects: &effects };
            let stored = store.checkpoint_if_owned(&stranger, key, &request).await.unwrap();
            assert_eq!(stored, Checkpointed::NotOwned);
        }
        for id in self.places[session].values().take(3) {
            let answer = store.acknowledge_if_owned(&stranger, key, *id, &RESTRAINT, None).await.unwrap();
            assert_eq!(answer, Acknowledged::NotFound);
        }
        assert_eq!(store.find_session_if_owned(&stranger, key).await.unwrap(), None);
        assert_eq!(store.events_after_if_owned(&stranger, key, 0, ALL).await.unwrap(), None);
        assert_eq!(store.effects_if_owned(&stranger, key, None, ALL).await.unwrap(), None);
        assert_eq!(store.session_timers_if_owned(&stranger, key, ALL).await.unwrap(), None);
        assert_eq!(store.find_session_timer_if_owned(&stranger, key, TIMERS[0]).await.unwrap(), None);
        assert_eq!(store.cancel_session_timer_if_owned(&stranger, key, TIMERS[0]).await.unwrap(), None);
        assert_eq!(store.open_stream_if_owned(&stranger, key).await.unwrap(), None);
        Answer::Nothing
    }

    fn session_of(&self, key: &SessionKey) -> usize {
        self.keys.iter().position(|one| one == key).expect("one of the two")
    }

    /// One that was never opened, where there is none.
    fn stream(&self, session: usize, back: usize) -> StreamId {
        let opened = self.streams[session].iter().rev().nth(back);
        opened.copied().unwrap_or_else(|| StreamId::from_uuid(Uuid::new_v4()))
    }

    fn goes_out(&mut self, session: usize, send: EffectId) {
        if !self.sent[session].contains(&send) {
            self.sent[session].push(send);
        }
    }

    /// All that can be seen of a session; and the invariants, which do not ask the model.
    async fn view(&mut self, session: usize) -> Option<View> {
        let (store, owner, key) = (&self.store, &self.owner, &self.keys[session]);
        let hidden = sqlx::query_as::<_, Hidden>(
            "SELECT id, event_seq, position, send_seq, autonomous, counted_at IS NOT NULL AS counted,
                    statement_timestamp() AS now
             FROM effects WHERE session_key = $1",
        );
        // At once: this is what the test spends its time with.
        let (found, events, effects, timers, hidden) = tokio::try_join!(
            store.find_session_if_owned(owner, key),
            store.events_after_if_owned(owner, key, 0, ALL),
            store.effects_if_owned(owner, key, None, ALL),
            store.session_timers_if_owned(owner, key, ALL),
            async { Ok(hidden.bind(key.as_str()).fetch_all(&WORLD.pool).await.unwrap()) },
        )
        .unwrap();
        let (found, events, effects, timers) = (found?, events?, effects?, timers?);
        let now = hidden.first().map(|hidden| hidden.now);
        let hidden: HashMap<Uuid, Hidden> = hidden.into_iter().map(|hidden| (hidden.id, hidden)).collect();

        assert_eq!(
            events.iter().map(|event| event.seq).collect::<Vec<_>>(),
            (1..=found.last_seq).collect::<Vec<_>>(),
            "events without gaps"
        );
        assert!(found.consecutive_autonomous_msgs <= CAP);
        check_effects(&events, &effects);
        let timer_ids: HashSet<&str> = timers.iter().map(|timer| timer.timer_id.as_str()).collect();
        assert_eq!(timer_ids.len(), timers.len(), "one timer per key");
        let mut numbered: Vec<_> = hidden.values().filter_map(|one| one.send_seq.zip(Some(one.id))).collect();
        numbered.sort_unstable();
        let sent: Vec<_> = (1..).zip(self.sent[session].iter().map(|id| id.as_uuid())).collect();
        assert_eq!(numbered, sent, "sends are numbered as they first went out");
        for effect in effects.iter().filter(|effect| !is_open(effect.status)) {
            let then = self.over.entry(effect.id).or_insert_with(|| effect.clone());
            assert_eq!(effect, then, "what is over does not change");
        }
        for id in self.over.keys().filter(|id| hidden.contains_key(&id.as_uuid())) {
            assert!(effects.iter().any(|effect| effect.id == *id && !is_open(effect.status)), "{id} is open again");
        }

        self.processed[session] = found.event_seq;
        let ago = found.last_autonomous_at.zip(now).map(|(last, now)| (now - last).num_seconds() / TICK * TICK);
        let seq_of = |checkpoint: &str| events.iter().find(|event| checkpoint == format!("timer:{}", event.id));
        let view = |effect: Effect| {
            let hidden = &hidden[&effect.id.as_uuid()];
            let is_wake = effect.effect_type == EffectType::Wake;
            let of_wake = || format!("timer:{}", seq_of(&effect.checkpoint_id).map_or(0, |event| event.seq));
            EffectView {
                place: (hidden.event_seq, hidden.position),
                checkpoint: if is_wake { of_wake() } else { effect.checkpoint_id },
                payload: if is_wake { String::new() } else { effect.payload.as_str().to_owned() },
                told: (effect.effect_type, effect.status, effect.reason),
                attempts: effect.attempt_count,
                autonomous: hidden.autonomous,
                counted: hidden.counted,
                number: hidden.send_seq,
            }
        };
        let timer = |timer: &chronos::store::session_timers::Timer| {
            let name = timer.timer_id.clone();
            (name, timer.fire_at.timestamp(), timer.payload.as_str().to_owned(), timer.status)
        };
        let told = |event: &Event| (event.seq, event.event_type, event.payload.as_str().to_owned());
        let pending = timers.iter().filter(|timer| timer.status == State::Pending).count();
        assert_eq!(i64::try_from(pending).unwrap(), found.pending_timers);
        Some(View {
            last_seq: found.last_seq,
            event_seq: found.event_seq,
            consecutive: found.consecutive_autonomous_msgs,
            spoke_ago: ago,
            pending_timers: found.pending_timers,
            pending_effects: found.pending_effects,
            effects: effects.into_iter().map(view).collect(),
            timers: timers.iter().map(timer).collect(),
            events: events.iter().map(told).collect(),
        })
    }
}

/// What an effect's view does not tell.
#[derive(sqlx::FromRow)]
struct Hidden {
    id: Uuid,
    event_seq: i64,
    position: i32,
    send_seq: Option<i64>,
    autonomous: bool,
    counted: bool,
    now: DateTime<Utc>,
}

fn check_effects(events: &[Event], effects: &[Effect]) {
    let of_type = |kind: EffectType| effects.iter().filter(move |effect| effect.effect_type == kind);
    let executing = of_type(EffectType::SendMessage).filter(|send| send.status == EffectStatus::Executing);
    assert!(executing.count() <= 1, "one unacknowledged send at a time");
    let keys: HashSet<&str> = effects.iter().map(|effect| effect.dedupe_key.as_str()).collect();
    assert_eq!(keys.len(), effects.len(), "no key twice");
    let timers = events.iter().filter(|event| event.event_type == EventType::Timer);
    let mut expected: Vec<String> = timers.map(|event| format!("timer:{}", event.id)).collect();
    let mut wakes: Vec<String> = of_type(EffectType::Wake).map(|wake| wake.checkpoint_id.clone()).collect();
    expected.sort_unstable();
    wakes.sort_unstable();
    assert_eq!(wakes, expected, "one wake for each timer that fired");
    let deliveries: HashSet<String> = of_type(EffectType::Wake).map(delivery_id).collect();
    assert_eq!(deliveries.len(), expected.len(), "whoever takes each delivery once hears of each of them");
}

fn delivery_id(wake: &Effect) -> String {
    let told: serde_json::Value = serde_json::from_str(wake.payload.as_str()).unwrap();
    told["delivery_id"].as_str().unwrap().to_owned()
}

const fn is_open(status: EffectStatus) -> bool {
    matches!(status, EffectStatus::Pending | EffectStatus::Executing)
}

fn asked(wish: &Wish) -> Asked {
    let what = match wish {
        Wish::Send(_) => What::SendMessage,
        Wish::Timer { timer, when, carries } => What::ScheduleTimer {
            timer_id: TIMERS[*timer].to_owned(),
            fire_at: DateTime::from_timestamp(when.second(*timer), 0).unwrap(),
            payload: carries.then(|| json(CARRIED)),
        },
    };
    Asked { payload: json(&wish.payload()), what }
}

fn json(text: &str) -> Payload {
    Payload::parse(text.to_owned()).unwrap()
}

async fn execute(statement: &str, binds: &[&str]) {
    let mut query = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()));
    for bind in binds {
        query = query.bind((*bind).to_owned());
    }
    query.execute(&WORLD.pool).await.unwrap();
}
