//! The examples, as a user runs them.

#[path = "../support/example.rs"]
mod example;
#[path = "../support/mod.rs"]
mod support;

mod flash_sale;
mod nightly_job;
mod transfer;
