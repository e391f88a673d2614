//! Property tests with arbitrary environments: variables of dlock and others, with any value.

use std::ffi::OsString;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{KNOWN, read};
use crate::error::LockError;

/// Parts of right and wrong names.
const NAMES: &[&str] = &[
    "DL",
    "DLOCK",
    "_",
    "URL",
    "TTL",
    "TIMEOUT",
    "REQUEST",
    "NAMESPACE",
    "U",
    "L",
    "\n",
    "\u{1b}[31m",
    "é",
    "PORT",
];

/// What is never shown. It stands only where a URL may have a password.
const SECRET: &str = "hunter2";

/// Parts of values: ordinary settings, and parts of URLs, some of which have the secret.
const VALUES: &[&str] = &[
    "memory:",
    "redis://",
    "rediss://",
    ":hunter2@",
    "?hunter2",
    "?hunter2=x",
    "#hunter2",
    "?password=hunter2",
    "&password=hunter2",
    "password=hunter2",
    "127.0.0.1",
    "/",
    "?",
    "#",
    "&",
    "ca=",
    "30",
    "s",
    "ms",
    "h",
    "true",
    "false",
    " ",
    "\n",
    "%",
    "\u{202e}",
];

/// Whole URLs with the secret in the query, also of stores that are not built in.
const URLS: &[&str] = &[
    "redis://a?password=hunter2",
    "redis://a?passwd=hunter2&ca=x",
    "redis://a?hunter2",
    "redis://a/0?ca=hunter2",
    "redis+sentinel://a/m?sentinel_password=hunter2",
    "redis+sentinel://a/m?sentinel_pasword=hunter2",
    "redis+redlock://a,b,c?password=hunter2",
    "redis+cluster://a,b?auth=hunter2",
    "etcd://a?password=hunter2&recipe=x",
    "zookeeper://a/b?auth=hunter2",
    "postgres://a/b?password=hunter2",
    "postgres://a/b?sslmode=hunter2",
    "mysql://a/b?password=hunter2",
    "memcached://a?password=hunter2",
    "sqlite:/nowhere/a?key=hunter2",
    "memory:?password=hunter2",
    "redsi://a?password=hunter2",
    "?password=hunter2",
];

fn name() -> impl Strategy<Value = OsString> {
    prop_oneof![
        4 => select(&KNOWN[..]).prop_map(OsString::from),
        2 => vec(select(NAMES), 1..6).prop_map(|pieces| OsString::from(pieces.concat())),
        1 => vec(any::<u8>(), 0..9).prop_map(bytes),
    ]
}

fn value() -> impl Strategy<Value = OsString> {
    prop_oneof![
        1 => Just(OsString::from("memory:")),
        1 => select(URLS).prop_map(OsString::from),
        4 => vec(select(VALUES), 0..6).prop_map(|pieces| OsString::from(pieces.concat())),
        1 => vec(any::<u8>(), 0..9).prop_map(bytes),
        1 => (1_000..100_000_usize).prop_map(|length| OsString::from("9".repeat(length))),
    ]
}

/// Names and values need not be valid UTF-8.
#[cfg(unix)]
fn bytes(bytes: Vec<u8>) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

#[cfg(not(unix))]
fn bytes(bytes: Vec<u8>) -> OsString {
    OsString::from(String::from_utf8_lossy(&bytes).into_owned())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_environment_is_read_or_refused_by_the_name_that_is_wrong(
        store_is_known: bool,
        mut variables in vec((name(), value()), 0..8),
    ) {
        if store_is_known {
            // What else is wrong is told then.
            variables.insert(0, ("DLOCK_URL".into(), "memory:".into()));
        }
        match read(variables.clone(), None) {
            Ok(config) => {
                // A namespace is not a secret, whatever it contains.
                let shown = format!("{:?}", config.namespace(""));
                prop_assert!(!shown.contains(SECRET), "{}", shown);
            }
            Err(error) => {
                let LockError::Config { setting, .. } = &error else {
                    return Err(TestCaseError::fail(format!("{error:?}")));
                };
                let known = setting == "DLOCK_URL"
                    || variables.iter().any(|(name, _)| {
                        name.to_str().is_some_and(|name| name.escape_debug().to_string() == *setting)
                    });
                prop_assert!(known, "{}", setting);
                let shown = error.to_string();
                prop_assert!(!shown.contains(SECRET), "{}", shown);
                prop_assert!(!shown.contains(char::is_control), "{:?}", shown);
                prop_assert!(!shown.contains('\u{202e}'), "{:?}", shown);
                prop_assert!(shown.len() < 1_000, "{}", shown.len());
            }
        }
    }
}
