//! What `dlock-ui-tests` accepts, in the 2021 edition.

#![deny(warnings)]

#[path = "../pass/mod.rs"]
mod cases;
#[path = "../support.rs"]
mod support;
