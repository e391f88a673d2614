//! Encrypted connections (`rediss://`).

use std::error::Error;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{AlertDescription, ClientConfig, ConfigBuilder, RootCertStore};

use crate::backend::{BackendError, BackendErrorKind};
use crate::stores::url::StoreUrl;

/// The trusted authorities, and the client's own certificate.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl From<Arc<ClientConfig>> for Tls {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }
}

/// Settings of encrypted connections that a service has made itself.
macro_rules! own_tls {
    ($backend:ident, |$store:ident, $tls:ident| $set:expr) => {
        impl $backend {
            /// Encrypts its connections with these settings of `rustls` 0.23, in place of
            /// what the URL says of certificates: authorities, a client's certificate or a
            /// verifier that the service has in memory. The server's name is that of its
            /// host in the URL, and a server with a unix socket is not encrypted to.
            ///
            /// ```
            /// # use dlock_runtime as dlock;
            /// # use tokio_rustls::rustls;
            /// use dlock::backend::redis::Redis;
            /// use rustls::{ClientConfig, RootCertStore};
            ///
            /// # fn authorities() -> RootCertStore { RootCertStore::empty() }
            /// # let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
            /// # let builder = || ClientConfig::builder_with_provider(ring)
            /// #     .with_safe_default_protocol_versions().expect("some of ring's");
            /// // In a service: `ClientConfig::builder()`.
            /// let config = builder()
            ///     .with_root_certificates(authorities())
            ///     .with_no_client_auth();
            /// let store = Redis::from_url("rediss://:secret@10.0.0.1")?.tls(config);
            /// # Ok::<(), dlock::backend::BackendError>(())
            /// ```
            #[must_use]
            pub fn tls(
                mut self,
                config: impl Into<std::sync::Arc<tokio_rustls::rustls::ClientConfig>>,
            ) -> Self {
                let ($store, $tls) = (
                    &mut self,
                    $crate::stores::redis::tls::Tls::from(config.into()),
                );
                $set;
                self
            }
        }
    };
}
pub(super) use own_tls;

impl Tls {
    /// Trusts the authority that the URL names, or else those that are known. A server that asks
    /// for a certificate is shown the one that the URL names.
    pub(super) fn new(url: &StoreUrl<'_>) -> Result<Self, BackendError> {
        let roots = match url.authority()? {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate = certificate.map_err(|error| url.unusable("ca", error))?;
                    let added = roots.add(certificate);
                    added.map_err(|error| url.unusable("ca", error))?;
                }
                roots
            }
            None => known_roots(),
        };
        let config = trusting(roots)?;
        let config = match url.identity()? {
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>();
                let chain = chain.map_err(|error| url.unusable("cert", error))?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
                let key = key.map_err(|error| url.unusable("key", error))?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|error| url.unusable("key", error))?
            }
            None => config.with_no_client_auth(),
        };
        Ok(Self(Arc::new(config)))
    }

    /// Trusts the system's authorities and Mozilla's, and shows no certificate.
    pub(super) fn by_default() -> Result<Self, BackendError> {
        let config = trusting(known_roots())?.with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Whether the server has closed the connection because it asks for client certificates and
    /// got none. With TLS 1.3 it does so after the handshake.
    pub(super) fn wants_certificate(error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error);
        while let Some(error) = cause {
            // The client's error has its cause in an `Arc`, which hides the cause's type.
            let shared = error.downcast_ref::<Arc<dyn Error + Send + Sync>>();
            let error = shared.map_or(error, |shared| &**shared);
            let io = error.downcast_ref::<io::Error>();
            let inner = io.and_then(|error| error.get_ref());
            let alert = inner.and_then(|error| error.downcast_ref());
            if let Some(rustls::Error::AlertReceived(alert)) = alert {
                return *alert == AlertDescription::CertificateRequired;
            }
            cause = error.source();
        }
        false
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

/// The system's authorities and Mozilla's: a container often has none of its own.
fn known_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // One unreadable certificate among the system's is no reason to trust none of the
    // others.
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}

/// A provider of our own choice leaves the process-wide default to the application.
fn trusting(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, BackendError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| {
        let message = format!("TLS could not be set up: {error}");
        BackendError::new(BackendErrorKind::Config, message).with_cause(error)
    })?;
    Ok(builder.with_root_certificates(roots))
}
