//! The Lua scripts of this layout: one file for each operation.

use std::sync::LazyLock;

use redis::Cmd;

use super::super::names::Name;
use super::super::scripts::{Loaded, scripts};
use super::Layout;

scripts! {
    LockAcquire "lock_acquire"
    LockRelease "lock_release"
    WriteAcquire "write_acquire"
    WriteRelease "write_release"
    ReadAcquire "read_acquire"
    ReadRenew "read_renew"
    ReadRelease "read_release"
    FairAcquire "fair_acquire"
    FairRelease "fair_release"
    FairLook "fair_look"
    Renew "renew"
    Look "look"
    Inspect "inspect"
    TestMessage "test_message"
}

static ON_SERVER: LazyLock<Vec<Loaded>> = LazyLock::new(|| load(false));
static IN_SLOT: LazyLock<Vec<Loaded>> = LazyLock::new(|| load(true));

fn load(in_slots: bool) -> Vec<Loaded> {
    let prelude = include_str!("scripts/prelude.lua");
    let load = |file: &&str| {
        let file = file.replace("-- queue\n", include_str!("scripts/queue.lua"));
        let file = file.replace("-- readers\n", include_str!("scripts/readers.lua"));
        Loaded::new(format!("local IN_SLOT = {in_slots}\n{prelude}{file}"))
    };
    FILES.iter().map(load).collect()
}

impl Script {
    pub(super) fn on<'a>(
        self,
        layout: Layout,
        keys: impl Iterator<Item = Name<'a>> + Clone,
        args: usize,
    ) -> Cmd {
        let loaded = match layout.in_slots {
            false => &ON_SERVER,
            true => &IN_SLOT,
        };
        loaded[self as usize].on(keys, args)
    }
}

/// All scripts of this layout.
pub(in super::super) fn all() -> impl Iterator<Item = &'static Loaded> {
    ON_SERVER.iter().chain(IN_SLOT.iter())
}
