//! The Lua scripts: one file for each operation, each atomic at the server. What
//! they share is in `prelude.lua`.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Arg, Cmd};

use super::names::{ALIVE, Keyspace, Name, OUT, QUEUE, READERS, WAKE};
use super::redisson;
use super::values::UNCLAIMED;

/// How long a process counts as alive after it was last heard of.
pub(super) const ALIVE_FOR: Duration = Duration::from_secs(8);

/// How long a grant waits for the answer of the waiter who was given it.
pub(super) const CLAIM: Duration = Duration::from_secs(3);

/// The files beside whoever calls it, and their names.
macro_rules! scripts {
    ($($script:ident $file:literal)+) => {
        #[derive(Clone, Copy)]
        pub(super) enum Script {
            $($script),+
        }

        /// In the same order.
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

/// A script as servers know it.
pub(super) struct Loaded {
    source: String,
    sha: String,
}

impl Loaded {
    pub(super) fn new(source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A command that runs the script by its digest, as the server has it from an
    /// earlier call; the other arguments are added to it. What comes from outside
    /// is an argument or the name of a key, and never in the text of a script.
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

/// All of them, as [`Script`] has them in order. See `prelude.lua` for what they are told.
fn load(in_slot: bool, by_clock: bool) -> Vec<Loaded> {
    let (alive_ms, claim_ms) = (ALIVE_FOR.as_millis(), CLAIM.as_millis());
    let constants = format!(
        "local QUEUE, READERS = '{QUEUE}', '{READERS}'\n\
         local ALIVE, ALIVE_MS, WAKE, CLAIM_MS = '{ALIVE}', {alive_ms}, '{WAKE}', {claim_ms}\n\
         local OUT = '{OUT}'\n\
         local UNCLAIMED, IN_SLOT, BY_CLOCK = '{UNCLAIMED}', {in_slot}, {by_clock}\n"
    );
    let load = |file: &&str| {
        // What is in front of it is run without it.
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

/// The same command with the whole script in it, for a server that has just said
/// `NOSCRIPT`, because it was restarted or its scripts were flushed. Running it this
/// way loads it too.
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
