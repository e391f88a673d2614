//! The Lua scripts: one file for each operation, each atomic at the server. Their common part is
//! `prelude.lua`.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Arg, Cmd};

use super::names::{ALIVE, FENCING, Keyspace, Name, OUT, QUEUE, READERS, SINCE, WAKE};
use super::redisson;
use super::values::UNCLAIMED;

/// How long a process counts as alive after its last sign of life.
pub(super) const ALIVE_FOR: Duration = Duration::from_secs(8);

/// How long a grant waits for its waiter to claim it.
pub(super) const CLAIM: Duration = Duration::from_secs(3);

/// Lua counts exactly below this, five times the clock's microseconds. A token counter that is as
/// high is somebody else's.
pub(super) const LAST_NUMBER: u64 = 1 << 53;

/// The token number in an answer. Of one near the end of what Redis counts, Lua makes an answer
/// below zero.
pub(super) fn number(answer: i64) -> Option<u64> {
    let number = u64::try_from(answer).ok();
    number.filter(|&number| number < LAST_NUMBER)
}

/// Defines the scripts in the folder beside the calling file.
macro_rules! scripts {
    ($($script:ident $file:literal)+) => {
        #[derive(Clone, Copy)]
        pub(super) enum Script {
            $($script),+
        }

        /// In the order of [`Script`].
        const FILES: &[&str] = &[$(include_str!(concat!("scripts/", $file, ".lua"))),+];
    };
}
pub(super) use scripts;

scripts! {
    Acquire "acquire"
    Renew "renew"
    Release "release"
    ReleaseVote "release_vote"
    Disown "disown"
    Forget "forget"
    TakeOut "take_out"
    Inspect "inspect"
    Raise "raise"
    TestMessage "test_message"
}

/// A script and its digest.
pub(super) struct Loaded {
    source: String,
    sha: String,
}

impl Loaded {
    pub(super) fn new(source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A command that runs the script by its digest, since the server usually has it from an
    /// earlier call. The caller adds the other arguments. External input is only ever an argument
    /// or the name of a key, and never part of the script's text.
    pub(super) fn on<'a>(&self, keys: impl Iterator<Item = Name<'a>> + Clone, args: usize) -> Cmd {
        let count = keys.clone().count();
        let arguments = count + args;
        let mut command = Cmd::with_capacity(3 + arguments, 64 + 48 * arguments);
        command.arg("EVALSHA").arg(&self.sha);
        command.arg(count);
        for key in keys {
            command.arg(key);
        }
        command
    }
}

static ON_SERVER: LazyLock<Vec<Loaded>> = LazyLock::new(|| load(false, false));
static IN_SLOT: LazyLock<Vec<Loaded>> = LazyLock::new(|| load(true, true));
static OF_VOTE: LazyLock<Vec<Loaded>> = LazyLock::new(|| load(true, false));

/// Loads all scripts in the order of [`Script`]. See `prelude.lua` for the constants.
fn load(in_slot: bool, by_clock: bool) -> Vec<Loaded> {
    let (alive_ms, claim_ms) = (ALIVE_FOR.as_millis(), CLAIM.as_millis());
    let constants = format!(
        "local QUEUE, READERS = '{QUEUE}', '{READERS}'\n\
         local ALIVE, ALIVE_MS, WAKE, CLAIM_MS = '{ALIVE}', {alive_ms}, '{WAKE}', {claim_ms}\n\
         local OUT, SINCE, FENCING = '{OUT}', '{SINCE}', '{FENCING}'\n\
         local UNCLAIMED, IN_SLOT, BY_CLOCK = '{UNCLAIMED}', {in_slot}, {by_clock}\n"
    );
    let load = |file: &&str| {
        // The part before the marker runs without the prelude.
        let (head, body) = file.split_once("-- prelude\n").unwrap_or(("", file));
        let prelude = include_str!("scripts/prelude.lua");
        Loaded::new(format!("{constants}{head}{prelude}{body}"))
    };
    FILES.iter().map(load).collect()
}

impl Script {
    pub(super) fn on<'a>(
        self,
        space: &Keyspace,
        keys: impl Iterator<Item = Name<'a>> + Clone,
        args: usize,
    ) -> Cmd {
        let loaded = match space {
            Keyspace::Server | Keyspace::Redisson(_) => &ON_SERVER,
            Keyspace::Slots => &IN_SLOT,
            Keyspace::Vote(_) => &OF_VOTE,
        };
        loaded[self as usize].on(keys, args)
    }
}

/// The same command with the full script instead of its digest, for a server that has just
/// answered `NOSCRIPT` since it was restarted or its scripts were flushed. This also loads the
/// script.
pub(super) fn in_full(command: &Cmd) -> Cmd {
    let mut arguments = command.args_iter().filter_map(|argument| match argument {
        Arg::Simple(argument) => Some(argument),
        _ => None,
    });
    let digest = arguments.nth(1).unwrap_or_default();
    let mut all = [&ON_SERVER, &IN_SLOT, &OF_VOTE]
        .into_iter()
        .flat_map(|all| all.iter())
        .chain(redisson::scripts::all());
    let script = all.find(|script| script.sha.as_bytes() == digest);
    let mut full = redis::cmd("EVAL");
    full.arg(script.map_or("", |script| &script.source));
    for argument in arguments {
        full.arg(argument);
    }
    full
}
