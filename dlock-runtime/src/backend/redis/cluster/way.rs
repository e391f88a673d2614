//! The way of one call to whichever node has its slot.

use std::sync::Arc;
use std::time::Duration;

use redis::ServerError;

use super::super::connection::Connection;
use super::super::connections::{Lane, NoConnection};
use super::super::errors::{Remedy, remedy};
use super::super::server_connections::Side;
use super::topology::{Node, Topology};
use crate::backend::address::Address;
use crate::backend::clock::Deadline;

/// After such a time without a connection, the node may have been replaced.
const DOUBT: Duration = Duration::from_millis(200);

/// So many nodes may send a call on, one after the other, before it pauses: two
/// of them may name each other for a while.
const REDIRECTIONS: u32 = 4;

/// Finds the node for each attempt of a call.
pub(crate) struct Way<'a> {
    topology: &'a Topology,
    slot: u16,
    side: Side,
    /// For the next attempt only.
    ask: Option<Arc<Node>>,
    is_asking: bool,
    redirections: u32,
}

impl<'a> Way<'a> {
    pub(crate) fn new(topology: &'a Topology, slot: u16, side: Side) -> Self {
        Self {
            topology,
            slot,
            side,
            ask: None,
            is_asking: false,
            redirections: 0,
        }
    }

    /// The connection for the next attempt. While there is none, another node
    /// may get the slot.
    pub(crate) async fn connection(
        &mut self,
        deadline: Deadline,
    ) -> Result<(Arc<Lane>, Connection), NoConnection> {
        let ask = self.ask.take();
        self.is_asking = ask.is_some();
        let node = ask.or_else(|| self.topology.owner(self.slot));
        if let Some(node) = &node {
            let lane = node.one.of(self.side).map_err(NoConnection::Failed)?;
            if let Some(connection) = lane.ready() {
                return Ok((lane, connection));
            }
        }
        Box::pin(self.next_connection(node, deadline)).await
    }

    async fn next_connection(
        &mut self,
        mut node: Option<Arc<Node>>,
        deadline: Deadline,
    ) -> Result<(Arc<Lane>, Connection), NoConnection> {
        let clock = &self.topology.clock;
        let mut changes = self.topology.changes();
        loop {
            changes.borrow_and_update();
            let is_known = node.is_some();
            let here = node.take();
            let connected = async {
                let Some(node) = here else {
                    return std::future::pending().await;
                };
                let lane = node.one.of(self.side).map_err(NoConnection::Failed)?;
                let connection = lane.connection(deadline).await?;
                Ok((lane, connection))
            };
            tokio::pin!(connected);
            loop {
                tokio::select! {
                    biased;
                    connected = &mut connected => return connected,
                    changed = changes.changed() => {
                        if changed.is_ok() {
                            break;
                        }
                        std::future::pending::<()>().await;
                    }
                    () = clock.sleep(deadline.within(DOUBT)) => {
                        if deadline.has_passed() && !is_known {
                            let error = self.topology.nobody_has(self.slot);
                            return Err(NoConnection::Failed(error));
                        }
                        self.topology.refresh_soon();
                        if deadline.has_passed() {
                            // What it has to say of that, it says now.
                            return connected.await;
                        }
                    }
                }
            }
            self.is_asking = false;
            node = self.topology.owner(self.slot);
        }
    }

    /// Whether the attempt is at a node that is about to get the slot.
    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// A node could not do what was asked, as the slot is elsewhere or nowhere.
    pub(crate) fn redirected(&mut self, error: &ServerError, from: &Address) {
        match remedy(error) {
            Remedy::Moved => {
                self.topology.moved(self.slot, error, from);
                self.redirections += 1;
            }
            Remedy::Ask => {
                self.ask = self.topology.named(error, from);
                self.redirections += 1;
            }
            _ => {
                self.redirections = REDIRECTIONS;
                self.topology.refresh_soon();
            }
        }
    }

    /// Whether it may follow at once where it was sent.
    pub(crate) fn may_go_on(&mut self) -> bool {
        if self.redirections < REDIRECTIONS {
            return true;
        }
        self.redirections = 0;
        false
    }

    /// The node has not answered.
    pub(crate) fn is_in_doubt(&self) {
        self.topology.refresh_soon();
    }
}
