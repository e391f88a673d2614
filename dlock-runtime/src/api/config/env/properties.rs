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

/// Parts of values: ordinary settings, and possible secrets.
const VALUES: &[&str] = &[
    "memory:",
    "redis://",
    "rediss://",
    ":hunter2@",
    "hunter2",
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
        variables in vec((name(), value()), 0..8),
    ) {
        match read(variables.clone(), None) {
            Ok(config) => {
                // A namespace is not a secret, whatever it contains.
                let shown = format!("{:?}", config.namespace(""));
                prop_assert!(!shown.contains(":hunter2@"), "{}", shown);
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
                prop_assert!(!shown.contains(":hunter2@"), "{}", shown);
                prop_assert!(!shown.contains(char::is_control), "{:?}", shown);
                prop_assert!(!shown.contains('\u{202e}'), "{:?}", shown);
                prop_assert!(shown.len() < 1_000, "{}", shown.len());
            }
        }
    }
}
