//! The words of the model: the steps that are tried, what they are answered with, and what is seen of a session afterwards.

use chronos::{
    domain::session::{
        autonomy::EventType,
        effect::{EffectStatus, EffectType},
    },
    store::session_timers::State,
};

/// At most so many sends in a row that nobody asked for (two, because it takes many steps to get there),
pub const CAP: i32 = 2;
/// and so many seconds apart. No case takes that long, so that only `Step::Passes` ends a cooldown.
pub const COOLDOWN: i64 = 1000;
/// All that passes is a multiple of it, and no case takes that long.
pub const TICK: i64 = 200;
/// From more claims without a result on, a timer is claimed alone, which is another test's.
pub const CLAIMS: u32 = 3;
pub const TIMERS: [&str; 3] = ["a", "b", "c"];
/// What a timer carries, if it carries anything: kept to the byte.
pub const CARRIED: &str = r#"{"n": 1e1}"#;
/// Why a router did not take a wake.
pub const REFUSED: &str = "HTTP 503";

/// What is done to the store and to the model alike. None has preconditions: whatever a step names may be there or not, and what is
/// answered then is as much to be compared. `session` is 0 or 1.
#[derive(Clone, Debug)]
pub enum Step {
    /// The user says something, or a tool does. `id`: the client's own.
    Happens {
        session: usize,
        kind: EventType,
        id: Option<u8>,
        text: u8,
        spaced: bool,
    },
    Checkpoint {
        session: usize,
        id: u32,
        turn: Turn,
        wishes: Vec<Wish>,
    },
    /// A dispatcher claims what is due.
    Claim,
    /// It promotes some of what anybody ever claimed.
    Promote {
        claims: Vec<usize>,
    },
    /// The leases of claimed timers end; nobody notices until the next claim.
    TimersLapse {
        session: usize,
    },
    Cancel {
        session: usize,
        timer: usize,
    },
    Open {
        session: usize,
    },
    /// `back`: how many streams were opened after it.
    Close {
        session: usize,
        back: usize,
    },
    NextSend {
        session: usize,
        back: usize,
    },
    /// In `session` an effect `of` a session is acknowledged.
    Acknowledge {
        session: usize,
        of: usize,
        place: Place,
    },
    Passes {
        session: usize,
        seconds: i64,
    },
    /// The leases of effects end; `swept`: a dispatcher comes by.
    EffectsLapse {
        session: usize,
        swept: bool,
    },
    ClaimWakes,
    SettleWake {
        claim: usize,
        fate: Fate,
    },
    /// Somebody else tries everything.
    Stranger {
        session: usize,
        same_user: bool,
    },
}

/// Which event a checkpoint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many after the last that was processed: 1 is right.
    After(i64),
    Of(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Send(u8),
    Timer { timer: usize, when: When, carries: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Past(u8),
    FarAhead,
}

/// An effect, by its event and its position.
pub type Place = (i64, i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Completed,
    Retry,
    Failed,
}

/// What came of a step. The store's answers are told in the same words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    Nothing,
    NotFound,
    Conflict,
    Appended {
        seq: i64,
        new: bool,
    },
    Stored {
        event_seq: i64,
        born: Vec<Told>,
        replaced: Vec<String>,
    },
    OutOfTurn {
        event_seq: i64,
        last_seq: i64,
    },
    Claimed(Vec<(usize, String)>),
    Promoted(Vec<&'static str>),
    Cancelled(State),
    Sent {
        place: Place,
        number: i64,
        content: String,
    },
    /// The seconds left, up to the next tick.
    Wait(Option<i64>),
    Unanswered,
    TakenOver,
    Barred,
    Acknowledged(EffectStatus, Option<String>),
    TooSoon,
    ClaimedWakes(Vec<(usize, i64)>),
    Settled(bool),
}

/// Type, status, reason.
pub type Told = (EffectType, EffectStatus, Option<String>);

/// All that can be seen of a session.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View {
    pub last_seq: i64,
    pub event_seq: i64,
    pub consecutive: i32,
    /// Seconds since the agent last spoke unasked, down to the last tick.
    pub spoke_ago: Option<i64>,
    pub pending_timers: i64,
    pub pending_effects: i64,
    pub events: Vec<(i64, EventType, String)>,
    pub effects: Vec<EffectView>,
    /// Name, second, payload, state; in the order in which they are due.
    pub timers: Vec<(String, i64, String, State)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct EffectView {
    pub place: Place,
    pub checkpoint: String,
    pub payload: String,
    pub told: Told,
    pub attempts: i32,
    pub autonomous: bool,
    pub counted: bool,
    pub number: Option<i64>,
}

impl When {
    /// No two timers are due at one instant: which is first would be chance.
    pub fn second(self, timer: usize) -> i64 {
        let timer = i64::try_from(timer).expect("a few");
        match self {
            Self::Past(n) => 1_577_836_800 + i64::from(n) * 10 + timer,
            Self::FarAhead => 4_000_000_000 + timer,
        }
    }
}

impl Wish {
    pub fn payload(&self) -> String {
        match self {
            Self::Send(content) => format!("{{\"content\": \"{content}\"}}"),
            Self::Timer { timer, when, carries } => {
                let carried = if *carries { format!(", \"payload\": {CARRIED}") } else { String::new() };
                let second = when.second(*timer);
                format!("{{\"timer_id\": \"{}\", \"fire_at\": {second}{carried}}}", TIMERS[*timer])
            }
        }
    }
}

pub fn said(text: u8, spaced: bool) -> String {
    if spaced { format!("{{ \"text\" : \"{text}\" }}") } else { format!("{{\"text\":\"{text}\"}}") }
}
