//! The servers of the tests of those stores.

#![allow(dead_code, reason = "of each, a test program uses its own part")]

#[path = "../../../tests/mysql/kind.rs"]
pub(crate) mod mysql;
#[path = "../../../tests/postgres/kind.rs"]
pub(crate) mod postgres;
#[path = "../../../tests/databases/server.rs"]
pub(crate) mod server;
