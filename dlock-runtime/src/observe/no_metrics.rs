//! What stands for the metrics where the feature is off: nothing.

use std::time::Duration;

use super::Labels;

pub(crate) fn describe() {}

pub(super) fn acquisition(_: Labels, _: &'static str) {}

#[derive(Debug)]
pub(crate) struct Counted;

impl Counted {
    pub(super) fn waiting(_: Labels) -> Self {
        Self
    }

    pub(crate) fn holding(_: Labels) -> Self {
        Self
    }
}

pub(super) fn waited(_: Labels, _: Duration) {}

pub(super) fn held(_: Labels, _: Duration) {}

pub(super) fn handover(_: Labels) {}

pub(super) fn renewal(_: Labels, _: &'static str) {}

pub(super) fn loss(_: Labels, _: &'static str) {}

pub(super) fn store_error(_: Labels, _: &'static str, _: &'static str) {}
