//! What Redis and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};

use super::names::{Keyspace, wake_prefix};
use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::stores::address::Address;

/// What a user of the server must be allowed to do.
const PERMISSIONS: &str = concat!(
    "let this user do what dlock does: keys `~dlock:*`, channels `&",
    wake_prefix!(),
    "*`, and the commands +hello +subscribe +publish +eval +evalsha +incrby +set +get +mget +del \
     +exists +pexpire +pexpireat +pttl +time +lpop +lpush +rpush +lpos +lrem +llen +zadd +zrange \
     +zrem +zscore +zrangebyscore +zremrangebyscore +type +scan (with sentinels, +role and +wait too; \
     in a cluster, +ssubscribe, +sunsubscribe, +spublish, +asking and +cluster|slots)"
);

/// What a user of the sentinels must be allowed to do.
const SENTINEL_PERMISSIONS: &str = "let this user do what dlock does: the channel \
    `&+switch-master`, and the commands +hello +subscribe +sentinel|myid \
    +sentinel|get-master-addr-by-name";

/// A server as it is named in messages, and the secret that they must not
/// contain.
#[derive(Clone)]
pub(super) struct Place {
    server: Server,
    space: Keyspace,
    secret: Option<String>,
}

/// What a server is to dlock, as its advice depends on it.
#[derive(Clone)]
pub(super) enum Server {
    At(Address),
    /// Sentinels say where it is.
    Master {
        name: Arc<str>,
        at: Option<Address>,
    },
    Sentinel(Address),
    /// A cluster as a whole, by the nodes that the URL names.
    Cluster(Arc<str>),
    /// One of its nodes.
    Node(Address),
    /// The node that has a slot.
    Vote {
        slot: u16,
        at: Option<Address>,
    },
}

/// What can be done about an error that the server answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Run the script in full.
    SendScript,
    /// The server cannot now but may be able to in a moment.
    Retry,
    /// Another connection may reach a server that can: after a failover, the
    /// name of the old master may lead to the new one.
    Reconnect,
    /// One of the keys holds what was not written by dlock.
    Foreign,
    /// The token counter does.
    ForeignCounter,
    /// Another node of the cluster has the slot.
    Moved,
    /// Another node is about to get the slot, and has what was asked for.
    Ask,
    /// A cluster cannot now, but may be able to in a moment.
    Cluster,
    /// Nothing that dlock could do.
    GiveUp,
}

/// What to do when the server answers with this error.
pub(super) fn remedy(error: &ServerError) -> Remedy {
    match error.code() {
        "NOSCRIPT" => Remedy::SendScript,
        "LOADING" | "BUSY" | "TRYAGAIN" | "NOREPLICAS" => Remedy::Retry,
        "READONLY" | "MASTERDOWN" | "NOAUTH" => Remedy::Reconnect,
        "DLOCKFOREIGN" | "WRONGTYPE" => Remedy::Foreign,
        "DLOCKCOUNTER" => Remedy::ForeignCounter,
        "MOVED" => Remedy::Moved,
        "ASK" => Remedy::Ask,
        "CLUSTERDOWN" => Remedy::Cluster,
        // `INCRBY` of something that is not a number.
        "ERR"
            if error
                .details()
                .is_some_and(|text| text.contains("not an integer")) =>
        {
            Remedy::ForeignCounter
        }
        // Of a script, up to Redis 6.2: what its command was answered is told
        // within "Error running script".
        "ERR"
            if error
                .details()
                .is_some_and(|text| text.contains("-READONLY")) =>
        {
            Remedy::Reconnect
        }
        "ERR"
            if error
                .details()
                .is_some_and(|text| text.contains("-WRONGTYPE")) =>
        {
            Remedy::Foreign
        }
        // A slot that is on its way, in the middle of a script.
        "ERR"
            if error
                .details()
                .is_some_and(|text| text.contains("non local key")) =>
        {
            Remedy::Cluster
        }
        _ => Remedy::GiveUp,
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Server::At(address) => write!(f, "redis at {address}"),
            Server::Master { name, at: None } => write!(f, "redis master `{name}`"),
            Server::Master {
                name,
                at: Some(address),
            } => write!(f, "redis master `{name}` at {address}"),
            Server::Sentinel(address) => write!(f, "sentinel at {address}"),
            Server::Cluster(nodes) => write!(f, "redis cluster at {nodes}"),
            Server::Node(address) => write!(f, "redis cluster node {address}"),
            Server::Vote { slot, at: None } => write!(f, "redis cluster node of slot {slot}"),
            Server::Vote {
                slot,
                at: Some(address),
            } => write!(f, "redis cluster node {address} of slot {slot}"),
        }
    }
}

impl Place {
    pub(super) fn new(server: Server, space: Keyspace, secret: Option<&str>) -> Self {
        Self {
            server,
            space,
            secret: secret.map(str::to_owned),
        }
    }

    /// The same, now that it is known where it is.
    pub(super) fn found_at(&self, address: &Address) -> Self {
        let mut place = self.clone();
        if let Server::Master { at, .. } | Server::Vote { at, .. } = &mut place.server {
            *at = Some(address.clone());
        }
        place
    }

    /// What to write into the URL for a server that wants a password.
    fn login_advice(&self) -> &'static str {
        match self.server {
            Server::At(_) => {
                "it wants a password; write redis://:password@host or redis://user:password@host"
            }
            Server::Cluster(_) | Server::Node(_) | Server::Vote { .. } => {
                "it wants a password, which must be the same on all nodes; write \
                 redis+cluster://:password@… or redis+cluster://user:password@…"
            }
            Server::Master { .. } => {
                "it wants a password; write redis+sentinel://:password@… or \
                 redis+sentinel://user:password@… (that of the sentinels is another, \
                 `sentinel_password`)"
            }
            Server::Sentinel(_) => {
                "it wants a password; add ?sentinel_password=… and if it has users, \
                 sentinel_username=… (what stands before the `@` is for the master only)"
            }
        }
    }

    fn wrong_login_advice(&self) -> &'static str {
        match self.server {
            Server::Sentinel(_) => "check `sentinel_username` and `sentinel_password` in the URL",
            _ => "check the user and password in the URL",
        }
    }

    fn reach_advice(&self) -> &'static str {
        match self.server {
            Server::At(_) => "check that the server runs and that the URL names its host and port",
            Server::Master { .. } => {
                "check that it runs and can be reached from here at this address, which the \
                 sentinels give out; a failover may be under way"
            }
            Server::Sentinel(_) => "check that it runs and that the URL names its host and port",
            Server::Cluster(_) => {
                "check that its nodes run and that the URL names their hosts and ports"
            }
            Server::Node(_) | Server::Vote { .. } => {
                "check that it runs and can be reached from here at this address, which the cluster \
                 gives out; a failover may be under way"
            }
        }
    }
    /// The server answered a command with an error.
    pub(super) fn refused(&self, error: &ServerError) -> BackendError {
        use BackendErrorKind::{Config, Unavailable};
        let (kind, advice) = match error.code() {
            "WRONGPASS" => (Config, self.wrong_login_advice()),
            "NOAUTH" => (Config, self.login_advice()),
            "NOPERM" => match self.server {
                Server::Sentinel(_) => (Config, SENTINEL_PERMISSIONS),
                _ => (Config, PERMISSIONS),
            },
            "READONLY" | "MASTERDOWN" => match self.server {
                Server::Master { .. } => (
                    Unavailable,
                    "it is a replica; a failover seems to be under way",
                ),
                Server::Cluster(_) | Server::Node(_) | Server::Vote { .. } => (
                    Unavailable,
                    "it is a replica; a failover seems to be under way",
                ),
                _ => (Unavailable, "it is a replica; name the master in the URL"),
            },
            "LOADING" => (Unavailable, "it is still loading its data; try again"),
            "BUSY" => (
                Unavailable,
                "somebody's script blocks it; end that with SCRIPT KILL",
            ),
            "OOM" => (Unavailable, "raise its maxmemory, or remove other data"),
            "MISCONF" => (
                Unavailable,
                "it cannot save to disk; make room or see its log",
            ),
            "NOREPLICAS" => (Unavailable, "its min-replicas-to-write is not met"),
            "DENIED" => (
                Config,
                "it is in protected mode; set a password, or bind an address",
            ),
            "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => match self.server {
                Server::Cluster(_) | Server::Node(_) | Server::Vote { .. } => (
                    Unavailable,
                    match error.code() {
                        "CLUSTERDOWN" => {
                            "slots of it have no master; see CLUSTER INFO and CLUSTER NODES there"
                        }
                        "TRYAGAIN" => {
                            "the slot is on its way to another node; if it stays so, see \
                             redis-cli --cluster check"
                        }
                        _ => "its nodes do not agree on where the slot is; see CLUSTER NODES there",
                    },
                ),
                _ => (
                    Config,
                    "it is a node of a cluster; write redis+cluster:// in front of its hosts",
                ),
            },
            "ERR" => match error.details().unwrap_or_default() {
                // What a script is not allowed, in the words of Redis 7.0.
                text if text.contains("user executing the script") => (Config, PERMISSIONS),
                text if text.contains("DB index") => {
                    (Config, "the URL names a database that it does not have")
                }
                text if text.contains("nknown command")
                    || text.contains("nknown Redis command") =>
                {
                    match self.server {
                        Server::Sentinel(_) => {
                            (Config, "it is no sentinel, whose port is 26379 as a rule")
                        }
                        _ => (
                            Config,
                            "dlock needs Redis 6.2 or later, with no command renamed",
                        ),
                    }
                }
                text if text.contains("cluster support disabled") => (
                    Config,
                    "it is no node of a cluster; write redis:// for a single server, or \
                     redis+redlock:// for several",
                ),
                text if text.contains("max number of clients") => {
                    (Unavailable, "raise its maxclients")
                }
                _ => (Unavailable, "see its log"),
            },
            _ => (Unavailable, "see its log"),
        };
        let said = self.without_secret(&format!(
            "{} {}",
            error.code(),
            error.details().unwrap_or_default()
        ));
        let message = format!("{self} answered: {}; {advice}", said.trim_end());
        self.with_source(BackendError::new(kind, message), error.clone().into())
    }

    /// The connection could not be made or broke.
    pub(super) fn unreachable(&self, error: RedisError) -> BackendError {
        if let Ok(answer) = ServerError::try_from(error.clone()) {
            return self.refused(&answer);
        }
        let (kind, advice) = match error.kind() {
            ErrorKind::RESP3NotSupported => {
                (BackendErrorKind::Config, "dlock needs Redis 6.2 or later")
            }
            ErrorKind::AuthenticationFailed => {
                (BackendErrorKind::Config, self.wrong_login_advice())
            }
            // What `redis` makes of a refused SELECT.
            ErrorKind::Server(_) => (
                BackendErrorKind::Config,
                "check the database number in the URL",
            ),
            _ => (BackendErrorKind::Unavailable, self.reach_advice()),
        };
        let said = self.without_secret(&error.to_string());
        self.with_source(
            BackendError::new(kind, format!("{self}: {said}; {advice}")),
            error,
        )
    }

    /// The TLS handshake failed, or the TCP connection.
    pub(super) fn no_connection(&self, error: io::Error) -> BackendError {
        // rustls refuses a certificate with this kind.
        let advice = if error.kind() == io::ErrorKind::InvalidData {
            "check that the server speaks TLS (else write redis://) and that its certificate is \
             valid for the host in the URL; name a private CA with `?ca=<path>`"
        } else {
            self.reach_advice()
        };
        BackendError::unavailable(format!("{self}: {error}; {advice}")).with_source(error)
    }

    /// Nothing was heard in time.
    pub(super) fn silent(&self, after: Duration) -> BackendError {
        BackendError::unavailable(format!(
            "{self} did not answer within {after:.1?}; check the network, or raise the request \
             timeout"
        ))
    }

    /// The same, when it was to be connected with.
    pub(super) fn silent_at_first(&self) -> BackendError {
        BackendError::unavailable(format!(
            "{self} did not answer a new connection; check the network, or raise the request \
             timeout"
        ))
    }

    /// The sentinels name it, but it does not call itself the master.
    pub(super) fn not_the_master(&self, role: &str) -> BackendError {
        BackendError::unavailable(format!(
            "{self} says that its role is `{role}`, and locks are kept on a master only; a \
             failover may be under way"
        ))
    }

    /// The master has the lock, and too few others have it.
    pub(super) fn too_few_replicas(
        &self,
        have: i64,
        need: usize,
        within: Duration,
    ) -> BackendError {
        BackendError::unavailable(format!(
            "{self}: {have} of its replicas had the lock within {within:?}, and `replicas={need}` \
             asks for {need}; look at INFO replication there, or lower the number in the URL"
        ))
    }

    /// An answer that the protocol does not know.
    pub(super) fn nonsense(&self) -> BackendError {
        BackendError::unavailable(format!(
            "{self} gave an answer that Redis does not give; is there something else behind the \
             URL?"
        ))
    }

    /// Something that dlock did not write stands where one of its keys belongs.
    pub(super) fn foreign(&self, name: &dyn fmt::Display, found: &str) -> BackendError {
        BackendError::new(
            BackendErrorKind::Config,
            format!(
                "{self}: the key `{}` holds a {found} that dlock did not write; remove it, or keep \
                 dlock's keys apart with another namespace or database",
                Shown(&name.to_string())
            ),
        )
    }

    /// The same where a lock belongs.
    pub(super) fn foreign_lock(&self, key: &str) -> BackendError {
        self.foreign(&self.space.lock(key), "value")
    }

    /// The same where the counter belongs that a lock's tokens are drawn from.
    pub(super) fn foreign_counter(&self, key: &str) -> BackendError {
        self.foreign(&self.space.counter(key), "value")
    }

    /// The same, where it is one of the keys of a lock or the token counter.
    /// `types` are the answers to [`types`](super::commands::types).
    pub(super) fn one_is_foreign(&self, key: &str, types: &[String]) -> BackendError {
        let Self { space, .. } = self;
        let [lock, queue, readers] = [space.lock(key), space.queue(key), space.readers(key)];
        let counter = space.counter(key);
        let expected: [(&dyn fmt::Display, &str); 4] = [
            (&lock, "string"),
            (&queue, "list"),
            (&readers, "zset"),
            (&counter, "string"),
        ];
        let wrong = expected
            .into_iter()
            .zip(types)
            .find(|((_, wanted), found)| found != wanted && *found != "none");
        match wrong {
            Some(((name, _), found)) => self.foreign(name, found),
            // The types are as they should be, so it is the value.
            None => self.foreign(&lock, "string"),
        }
    }

    /// Servers repeat arguments in some messages, and a `HELLO` that was
    /// renamed away has the password among them.
    fn without_secret(&self, text: &str) -> String {
        match &self.secret {
            Some(secret) if !secret.is_empty() => text.replace(secret.as_str(), "***"),
            _ => text.to_owned(),
        }
    }

    fn with_source(&self, error: BackendError, source: RedisError) -> BackendError {
        let shown = source.to_string();
        if self.without_secret(&shown) == shown {
            error.with_source(source)
        } else {
            error
        }
    }
}

/// The runtime ended under a call, or cannot do network I/O.
pub(super) fn runtime_gone() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "the tokio runtime of this call is shutting down, or was built without `enable_all()`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let address = Address {
            host: "db".to_owned(),
            port: 6379,
        };
        Place::new(Server::At(address), Keyspace::Server, Some("hunter2"))
    }

    fn answer(code: &str, detail: &str) -> ServerError {
        redis::make_extension_error(code.into(), Some(detail.into()))
            .try_into()
            .expect("a server error")
    }

    /// As Redis 6.2 tells it; from 7.0 on, the code comes first here too.
    #[test]
    fn an_error_within_a_script_is_what_its_command_was_answered() {
        let within = |text: &str| {
            let detail = format!(
                "Error running script (call to f_9e1): @user_script:1: @user_script: 1: {text}"
            );
            remedy(&answer("ERR", &detail))
        };
        let readonly = "-READONLY You can't write against a read only replica.";
        assert_eq!(within(readonly), Remedy::Reconnect);
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(within(wrong_type), Remedy::Foreign);
        assert_eq!(within("-ERR no such thing"), Remedy::GiveUp);
    }

    #[test]
    fn a_password_in_an_answer_is_not_shown() {
        let error = place().refused(&answer(
            "ERR",
            "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2'",
        ));
        let mut shown = format!("{error} {error:?}");
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            shown.push_str(&format!("{source} {source:?}"));
            cause = source.source();
        }
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("6.2"), "{shown}");
    }

    #[test]
    fn what_is_foreign_is_named() {
        let types = |types: [&str; 4]| types.map(str::to_owned);
        let shown = |found| place().one_is_foreign("a", &types(found)).to_string();
        assert!(shown(["string", "none", "none", "string"]).contains("`dlock:{a}` holds a string"));
        assert!(shown(["hash", "none", "none", "string"]).contains("`dlock:{a}` holds a hash"));
        assert!(shown(["string", "set", "none", "none"]).contains("`dlock:{a}:queue` holds a set"));
        assert!(shown(["none", "none", "none", "list"]).contains("`dlock:token` holds a list"));
    }
}
