//! Stands in front of a server, such as the database or the API server, and lets it vanish.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::Database;

pub struct Proxy {
    pub address: SocketAddr,
    /// The database's, through the proxy.
    pub uri: String,
    /// Grows with every freeze and cut; a connection lives in the era in which it was made.
    era: watch::Sender<u64>,
    open: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl Proxy {
    pub async fn in_front_of(database: &Database) -> Self {
        let (credentials, rest) = database.uri.split_once('@').expect("the test bed's address has a password");
        let (host, name) = rest.split_once('/').expect("the test bed's address names a database");
        let mut proxy = Self::to(host).await;
        proxy.uri = format!("{credentials}@{}/{name}", proxy.address);
        proxy
    }

    /// In front of `host:port`.
    pub async fn to(host: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (host, era, open) = (host.to_owned(), watch::Sender::new(0), watch::Sender::new(true));
        let (eras, opened) = (era.clone(), open.clone());
        let server = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                if !*opened.borrow() {
                    continue;
                }
                let mut server = TcpStream::connect(&host).await.unwrap();
                let (mut era, opened) = (eras.subscribe(), opened.subscribe());
                let born_in = *era.borrow_and_update();
                tokio::spawn(async move {
                    let frozen = tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => false,
                        era = era.wait_for(|era| *era > born_in) => era.is_ok() && *opened.borrow(),
                    };
                    if frozen {
                        // Both ends stay open and silent.
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, uri: String::new(), era, open, server }
    }

    /// Nothing passes any more over the connections there are; new ones work.
    pub fn freeze(&self) {
        self.era.send_modify(|era| *era += 1);
    }

    /// Ends every connection, and new ones at once, until `mend`.
    pub fn cut(&self) {
        self.open.send_replace(false);
        self.era.send_modify(|era| *era += 1);
    }

    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}
