//! Stands between a store and its database, and lets the database's host vanish.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::Database;

pub struct Proxy {
    pub uri: String,
    /// Grows with every freeze; a connection lives in the era in which it was made.
    era: watch::Sender<u64>,
    server: JoinHandle<()>,
}

impl Proxy {
    pub async fn in_front_of(database: &Database) -> Self {
        let (credentials, rest) = database.uri.split_once('@').expect("the test bed's address has a password");
        let (host, name) = rest.split_once('/').expect("the test bed's address names a database");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let uri = format!("{credentials}@{}/{name}", listener.local_addr().unwrap());
        let (host, era) = (host.to_owned(), watch::Sender::new(0));
        let eras = era.clone();
        let server = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = TcpStream::connect(&host).await.unwrap();
                let mut era = eras.subscribe();
                let born_in = *era.borrow_and_update();
                tokio::spawn(async move {
                    let frozen = tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => false,
                        era = era.wait_for(|era| *era > born_in) => era.is_ok(),
                    };
                    if frozen {
                        // Both ends stay open and silent.
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { uri, era, server }
    }

    /// Nothing passes any more over the connections there are; new ones work.
    pub fn freeze(&self) {
        self.era.send_modify(|era| *era += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}
