//! All connections to one server: those of its callers, and those of the manager.

use std::sync::Arc;

use super::connections::{Connections, Lane};
use super::connector::{Connector, Listener};
use super::names::Keyspace;

/// The connections to one server.
#[derive(Clone)]
pub(super) struct One {
    pub(super) connections: Arc<Connections>,
    /// The connection of the manager's own runtime.
    pub(super) lane: Arc<Lane>,
    /// The connection over which messages come. It is the same one, unless the
    /// server is a node of a cluster.
    pub(super) ear: Arc<Lane>,
    ears: Arc<Connections>,
}

impl One {
    pub(super) fn new(connector: &Arc<Connector>, listener: Arc<dyn Listener>) -> Self {
        let connections = Connections::new(Arc::clone(connector));
        if connector.settings.space == Keyspace::Server {
            let lane = connections.of_manager(Some(listener));
            return Self {
                ears: Arc::clone(&connections),
                connections,
                ear: Arc::clone(&lane),
                lane,
            };
        }
        let ears = Connections::new(Arc::clone(connector));
        Self {
            lane: connections.of_manager(None),
            connections,
            ear: ears.of_manager(Some(listener)),
            ears,
        }
    }

    /// To the same server, but nobody listens.
    pub(super) fn without_messages(connector: &Arc<Connector>) -> Self {
        let connections = Connections::new(Arc::clone(connector));
        let lane = connections.of_manager(None);
        Self {
            ears: Arc::clone(&connections),
            connections,
            ear: Arc::clone(&lane),
            lane,
        }
    }

    pub(super) fn close(&self) {
        self.connections.close();
        self.ears.close();
    }
}
