//! Deadlines on a connection's reads and writes. What a silent client is at, only the conversation above knows: it says so through
//! [`Progress`].

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{HEAD, IDLE, LINGER, LINGER_BYTES, STALL};

/// What a connection is at. One that was just accepted owes us a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The client sends a head.
    #[default]
    Head,
    /// We have the head. How long its body may take, and the answer, others decide.
    Answering,
    /// The answer is made; the client has not sent any of the next request.
    Idle,
    /// It speaks another protocol by now. How long anybody may be silent in it, those decide who speak it.
    Upgraded,
}

/// Shared by the connection and the conversation on it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Phase>>);

impl Progress {
    pub fn answering(&self) {
        self.set(Phase::Answering);
    }

    pub fn answered(&self) {
        self.set(Phase::Idle);
    }

    /// The answer was that another protocol follows.
    pub fn upgraded(&self) {
        self.set(Phase::Upgraded);
    }

    fn set(&self, phase: Phase) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> Phase {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A deadline that begins to run when somebody waits.
#[derive(Default)]
struct Deadline {
    sleep: Option<Pin<Box<Sleep>>>,
    running: bool,
}

impl Deadline {
    fn rest(&mut self) {
        self.running = false;
    }

    /// Ready once `patience` has passed since the first call after a rest.
    fn poll(&mut self, patience: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if !self.running {
            self.running = true;
            sleep.as_mut().reset(Instant::now() + patience);
        }
        sleep.as_mut().poll(cx)
    }
}

pub struct Guarded<S> {
    stream: S,
    progress: Progress,
    /// What the reader's deadline runs for.
    waits_in: Phase,
    reading: Deadline,
    writing: Deadline,
    lingering: Deadline,
    is_shut: bool,
    discarded: usize,
}

impl<S> Guarded<S> {
    pub fn new(stream: S, progress: Progress) -> Self {
        Self {
            stream,
            waits_in: progress.phase(),
            progress,
            reading: Deadline::default(),
            writing: Deadline::default(),
            lingering: Deadline::default(),
            is_shut: false,
            discarded: 0,
        }
    }

    /// Whoever waits for a client to take something waits for so long.
    fn in_time<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.writing.rest();
            return polled;
        }
        ready!(self.writing.poll(STALL, cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read what it is sent")))
    }

    /// The same, for what has been written if it was. Not for a flush, which is done whenever there is nothing to do.
    fn written(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.waits_in == Phase::Idle && matches!(polled, Poll::Ready(Ok(1..))) {
            // It takes a long answer bit by bit: it does not idle.
            self.reading.rest();
        }
        self.in_time(polled, cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let phase = this.progress.phase();
        if phase != this.waits_in {
            this.waits_in = phase;
            this.reading.rest();
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            if phase == Phase::Idle && buffer.filled().len() > before {
                this.progress.set(Phase::Head);
            }
            return Poll::Ready(read);
        }
        match phase {
            Phase::Head => {
                ready!(this.reading.poll(HEAD, cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client took too long over a head")))
            }
            Phase::Answering | Phase::Upgraded => Poll::Pending,
            Phase::Idle => {
                ready!(this.reading.poll(IDLE, cx));
                // As if the client had closed it: there is nothing to be said about it.
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(polled, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.in_time(polled, cx)
    }

    /// Says that nothing more comes, then hears the client out for a while: were the connection dropped while bytes of it are on
    /// their way, the kernel would reset it, and the client might lose the answer that tells it what was wrong.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_shut {
            let polled = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.in_time(polled, cx))?;
            this.is_shut = true;
        }
        let mut scrap = [0; 8192];
        while this.discarded < LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut scrap);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => this.discarded += buffer.filled().len(),
                Poll::Ready(Ok(()) | Err(_)) => break,
                Poll::Pending => {
                    ready!(this.lingering.poll(LINGER, cx));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::sleep,
    };

    use super::*;

    const A_MOMENT: Duration = Duration::from_millis(100);

    fn guarded() -> (Guarded<DuplexStream>, DuplexStream, Progress) {
        let (ours, theirs) = duplex(16);
        let progress = Progress::default();
        (Guarded::new(ours, progress.clone()), theirs, progress)
    }

    /// How long it took, to a moment.
    fn about(since: Instant, expected: Duration) {
        let took = since.elapsed();
        assert!(took >= expected && took < expected + A_MOMENT, "{took:?}, not {expected:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_head_counts_from_the_accept_on_however_it_drips() {
        let (mut ours, mut theirs, _) = guarded();
        let since = Instant::now();
        let dripping = tokio::spawn(async move {
            while theirs.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let cut = async {
            loop {
                if let Err(error) = ours.read_u8().await {
                    return error;
                }
            }
        };
        let cut = tokio::time::timeout(2 * HEAD, cut).await.expect("it is cut off");
        assert_eq!(cut.kind(), io::ErrorKind::TimedOut);
        about(since, HEAD);
        drop(ours);
        dripping.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_counts_from_its_first_byte_on_and_until_then_it_idles() {
        let (mut ours, mut theirs, progress) = guarded();
        progress.answering();
        progress.answered();
        let since = Instant::now();
        theirs.write_all(b"x").await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'x');
        progress.answering();
        progress.answered();
        assert!(tokio::time::timeout(IDLE.saturating_sub(A_MOMENT), ours.read_u8()).await.is_err(), "it may idle");
        theirs.write_all(b"y").await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'y');
        assert_eq!(ours.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        about(since, IDLE.saturating_sub(A_MOMENT) + HEAD);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_idles_too_long_ends() {
        let (mut ours, _theirs, progress) = guarded();
        progress.answered();
        let since = Instant::now();
        assert_eq!(ours.read(&mut [0; 8]).await.unwrap(), 0);
        about(since, IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_an_answer_is_not_cut_off() {
        let (mut ours, _theirs, progress) = guarded();
        progress.answering();
        assert!(tokio::time::timeout(2 * IDLE, ours.read_u8()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgraded_connection_may_be_silent_but_not_refuse_to_read() {
        let (mut ours, mut theirs, progress) = guarded();
        progress.answering();
        progress.upgraded();
        assert!(tokio::time::timeout(2 * IDLE, ours.read_u8()).await.is_err(), "silence is not its concern");
        theirs.write_all(b"x").await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'x');
        assert!(tokio::time::timeout(2 * IDLE, ours.read_u8()).await.is_err(), "nor is it so after the first byte");
        let since = Instant::now();
        assert_eq!(ours.write_all(&[b'x'; 17]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        about(since, STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up_and_one_that_is_read_slowly_is_not() {
        let (ours, mut theirs, progress) = guarded();
        progress.answered();
        let since = Instant::now();
        let reading = tokio::spawn(async move {
            let mut taken = vec![0; 16];
            for _ in 0..8 {
                sleep(STALL.saturating_sub(A_MOMENT)).await;
                theirs.read_exact(&mut taken).await.unwrap();
            }
            theirs
        });
        let (mut read, mut write) = tokio::io::split(ours);
        tokio::select! {
            end = read.read_u8() => panic!("cut off while it reads: {end:?}"),
            // Eight times what is taken, and once what fits in between.
            written = write.write_all(&[b'x'; 9 * 16]) => written.unwrap(),
        }
        assert!(since.elapsed() > IDLE, "it took longer than anybody may idle");
        let theirs = reading.await.unwrap();
        let since = Instant::now();
        assert_eq!(write.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        about(since, STALL);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_hears_the_client_out_but_not_for_ever() {
        let (mut ours, mut theirs, _) = guarded();
        let sending = tokio::spawn(async move {
            theirs.write_all(&[b'x'; 1000]).await.unwrap();
            assert_eq!(theirs.read(&mut [0; 1]).await.unwrap(), 0, "it was told");
            theirs
        });
        let since = Instant::now();
        ours.shutdown().await.unwrap();
        about(since, LINGER);
        sending.await.unwrap();

        let (mut ours, theirs, _) = guarded();
        drop(theirs);
        let since = Instant::now();
        ours.shutdown().await.unwrap();
        about(since, Duration::ZERO);
    }
}
