//! The `redis://` store: one Redis server.
//!
//! - A free lock is taken by `SET NX PX`. Every other operation is one Lua script, by the
//!   server's clock.
//! - A request that does not get the lock waits in a list at the server. The release hands the
//!   lock to the next waiter whose process is alive, within the script, so that the lock is never
//!   free while somebody waits, and nobody overtakes. The script then sends a message on the
//!   channel of that waiter's process.
//! - A message is only a hint. The waiter that it wakes asks the server, and once a second the
//!   process looks at all the locks it waits for, so a lost message costs a second. Only during
//!   that second, when a holder has died or the next waiter does not listen, may a newcomer
//!   overtake.
//! - Fencing tokens come from one counter for all locks, which is raised to the server's clock
//!   (in microseconds) on every new connection. So they rise even if Redis loses its data, unless
//!   its clock goes back or it was asked for more than 15,000 locks a second on average: an
//!   attempt that finds the lock held takes numbers too.
//!
//! The top of each file says what that part does; `names.rs` lists the keys, and
//! `scripts/prelude.lua` says what they hold.

/// The methods of a type that nobody has a value of, since its feature is off. What is an `async fn`
/// with the feature is ready here.
#[cfg(not(all(feature = "redis-cluster", feature = "redis-sentinel")))]
macro_rules! never_called {
    ($type:ident: $(fn $name:ident(&$this:ident $(, $argument:ty)*) $(-> $answer:ty)?;)*) => {
        impl $type {
            $(pub(super) fn $name(&$this $(, _: $argument)*) $(-> $answer)? {
                match $this.never {}
            })*
        }
    };
}

mod batcher;
mod check;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod commands;
mod config;
mod connection;
mod connections;
mod connector;
mod durability;
mod endpoint;
mod errors;
mod examine;
mod floor;
mod inspect;
mod locate;
mod look;
mod names;
mod redisson;
#[cfg(feature = "redis-redlock")]
mod redlock;
mod renew;
mod scan;
mod scripts;
#[cfg_attr(not(feature = "redis-sentinel"), path = "sentinel/absent.rs")]
mod sentinel;
mod servers;
mod settings;
mod socket;
mod store;
mod subscriptions;
mod timer;
#[cfg(feature = "tls")]
mod tls;
#[cfg_attr(not(feature = "redis-cluster"), path = "topology/absent.rs")]
mod topology;
mod values;
#[cfg(feature = "quorum")]
mod voter;

#[cfg(feature = "redis-cluster")]
pub use self::cluster::Cluster;
use self::config::Config;
#[cfg(feature = "redis-redlock")]
pub use self::redlock::Redlock;
use self::servers::RedisStore;
use crate::backend::BackendError;
use crate::engine::Engine;

/// Locks on one Redis server, 6.2 or later, or on the master that sentinels name (cargo
/// feature `redis-sentinel`).
///
/// A copy is another backend with the same settings, not yet connected.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::redis::Redis;
///
/// let store = Redis::from_url("redis://:secret@127.0.0.1:6379/0")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct Redis {
    engine: Engine<RedisStore>,
}

impl Redis {
    /// The server at `redis://[user:password@]host[:port][/database]`; or at `rediss://…` over an
    /// encrypted connection (cargo feature `tls`); or at
    /// `redis+unix://[user:password@]/path[?db=N]` over its unix socket.
    ///
    /// Or the master that the sentinels name at
    /// `redis+sentinel://[user:password@]host[:port],host,…/master[/database]`. With
    /// `?replicas=N`, a lock counts only when N replicas have it too;
    /// `?sentinel_username=…&sentinel_password=…` are for sentinels that ask for a password.
    ///
    /// A user and password are percent-encoded. `rediss://…?ca=<path>` trusts the authority whose
    /// certificate is in that file, instead of the system's authorities; `cert=<path>&key=<path>`
    /// is the client certificate for a server that asks for one. Nothing is connected before the
    /// first use.
    ///
    /// # Errors
    ///
    /// The URL is not valid. The message never contains a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Config::read(url).map(Self::over)
    }

    /// The server of a client of the `redis` crate (version 1): its host and port, or its
    /// unix socket, its database, user and password.
    ///
    /// That is all that is taken from it. dlock opens connections of its own, one on
    /// each runtime that uses locks, speaks RESP3 over them, and keeps its own limits of
    /// time. A pool, a `ConnectionManager` or a connection that a service has is not used: a
    /// command that waits there behind others, or that is sent again, could cost a lease.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// use dlock::backend::redis::Redis;
    ///
    /// let client = redis::Client::open("redis://:secret@127.0.0.1/2").expect("a URL");
    /// let store = Redis::from_client(&client)?;
    /// # Ok::<(), dlock::backend::BackendError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The client has certificates of its own (`Client::build_with_tls`), or checks
    /// none: it shows them to nobody. With the feature `tls`, `tls` takes the same from
    /// the service. Or the client is encrypted, and that feature is off.
    pub fn from_client(client: &redis::Client) -> Result<Self, BackendError> {
        Config::of_client(client).map(Self::over)
    }
}

#[cfg(feature = "tls")]
tls::own_tls!(Redis, |store, tls| store.engine.config.encrypt(&tls));

driven!(Redis, RedisStore);
