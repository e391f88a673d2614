//! One backend among all that share a server.

use std::fmt;

use crate::backend::Owner;

/// This backend among all the others that share the server: names the channel
/// on which its waiters are told, and the key that says they are alive. Two
/// managers of one process have one each.
#[derive(Clone, Copy)]
pub(super) struct Process(Owner);

impl Process {
    pub(super) fn unique() -> Self {
        Self(Owner::unique())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
