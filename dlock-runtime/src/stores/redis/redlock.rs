//! The `redis+redlock://` store: independent Redis servers, a majority of which must agree. It is
//! a [quorum](crate::quorum) whose voters are single servers.

use super::config::Config;
use super::locate::Locator;
use super::servers::RedisStore;
use super::settings::{DEFAULT_PORT, FILES, Settings};
use crate::backend::BackendError;
use crate::engine::Engine;
use crate::quorum::{FEWEST_VOTERS, MOST_VOTERS, Quorum, Voters};
use crate::store::Store;
use crate::stores::url::Form;

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+redlock",
    encrypted: Some("rediss+redlock"),
    example: "redis+redlock://10.0.0.1,10.0.0.2,10.0.0.3",
    port: Some(DEFAULT_PORT),
    options: &[],
    files: FILES,
};

const STRICT_WITH: &str = "`appendonly yes`, `appendfsync always` and \
    `no-appendfsync-on-rewrite no` on every node (and let dlock's user read them, with `CONFIG \
    GET` and `ROLE`), have no replicas, and let no `maxmemory-policy` evict keys without a ttl";

/// Locks on a majority of independent Redis servers, 6.2 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::redis::Redlock;
///
/// let store = Redlock::from_url("redis+redlock://:secret@10.0.0.1,10.0.0.2,10.0.0.3/0")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct Redlock {
    engine: Engine<Quorum<RedisStore>>,
}

impl Redlock {
    /// The servers at `redis+redlock://[user:password@]host[:port],…[/database]`,
    /// or at `rediss+redlock://…` over encrypted connections (cargo feature
    /// `tls`). User, password and database are the same on all of them.
    ///
    /// Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not valid, or names fewer than three servers, or one of them twice. The message
    /// never contains a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        let nodes = url.hosts.len();
        if nodes < FEWEST_VOTERS {
            return Err(url.invalid(format!(
                "it names {nodes} nodes, and a majority of fewer than {FEWEST_VOTERS} is lost with \
                 one; name three or five, as in {}, or use redis:// for a single server",
                FORM.example
            )));
        }
        if nodes > MOST_VOTERS {
            return Err(url.invalid(format!("it names more than {MOST_VOTERS} nodes")));
        }
        let settings = Settings::read(&url, url.path)?;
        let voters = url.hosts.iter().map(|host| Config {
            votes: true,
            ..Config::new(settings.clone(), Locator::At(host.clone()))
        });
        let voters = Voters {
            voters: voters.collect(),
            name: "redlock",
            strict_with: STRICT_WITH,
            permits_with: "use `redis://` with one server, `redis+sentinel://` or \
                `redis+cluster://` (each of its servers would let in so many, and not the same \
                ones)",
            once_with: "use `redis://` with one server, `redis+sentinel://` or `redis+cluster://`",
        };
        Ok(Self::over(voters))
    }

    /// The first of its servers, as a store of its own, for [`bare`](crate::bare).
    #[doc(hidden)]
    #[must_use]
    pub fn voter(&self) -> Option<Engine<impl Store<Record = ()> + use<>>> {
        let first = self.engine.config.voters.first();
        first.map(|voter| Engine::<RedisStore>::new(voter.clone()))
    }
}

#[cfg(feature = "tls")]
super::tls::own_tls!(Redlock, |store, tls| {
    for voter in &mut store.engine.config.voters {
        voter.encrypt(&tls);
    }
});

driven!(Redlock, Quorum<RedisStore>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_the_url() {
        let store = Redlock::from_url("redis+redlock://:hunter2@a,b:7000,[::1]/2").expect("a URL");
        let shown = format!("{store:?}");
        for address in ["a:6379", "b:7000", "[::1]:6379"] {
            assert!(shown.contains(address), "{shown}");
        }
        assert!(!shown.contains("hunter2"), "{shown}");
        for node in &store.engine.config.voters {
            let node = &node.settings;
            assert_eq!(node.login.password(), Some("hunter2"));
            assert_eq!(node.login.db(), 2);
        }
    }

    #[test]
    fn too_few_nodes_are_refused() {
        for (url, says) in [
            ("redis+redlock://:hunter2@a", "names 1 nodes"),
            ("redis+redlock://:hunter2@a,b", "names 2 nodes"),
            ("redis+redlock://:hunter2@a,b,a:6379", "a:6379 twice"),
            ("redis+redlock://:hunter2@a,,c", "host is missing"),
            ("redis+redlock://:hunter2@a,b,c/x", "number of a database"),
            ("redis+redlock://a,b,c?hunter2", "unknown parameter"),
        ] {
            let message = match Redlock::from_url(url) {
                Ok(store) => panic!("{url} was read as {store:?}"),
                Err(error) => error.to_string(),
            };
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }
}
