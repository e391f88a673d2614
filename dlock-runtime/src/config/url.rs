//! Store URLs: the scheme names the store, the store reads the rest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::error::LockError;

/// A URL whose scheme is known and whose feature is on.
#[derive(Clone)]
pub(crate) enum StoreUrl {
    Memory,
    #[cfg(feature = "redis")]
    Redis(Box<crate::backend::redis::Redis>),
}

/// Every scheme that dlock knows, and the feature it needs.
const SCHEMES: &[(&str, &str)] = &[
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
];

impl StoreUrl {
    /// `setting` is where the URL comes from, for messages. They never show
    /// the URL itself, which may hold a password.
    pub(crate) fn parse(setting: &'static str, url: &str) -> Result<Self, LockError> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(LockError::config(
                setting,
                "not a URL; write for example redis://127.0.0.1:6379 or memory:",
            ));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(LockError::config(
                setting,
                "`memory:` takes nothing behind the colon",
            )),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" => {
                let store = crate::backend::redis::Redis::from_url(url).map_err(|error| {
                    LockError::Config {
                        setting: setting.to_owned(),
                        reason: error.to_string(),
                        source: Some(Arc::new(error)),
                    }
                })?;
                Ok(Self::Redis(Box::new(store)))
            }
            _ => Err(LockError::config(setting, refuse(scheme))),
        }
    }
}

fn refuse(scheme: &str) -> String {
    if let Some((_, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        return format!(
            "`{scheme}:` needs the cargo feature `{feature}`; turn it on: \
             dlock = {{ …, features = [\"{feature}\"] }}"
        );
    }
    let known: Vec<_> = std::iter::once("memory:".to_owned())
        .chain(SCHEMES.iter().map(|(scheme, _)| format!("{scheme}://")))
        .collect();
    // What stands before the colon may be a password if the scheme is missing.
    format!("its scheme is unknown; dlock knows {}", known.join(", "))
}

impl StoreUrl {
    /// The store behind the URL, not yet connected.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn backend(self, request_timeout: Duration) -> Arc<dyn Backend> {
        match self {
            Self::Memory => Arc::new(crate::backend::memory::Memory::new()),
            #[cfg(feature = "redis")]
            Self::Redis(store) => Arc::new(store.request_timeout(request_timeout)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            #[cfg(feature = "redis")]
            Self::Redis(store) => fmt::Debug::fmt(store, f),
        }
    }
}
