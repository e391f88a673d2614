//! The Lua scripts: one file for each operation, each atomic at the server.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Arg, Cmd};

use super::names::{Keyspace, Name, alive_prefix, queue_suffix, readers_suffix, wake_prefix};
use super::values::unclaimed;

// Literals, because the scripts are put together when dlock is compiled.
macro_rules! alive_ms {
    () => {
        8000
    };
}
macro_rules! claim_ms {
    () => {
        3000
    };
}

/// How long a process counts as alive after it was last heard of.
pub(super) const ALIVE: Duration = Duration::from_millis(alive_ms!());

/// How long a grant waits for the answer of the waiter who was given it.
pub(super) const CLAIM: Duration = Duration::from_millis(claim_ms!());

/// A script, with the digest by which the server knows it.
pub(super) struct Script {
    source: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    /// A command that runs the script by its digest, as the server has it from an
    /// earlier call; the other arguments are added to it.
    pub(super) fn on<'a>(&self, keys: impl ExactSizeIterator<Item = Name<'a>>, args: usize) -> Cmd {
        let arguments = keys.len() + args;
        let mut command = Cmd::with_capacity(3 + arguments, 64 + 48 * arguments);
        command
            .arg("EVALSHA")
            .arg(self.sha.as_str())
            .arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        command
    }
}

/// A command that runs a script, [in full](in_full) or not.
pub(super) fn in_form(command: Cmd, full: bool) -> Cmd {
    match full {
        true => in_full(&command),
        false => command,
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
    let mut all = Scripts::all().chain([&RENEW, &FLOOR, &RAISE, &PLACES, &INSPECT, &TEST_MESSAGE]);
    let source = all.find(|script| script.sha.as_bytes() == digest);
    let mut full = redis::cmd("EVAL");
    full.arg(source.map_or("", |script| script.source));
    for argument in arguments {
        full.arg(argument);
    }
    full
}

macro_rules! script {
    ($($file:literal),+) => {
        Script {
            source: SOURCE!($($file),+),
            sha: LazyLock::new(|| {
                redis::Script::new(SOURCE!($($file),+)).get_hash().to_owned()
            }),
        }
    };
}
macro_rules! SOURCE {
    ($($file:literal),+) => {
        concat!(
            "local QUEUE, READERS = '", queue_suffix!(), "', '", readers_suffix!(), "'\n",
            "local ALIVE, ALIVE_MS = '", alive_prefix!(), "', ", alive_ms!(), "\n",
            "local WAKE, CLAIM_MS = '", wake_prefix!(), "', ", claim_ms!(), "\n",
            "local UNCLAIMED = '", unclaimed!(), "'\n",
            $(include_str!(concat!("scripts/", $file, ".lua"))),+
        )
    };
}

/// The scripts that tell waiters, or know of their lives.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) renew_read: Script,
    pub(super) release: Script,
    pub(super) release_read: Script,
    pub(super) disown: Script,
    pub(super) release_vote: Script,
}

macro_rules! scripts {
    ($place:literal, $draw:literal) => {
        Scripts {
            acquire: script!($place, "prelude", $draw, "acquire"),
            renew_read: script!($place, "prelude", "renew_read"),
            release: script!("release_head", $place, "prelude", "release"),
            release_read: script!($place, "prelude", "release_read"),
            disown: script!($place, "prelude", "disown"),
            release_vote: script!($place, "prelude", "release_vote"),
        }
    };
}

static ON_SERVER: Scripts = scripts!("on_server", "draw");
static IN_SLOT: Scripts = scripts!("in_slot", "draw_by_clock");
static OF_VOTE: Scripts = scripts!("in_slot", "draw");

impl Scripts {
    pub(super) fn of(space: &Keyspace) -> &'static Self {
        match space {
            Keyspace::Server => &ON_SERVER,
            Keyspace::Slots => &IN_SLOT,
            Keyspace::Vote(_) => &OF_VOTE,
        }
    }

    fn all() -> impl Iterator<Item = &'static Script> {
        let all = [&ON_SERVER, &IN_SLOT, &OF_VOTE].into_iter();
        all.flat_map(|scripts| {
            [
                &scripts.acquire,
                &scripts.renew_read,
                &scripts.release,
                &scripts.release_read,
                &scripts.disown,
                &scripts.release_vote,
            ]
        })
    }
}

pub(super) static RENEW: Script = script!("renew");
pub(super) static FLOOR: Script = script!("floor");
pub(super) static RAISE: Script = script!("raise");
pub(super) static PLACES: Script = script!("places");
pub(super) static INSPECT: Script = script!("inspect");
pub(super) static TEST_MESSAGE: Script = script!("in_slot", "test_message");
