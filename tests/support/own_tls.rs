//! TLS settings that a service has in memory.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::support::tls::Certificates;

/// Trusts these authorities, and shows the certificate of the first.
pub(crate) fn trusting(known: &[&Certificates]) -> ClientConfig {
    let read = |path: &Path| std::fs::read(path).expect("a file of our own");
    let certificate = |path: &Path| CertificateDer::from_pem_slice(&read(path)).expect("one");
    let mut roots = RootCertStore::empty();
    for certificates in known {
        let added = roots.add(certificate(&certificates.authority));
        added.expect("an authority");
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&known[0].key)).expect("a key");
    let provider = rustls::crypto::ring::default_provider();
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(&known[0].certificate)], key)
        .expect("a certificate and its key")
}
