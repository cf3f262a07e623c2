//! A router to which nobody gets through.

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Its queue of connections is full and nobody accepts them: who connects waits, and has not sent a byte.
pub struct DeadEnd {
    pub url: String,
    _listener: TcpListener,
    _queue: [TcpStream; 2],
}

impl DeadEnd {
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        // The kernel lets in one more than it was told to, and answers no others.
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let queue = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        Self { url: format!("http://{address}/internal/wake"), _listener: listener, _queue: queue }
    }
}
