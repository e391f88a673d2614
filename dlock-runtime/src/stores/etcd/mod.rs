//! The `etcd://` store: a cluster with consensus.
//!
//! - Each request writes a key under the lock's name, at a place that no other request has
//!   meanwhile, and attaches it to a lease. The key with the lowest create-revision holds the lock;
//!   a reader holds it if no writer's key is lower. This is the recipe of `etcdctl lock`, so the
//!   two exclude each other.
//! - Each waiter watches the one key right before its own, so that a release wakes one waiter,
//!   however many there are. (Waiters for permits differ: see `watches`.)
//! - All requests of the process with the same ttl share a lease, which is kept alive on the
//!   manager's thread. When it ends, all its locks end.
//! - Fencing tokens are create-revisions plus a floor: every write to the cluster raises the
//!   revision, and consensus keeps it.
//!
//! The top of each file says what the file does; `names.rs` lists the keys.

mod batches;
mod broken;
mod errors;
mod examine;
mod floor;
mod inspect;
mod lease;
mod leases;
mod marks;
mod members;
mod names;
mod places;
mod queue;
mod renewal;
mod service;
mod settings;
mod store;
mod stream;
mod survey;
mod waiting;
mod watches;

use self::settings::Settings;
use self::store::EtcdStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks in an etcd cluster, 3.4 or later. By default, the election of a new leader takes one to
/// two seconds: the `request_timeout` should be longer than that.
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
    /// The cluster with members at `etcd://[user:password@]host[:port],host,…[/prefix]`, or at
    /// `etcds://…` over encrypted connections (cargo feature `tls`). It is enough to name one
    /// member. Of several, the next is asked when one does not answer.
    ///
    /// A lock is at `<prefix>/<key>/`; the prefix is `dlock` if the URL names none. A user and
    /// password are percent-encoded.
    ///
    /// With `?recipe=lock-service`, the server's own Lock call gives the lock; there are no
    /// readers, no permits and no `once` then. `etcds://…?ca=<path>` trusts the authority whose
    /// certificate is in that file, in place of the system's. `cert=<path>&key=<path>` is the
    /// certificate of this client.
    /// Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file in it cannot be read. The message never holds a
    /// password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Settings::from_url(url, None).map(Self::over)
    }

    /// The cluster at such a URL. How to log in and to encrypt comes from these options of
    /// `etcd-client` 0.20 (`with_user`, `with_tls`): for example, with certificates that the
    /// service has in memory. The URL then has neither a user nor files, and begins with `etcds://`
    /// if the options have TLS.
    ///
    /// The URL should name all members: others are asked without the login, so `dlock doctor` would
    /// take them for silent.
    ///
    /// dlock sets the other options itself: keepalives, limits of time, `require_leader`.
    ///
    /// A `Client` that a service already has cannot be used. It belongs to the runtime that made
    /// it: a body that blocks that runtime would keep leases from being renewed. And it balances
    /// over all of its members, also those that do not answer.
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
        Settings::from_url(url, Some(options)).map(Self::over)
    }
}

driven!(Etcd, EtcdStore);
