//! Store URLs: the scheme names the store, which parses the rest.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, BackendError};
use crate::error::LockError;
use crate::limits;
use crate::stores::memory::Memory;

/// Where a manager gets its store from.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// The store, not yet connected.
    fn backend(&self, request_timeout: Duration) -> Result<Arc<dyn Backend>, LockError>;

    /// Whether each manager gets a new backend made from a URL, with the timeout of the `Config`.
    fn is_url(&self) -> bool {
        true
    }

    /// Whether its locks exist in this process only, which its user may not have noticed.
    fn is_memory(&self) -> bool {
        false
    }
}

/// Makes a separate store for each manager.
pub(super) struct MemoryUrl;

impl Source for MemoryUrl {
    fn backend(&self, _: Duration) -> Result<Arc<dyn Backend>, LockError> {
        Ok(Arc::new(Memory::new()))
    }

    fn is_memory(&self) -> bool {
        true
    }
}

impl fmt::Debug for MemoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

/// What a URL leads to, not yet connected: each manager has a copy.
struct StoreOfUrl<S> {
    store: S,
    copy: fn(&S, Duration) -> Arc<dyn Backend>,
}

impl<S: fmt::Debug + Send + Sync> Source for StoreOfUrl<S> {
    fn backend(&self, request_timeout: Duration) -> Result<Arc<dyn Backend>, LockError> {
        Ok((self.copy)(&self.store, request_timeout))
    }
}

impl<S: fmt::Debug> fmt::Debug for StoreOfUrl<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

type Read = Result<Arc<dyn Source>, BackendError>;

/// The cargo feature that each store needs, and the schemes of its URLs.
macro_rules! stores {
    ($($feature:tt: $($scheme:literal)|+ => $store:path,)*) => {
        /// Every scheme that dlock knows, and the feature it needs.
        const SCHEMES: &[(&str, &str)] = &[$($(($scheme, $feature),)+)*];

        /// The store behind a URL of this scheme; `None` if there is none, or its
        /// feature is off.
        #[cfg_attr(not(any(feature = "servers", feature = "sqlx")), expect(unused_variables))]
        fn read(scheme: &str, url: &str) -> Option<Read> {
            match scheme {
                $(
                    #[cfg(feature = $feature)]
                    $($scheme)|+ => {
                        Some(<$store>::from_url(url).map(|store| {
                            let copy: fn(&$store, Duration) -> Arc<dyn Backend> =
                                |store, timeout| Arc::new(store.clone().request_timeout(timeout));
                            Arc::new(StoreOfUrl { store, copy }) as _
                        }))
                    }
                )*
                _ => None,
            }
        }
    };
}

stores! {
    "etcd": "etcd" | "etcds" => crate::stores::etcd::Etcd,
    "redis": "redis" | "rediss" | "redis+unix" => crate::stores::redis::Redis,
    "redis-sentinel": "redis+sentinel" | "rediss+sentinel" => crate::stores::redis::Redis,
    "redis-redlock": "redis+redlock" | "rediss+redlock" => crate::stores::redis::Redlock,
    "redis-cluster": "redis+cluster" | "rediss+cluster" => crate::stores::redis::Cluster,
    "memcached": "memcached" => crate::stores::memcached::Memcached,
    "mysql": "mysql" => crate::stores::mysql::MySql,
    "postgres": "postgres" | "postgresql" => crate::stores::postgres::Postgres,
    "sqlite": "sqlite" => crate::stores::sqlite::Sqlite,
    "zookeeper": "zookeeper" | "zookeeper+tls" => crate::stores::zookeeper::ZooKeeper,
}

/// The store at a URL, and the floor of its tokens. `setting` is where that comes from, for
/// messages. They never show the URL itself, which may hold a password.
pub(super) fn parse(setting: &'static str, url: &str) -> Result<(Arc<dyn Source>, u64), LockError> {
    // What a file or a shell has put around it.
    let Some((scheme, rest)) = url.trim().split_once(':') else {
        return Err(LockError::config(
            setting,
            "not a URL; write for example redis://127.0.0.1:6379 or memory:",
        ));
    };
    let scheme = &*scheme.to_ascii_lowercase();
    let (rest, floor) = &without_floor(rest)
        .map_err(|reason| LockError::config(setting, format!("`token_floor`: {reason}")))?;
    if scheme == "memory" {
        return match &**rest {
            "" => Ok((Arc::new(MemoryUrl), *floor)),
            _ => Err(LockError::config(
                setting,
                "`memory:` takes nothing behind the colon but `?token_floor=N`",
            )),
        };
    }
    match read(scheme, &format!("{scheme}:{rest}")) {
        Some(Ok(store)) => Ok((store, *floor)),
        Some(Err(error)) => Err(LockError::Config {
            setting: setting.to_owned(),
            reason: error.to_string(),
            cause: error.into_cause(),
        }),
        None => Err(LockError::config(setting, refuse(scheme, rest))),
    }
}

/// Takes the floor of the tokens out of the parameters: it is alike for every store, and set
/// once that is connected.
fn without_floor(rest: &str) -> Result<(Cow<'_, str>, u64), String> {
    let (mut floor, mut others) = (None, Vec::new());
    let (before, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    for parameter in parameters.split('&') {
        match parameter.strip_prefix("token_floor=") {
            Some(value) => floor = Some(limits::TOKEN_FLOOR.read(value)?),
            None => others.push(parameter),
        }
    }
    Ok(match floor {
        None => (rest.into(), 0),
        Some(floor) if others.is_empty() => (before.into(), floor),
        Some(floor) => (format!("{before}?{}", others.join("&")).into(), floor),
    })
}

fn refuse(scheme: &str, rest: &str) -> String {
    if let Some((_, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        let building = match *feature {
            "etcd" => " (building it takes `protoc`, on Debian the package protobuf-compiler)",
            _ => "",
        };
        return format!(
            "`{scheme}:` needs the cargo feature `{feature}`; turn it on: \
             dlock-rs = {{ …, features = [\"{feature}\"] }}{building}"
        );
    }
    let known: Vec<_> = std::iter::once("memory:".to_owned())
        .chain(SCHEMES.iter().map(|(scheme, _)| format!("{scheme}://")))
        .collect();
    let known = known.join(", ");
    if is_port(rest) {
        let meant = if is_host(scheme) {
            format!("did you mean redis://{scheme}:{rest}")
        } else {
            "did you mean redis:// and then the host".to_owned()
        };
        return format!("it has no scheme; {meant}? dlock knows {known}");
    }
    // If the scheme is missing, the text before the colon may be a password.
    format!("its scheme is unknown; dlock knows {known}")
}

/// Whether this is what follows a host, such as `6379` or `6379/0`.
fn is_port(rest: &str) -> bool {
    let (port, database) = rest.split_once('/').unwrap_or((rest, ""));
    port.parse::<u16>().is_ok() && database.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether this is certainly a host and not a password.
fn is_host(text: &str) -> bool {
    text == "localhost" || text.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        let error = parse("store URL", url).expect_err("no such store");
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        error.to_string()
    }

    #[test]
    fn what_is_around_the_url_and_the_case_of_its_scheme_make_no_difference() {
        for url in [" memory:", "memory:\n", "MEMORY:", "Memory: "] {
            let (store, _) = parse("store URL", url).expect(url);
            assert_eq!(format!("{store:?}"), "memory:");
        }
        #[cfg(feature = "redis")]
        for url in ["\tREDIS://User@Host:1/2\r\n", "Redis://User@Host:1/2"] {
            let (store, _) = parse("store URL", url).expect(url);
            let (plain, _) = parse("store URL", "redis://User@Host:1/2").expect("plain");
            assert_eq!(format!("{store:?}"), format!("{plain:?}"));
        }
    }

    #[test]
    fn the_floor_of_the_tokens_is_not_the_stores_to_read() {
        for (url, floor) in [
            ("memory:", 0),
            ("memory:?token_floor=0", 0),
            ("memory:?token_floor=7", 7),
            (
                "memory:?token_floor=9151314442816847871",
                9_151_314_442_816_847_871,
            ),
        ] {
            assert_eq!(parse("store URL", url).expect(url).1, floor, "{url}");
        }
        #[cfg(feature = "redis")]
        for url in [
            "redis://a/1?token_floor=7",
            "redis://a/1?&token_floor=7&",
            "redis://a/1?token_floor=6&token_floor=7",
        ] {
            let (store, floor) = parse("store URL", url).expect(url);
            let (plain, _) = parse("store URL", "redis://a/1").expect("plain");
            assert_eq!(format!("{store:?}"), format!("{plain:?}"));
            assert_eq!(floor, 7, "{url}");
        }
        for value in [
            "",
            "-1",
            "7.5",
            "hunter2",
            "9151314442816847872",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            let error = refusal(&format!("memory:?token_floor={value}"));
            assert!(error.contains("`token_floor`: "), "{error}");
            assert!(error.contains("up to 9151314442816847871"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        refusal("memory:?token_flor=7");
    }

    #[test]
    fn what_needs_a_feature_names_it() {
        for (url, feature, is_on) in [
            ("redis://a", "redis", cfg!(feature = "redis")),
            (
                "redis+sentinel://a/m",
                "redis-sentinel",
                cfg!(feature = "redis-sentinel"),
            ),
            (
                "redis+cluster://a",
                "redis-cluster",
                cfg!(feature = "redis-cluster"),
            ),
            (
                "redis+redlock://a,b,c",
                "redis-redlock",
                cfg!(feature = "redis-redlock"),
            ),
            ("etcd://a", "etcd", cfg!(feature = "etcd")),
        ] {
            if is_on {
                parse("store URL", url).expect(url);
            } else {
                let error = refusal(url);
                let needs = format!("needs the cargo feature `{feature}`");
                assert!(error.contains(&needs), "{error}");
            }
        }
    }

    #[test]
    fn a_host_without_a_scheme_is_told_the_scheme() {
        for url in ["localhost:6379", "127.0.0.1:6380/3", " LOCALHOST:6379 "] {
            let meant = format!("did you mean redis://{}?", url.trim().to_lowercase());
            let error = refusal(url);
            assert!(error.contains(&meant), "{error}");
        }
        // The text before the colon may be a host or a password.
        let error = refusal("hunter2:6379");
        assert!(error.contains("redis:// and then the host"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        for url in [
            "hunter2:",
            "hunter2:host",
            "hunter2:6379/a",
            "hunter2:99999",
        ] {
            let error = refusal(url);
            assert!(error.contains("its scheme is unknown"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
