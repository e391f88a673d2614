//! Encrypted connections (`zookeeper+tls://`).

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use zookeeper_client::TlsOptions;

use super::settings::{Files, invalid};
use crate::backend::BackendError;

/// Whom to trust, and who we are.
#[derive(Clone)]
pub(super) struct Tls(TlsOptions);

impl Tls {
    pub(super) fn new(files: &Files) -> Result<Self, BackendError> {
        let ca = files.ca.as_deref().ok_or_else(|| {
            invalid(
                "zookeeper+tls:// needs to know whom to trust; name the authority's certificate, \
                 as in ?ca=/etc/zookeeper/ca.pem",
            )
        })?;
        let mut options = TlsOptions::new()
            .with_pem_ca(&read("ca", ca)?)
            .map_err(|error| unusable("ca", error))?;
        match (files.cert.as_deref(), files.key.as_deref()) {
            (Some(cert), Some(key)) => {
                options = options
                    .with_pem_identity(&read("cert", cert)?, &read("key", key)?)
                    .map_err(|error| unusable("cert", error))?;
            }
            (None, None) => {}
            _ => {
                return Err(invalid(
                    "`cert` and `key` belong together; name both or none",
                ));
            }
        }
        Ok(Self(options))
    }

    pub(super) fn options(&self) -> TlsOptions {
        // The client takes the process-wide provider, and panics where several
        // are built in and none was chosen.
        if CryptoProvider::get_default().is_none() {
            // Somebody else may have chosen meanwhile, which is as good.
            let _ = ring::default_provider().install_default();
        }
        self.0.clone()
    }
}

fn read(setting: &str, path: &str) -> Result<String, BackendError> {
    std::fs::read_to_string(path).map_err(|error| {
        invalid(format!(
            "the file in `{setting}={path}` cannot be read: {error}"
        ))
    })
}

fn unusable(setting: &str, error: zookeeper_client::Error) -> BackendError {
    invalid(format!(
        "the file in `{setting}` cannot be used, it must be in PEM form: {error}"
    ))
    .with_source(error)
}
