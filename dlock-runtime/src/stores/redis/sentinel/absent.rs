//! In place of the sentinels where their feature is off: nobody has any.

use std::sync::Arc;

use redis::Value;

use super::connector::Connector;
use super::errors::Endpoint;
use super::settings::Settings;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::{BackendError, Finding};
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;
use crate::stores::url::needs_feature;

pub(super) enum Sentinels {}

pub(super) fn read(url: &str) -> Result<(Settings, Sentinels), BackendError> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    Err(needs_feature(scheme, "redis-sentinel"))
}

pub(super) async fn follow(_: Arc<Connector>) {}

impl Sentinels {
    #[cfg(feature = "tls")]
    pub(super) fn encrypted(&self, _: &Tls) -> Arc<Self> {
        match *self {}
    }

    pub(super) fn master(&self) -> &str {
        match *self {}
    }

    pub(super) fn name(&self) -> String {
        match *self {}
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        match *self {}
    }

    pub(super) async fn moves_from(&self, _: &Address) {
        match *self {}
    }

    pub(super) async fn locate(
        &self,
        _: &Endpoint,
        _: &Time,
        _: Deadline,
    ) -> Result<Address, BackendError> {
        match *self {}
    }

    pub(super) async fn look(&self, _: &Time, _: Deadline) -> Vec<Finding> {
        match *self {}
    }

    pub(super) fn warn_of_replicas(&self, _: &Value, _: usize) {
        match *self {}
    }

    pub(super) fn warn_of_their_number(&self) {
        match *self {}
    }
}
