//! Connections that can be torn: with the request read, and nothing answered.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

pub struct Door(pub TcpListener);

/// One connection, as the handler of its requests knows it.
#[derive(Clone, Debug, Default)]
pub struct Line {
    torn: Arc<AtomicBool>,
}

impl Line {
    /// The next write resets the connection.
    pub fn tear(&self) {
        self.torn.store(true, Ordering::Relaxed);
    }
}

pub struct Socket {
    stream: TcpStream,
    line: Line,
}

impl Listener for Door {
    type Io = Socket;
    type Addr = Line;

    async fn accept(&mut self) -> (Socket, Line) {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let line = Line::default();
                    // Answers are small and waited for. If the other end is gone already, reading tells.
                    let _set = stream.set_nodelay(true);
                    return (Socket { stream, line: line.clone() }, line);
                }
                // No file left, for instance: by and by there will be one.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Line> {
        Ok(Line::default())
    }
}

impl Connected<IncomingStream<'_, Door>> for Line {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.remote_addr().clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.line.torn.load(Ordering::Relaxed) {
            self.stream.set_zero_linger()?;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
