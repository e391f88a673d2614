//! The `memcached://` store: one memcached server.
//!
//! - A lock is an item whose value is its owner. It is taken by `add`, extended
//!   and deleted by compare-and-swap, and expires by the server's clock.
//! - Nobody is told when it comes free: who waits looks now and then, once for
//!   all waiters of a process and key.
//! - A cache may forget: an item that is thrown out to make room, and all of
//!   them at a restart. There is no order, there are no readers and no fencing
//!   tokens.
//!
//! What each part does is said at the top of its file; `names.rs` lists the
//! items.

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
mod watch;

use self::settings::Settings;
use self::store::MemcachedStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks on one memcached server, 1.6.18 or later.
///
/// It forgets locks when it restarts or runs out of memory, and gives no
/// fencing tokens that would show it. For work that may rarely be done twice.
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
    /// The server at `memcached://host[:port]`, port 11211 if it says none. It
    /// is reached by IPv4. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or names several servers: locks are on one.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let settings = Settings::from_url(url)?;
        Ok(Self {
            engine: Engine::new(settings),
        })
    }
}

driven!(Memcached, MemcachedStore);
