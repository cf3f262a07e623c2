//! How many requests of one owner are worked on at once: half of what the database's connections allow. The others wait for their turn, so
//! that nobody else has to wait for a connection behind one owner's crowd.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::access::Did;

#[derive(Clone)]
pub struct Turns {
    each: usize,
    owners: Arc<Mutex<HashMap<Did, Arc<Semaphore>>>>,
}

/// Held while a request is worked on.
pub struct Turn {
    owner: Did,
    turns: Turns,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub fn new(connections: u32) -> Self {
        let each = usize::try_from(connections.div_ceil(2)).unwrap_or(usize::MAX).max(1);
        Self { each, owners: Arc::default() }
    }

    /// Waits until it is this owner's turn.
    pub async fn wait(&self, owner: &Did) -> Turn {
        let semaphore = {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(owners.entry(owner.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each))))
        };
        // Made first: whoever stops waiting leaves nothing behind.
        let mut turn = Turn { owner: owner.clone(), turns: self.clone(), permit: None };
        turn.permit = semaphore.acquire_owned().await.ok(); // never closed
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.permit = None;
        let mut owners = self.turns.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else holds or awaits one: there is nothing to remember.
        if owners.get(&self.owner).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            owners.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn did(user: &str) -> Did {
        format!("did:matrix:{user}:d75a980182b10ab7").parse().unwrap()
    }

    #[tokio::test]
    async fn an_owner_has_half_of_the_connections_and_the_others_have_theirs() {
        let turns = Turns::new(4);
        let first = turns.wait(&did("ann")).await;
        let second = turns.wait(&did("ann")).await;
        assert!(turns.wait(&did("ann")).now_or_never().is_none(), "all of hers are taken");
        assert!(turns.wait(&did("bob")).now_or_never().is_some());
        drop(first);
        assert!(turns.wait(&did("ann")).now_or_never().is_some());
        drop(second);
        assert!(turns.owners.lock().unwrap().is_empty(), "and nobody is remembered who is not there");
    }
}
