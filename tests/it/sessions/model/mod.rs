//! A model of sessions: whatever is done in whatever order, the store does what a plain model of section 10 of the design does. A
//! failure prints the shortest sequence of steps that was found for it.
//!
//! | file | is |
//! |---|---|
//! | here | which steps are tried |
//! | [`steps`] | the steps, and the words in which their results are told |
//! | [`plain`] | the model: what each step does |
//! | [`real`] | the same steps on the store, compared after each, and the invariants |

mod plain;
mod real;
mod steps;

use chronos::{domain::session::autonomy::EventType, store::session_timers::State};
use proptest::{
    prelude::*,
    sample::{select, subsequence},
    test_runner::Config,
};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use plain::{Effect, Plain, Talk, Timer};
use real::Real;
use steps::{Fate, Place, Step, TIMERS, Turn, When, Wish};

/// What a commit waits for. `PROPTEST_CASES` for more.
const CASES: u32 = 14;
/// Fewer do not get far: two sends in a row that nobody asked for take a dozen.
const STEPS: std::ops::RangeInclusive<usize> = 30..=40;
/// A failure is looked for so long, in milliseconds, until the shortest that was found is told.
const SHRINK: u32 = 60_000;

fn config() -> Config {
    let all = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { all.cases } else { CASES };
    // Not kept beside the sources: what was wrong is told by a test of its own, in words.
    Config { cases, failure_persistence: None, max_shrink_time: SHRINK, max_shrink_iters: u32::MAX - 1, ..all }
}

prop_state_machine! {
    #![proptest_config(config())]
    #[test]
    fn the_store_does_what_a_plain_model_of_sessions_does(sequential STEPS => Sessions);
}

struct Sessions;

impl StateMachineTest for Sessions {
    type SystemUnderTest = Real;
    type Reference = Self;

    fn init_test(_: &Plain) -> Real {
        Real::new()
    }

    fn apply(mut real: Real, plain: &Plain, step: Step) -> Real {
        real.follows(plain, &step);
        real
    }
}

impl ReferenceStateMachine for Sessions {
    type State = Plain;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Plain> {
        // In some cases the user hardly says a word: only then the agent gets to its cap.
        prop::bool::weighted(0.7).prop_map(|quiet| Plain { quiet, ..Plain::default() }).boxed()
    }

    fn transitions(plain: &Plain) -> BoxedStrategy<Step> {
        // Two sessions, and mostly the first: something is to happen in it.
        let (first, second) = (in_session(plain, 0), in_session(plain, 1));
        let due = plain.talks.iter().flatten().any(|talk| talk.timers.values().any(Timer::is_due));
        let dispatch = if due { 6 } else { 1 };
        prop_oneof![8 => first, 1 => second, dispatch => anywhere(plain)].boxed()
    }

    fn apply(mut plain: Plain, step: &Step) -> Plain {
        plain.answer = plain.does(step);
        plain
    }
}

/// What dispatchers do.
fn anywhere(plain: &Plain) -> BoxedStrategy<Step> {
    let mut steps = vec![(1, Just(Step::Claim).boxed()), (1, Just(Step::ClaimWakes).boxed())];
    if plain.talks.iter().flatten().any(|talk| talk.timers.values().any(Timer::is_free)) {
        steps.push((6, Just(Step::Claim).boxed()));
    }
    if !plain.claims.is_empty() {
        let all: Vec<usize> = (0..plain.claims.len()).collect();
        let newest = all.iter().copied().skip(all.len().saturating_sub(3)).collect::<Vec<_>>();
        let some = |of: Vec<usize>| subsequence(of.clone(), 1..=of.len()).prop_shuffle();
        steps.push((4, some(newest).prop_map(|claims| Step::Promote { claims }).boxed()));
        steps.push((2, some(all).prop_map(|claims| Step::Promote { claims }).boxed()));
    }
    let lost = plain.lost_claims();
    if !lost.is_empty() {
        steps.push((12, select(lost).prop_map(|claim| Step::Promote { claims: vec![claim] }).boxed()));
    }
    if !plain.wakes.is_empty() {
        let fate = select(vec![Fate::Completed, Fate::Completed, Fate::Retry, Fate::Failed]);
        let settle = (0..plain.wakes.len(), fate).prop_map(|(claim, fate)| Step::SettleWake { claim, fate });
        steps.push((2, settle.boxed()));
    }
    proptest::strategy::Union::new_weighted(steps).boxed()
}

fn in_session(plain: &Plain, session: usize) -> BoxedStrategy<Step> {
    let Some(talk) = &plain.talks[session] else {
        return prop_oneof![8 => happens(plain, session), 1 => rarely(plain, session)].boxed();
    };
    let id = plain.checkpoints;
    let checkpoint = move |after| {
        wishes().prop_map(move |wishes| Step::Checkpoint { session, id, turn: Turn::After(after), wishes }).boxed()
    };
    let behind = talk.last_seq() - talk.processed;
    let mut steps = vec![
        (if behind > 1 { 2 } else { 6 }, happens(plain, session).boxed()),
        (3, rarely(plain, session).boxed()),
        (if behind > 0 { 10 } else { 1 }, checkpoint(1)),
        (if talk.stream.is_some() { 1 } else { 10 }, Just(Step::Open { session }).boxed()),
    ];
    if behind > 1 {
        steps.push((2, checkpoint(2)));
    }
    let open = talk.effects.iter().filter(|effect| effect.is_send() && effect.is_open());
    let (on_their_way, waiting): (Vec<&Effect>, Vec<&Effect>) = open.partition(|effect| effect.is_on_its_way());
    if talk.stream.is_some() {
        let weight = if waiting.is_empty() || !on_their_way.is_empty() { 1 } else { 12 };
        steps.push((weight, Just(Step::NextSend { session, back: 0 }).boxed()));
    }
    for (weight, sends) in [(3, &waiting), (8, &on_their_way)] {
        let places: Vec<Place> = sends.iter().map(|effect| effect.place).collect();
        if !places.is_empty() {
            let acknowledge = select(places).prop_map(move |place| Step::Acknowledge { session, of: session, place });
            steps.push((weight, acknowledge.boxed()));
        }
    }
    if on_their_way.iter().any(|effect| effect.autonomous) || talk.timers.values().any(Timer::is_held) {
        let interrupts = (0..2_u8).prop_map(move |text| Step::Happens {
            session,
            kind: EventType::UserMessage,
            id: None,
            text,
            spaced: false,
        });
        steps.push((3, interrupts.boxed()));
    }
    if !on_their_way.is_empty() {
        let lapse = any::<bool>().prop_map(move |swept| Step::EffectsLapse { session, swept });
        steps.push((3, lapse.boxed()));
        steps.push((1, Just(Step::Open { session }).boxed()));
    }
    let held: Vec<usize> = talk.timers.iter().filter(|(_, timer)| timer.is_held()).map(|(timer, _)| *timer).collect();
    if !held.is_empty() {
        steps.push((6, Just(Step::TimersLapse { session }).boxed()));
        // What was claimed is planned anew before it is promoted.
        let when = select(vec![When::Past(0), When::Past(1), When::FarAhead]);
        let again = (select(held), when).prop_map(move |(timer, when)| {
            let wishes = vec![Wish::Timer { timer, when, carries: true }];
            Step::Checkpoint { session, id, turn: Turn::After(1), wishes }
        });
        steps.push((if behind > 0 { 4 } else { 1 }, again.boxed()));
    }
    let promoted = talk.timers.iter().filter(|(_, timer)| timer.state == State::Promoted);
    let promoted: Vec<usize> = promoted.map(|(timer, _)| *timer).collect();
    if !promoted.is_empty() {
        steps.push((1, select(promoted).prop_map(move |timer| Step::Cancel { session, timer }).boxed()));
    }
    if talk.cools() {
        let seconds = select(vec![400, 1000, 1000, 1000]);
        let weight = if waiting.is_empty() { 3 } else { 8 };
        steps.push((weight, seconds.prop_map(move |seconds| Step::Passes { session, seconds }).boxed()));
    }
    if !talk.checkpoints.is_empty() {
        steps.push((1, repeated(talk, session).boxed()));
    }
    proptest::strategy::Union::new_weighted(steps).boxed()
}

fn happens(plain: &Plain, session: usize) -> impl Strategy<Value = Step> + use<> {
    let tools = if plain.quiet { 15 } else { 2 };
    let kind = prop_oneof![1 => Just(EventType::UserMessage), tools => Just(EventType::ToolResult)];
    // Few ids and texts: some come again, with the same text or another.
    (kind, prop::option::weighted(0.3, 0..4_u8), 0..2_u8, any::<bool>())
        .prop_map(move |(kind, id, text, spaced)| Step::Happens { session, kind, id, text, spaced })
}

/// What is wrong, late, or somebody else's.
fn rarely(plain: &Plain, session: usize) -> impl Strategy<Value = Step> + use<> {
    let id = plain.checkpoints;
    let turn = select(vec![Turn::After(-1), Turn::After(0), Turn::After(2), Turn::After(2), Turn::After(3)]);
    let out_of_turn = (turn, wishes()).prop_map(move |(turn, wishes)| Step::Checkpoint { session, id, turn, wishes });
    let place = (1..8_i64, 0..3_i32);
    prop_oneof![
        3 => out_of_turn,
        2 => (0..TIMERS.len()).prop_map(move |timer| Step::Cancel { session, timer }),
        1 => (0..3_usize).prop_map(move |back| Step::Close { session, back }),
        2 => (0..3_usize).prop_map(move |back| Step::NextSend { session, back }),
        3 => place.clone().prop_map(move |place| Step::Acknowledge { session, of: session, place }),
        1 => place.prop_map(move |place| Step::Acknowledge { session, of: 1 - session, place }),
        1 => Just(Step::EffectsLapse { session, swept: true }),
        1 => any::<bool>().prop_map(move |same_user| Step::Stranger { session, same_user }),
    ]
}

/// A checkpoint that is known, as it was or otherwise.
fn repeated(talk: &Talk, session: usize) -> impl Strategy<Value = Step> + use<> {
    let known: Vec<_> = talk.checkpoints.iter().map(|(id, one)| (*id, one.event_seq, one.wishes.clone())).collect();
    let change = prop_oneof![3 => Just(None), 1 => wishes().prop_map(Some)];
    (select(known), change, prop::bool::weighted(0.2)).prop_map(move |((id, seq, wishes), change, later)| {
        let (turn, wishes) = (Turn::Of(seq + i64::from(later)), change.unwrap_or(wishes));
        Step::Checkpoint { session, id, turn, wishes }
    })
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let when = prop_oneof![4 => (0..2_u8).prop_map(When::Past), 1 => Just(When::FarAhead)];
    // Mostly one of them: it is to be set again, and at the same instant.
    let timer = (select(vec![0, 0, 0, 1, 2]), when, any::<bool>()).prop_map(|(timer, when, carries)| Wish::Timer {
        timer,
        when,
        carries,
    });
    prop::collection::vec(prop_oneof![3 => any::<u8>().prop_map(Wish::Send), 2 => timer], 0..=4)
}
