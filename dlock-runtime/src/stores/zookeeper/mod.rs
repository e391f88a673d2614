//! The `zookeeper://` store: a ZooKeeper ensemble.
//!
//! - Each request makes an ephemeral sequential node in the lock's folder, with a name like those
//!   of Apache Curator (`names`, `nodes`). The first node holds the lock, and each other request
//!   watches the node before its own (`queue`). A waiter for permits cannot know which node it
//!   waits for: one watch of the folder serves all of these in a process (`folders`).
//! - A process has one session for everything (`session`). A lease counts from the last write that
//!   a majority has confirmed (`records`). It ends with its ttl, although its node stays for as
//!   long as the session: the engine has the node deleted then.
//! - A node that is created so late that nobody wants it any more is swept away (`wanted`).
//! - What has been done is remembered by a node that the server ends (`marks`), if the server has
//!   such nodes.
//! - A session that ends takes all its locks along. Their holders are told, and another session is
//!   opened (`ensemble`).
//! - Fencing tokens are the numbers of the transactions that made the nodes, plus a floor
//!   (`floor`).
//! - A lock can be broken, and a waiter taken out of its queue (`broken`).
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
mod watches;

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
    /// The servers at `zookeeper://[user:password@]host[:port],…[/folder][?option=value&…]`, or at
    /// `zookeeper+tls://…` over encrypted connections (cargo feature `tls`).
    ///
    /// The locks are in the folder, `/dlock` if none is named. Options: `session_timeout=20s`;
    /// `recipe=mutex` or `recipe=read-write` (the nodes are named like those of Curator's
    /// `InterProcessMutex` or `InterProcessReadWriteLock`); `auth=sasl` or `auth=digest`;
    /// `acl=anyone` or `acl=creator`; and for TLS the paths of PEM files, `ca=`, `cert=` and
    /// `key=`. A user and password are percent-encoded. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file that it names cannot be used. The message never holds a
    /// password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Settings::from_url(url, None).map(Self::over)
    }

    /// The servers at such a URL. How to log in and to encrypt comes from this connector of
    /// `zookeeper-client` 0.11 (`with_sasl`, `with_auth`, `with_tls`): for example, with
    /// certificates that the service has in memory. The URL then has no user, `auth=` or files, and
    /// begins with `zookeeper+tls://` if the connector has TLS.
    ///
    /// dlock opens sessions of its own with the connector, one after the other, with timeouts of
    /// its own: `session_timeout=` of the URL counts. The connector must not continue a session
    /// (`with_session`), and not leave one behind (`with_detached`), whose locks would be held
    /// until it expires.
    ///
    /// A `Client` that a service already has cannot be used, for three reasons. Locks live as long
    /// as their session, and how long a lease may be depends on how often the client gives a sign
    /// of life, which a client does not show. The signs of life come from the runtime that made the
    /// client, which a body may block. And when the session has ended, another must be opened.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// use dlock::backend::zookeeper::ZooKeeper;
    /// use zookeeper_client::Client;
    ///
    /// let connector = Client::connector().with_auth("digest", b"alice:secret");
    /// let store = ZooKeeper::with_connector("zookeeper://10.0.0.1/locks?acl=creator", connector)?;
    /// # Ok::<(), dlock::backend::BackendError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The URL is not understood, or says how to log in or whom to trust.
    pub fn with_connector(
        url: &str,
        connector: zookeeper_client::Connector,
    ) -> Result<Self, BackendError> {
        Settings::from_url(url, Some(connector)).map(Self::over)
    }
}

driven!(ZooKeeper, ZooKeeperStore);
