//! Any text in the place of a store's URL.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::runtime::Runtime;

use crate::property::{SECRET, holds, is_plain, is_plain_text};
use crate::support::alone::alone;
use crate::support::log::Log;
use crate::support::wait::{HANG, within};

/// Those of stores with a password, by which nothing is a path that looks like one.
const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+redlock",
    "redis+cluster",
    "rediss+cluster",
    "etcd",
    "etcds",
    "zookeeper",
    "zookeeper+tls",
    "postgres",
    "postgresql",
    "mysql",
    "memcached",
    "REDIS",
    "reddis",
    "http",
];

/// What means something in a URL, or is a slip.
const PIECES: &[&str] = &[
    "://",
    ":",
    "/",
    "//",
    "@",
    "?",
    "#",
    "&",
    "=",
    ",",
    "%",
    "%ff",
    "%00",
    "%0a",
    "%40",
    "[",
    "]",
    "[::1]",
    "a",
    "b.example",
    "127.0.0.1",
    "1",
    "99999",
    "-1",
    "ca",
    "cert",
    "key",
    "recipe",
    "replicas",
    "quorum",
    "sslmode",
    "session_timeout",
    "create_tables",
    "true",
    " ",
    "\n",
    "\0",
    "\t",
    "é",
    "\u{202e}",
    "\u{2028}",
    "\\",
    "'",
    "\"",
    "memory:",
    "sqlite:",
    "file:",
];

fn any_url() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        8 => select(SCHEMES).prop_map(|scheme| format!("{scheme}://")),
        1 => Just("sqlite:/nowhere/".to_owned()),
        1 => Just("memory:".to_owned()),
        1 => Just(String::new()),
    ];
    let piece = prop_oneof![
        8 => select(PIECES).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    (start, vec(piece, 0..12)).prop_map(|(start, rest)| start + &rest.concat())
}

#[test]
fn any_text_is_a_store_or_an_error_of_the_setting() {
    holds(1_000, any_url(), |url| match Config::from_url(&url) {
        Ok(config) => is_plain_text(&format!("{config:?}")),
        Err(error) => {
            let names_it =
                matches!(&error, LockError::Config { setting, .. } if setting == "store URL");
            prop_assert!(names_it, "{}", error);
            is_plain(&error)
        }
    });
}

/// A URL with a password that was written as it is: whatever is special in it stands
/// where it means something else.
fn with_a_password() -> impl Strategy<Value = String> {
    let special = || {
        vec(
            select(
                &[
                    "/", "?", "#", "@", ":", ",", "%", "&", "=", "[", "]", " ", "\\", "\n", "1",
                    "%2", "+",
                ][..],
            ),
            0..4,
        )
        .prop_map(|pieces| pieces.concat())
    };
    let user = select(&["", "alice"][..]);
    let host = select(
        &[
            "127.0.0.1:1",
            "127.0.0.1:1,127.0.0.2:1",
            "",
            "127.0.0.1:99999",
            "nowhere.invalid",
        ][..],
    );
    let rest = prop_oneof![
        4 => Just(String::new()),
        2 => Just("/".to_owned()),
        1 => Just("/0".to_owned()),
        1 => Just("/main?replicas=x".to_owned()),
        1 => Just("/db?sslmode=wrong".to_owned()),
        1 => Just(format!("/db?password={SECRET}&port=x")),
        1 => Just(format!("/db?passwd={SECRET}")),
        1 => Just(format!("?{SECRET}")),
        1 => Just(format!("?{SECRET}=x")),
        1 => Just(format!("?sentinel_password={SECRET}")),
        1 => Just(format!("?sentinel_pasword={SECRET}")),
        1 => Just(format!("?recipe={SECRET}&acl={SECRET}")),
        1 => Just(format!("#{SECRET}")),
    ];
    let url = (select(SCHEMES), user, special(), special(), host, rest);
    url.prop_map(|(scheme, user, before, after, host, rest)| {
        format!("{scheme}://{user}:{before}{SECRET}{after}@{host}{rest}")
    })
}

/// The log is looked at too: libraries write into it.
#[test]
fn a_password_is_shown_nowhere_however_it_is_written() {
    alone(
        "urls::a_password_is_shown_nowhere_however_it_is_written",
        &[],
        || {
            let log = Log::capture();
            let runtime = Runtime::new().expect("a runtime");
            holds(300, with_a_password(), |url| {
                let before = log.text().len();
                let refused = match Config::from_url(&url) {
                    Err(error) => Some(error),
                    Ok(config) => {
                        let shown = format!("{config:?}{config:#?}");
                        prop_assert!(!shown.contains(SECRET), "{}", shown);
                        // Nobody listens there.
                        let config = config.request_timeout(Duration::from_millis(100));
                        let connected = within(HANG, LockManager::connect(config));
                        runtime.block_on(connected).err()
                    }
                };
                refused.as_ref().map_or(Ok(()), is_plain)?;
                let log = log.text();
                prop_assert!(!log[before..].contains(SECRET), "{}", &log[before..]);
                Ok(())
            });
        },
    );
}
