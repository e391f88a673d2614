//! `--metrics`: what the services count, and no store knows.

pub(super) mod counters;
pub(crate) mod fetch;
pub(super) mod rates;
pub(super) mod template;
pub(super) mod text;
