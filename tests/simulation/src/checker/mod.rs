//! What must be so, one file for each guarantee.
//!
//! Most checks are made while the run goes on, at the moment that something is
//! done: simulated time stands still meanwhile, so that what they see is exact.

pub(crate) mod bounds;
mod errors;
mod exclusion;
mod fencing;
mod idle;
pub(crate) mod once;
pub(crate) mod order;
pub(crate) mod permits;
mod rest;
#[cfg(test)]
mod tests;
mod tokens;

pub(crate) use self::fencing::Resource;
pub(crate) use self::idle::Seen;
pub(crate) use self::rest::{nothing_is_held, nothing_is_left};
