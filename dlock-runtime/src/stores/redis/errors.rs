//! What an error answer of Redis means, and what can be done about it.

use redis::ServerError;

use crate::backend::{BackendError, BackendErrorKind};
use crate::stores::meaning::Meaning;

/// What a user of the server must be allowed to do.
pub(super) const PERMISSIONS: &str = "let this user do what dlock does: keys `~dlock:*`, channels \
    `&dlock:wake:*`, and the commands +hello +subscribe +unsubscribe +publish +eval +evalsha \
    +incrby +set +get +mget +del +exists +pexpire +pexpireat +pttl +time +lpop +lpush +rpush \
    +lpos +lrem +llen +lrange +zadd +zrange +zrem +zscore +zrangebyscore +zremrangebyscore +type \
    +scan (with a database in the URL, +select too; with sentinels, +role and +wait too; in a \
    cluster, +ssubscribe, +sunsubscribe, +spublish, +asking and +cluster|slots)";

/// What a user of the sentinels must be allowed to do.
const SENTINEL_PERMISSIONS: &str = "let this user do what dlock does: the channel \
    `&+switch-master`, and the commands +hello +subscribe +sentinel|myid \
    +sentinel|get-master-addr-by-name";

/// The role of a server for dlock, on which the advice in messages depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    /// Its address comes from sentinels.
    Master,
    Sentinel,
    /// A cluster as a whole, or one of its nodes.
    Cluster,
}

/// What can be done about an error answer of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// Send the script in full.
    SendScript,
    /// Try again soon: the server cannot do it now.
    Retry,
    /// Connect again: after a failover, the name of the old master may lead to the new one.
    Reconnect,
    /// One of the keys has a value that dlock did not write.
    Foreign,
    /// The token counter has a value that dlock did not write.
    ForeignCounter,
    /// Another node of the cluster has the slot.
    Moved,
    /// Another node is about to get the slot, and already has these keys.
    Ask,
    /// Try again soon: the cluster cannot do it now.
    Cluster,
    /// dlock can do nothing.
    #[default]
    GiveUp,
}

/// What to do when the server answers with this error.
pub(super) fn classify(error: &ServerError) -> RetryPolicy {
    meaning(code_of(error), Role::Cluster).retry
}

const NOT_HERE: &str = "not here";
const NO_DATABASE: &str = "no such database";
const UNKNOWN: &str = "unknown command";
const NO_CLUSTER: &str = "no cluster";
const NO_REPLICAS: &str = "NOREPLICAS";
const TOO_MANY: &str = "too many clients";

/// The code of an error. Some errors have only the general code `ERR`, and are recognized by
/// their text.
pub(super) fn code_of(error: &ServerError) -> &str {
    let text = error.details().unwrap_or_default();
    match code_within(text) {
        Some(known) if error.code() == "ERR" => known,
        _ => error.code(),
    }
}

/// The code of an error that is known by its text.
pub(super) fn code_within(text: &str) -> Option<&'static str> {
    const TEXTS: [(&str, &str); 16] = [
        // A command that a script is not allowed to run, in the words of Redis 7.0.
        ("user executing the script", "NOPERM"),
        // The refusal of a database, of which the client leaves out the code.
        ("has no permissions", "NOPERM"),
        ("is busy running", "BUSY"),
        ("SELECT is not allowed", "MOVED"),
        // `INCRBY` of a value that is not a number, or that would overflow.
        ("not an integer", "DLOCKCOUNTER"),
        ("would overflow", "DLOCKCOUNTER"),
        // Up to Redis 6.2, the error of a command in a script is reported within "Error running
        // script".
        ("-READONLY", "READONLY"),
        ("-WRONGTYPE", "WRONGTYPE"),
        ("-OOM", "OOM"),
        ("-MISCONF", "MISCONF"),
        // A slot that is being moved, in the middle of a script.
        ("non local key", NOT_HERE),
        ("DB index", NO_DATABASE),
        ("nknown command", UNKNOWN),
        ("nknown Redis command", UNKNOWN),
        ("cluster support disabled", NO_CLUSTER),
        ("max number of clients", TOO_MANY),
    ];
    let mut known = TEXTS.iter().filter(|(said, _)| text.contains(said));
    known.next().map(|&(_, code)| code)
}

/// Whether the server does not know a command.
pub(super) fn is_unknown(error: &ServerError) -> bool {
    code_of(error) == UNKNOWN
}

/// Whether a script had begun when a key of it was found to be at another node.
pub(super) fn within_script(error: &ServerError) -> bool {
    code_of(error) == NOT_HERE
}

/// Whether the server refuses to write because too few replicas follow it.
pub(super) fn lacks_replicas(error: &ServerError) -> bool {
    code_of(error) == NO_REPLICAS
}

/// The meaning of an error with this code, from a server with this role.
pub(super) fn meaning(code: &str, role: Role) -> Meaning<RetryPolicy> {
    use RetryPolicy::{
        Ask, Cluster, Foreign, ForeignCounter, GiveUp, Moved, Reconnect, Retry, SendScript,
    };
    const SEE_LOG: &str = "see its log";
    const DISAGREE: &str = "its nodes do not agree on where the slot is; see CLUSTER NODES there";
    let (config, unavailable) = (Meaning::config, Meaning::unavailable);
    match (code, role) {
        ("NOSCRIPT", _) => unavailable(SendScript, SEE_LOG),
        ("DLOCKFOREIGN" | "WRONGTYPE", _) => unavailable(Foreign, SEE_LOG),
        ("DLOCKCOUNTER", _) => unavailable(ForeignCounter, SEE_LOG),
        ("WRONGPASS", _) => config(role.wrong_login_advice()),
        ("NOAUTH", _) => Meaning {
            // A new connection logs in again.
            retry: Reconnect,
            ..config(role.password_advice())
        },
        ("NOPERM", Role::Sentinel) => Meaning::denied(SENTINEL_PERMISSIONS),
        ("NOPERM", _) => Meaning::denied(PERMISSIONS),
        ("DENIED", _) => config("it is in protected mode; set a password, or bind an address"),
        ("READONLY" | "MASTERDOWN", Role::Master | Role::Cluster) => unavailable(
            Reconnect,
            "it is a replica; a failover seems to be under way",
        ),
        ("READONLY" | "MASTERDOWN", _) => {
            unavailable(Reconnect, "it is a replica; name the master in the URL")
        }
        ("LOADING", _) => unavailable(Retry, "it is still loading its data; try again"),
        ("BUSY", _) => unavailable(
            Retry,
            "somebody's script blocks it; end that with SCRIPT KILL",
        ),
        (NO_REPLICAS, _) => unavailable(Retry, "its min-replicas-to-write is not met"),
        ("OOM", _) => unavailable(Retry, "raise its maxmemory, or remove other data"),
        ("MISCONF", _) => unavailable(Retry, "it cannot save to disk; make room or see its log"),
        (TOO_MANY, _) => unavailable(GiveUp, "raise its maxclients"),
        ("CLUSTERDOWN", Role::Cluster) => unavailable(
            Cluster,
            "slots of it have no master; see CLUSTER INFO and CLUSTER NODES there",
        ),
        ("TRYAGAIN", Role::Cluster) => unavailable(
            Retry,
            "the slot is on its way to another node; if it stays so, see redis-cli --cluster check",
        ),
        ("MOVED", Role::Cluster) => unavailable(Moved, DISAGREE),
        ("ASK", Role::Cluster) => unavailable(Ask, DISAGREE),
        ("CROSSSLOT", Role::Cluster) => unavailable(GiveUp, DISAGREE),
        ("MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN", _) => {
            config("it is a node of a cluster; write redis+cluster:// in front of its hosts")
        }
        (NOT_HERE, _) => unavailable(Cluster, SEE_LOG),
        (NO_DATABASE, _) => config("the URL names a database that it does not have"),
        (UNKNOWN, Role::Sentinel) => config("it is no sentinel, whose port is 26379 as a rule"),
        (UNKNOWN, _) => config("dlock needs Redis 6.2 or later, with no command renamed"),
        (NO_CLUSTER, _) => config(
            "it is no node of a cluster; write redis:// for a single server, or redis+redlock:// \
             for several",
        ),
        _ => unavailable(GiveUp, SEE_LOG),
    }
}

impl Role {
    pub(super) fn wrong_login_advice(self) -> &'static str {
        match self {
            Self::Sentinel => "check `sentinel_username` and `sentinel_password` in the URL",
            _ => "check the user and password in the URL",
        }
    }

    /// What to write into the URL for a server that wants a password.
    fn password_advice(self) -> &'static str {
        match self {
            Self::Server => {
                "it wants a password; write redis://:password@host or redis://user:password@host"
            }
            Self::Cluster => {
                "it wants a password, which must be the same on all nodes; write \
                 redis+cluster://:password@… or redis+cluster://user:password@…"
            }
            Self::Master => {
                "it wants a password; write redis+sentinel://:password@… or \
                 redis+sentinel://user:password@… (that of the sentinels is another, \
                 `sentinel_password`)"
            }
            Self::Sentinel => {
                "it wants a password; add ?sentinel_password=… and if it has users, \
                 sentinel_username=… (what stands before the `@` is for the master only)"
            }
        }
    }
}

/// The runtime ended during a call, or has no network I/O.
pub(super) fn runtime_gone() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "the tokio runtime of this call is shutting down, or was built without `enable_all()`",
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn answer(code: &str, detail: &str) -> ServerError {
        redis::make_extension_error(code.into(), Some(detail.into()))
            .try_into()
            .expect("a server error")
    }

    /// In the form of Redis 6.2; since 7.0, the code comes first here too.
    #[test]
    fn an_error_within_a_script_is_what_its_command_was_answered() {
        let within = |text: &str| {
            let detail = format!(
                "Error running script (call to f_9e1): @user_script:1: @user_script: 1: {text}"
            );
            classify(&answer("ERR", &detail))
        };
        let full = "-OOM command not allowed when used memory > 'maxmemory'.";
        assert_eq!(within(full), RetryPolicy::Retry);
        let unsaved = "-MISCONF Errors writing to the AOF file: No space left on device";
        assert_eq!(within(unsaved), RetryPolicy::Retry);
        let readonly = "-READONLY You can't write against a read only replica.";
        assert_eq!(within(readonly), RetryPolicy::Reconnect);
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(within(wrong_type), RetryPolicy::Foreign);
        assert_eq!(within("-ERR no such thing"), RetryPolicy::GiveUp);
    }
}
