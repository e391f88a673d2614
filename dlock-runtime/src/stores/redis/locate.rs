//! How a connection finds its server.

use std::sync::Arc;

use async_trait::async_trait;
use redis::ServerError;

use super::sentinel::Sentinels;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::stores::address::Address;

/// Who knows where a server is.
#[derive(Clone)]
pub(super) enum Locator {
    /// It is always there.
    At(Address),
    /// These sentinels, who are asked for each connection.
    Sentinels(Arc<Sentinels>),
    /// The map of a cluster: it is the node that has this slot.
    OfSlot(Arc<dyn SlotMap>, u16),
}

/// Which node of a cluster has which slot, as far as connections ask for it.
#[async_trait]
pub(super) trait SlotMap: Send + Sync {
    /// The node that has a slot, as soon as it is known.
    async fn locate(&self, slot: u16, deadline: Deadline) -> Result<Address, BackendError>;

    /// Resolves when another node is known to have the slot.
    async fn moves_from(&self, slot: u16, address: &Address);

    /// A node has said that another one has a slot.
    fn moved(&self, slot: u16, error: &ServerError, from: &Address);

    /// There is cause to doubt the map.
    fn refresh_soon(&self);
}
