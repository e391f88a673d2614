//! The database servers that the tests start.

#![allow(dead_code, reason = "the tests share some of them, and a history none")]

#[path = "../../mysql/kind.rs"]
pub(crate) mod mysql;
#[path = "../../postgres/kind.rs"]
pub(crate) mod postgres;
#[path = "../../databases/server.rs"]
pub(crate) mod server;
