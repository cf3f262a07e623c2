//! The facade's certificate: two files in, what a TLS server works with out.

use std::{fmt, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::given::{TLS_CERT, TLS_KEY};

/// A certificate and its key, which fit together.
#[derive(Clone)]
pub struct Tls {
    pub server: Arc<ServerConfig>,
}

impl Tls {
    /// From PEM. The problem, if there is one, names its variable and shows nothing of what the files hold.
    pub fn new(certificate: &str, key: &str) -> Result<Self, String> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{TLS_CERT} names a file that is not PEM: {error}; {CHAIN}"))?;
        if chain.is_empty() {
            return Err(format!("{TLS_CERT} names a file without a certificate; {CHAIN}"));
        }
        // What is wrong with it is not told: it might be quoted.
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
            format!(
                "{TLS_KEY} names a file without a private key; it holds one PEM block, PRIVATE KEY, RSA PRIVATE KEY or EC \
                 PRIVATE KEY, without a passphrase"
            )
        })?;
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows the versions that rustls does")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| {
                format!(
                    "{TLS_CERT} and {TLS_KEY} cannot be used together: {error}; name a certificate and the key it was made \
                     for, RSA, ECDSA (P-256, P-384) or Ed25519"
                )
            })?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { server: Arc::new(server) })
    }
}

const CHAIN: &str = "it holds PEM blocks, CERTIFICATE, the facade's own first, then those that lead to its root";

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
