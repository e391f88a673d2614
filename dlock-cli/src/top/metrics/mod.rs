//! What no store knows and the services count: `--metrics`.

pub(super) mod counters;
pub(crate) mod fetch;
pub(super) mod rates;
pub(super) mod template;
pub(super) mod text;
