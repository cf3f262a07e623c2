//! What is written down while a run goes on, from every side, and read back afterwards. The checker sees nothing else.
//!
//! ```text
//! run.json       seed, settings and kinds of fault of the run                        (main, at the start)
//! calls.jsonl    every call of the driver, before and after, and what streams said   (driver)
//! wakes.jsonl    every wake as it came, and what was answered; synced to disk        (sink)
//! faults.jsonl   every fault: planned, struck, over                                  (nemesis)
//! end.json       when all was healed; the tables and the resources at rest           (main, at the end)
//! ```
//!
//! One JSON object a line. All instants come from the clock of the machine the rig runs on, which is Postgres' clock, too; replicas
//! may have others.

mod calls;
mod faults;
mod files;
mod run;
mod wakes;

pub use calls::{Answer, Asked, Call, CallLine, Definition, Frame, Schedule, Trespass};
pub use faults::{Fault, FaultLine, Kind, Pair, Point};
pub use files::{Journal, read_json, read_lines, write_json};
pub use run::{End, Run, Tables};
pub use wakes::{Reaction, Wake, WakeLine};

/// Everything that is known of a run.
#[derive(Clone, Debug)]
pub struct Log {
    pub run: Run,
    pub calls: Vec<Call>,
    pub frames: Vec<Frame>,
    pub wakes: Vec<Wake>,
    pub faults: Vec<Fault>,
    pub end: End,
}

impl Log {
    pub fn read(directory: &std::path::Path) -> anyhow::Result<Self> {
        let (calls, frames) = calls::assemble(read_lines(&directory.join("calls.jsonl"))?);
        Ok(Self {
            run: read_json(&directory.join("run.json"))?,
            calls,
            frames,
            wakes: wakes::assemble(read_lines(&directory.join("wakes.jsonl"))?),
            faults: faults::assemble(read_lines(&directory.join("faults.jsonl"))?),
            end: read_json(&directory.join("end.json"))?,
        })
    }
}
