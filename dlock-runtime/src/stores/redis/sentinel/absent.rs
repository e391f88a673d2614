//! In place of the sentinels where their feature is off: nobody has any.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;

use redis::Value;

use super::connector::Connector;
use super::endpoint::Endpoint;
use super::settings::Settings;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::{BackendError, Finding};
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;
use crate::stores::url::needs_feature;

pub(super) struct Sentinels {
    never: Infallible,
}

pub(super) fn read(url: &str) -> Result<(Settings, Sentinels), BackendError> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    Err(needs_feature(scheme, "redis-sentinel"))
}

pub(super) async fn follow(_: Arc<Connector>) {}

never_called! { Sentinels:
    fn master(&self) -> &str;
    fn name(&self) -> String;
    fn hosts(&self) -> Vec<String>;
    fn moves_from(&self, &Address) -> Ready<()>;
    fn locate(&self, &Endpoint, &Time, Deadline) -> Ready<Result<Address, BackendError>>;
    fn look(&self, &Time, Deadline) -> Ready<Vec<Finding>>;
    fn warn_of_replicas(&self, &Value, usize);
    fn warn_of_their_number(&self);
}

#[cfg(feature = "tls")]
never_called! { Sentinels:
    fn encrypted(&self, &Tls) -> Arc<Self>;
}
