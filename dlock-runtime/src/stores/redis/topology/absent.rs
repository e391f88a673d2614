//! In place of a cluster's slots and nodes where its feature is off: nobody has one.

use std::convert::Infallible;
use std::future::Ready;
use std::slice::Iter;
use std::sync::Arc;

use redis::ServerError;

use super::connection::Connection;
use super::connections::Connections;
use super::endpoint::Endpoint;
use super::names::Topic;
use super::settings::Settings;
use super::subscriptions::Subscriptions;
use super::values::Process;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::{Context, Failure};
use crate::stores::address::Address;

#[derive(Clone)]
pub(super) enum Seeds {}

impl Seeds {
    pub(super) fn iter(&self) -> Iter<'_, Address> {
        match *self {}
    }
}

pub(super) struct SlotMap {
    pub(super) endpoint: Endpoint,
    never: Infallible,
}

never_called! { SlotMap:
    fn owner(&self, u16) -> Option<Arc<Address>>;
    fn masters(&self) -> Vec<Arc<Address>>;
    fn last_slots(&self) -> Vec<u16>;
    fn locate(&self, u16, &Time, Deadline) -> Ready<Result<Arc<Address>, BackendError>>;
    fn moves_from(&self, u16, &Address) -> Ready<()>;
    fn redirected(&self, &ServerError, &Address);
    fn refresh_soon(&self);
}

pub(super) struct Topology {
    pub(super) map: Arc<SlotMap>,
    pub(super) subscriptions: Arc<Subscriptions>,
    never: Infallible,
}

impl Topology {
    pub(super) fn new(_: Settings, seeds: &Seeds, _: Process, _: &Context) -> Arc<Self> {
        match *seeds {}
    }
}

never_called! { Topology:
    fn node(&self, &Arc<Address>) -> Arc<Connections>;
    fn named(&self, &ServerError, &Address) -> Option<Arc<Connections>>;
    fn connection(&self, u16, Deadline) -> Ready<Result<Connection, Failure>>;
    fn listen(&self, &Topic, Deadline) -> Ready<Result<(), Failure>>;
    fn discover(&self) -> Ready<Result<(), BackendError>>;
    fn close(&self);
}

pub(super) async fn keep_up_to_date(topology: Arc<Topology>) {
    match topology.never {}
}
