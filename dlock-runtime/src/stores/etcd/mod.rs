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
        let settings = Settings::from_url(url, None)?;
        Ok(Self {
            engine: Engine::new(settings),
        })
    }

    /// The cluster at such a URL, logged in to and encrypted as these options of
    /// `etcd-client` 0.20 say (`with_user`, `with_tls`): with certificates that the service
    /// has in memory, say. The URL then has neither a user nor files, and is `etcds://`
    /// where the options have TLS.
    ///
    /// The URL names all members: the others are not told the login, so
    /// `dlock doctor` would take them for silent.
    ///
    /// The rest of the options is dlock's own: keepalives, limits of time, `require_leader`.
    ///
    /// A `Client` that a service has cannot be used. It lives on the runtime that made it:
    /// a body that blocks that runtime would keep leases from being renewed. And it
    /// goes round all of its members, also those that do not answer.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// use dlock::backend::etcd::Etcd;
    /// use etcd_client::ConnectOptions;
    ///
    /// let options = ConnectOptions::new().with_user("alice", "secret");
    /// let store = Etcd::with_options("etcd://10.0.0.1,10.0.0.2,10.0.0.3/locks", options)?;
    /// # Ok::<(), dlock::backend::BackendError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The URL is not understood, or has a user or the path of a file.
    pub fn with_options(
        url: &str,
        options: etcd_client::ConnectOptions,
    ) -> Result<Self, BackendError> {
        let settings = Settings::from_url(url, Some(options))?;
        Ok(Self {
            engine: Engine::new(settings),
        })
    }
}

driven!(Etcd, EtcdStore);
