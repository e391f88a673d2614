//! Encrypted connections (`zookeeper+tls://`).

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use zookeeper_client::TlsOptions;

use crate::backend::BackendError;
use crate::stores::url::StoreUrl;

/// Whom to trust, and who we are.
#[derive(Clone)]
pub(super) struct Tls(TlsOptions);

impl Tls {
    pub(super) fn new(url: &StoreUrl<'_>) -> Result<Self, BackendError> {
        let ca = url.authority()?.ok_or_else(|| {
            url.invalid(
                "zookeeper+tls:// needs to know whom to trust; name the authority's certificate, \
                 as in ?ca=/etc/zookeeper/ca.pem",
            )
        })?;
        let mut options = TlsOptions::new()
            .with_pem_ca(&ca)
            .map_err(|error| url.unusable("ca", error))?;
        if let Some((certificate, key)) = url.identity()? {
            options = options
                .with_pem_identity(&certificate, &key)
                .map_err(|error| url.unusable("cert", error))?;
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
