//! What is being broken already. Nobody breaks it twice.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use crate::log::{Pair, Point};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// The process in a slot (0, 1, 2).
    Process(usize),
    /// A slot's network.
    Wire(usize),
    Line(usize, Pair),
    /// A fail point, in whichever process.
    Point(Point),
    Postgres,
    Cluster,
    Router,
}

impl Thing {
    /// The slot that is out of action by it.
    fn slot(self) -> Option<usize> {
        match self {
            Self::Process(slot) | Self::Wire(slot) => Some(slot),
            Self::Line(..) | Self::Point(_) | Self::Postgres | Self::Cluster | Self::Router => None,
        }
    }
}

#[derive(Clone, Default)]
pub struct Reserve(Arc<Mutex<HashSet<Thing>>>);

impl Reserve {
    /// `None`: one of them is taken.
    pub fn take(&self, things: &[Thing]) -> Option<Hold> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if things.iter().any(|thing| taken.contains(thing)) {
            return None;
        }
        taken.extend(things);
        Some(Hold { things: things.to_vec(), reserve: self.clone() })
    }

    /// Slots of which neither the process nor the network is broken.
    pub fn untouched(&self, slots: usize) -> Vec<usize> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touched: HashSet<usize> = taken.iter().filter_map(|thing| thing.slot()).collect();
        (0..slots).filter(|slot| !touched.contains(slot)).collect()
    }
}

/// Things that nobody else may break until this is dropped.
pub struct Hold {
    things: Vec<Thing>,
    reserve: Reserve,
}

impl Hold {
    /// One more, if nobody has it.
    pub fn add(&mut self, thing: Thing) {
        if let Some(mut more) = self.reserve.take(&[thing]) {
            self.things.append(&mut more.things);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut taken = self.reserve.0.lock().unwrap_or_else(PoisonError::into_inner);
        for thing in &self.things {
            taken.remove(thing);
        }
    }
}
