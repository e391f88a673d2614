//! In place of a cluster's slots and nodes where its feature is off: nobody has one.

use std::convert::Infallible;
use std::slice::Iter;
use std::sync::Arc;

use redis::ServerError;

use super::connection::Connection;
use super::connections::Connections;
use super::errors::Endpoint;
use super::names::Heard;
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

impl SlotMap {
    pub(super) fn owner(&self, _: u16) -> Option<Arc<Address>> {
        match self.never {}
    }

    pub(super) fn masters(&self) -> Vec<Arc<Address>> {
        match self.never {}
    }

    pub(super) fn last_slots(&self) -> Vec<u16> {
        match self.never {}
    }

    pub(super) async fn locate(
        &self,
        _: u16,
        _: &Time,
        _: Deadline,
    ) -> Result<Arc<Address>, BackendError> {
        match self.never {}
    }

    pub(super) async fn moves_from(&self, _: u16, _: &Address) {
        match self.never {}
    }

    pub(super) fn redirected(&self, _: &ServerError, _: &Address) {
        match self.never {}
    }

    pub(super) fn refresh_soon(&self) {
        match self.never {}
    }
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

    pub(super) fn node(&self, _: &Arc<Address>) -> Arc<Connections> {
        match self.never {}
    }

    pub(super) fn named(&self, _: &ServerError, _: &Address) -> Option<Arc<Connections>> {
        match self.never {}
    }

    pub(super) async fn connection(&self, _: u16, _: Deadline) -> Result<Connection, Failure> {
        match self.never {}
    }

    pub(super) async fn listen(&self, _: &Heard, _: Deadline) -> Result<(), Failure> {
        match self.never {}
    }

    pub(super) async fn discover(&self) -> Result<(), BackendError> {
        match self.never {}
    }

    pub(super) fn close(&self) {
        match self.never {}
    }
}

pub(super) async fn keep_up_to_date(topology: Arc<Topology>) {
    match topology.never {}
}
