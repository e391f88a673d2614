//! A quorum, as Redlock is one: the [`Quorum`] that users have, over nodes that know
//! nothing of each other. Each is a server like any other, with a clock, crashes and
//! partitions of its own.

mod ledger;
mod node;
mod voter;

use std::sync::Arc;

use dlock::{Config as LockConfig, Engine};
use dlock_runtime::quorum::{Quorum, Voters};

use self::ledger::Ledger;
use self::node::Node;
use self::voter::Voting;
use super::client::Config;
use crate::checker::bounds::REQUEST_TIMEOUT;
use crate::network::{Machine, RanOut, Server, ServerId, Witness};
use crate::world::{At, Process, ProcessId, World};

/// The nodes, and what is known of all of them together.
pub(crate) struct Electorate {
    nodes: Vec<Arc<Server<Node>>>,
    ledger: Arc<Ledger>,
}

impl Electorate {
    /// Three or five of them.
    pub(crate) fn start(world: &Arc<World>) -> Arc<Self> {
        let number = if world.happens(500) { 3 } else { 5 };
        let ledger = Ledger::new(number);
        let nodes = (0..number).map(|node| {
            let service = Node::new(node, Arc::clone(&ledger));
            Server::start(ServerId(node as u32), world, service)
        });
        Arc::new(Self {
            nodes: nodes.collect(),
            ledger,
        })
    }

    pub(crate) fn machines(&self) -> Vec<Arc<dyn Machine>> {
        let nodes = self.nodes.iter();
        nodes.map(|node| Arc::clone(node) as _).collect()
    }

    pub(crate) fn config(&self, process: &Arc<Process>) -> LockConfig {
        let voters = self.nodes.iter().map(|node| Config {
            server: Arc::clone(node),
            process: Arc::clone(process),
        });
        let engine = Engine::<Quorum<Voting>>::new(Voters {
            voters: voters.collect(),
            name: "quorum",
            strict_with: "",
            permits_with: "",
            once_with: "",
        });
        LockConfig::with_backend(engine.request_timeout(REQUEST_TIMEOUT))
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

impl Witness for Electorate {
    fn blocking(&self) -> usize {
        self.nodes.len() - self.majority() + 1
    }

    fn broke_promise_to(&self, key: &str, token: u64) -> bool {
        self.ledger.is_broken(key, token)
    }

    fn forgot_number(&self, key: &str, token: u64) -> bool {
        self.ledger.is_forgotten(key, token)
    }

    fn was_granted(&self, key: &str, token: u64) -> bool {
        self.ledger.was_drawn(key, token)
    }

    /// Fewer than a majority are nobody.
    fn was_heard_since(&self, process: ProcessId, since: At) -> bool {
        let heard = |node: &&Arc<Server<Node>>| node.was_heard_since(process, since);
        self.nodes.iter().filter(heard).count() >= self.majority()
    }

    fn sent_in_vain_since(&self, process: ProcessId, since: At) -> Vec<ServerId> {
        let nodes = self.nodes.iter();
        nodes
            .flat_map(|node| node.sent_in_vain_since(process, since))
            .collect()
    }

    /// Whether anybody had a vote, which may have split the others.
    fn was_held_since(&self, key: &str, since: At) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.was_held_since(key, since))
    }

    fn left(&self) -> Vec<String> {
        let of = |node: &Arc<Server<Node>>| {
            let left = node.left().into_iter();
            let id = node.id;
            left.map(move |what| format!("{id:?}: {what}"))
        };
        self.nodes.iter().flat_map(of).collect()
    }

    fn ran_out(&self) -> Vec<RanOut> {
        self.ledger.ran_out()
    }
}
