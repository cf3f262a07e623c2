//! What ties a connection that was upgraded to the accept loop: hyper has handed it on, and is done with it.

use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// In every request's extensions. Whoever goes on with the connection after the answer keeps it for as long.
#[derive(Clone)]
pub struct Tether {
    stop: CancellationToken,
    /// Nothing is ever sent: that it is there is what counts.
    _end: mpsc::Sender<Infallible>,
}

/// The other end.
pub struct Held(mpsc::Receiver<Infallible>);

/// A tether for one connection, and what waits for it.
pub fn tie(stop: CancellationToken) -> (Tether, Held) {
    let (end, held) = mpsc::channel(1);
    (Tether { stop, _end: end }, Held(held))
}

impl Tether {
    /// Waits until whoever has the connection is to take leave.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

impl Held {
    /// Waits until nobody has the connection any more.
    pub async fn until_let_go(mut self) {
        let None = self.0.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_is_held_until_the_last_tether_is_dropped() {
        let stop = CancellationToken::new();
        let (tether, held) = tie(stop.clone());
        let other = tether.clone();
        assert!(tether.stopped().now_or_never().is_none());
        stop.cancel();
        assert!(tether.stopped().now_or_never().is_some());
        drop(tether);
        let mut held = Box::pin(held.until_let_go());
        assert!(held.as_mut().now_or_never().is_none(), "told to stop is not gone");
        drop(other);
        assert!(held.now_or_never().is_some());
    }
}
