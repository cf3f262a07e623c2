//! The agents of a run, and how they sign in.

use std::{
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::{
    caller::{Caller, data},
    dice::Dice,
};
use crate::log::{Answer, Asked};

const NAMES: [&str; 6] = ["ann", "bob", "cyd", "dan", "eve", "fay"];
/// How long a run waits for the first sign-in of each.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Owner {
    pub name: &'static str,
    pub did: String,
    public_key: String,
    key: SigningKey,
    token: RwLock<String>,
    /// The token was not taken.
    stale: AtomicBool,
}

impl Owner {
    /// The same for the same seed.
    pub fn all(seed: u64) -> Vec<Arc<Self>> {
        let owner = |name: &'static str| {
            let key = SigningKey::from_bytes(&Sha256::digest(format!("{seed}:{name}")).into());
            let public_key = hex::encode(key.verifying_key().as_bytes());
            let did = format!("did:matrix:{name}:{}", &public_key[..16]);
            let (token, stale) = (RwLock::default(), AtomicBool::new(false));
            Arc::new(Self { name, did, public_key, key, token, stale })
        };
        NAMES.into_iter().map(owner).collect()
    }

    pub fn token(&self) -> String {
        self.token.read().expect("no holder panics").clone()
    }

    pub fn doubts_token(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    /// Body of a verify.
    pub fn proof(&self, nonce: &str) -> Value {
        let text = format!("matrix-chronos-auth:{}:{nonce}", self.did);
        let signature = hex::encode(self.key.sign(text.as_bytes()).to_bytes());
        json!({ "did": self.did, "public_key": self.public_key, "nonce": nonce, "signature": signature })
    }

    pub fn resource(&self) -> Value {
        json!({
            "apiVersion": "chronos.dev/v1alpha1",
            "kind": "Agent",
            "metadata": { "name": self.name },
            "spec": { "did": self.did, "publicKey": self.public_key },
        })
    }

    /// One nonce, shown at least twice, here and there. Only one may be let in.
    async fn sign_in(&self, caller: &Caller, dice: &mut Dice) -> bool {
        let Some(nonce) = caller.challenge(self, dice.below(caller.slots())).await else { return false };
        let shown = || Asked::Verify { nonce: nonce.clone() };
        let (here, there) = caller.two_slots(dice);
        let answers = if dice.percent(50) {
            let (one, two) = tokio::join!(caller.ask(self, here, shown()), caller.ask(self, there, shown()));
            vec![one, two]
        } else {
            vec![caller.ask(self, here, shown()).await, caller.ask(self, there, shown()).await]
        };
        let token = answers.iter().find_map(|answer| data(answer)?["token"].as_str().map(str::to_owned));
        let Some(token) = token else {
            // Nobody was told that it was taken. It may have been.
            if answers.iter().any(|answer| matches!(answer, Answer::Unknown { .. })) {
                let (slot, _) = caller.two_slots(dice);
                let late = caller.ask(self, slot, shown()).await;
                return data(&late).and_then(|data| data["token"].as_str()).is_some_and(|token| self.keep(token));
            }
            return false;
        };
        self.keep(&token)
    }

    fn keep(&self, token: &str) -> bool {
        token.clone_into(&mut self.token.write().expect("no holder panics"));
        self.stale.store(false, Ordering::Relaxed);
        true
    }
}

/// Until it is in.
pub async fn sign_in_first(caller: &Caller, owner: &Owner, dice: &mut Dice) -> anyhow::Result<()> {
    let since = Instant::now();
    while !owner.sign_in(caller, dice).await {
        ensure!(since.elapsed() < PATIENCE, "{} cannot sign in", owner.did);
        // The Agent may not be stored yet, or not be mirrored.
        caller.enrol(owner).await;
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Signs in again and again, sooner when its token is not taken.
pub async fn keep_signed_in(caller: Arc<Caller>, owner: Arc<Owner>, mut dice: Dice) {
    loop {
        let mut left = dice.number(12..30);
        while left > 0 && !owner.stale.load(Ordering::Relaxed) {
            if !caller.rest(Duration::from_millis(300)).await {
                return;
            }
            left -= 1;
        }
        if !owner.sign_in(&caller, &mut dice).await {
            caller.enrol(&owner).await;
            if !caller.rest(Duration::from_millis(700)).await {
                return;
            }
        }
    }
}
