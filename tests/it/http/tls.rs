//! The facade over TLS: its certificate is read again when it changes, and a wrong one does no harm.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use reqwest::Certificate;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, net::TcpStream, process::Command, time::timeout};
use tokio_rustls::TlsConnector;

use crate::support::{
    AGENT_AUTH_SECRET, AgentKey, Daemon, Database, PATIENCE, TOKEN, World,
    alarms::execute,
    api::Api,
    daemon::{PROMPT, command},
    eventually,
    socket::{Socket, token_for},
    with_tls,
};

const CERT: &str = "CHRONOS_TLS_CERT_PATH";
const KEY: &str = "CHRONOS_TLS_KEY_PATH";

/// A certificate and its key, in a folder that lives as long as they.
struct Pair {
    folder: TempDir,
}

impl Pair {
    async fn fresh() -> Self {
        let pair = Self { folder: tempfile::tempdir().unwrap() };
        let config = "[req]\ndistinguished_name = name\nx509_extensions = extensions\nprompt = no\n[name]\nCN = localhost\n\
                      [extensions]\nsubjectAltName = IP:127.0.0.1\nbasicConstraints = critical,CA:FALSE\n";
        let path = pair.path("config");
        std::fs::write(&path, config).unwrap();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-config".as_ref(), path.as_os_str(), "-out".as_ref(), pair.cert().as_os_str()])
            .args(["-keyout".as_ref(), pair.key().as_os_str()])
            .output()
            .await
            .expect("openssl is there");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cert(&self) -> PathBuf {
        self.path("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.path("key.pem")
    }

    fn put(&self, other: &Self) {
        std::fs::copy(other.cert(), self.cert()).unwrap();
        std::fs::copy(other.key(), self.key()).unwrap();
    }

    /// Whether the facade has this certificate, for somebody who trusts no other.
    async fn is_served_by(&self, daemon: &Daemon) -> bool {
        with_tls();
        let trusted = Certificate::from_pem(&std::fs::read(self.cert()).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([trusted]).build().unwrap();
        let url = format!("https://{}/healthz", daemon.api.unwrap());
        client.get(url).send().await.is_ok_and(|response| response.status() == 200)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn new_connections_get_the_certificate_that_stands_in_the_files_and_a_broken_one_changes_nothing() {
    let (world, files, second) = tokio::join!(World::new(), Pair::fresh(), Pair::fresh());
    let (cert, key) = (files.cert(), files.key());
    let daemon = world.chronosd_with("api", &[(CERT, text(&cert)), (KEY, text(&key))]).await;
    assert!(files.is_served_by(&daemon).await && !second.is_served_by(&daemon).await);
    let plain = reqwest::get(daemon.api_url()).await;
    assert!(plain.is_err(), "{plain:?}");

    files.put(&second);
    eventually("the new pair is served", || async { second.is_served_by(&daemon).await.then_some(()) }).await;

    std::fs::write(files.key(), "no key").unwrap();
    let told = "CHRONOS_TLS_KEY_PATH names a file without a private key";
    eventually("it is told", || async { (daemon.said(told) > 0).then_some(()) }).await;
    assert!(second.is_served_by(&daemon).await);

    let third = Pair::fresh().await;
    files.put(&third);
    eventually("the mended pair is served", || async { third.is_served_by(&daemon).await.then_some(()) }).await;
    assert!(!second.is_served_by(&daemon).await);
}

#[tokio::test]
async fn a_stream_goes_over_tls_as_over_anything() {
    let (world, pair) = tokio::join!(World::new(), Pair::fresh());
    let (cert, key) = (pair.cert(), pair.key());
    let daemon = world.chronosd_with("api", &[(CERT, text(&cert)), (KEY, text(&key))]).await;
    let did = AgentKey::of("ann").did.parse().unwrap();
    let api = Api::new("https://localhost").with_agent(&token_for(&did, chrono::TimeDelta::hours(1)));
    let make =
        format!("INSERT INTO sessions (session_key, owner_did, user_id) VALUES ('ann:coach:thread', '{did}', 'ann')");
    execute(&mut world.database.connect().await, &make).await;

    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(&cert).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let stream = TcpStream::connect(daemon.api.unwrap()).await.unwrap();
    let name = ServerName::from(daemon.api.unwrap().ip());
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let key = "ann:coach:thread".parse().unwrap();
    let socket = Socket::try_connect_over(Box::new(stream), &daemon, &api, &key).await;
    let mut socket = socket.unwrap_or_else(|(status, text)| panic!("{status}: {text}"));
    socket.say("hello").await;
    assert_eq!(socket.next().await["error"]["code"], "invalid_request");
    let (ended, (code, _)) = tokio::join!(daemon.terminate(), socket.closed());
    assert!(ended.success() && code == 1001, "{code}");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_given_up() {
    let (world, pair) = tokio::join!(World::new(), Pair::fresh());
    let (cert, key) = (pair.cert(), pair.key());
    let daemon = world.chronosd_with("api", &[(CERT, text(&cert)), (KEY, text(&key))]).await;
    let mut silent = TcpStream::connect(daemon.api.unwrap()).await.unwrap();
    let closed = timeout(PATIENCE, silent.read(&mut [0; 1])).await.expect("it is closed in time");
    assert_eq!(closed.unwrap_or(0), 0, "nothing is said to it");
    assert!(pair.is_served_by(&daemon).await);
}

#[tokio::test]
async fn files_that_cannot_be_served_with_stop_the_process_and_are_named() {
    let (database, pair, other) = tokio::join!(Database::fresh(), Pair::fresh(), Pair::fresh());
    let (cert, key, other) = (pair.cert(), pair.key(), other.key());
    let (cert, key) = (text(&cert), text(&key));
    for (settings, told) in [
        ([(CERT, cert), (KEY, "")], "CHRONOS_TLS_KEY_PATH is not set; name the key's file"),
        ([(CERT, ""), (KEY, key)], "CHRONOS_TLS_CERT_PATH is not set; name the certificate's file"),
        ([(CERT, "/nowhere"), (KEY, key)], "CHRONOS_TLS_CERT_PATH names /nowhere, which cannot be read"),
        ([(CERT, key), (KEY, key)], "CHRONOS_TLS_CERT_PATH names a file without a certificate; it holds PEM blocks"),
        ([(CERT, cert), (KEY, cert)], "CHRONOS_TLS_KEY_PATH names a file without a private key; it holds"),
        ([(CERT, cert), (KEY, text(&other))], "CHRONOS_TLS_CERT_PATH and CHRONOS_TLS_KEY_PATH cannot be used together"),
    ] {
        let fine = [
            ("CHRONOS_ROLES", "api"),
            ("CHRONOS_POSTGRES_URI", &database.uri),
            ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true"),
            ("CHRONOS_PORT", "0"),
            ("CHRONOS_METRICS_PORT", "0"),
            ("CHRONOS_TOKEN", TOKEN),
            ("CHRONOS_AGENT_AUTH_SECRET", AGENT_AUTH_SECRET),
        ];
        let settings: Vec<_> = fine.into_iter().chain(settings).collect();
        let output = timeout(PROMPT, command(&settings).arg("run").output()).await;
        let output = output.expect("it ends in time").expect("it starts");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(told), "{told}: {said}");
    }
}
