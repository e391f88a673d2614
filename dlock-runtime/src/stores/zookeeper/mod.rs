//! The `zookeeper://` store: a ZooKeeper ensemble.
//!
//! - Each request makes an ephemeral sequential node in the lock's folder, by the
//!   names that Apache Curator gives them (`names`, `nodes`). The first in the
//!   queue holds the lock, and each of the others watches the one before it
//!   (`queue`). Who waits for permits cannot know which one it waits for: for all of
//!   these in a process one watches the folder (`folders`).
//! - All of a process goes over one session (`session`). A lease is counted
//!   from the last write that a majority has confirmed (`records`), and ends with
//!   its ttl although its node stays for as long as the session does: the engine
//!   then has it deleted.
//! - A node that comes so late that nobody wants it any more is swept away
//!   (`wanted`).
//! - What was done is remembered by a node that the server ends (`marks`), if it does that.
//! - A session that ends takes all of its locks along: their holders are told,
//!   and another is opened (`ensemble`).
//! - Fencing tokens are the numbers of the transactions that made the nodes, above a floor.
//!
//! `docs/design/zookeeper.md` says why.

mod broken;
mod ensemble;
mod errors;
mod examine;
mod floor;
mod folders;
mod inspect;
mod marks;
mod names;
mod nodes;
mod queue;
mod records;
mod session;
mod settings;
mod store;
mod wanted;

use self::settings::Settings;
use self::store::ZooKeeperStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks on a ZooKeeper ensemble, 3.6 or later.
///
/// A copy is another backend with the same settings, not yet connected.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::zookeeper::ZooKeeper;
///
/// let store = ZooKeeper::from_url("zookeeper://10.0.0.1,10.0.0.2,10.0.0.3/locks")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct ZooKeeper {
    engine: Engine<ZooKeeperStore>,
}

impl ZooKeeper {
    /// The servers at
    /// `zookeeper://[user:password@]host[:port],…[/folder][?option=value&…]`, or at
    /// `zookeeper+tls://…` over encrypted connections (cargo feature `tls`).
    ///
    /// The locks are in the folder, `/dlock` if none is named. Options:
    /// `session_timeout=20s`, `recipe=mutex` or `recipe=read-write` (whose names
    /// the nodes have, those of Curator's `InterProcessMutex` or
    /// `InterProcessReadWriteLock`), `auth=sasl` or `auth=digest`, `acl=anyone` or
    /// `acl=creator`; and for TLS the paths of PEM files, `ca=`, `cert=` and
    /// `key=`. A user and password are percent-encoded. Nothing is connected
    /// before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file that it names cannot be used. The
    /// message never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let settings = Settings::from_url(url)?;
        Ok(Self {
            engine: Engine::new(settings),
        })
    }
}

driven!(ZooKeeper, ZooKeeperStore);
