//! The `etcd://` store: a cluster with consensus.
//!
//! - Each request writes a key under the lock's name that no other request has
//!   meanwhile, attached to a lease. Whoever's key has the lowest create-revision
//!   holds the lock; a reader holds it if no writer's is lower. That is the recipe
//!   of `etcdctl lock`, so the two exclude each other.
//! - Who does not hold it watches the one key that is directly before its own. A
//!   release wakes one waiter, however many there are.
//! - The lease is shared by all requests of the process with the same ttl, and
//!   kept alive on the manager's thread. When it ends, all its locks end.
//! - Fencing tokens are create-revisions, above a floor: every write to the cluster raises them,
//!   and consensus keeps them.
//!
//! What each part does is said at the top of its file; `names.rs` lists the keys.

mod batches;
mod broken;
mod errors;
mod examine;
mod floor;
mod inspect;
mod lease;
mod leases;
mod lifting;
mod marks;
mod members;
mod names;
mod places;
mod queue;
mod renewal;
mod service;
mod settings;
mod store;
mod waiting;
mod watches;

use self::settings::Settings;
use self::store::EtcdStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks in an etcd cluster, 3.4 or later. An election of it takes one to two seconds,
/// unless it is set up otherwise: a `request_timeout` is best longer than that.
///
/// A copy is another backend with the same settings, not yet connected.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::etcd::Etcd;
///
/// let store = Etcd::from_url("etcd://alice:secret@10.0.0.1,10.0.0.2,10.0.0.3")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct Etcd {
    engine: Engine<EtcdStore>,
}

impl Etcd {
    /// The cluster with members at
    /// `etcd://[user:password@]host[:port],host,…[/prefix]`, or at `etcds://…`
    /// over encrypted connections (cargo feature `tls`). One member is enough to
    /// name; the others are asked when it does not answer.
    ///
    /// A lock is at `<prefix>/<key>/`, the prefix being `dlock` if the URL names
    /// none. A user and password are percent-encoded.
    ///
    /// `?recipe=lock-service` has the server's own Lock call do the waiting;
    /// there are no readers then. `etcds://…?ca=<path>` trusts the authority whose
    /// certificate is in that file, in place of the system's, and
    /// `cert=<path>&key=<path>` is what this client shows of itself. Nothing is
    /// connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file in it cannot be read. The message
    /// never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let settings = Settings::from_url(url)?;
        Ok(Self {
            engine: Engine::new(settings),
        })
    }
}

driven!(Etcd, EtcdStore);
