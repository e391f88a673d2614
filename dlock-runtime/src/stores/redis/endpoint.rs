//! A server as messages name it, and the errors that name it: what happened, where, and what to do
//! about it.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};

use super::errors::{Role, code_of, code_within, meaning};
use super::names::{Keyspace, Part};
use super::redisson;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::BackendError;
use crate::key::Shown;
use crate::stores::address::Address;
use crate::stores::meaning::{self, Meaning};

#[cfg(feature = "tls")]
const CERTIFICATE_ADVICE: &str = "it knows its clients by their certificates; name one that it \
    trusts, and its key, with `cert=<path>&key=<path>` in the store URL";

/// A server as it is named in messages, and the secret that messages must not contain.
#[derive(Clone)]
pub(super) struct Endpoint {
    role: Role,
    name: String,
    /// Its address, once that is known.
    at: Option<Address>,
    space: Keyspace,
    secret: Option<String>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(address) => write!(f, "{} at {address}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Endpoint {
    pub(super) fn new(
        role: Role,
        name: impl Into<String>,
        space: Keyspace,
        secret: Option<&str>,
    ) -> Self {
        Self {
            role,
            name: name.into(),
            at: None,
            space,
            secret: secret.map(str::to_owned),
        }
    }

    /// This endpoint with its address, which is now known.
    pub(super) fn found_at(&self, address: &Address) -> Self {
        Self {
            at: Some(address.clone()),
            ..self.clone()
        }
    }

    fn reach_advice(&self) -> &'static str {
        match (self.role, &self.at) {
            (Role::Server | Role::Sentinel, _) => {
                "check that the server runs and that the URL names its host and port"
            }
            (Role::Cluster, None) => {
                "check that its nodes run and that the URL names their hosts and ports"
            }
            (Role::Master, _) => {
                "check that it runs and can be reached from here at this address, which the \
                 sentinels give out; a failover may be under way"
            }
            (Role::Cluster, Some(_)) => {
                "check that it runs and can be reached from here at this address, which the cluster \
                 gives out; a failover may be under way"
            }
        }
    }

    /// The server answered a command with an error.
    pub(super) fn refused(&self, error: &ServerError) -> BackendError {
        let (code, details) = (error.code(), error.details().unwrap_or_default());
        let said = self.without_secret(&format!("{code} {details}"));
        let meaning = match (code_of(error), &self.space) {
            ("NOPERM", Keyspace::Redisson(_)) => Meaning::denied(redisson::PERMISSIONS),
            (code, _) => meaning(code, self.role),
        };
        let told = meaning.error(format_args!("{self} answered"), said.trim_end());
        self.with_cause(told, error.clone().into())
    }

    /// The connection could not be opened, or broke.
    pub(super) fn unreachable(&self, error: RedisError) -> BackendError {
        if let Ok(answer) = ServerError::try_from(error.clone()) {
            return self.refused(&answer);
        }
        let said = self.without_secret(&error.to_string());
        let meaning = match error.kind() {
            ErrorKind::RESP3NotSupported => Meaning::config("dlock needs Redis 6.2 or later"),
            ErrorKind::AuthenticationFailed => Meaning::config(self.role.wrong_login_advice()),
            // How the `redis` crate reports a refused SELECT. The server may refuse it for a
            // reason that has nothing to do with the number.
            ErrorKind::Server(_) => {
                let code = error.detail().and_then(code_within).unwrap_or_default();
                let meaning = meaning(code, self.role);
                return self.with_cause(meaning.error(self, said), error);
            }
            #[cfg(feature = "tls")]
            _ if Tls::wants_certificate(&error) => Meaning::config(CERTIFICATE_ADVICE),
            _ => Meaning::unavailable((), self.reach_advice()),
        };
        self.with_cause(meaning.error(self, said), error)
    }

    /// The TCP connection or the TLS handshake failed.
    pub(super) fn no_connection(&self, error: io::Error) -> BackendError {
        // rustls uses this kind for a certificate that it refuses.
        let advice = if error.kind() == io::ErrorKind::InvalidData {
            "check that the server speaks TLS (else write redis://) and that its certificate is \
             valid for the host in the URL; name a private CA with `?ca=<path>`"
        } else {
            self.reach_advice()
        };
        let meaning = Meaning::unavailable((), advice);
        meaning.error(self, &error).with_cause(error)
    }

    /// No answer came in time.
    pub(super) fn silent(&self, after: Duration) -> BackendError {
        BackendError::unavailable(format!(
            "{self} did not answer within {after:.1?}; check the network, or raise the request \
             timeout"
        ))
    }

    /// A new connection was not answered in time.
    pub(super) fn silent_at_first(&self) -> BackendError {
        BackendError::unavailable(format!(
            "{self} did not answer a new connection; check the network, or raise the request \
             timeout"
        ))
    }

    /// The sentinels name this server, but its own role is not master.
    pub(super) fn not_the_master(&self, role: &str) -> BackendError {
        BackendError::unavailable(format!(
            "{self} says that its role is `{}`, and locks are kept on a master only; a failover \
             may be under way",
            Shown(role)
        ))
    }

    /// The master has the lock, but too few replicas have it.
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

    /// An answer that Redis never gives.
    pub(super) fn unexpected_answer(&self) -> BackendError {
        BackendError::unavailable(format!(
            "{self} gave an answer that Redis does not give; is there something else behind the \
             URL?"
        ))
    }

    /// One of dlock's keys has a value that dlock did not write.
    pub(super) fn foreign(&self, name: &dyn fmt::Display, found: &str) -> BackendError {
        let name = name.to_string();
        meaning::foreign(
            self,
            format_args!(
                "the key `{}` holds a {} that {} not write; remove it, or keep dlock's keys \
                 apart with another namespace or database",
                Shown(&name),
                Shown(found),
                match self.space {
                    Keyspace::Redisson(_) => "dlock and Redisson did",
                    _ => "dlock did",
                }
            ),
        )
    }

    /// One of these keys is foreign, and it could not be found out which.
    pub(super) fn some_are_foreign(&self, key: &str) -> BackendError {
        let parts = self.space.parts(key).into_iter();
        let names = parts.map(|(name, _)| Shown(&name.to_string()).to_string());
        let names: Vec<_> = names.collect();
        meaning::foreign(
            self,
            format_args!(
                "one of the keys `{}` holds a value that dlock did not write; remove it, or keep \
                 dlock's keys apart with another namespace or database",
                names.join("`, `")
            ),
        )
    }

    /// The token counter of a lock has a foreign value.
    pub(super) fn foreign_counter(&self, key: &str) -> BackendError {
        self.foreign(&self.space.counter(key), "value")
    }

    /// One of the keys of a lock, or the counter, is foreign. `types` are the answers to
    /// [`types`](super::commands::types). If all types are right, the value of the key `value` is
    /// foreign.
    pub(super) fn one_is_foreign(&self, key: &str, types: &[String], value: Part) -> BackendError {
        let parts = self.space.parts(key);
        let mut found = parts.iter().zip(types);
        match found.find(|((_, wanted), found)| found != wanted && *found != "none") {
            Some(((name, _), found)) => self.foreign(name, found),
            None => match value {
                Part::Lock => self.foreign(&self.space.lock(key), parts[0].1),
                Part::Readers => self.foreign(&self.space.readers(key), "member"),
            },
        }
    }

    /// Removes the password. Servers repeat arguments in some messages, and those of a `HELLO`
    /// that was renamed away contain it: in part if it is long, and in other words if it has a
    /// line break. So the repeated arguments are removed as a whole.
    fn without_secret(&self, text: &str) -> String {
        match &self.secret {
            Some(secret) if !secret.is_empty() => {
                let own = text.split(", with args beginning with").next();
                own.unwrap_or_default().replace(secret.as_str(), "***")
            }
            _ => text.to_owned(),
        }
    }

    fn with_cause(&self, error: BackendError, source: RedisError) -> BackendError {
        let shown = source.to_string();
        if self.without_secret(&shown) == shown {
            error.with_cause(source)
        } else {
            error
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::errors::PERMISSIONS;
    use super::super::errors::tests::answer;
    use super::*;
    use crate::backend::BackendErrorKind;

    fn endpoint() -> Endpoint {
        Endpoint::new(Role::Server, "redis", Keyspace::Server, Some("hunter2"))
    }

    /// The client's crate passes on what the server says, without the code of the error.
    #[test]
    fn a_database_that_may_not_be_chosen_is_what_the_server_says() {
        const KIND: ErrorKind = ErrorKind::Server(redis::ServerErrorKind::ResponseError);
        let told = |said: &str| {
            let refused = "Redis server refused to switch database";
            endpoint().unreachable((KIND, refused, said.to_owned()).into())
        };
        for (said, kind, advice) in [
            (
                "DB index is out of range",
                BackendErrorKind::Config,
                "database",
            ),
            ("invalid DB index", BackendErrorKind::Config, "database"),
            (
                "SELECT is not allowed in cluster mode",
                BackendErrorKind::Config,
                "redis+cluster://",
            ),
            (
                "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                BackendErrorKind::Unavailable,
                "somebody's script blocks it",
            ),
            ("hello", BackendErrorKind::Unavailable, "see its log"),
        ] {
            let error = told(said);
            assert_eq!(error.kind(), kind, "{error}");
            let shown = error.to_string();
            assert!(shown.contains(said) && shown.contains(advice), "{shown}");
        }
        // In the words of Redis 6.2, and of 7.0.
        for said in [
            "this user has no permissions to run the 'select' command or its subcommand",
            "User app has no permissions to run the 'select' command",
        ] {
            let error = told(said);
            assert!(error.to_string().contains(PERMISSIONS), "{error}");
        }
    }

    #[test]
    fn a_password_in_an_answer_is_not_shown() {
        // Redis shows a part of a long argument, and a line break as a space.
        for (secret, shown) in [
            ("hunter2".to_owned(), "hunter2".to_owned()),
            ("s".repeat(120), "s".repeat(107)),
            ("hun\nter2".to_owned(), "hun ter2".to_owned()),
        ] {
            let endpoint = Endpoint::new(Role::Server, "redis", Keyspace::Server, Some(&secret));
            let error = endpoint.refused(&answer(
                "ERR",
                &format!(
                    "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' \
                     '{shown}'"
                ),
            ));
            let mut told = format!("{error} {error:?}");
            let mut cause = std::error::Error::source(&error);
            while let Some(source) = cause {
                told.push_str(&format!("{source} {source:?}"));
                cause = source.source();
            }
            assert!(!told.contains(&shown), "{told}");
            assert!(told.contains("'HELLO'") && told.contains("6.2"), "{told}");
        }
    }

    #[test]
    fn what_is_foreign_is_named() {
        let types = |types: [&str; 4]| types.map(str::to_owned);
        let of = |found, value| endpoint().one_is_foreign("a", &types(found), value);
        let shown = |found| of(found, Part::Lock).to_string();
        assert!(shown(["string", "none", "none", "string"]).contains("`dlock:{a}` holds a string"));
        assert!(shown(["hash", "none", "none", "string"]).contains("`dlock:{a}` holds a hash"));
        assert!(shown(["string", "set", "none", "none"]).contains("`dlock:{a}:queue` holds a set"));
        assert!(shown(["none", "none", "none", "list"]).contains("`dlock:token` holds a list"));
        let unknown = endpoint().some_are_foreign("a").to_string();
        for part in [
            "`dlock:{a}`",
            "`dlock:{a}:queue`",
            "`dlock:{a}:readers`",
            "`dlock:token`",
        ] {
            assert!(unknown.contains(part), "{unknown}");
        }
        let readers = of(["string", "none", "zset", "string"], Part::Readers).to_string();
        assert!(
            readers.contains("`dlock:{a}:readers` holds a member"),
            "{readers}"
        );
    }
}
