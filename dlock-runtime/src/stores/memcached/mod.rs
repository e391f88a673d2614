//! The `memcached://` store: one memcached server.
//!
//! - A lock is an item whose value is its owner. It is taken by `add`, extended and deleted by
//!   compare-and-swap, and expires by the server's clock.
//! - The server does not notify anybody when a lock is released: waiters look at it from time to
//!   time, with one look for all waiters of a process and key.
//! - A cache may forget items: one that is evicted to make room, and all of them at a restart.
//!   There is no order, and there are no readers and no fencing tokens.
//!
//! The top of each file says what that part does; `names.rs` lists the items.

mod connection;
mod errors;
mod examine;
mod expiry;
mod fairness;
mod inspect;
mod names;
mod server;
mod settings;
mod store;
mod walk;
mod watch;

use self::settings::Settings;
use self::store::MemcachedStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks on one memcached server, 1.6.18 or later.
///
/// The server forgets locks when it restarts or runs out of memory, and has no fencing tokens
/// that would reveal this. Use it for work that may, rarely, be done twice.
///
/// A copy is another backend with the same settings, not yet connected.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::memcached::Memcached;
///
/// let store = Memcached::from_url("memcached://127.0.0.1:11211")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct Memcached {
    engine: Engine<MemcachedStore>,
}

impl Memcached {
    /// The server at `memcached://host[:port]`; the default port is 11211. It is reached by IPv4.
    /// Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not valid, or names several servers: locks are on one server.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Settings::from_url(url).map(Self::over)
    }
}

driven!(Memcached, MemcachedStore);
