//! The user's own names, whatever they are, and ours do not meet.

#![allow(non_snake_case, dead_code)]

use ::dlock::{LockError as Refused, distributed_lock};

mod core {}
mod std {}
mod dlock {}
mod dlock_runtime {}

struct Err;
struct Ok;
struct Some;
struct Option;
struct From;
struct Into;
struct Box;
struct Send;
trait Future {}
const KEY: u32 = 1;

type Result = ::core::result::Result<u32, Refused>;

/// As Diesel makes a unit struct for each column of a table. Patterns of these names are patterns
/// of the structs, whatever the hygiene.
mod columns {
    #![allow(non_camel_case_types, non_upper_case_globals)]
    pub struct key;
    pub struct body;
    pub struct output;
    pub struct error;
    pub const options: u32 = 2;
    pub static outcome: u32 = 3;

    #[::dlock::distributed_lock(key = "columns", permits = 1 + options)]
    pub async fn with_permits() -> super::Result {
        super::Result::Ok(options)
    }

    #[::dlock::distributed_lock(key = "once", once = "1h")]
    pub async fn once() -> super::Result {
        super::Result::Ok(outcome)
    }
}

macro_rules! panic {
    () => {};
}
macro_rules! unreachable {
    () => {};
}

const OPTIONS: u32 = 10;

#[distributed_lock(key = "<key>:<body>:<options>:<outcome>", ttl = "1s", timeout = "1s")]
async fn names_of_ours(key: u32, body: u32, options: u32, outcome: u32) -> Result {
    panic!();
    unreachable!();
    Result::Ok(key + body + options + outcome + OPTIONS)
}

#[distributed_lock(key = "wild", on_error = |_| 0)]
async fn unnamed(_: ::std::string::String, __argument_0: u32) -> u32 {
    __argument_0
}

#[tokio::test]
async fn neither_sees_the_other() {
    crate::support::alone(async {
        assert!(matches!(names_of_ours(1, 2, 3, 4).await, Result::Ok(20)));
        assert!(matches!(columns::with_permits().await, Result::Ok(2)));
        assert!(matches!(columns::once().await, Result::Ok(3)));
        assert_eq!(unnamed(::std::string::String::new(), 3).await, 3);
    })
    .await;
}
