//! One of the sentinels in a URL.

use super::super::errors::{Place, Server as Named};
use super::super::names::Keyspace;
use super::super::settings::Settings;
use crate::stores::address::Address;

pub(super) struct Sentinel {
    pub(super) address: Address,
    /// How to connect and log in.
    pub(super) settings: Settings,
}

impl Sentinel {
    /// The sentinel as messages name it.
    pub(super) fn place(&self) -> Place {
        let name = Named::Sentinel(self.address.clone());
        Place::new(name, Keyspace::Server, self.settings.login.password())
    }
}
