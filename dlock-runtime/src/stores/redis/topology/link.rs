//! The connection to whichever node has a slot.

use std::sync::Arc;
use std::time::Duration;

use super::super::connections::Link;
use super::map::{Node, Topology};
use crate::deadline::Deadline;
use crate::store::Failure;

/// After such a time without a connection, the node may have been replaced.
const DOUBT: Duration = Duration::from_millis(200);

impl Topology {
    /// The connection of the runtime that this is called on. While there is none,
    /// another node may get the slot.
    pub(crate) async fn link(&self, slot: u16, deadline: Deadline) -> Result<Link, Failure> {
        let node = self.owner(slot);
        if let Some(node) = &node {
            let lane = node.one.connections.here().map_err(Failure::refused)?;
            if let Some(connection) = lane.ready() {
                return Ok(Link::new(lane, connection));
            }
        }
        Box::pin(self.next_link(slot, node, deadline)).await
    }

    async fn next_link(
        &self,
        slot: u16,
        mut node: Option<Arc<Node>>,
        deadline: Deadline,
    ) -> Result<Link, Failure> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let is_known = node.is_some();
            let here = node.take();
            let connected = async {
                let Some(node) = here else {
                    return std::future::pending().await;
                };
                let lane = node.one.connections.here().map_err(Failure::refused)?;
                let connection = lane.connection(deadline).await?;
                Ok(Link::new(lane, connection))
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
                    () = self.clock.sleep(deadline.within(DOUBT)) => {
                        if deadline.has_passed() && !is_known {
                            return Err(Failure::refused(self.nobody_has(slot)));
                        }
                        self.refresh_soon();
                        if deadline.has_passed() {
                            // What it has to say of that, it says now.
                            return connected.await;
                        }
                    }
                }
            }
            node = self.owner(slot);
        }
    }
}
