//! Stands between two that talk over TCP, and spoils it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

/// For so long only connections lose a reply that were there before: a new one's first reply is part of a greeting.
const GREETINGS: Duration = Duration::from_millis(700);
const CHUNK: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Every chunk, in both directions.
    Delay(Duration),
    /// What is open is reset, and so is whatever comes.
    Cut,
    /// Nothing passes and nothing is closed. Afterwards what was held up arrives late, or its connection is reset.
    BlackHole {
        late: bool,
    },
    /// Requests pass. The first reply on a connection is thrown away, and the connection reset; so for this many.
    ReplyLost {
        connections: usize,
    },
}

pub struct Proxy {
    pub address: SocketAddr,
    line: Arc<Line>,
    _server: AbortOnDropHandle<()>,
}

struct Line {
    target: watch::Sender<SocketAddr>,
    mode: watch::Sender<(Mode, Instant)>,
    /// Replies that may still be lost, and those that were.
    to_lose: AtomicUsize,
    lost: AtomicUsize,
    last_reply: watch::Sender<Instant>,
}

impl Proxy {
    pub async fn listen(address: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let line = Arc::new(Line {
            target: watch::Sender::new(target),
            mode: watch::Sender::new((Mode::Pass, Instant::now())),
            to_lose: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            last_reply: watch::Sender::new(Instant::now()),
        });
        let of_server = Arc::clone(&line);
        let server = async move {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => drop(tokio::spawn(Arc::clone(&of_server).serve(client))),
                    // Out of files, for a moment.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        Ok(Self { address, line, _server: AbortOnDropHandle::new(tokio::spawn(server)) })
    }

    pub fn set(&self, mode: Mode) {
        let to_lose = if let Mode::ReplyLost { connections } = mode { connections } else { 0 };
        self.line.to_lose.store(to_lose, Ordering::SeqCst);
        self.line.lost.store(0, Ordering::SeqCst);
        self.line.mode.send_replace((mode, Instant::now()));
    }

    /// From now on no reply is lost. One may have been, meanwhile: [`Proxy::lost`] tells.
    pub fn stop_losing(&self) {
        self.line.to_lose.store(0, Ordering::SeqCst);
    }

    /// New connections go there.
    pub fn retarget(&self, target: SocketAddr) {
        self.line.target.send_replace(target);
    }

    /// When something last came back over it.
    pub fn last_reply(&self) -> Instant {
        *self.line.last_reply.borrow()
    }

    /// How many replies were lost since the mode was set.
    pub fn lost(&self) -> usize {
        self.line.lost.load(Ordering::SeqCst)
    }
}

/// Why a connection does not go on.
struct Torn;

impl Line {
    fn mode(&self) -> (Mode, Instant) {
        *self.mode.borrow()
    }

    async fn serve(self: Arc<Self>, mut client: TcpStream) {
        client.set_nodelay(true).ok();
        let born_at = Instant::now();
        let Ok(mut server) = self.reach_target().await else {
            client.set_zero_linger().ok();
            return;
        };
        server.set_nodelay(true).ok();
        let torn = {
            let ((asks, answers), (replies, requests)) = (client.split(), server.split());
            let there = self.pump(asks, requests, None);
            let back = self.pump(replies, answers, Some(born_at));
            let both = async { tokio::try_join!(there, back).map(drop) };
            tokio::select! {
                ended = both => ended.is_err(),
                () = self.until_cut() => true,
            }
        };
        if torn {
            client.set_zero_linger().ok();
            server.set_zero_linger().ok();
        }
    }

    async fn reach_target(&self) -> Result<TcpStream, Torn> {
        self.may_pass().await?;
        let target = *self.target.borrow();
        let reached = tokio::time::timeout(Duration::from_secs(10), TcpStream::connect(target)).await;
        reached.map_err(|_elapsed| Torn)?.map_err(|_refused| Torn)
    }

    async fn until_cut(&self) {
        // The sender lives as long as this does.
        self.mode.subscribe().wait_for(|(mode, _)| *mode == Mode::Cut).await.ok();
    }

    /// Waits as long as the mode wants it.
    async fn may_pass(&self) -> Result<(), Torn> {
        match self.mode().0 {
            Mode::Pass | Mode::ReplyLost { .. } => Ok(()),
            Mode::Delay(by) => {
                tokio::time::sleep(by).await;
                Ok(())
            }
            Mode::Cut => Err(Torn),
            Mode::BlackHole { late } => {
                let over = |(mode, _): &(Mode, Instant)| !matches!(mode, Mode::BlackHole { .. });
                self.mode.subscribe().wait_for(over).await.ok();
                if late { Ok(()) } else { Err(Torn) }
            }
        }
    }

    /// `born_at` is given for the direction in which replies go.
    async fn pump(
        &self,
        mut from: tcp::ReadHalf<'_>,
        mut to: tcp::WriteHalf<'_>,
        born_at: Option<Instant>,
    ) -> Result<(), Torn> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = from.read(&mut chunk).await.map_err(|_| Torn)?;
            self.may_pass().await?;
            if length == 0 {
                to.shutdown().await.map_err(|_| Torn)?;
                return Ok(());
            }
            if let Some(born_at) = born_at {
                self.last_reply.send_replace(Instant::now());
                if self.loses(born_at) {
                    return Err(Torn);
                }
            }
            to.write_all(&chunk[..length]).await.map_err(|_| Torn)?;
        }
    }

    /// Whether a reply on a connection of this age is to be lost; counts it.
    fn loses(&self, born_at: Instant) -> bool {
        let (Mode::ReplyLost { .. }, since) = self.mode() else { return false };
        if born_at > since && since.elapsed() < GREETINGS {
            return false;
        }
        let took = self.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if took {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
        took
    }
}
