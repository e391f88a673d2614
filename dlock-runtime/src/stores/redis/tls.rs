//! Encrypted connections (`rediss://`).

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::backend::{BackendError, BackendErrorKind};
use crate::stores::url::StoreUrl;

/// Whom to trust.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the authority that the URL names, or else the system's and
    /// Mozilla's: a container often has none of its own.
    pub(super) fn new(url: &StoreUrl<'_>) -> Result<Self, BackendError> {
        let mut roots = RootCertStore::empty();
        match url.authority()? {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate = certificate.map_err(|error| url.unusable("ca", error))?;
                    let added = roots.add(certificate);
                    added.map_err(|error| url.unusable("ca", error))?;
                }
            }
            None => {
                // One unreadable certificate among the system's is no reason
                // to trust none of the others.
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            }
        }
        // A provider of our own choice leaves the process-wide default to the
        // application.
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                BackendError::new(BackendErrorKind::Config, "TLS could not be set up")
                    .with_source(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Encrypts a connection, and checks that the server is `host`.
    pub(super) async fn encrypt(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        TlsConnector::from(Arc::clone(&self.0))
            .connect(name, stream)
            .await
    }
}
