//! The Lua scripts: one file for each operation, each atomic at the server.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Cmd;

use super::names::{Keyspace, alive_prefix, queue_suffix, readers_suffix, wake_prefix};
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

/// How a script is named in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By its digest: the server has it from an earlier call.
    Digest,
    /// In full: the server has just said `NOSCRIPT`, because it was restarted
    /// or its scripts were flushed. Running it this way loads it too.
    Source,
}

impl Script {
    /// A command that runs the script; the keys and arguments are added to it.
    pub(super) fn command(&self, form: Form, keys: usize, args: usize) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys + args, 64 + 48 * (keys + args));
        match form {
            Form::Digest => command.arg("EVALSHA").arg(self.sha.as_str()),
            Form::Source => command.arg("EVAL").arg(self.source),
        };
        command.arg(keys);
        command
    }
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

impl Scripts {
    pub(super) fn of(space: &Keyspace) -> &'static Self {
        static ON_SERVER: Scripts = scripts!("on_server", "draw");
        static IN_SLOT: Scripts = scripts!("in_slot", "draw_by_clock");
        static OF_VOTE: Scripts = scripts!("in_slot", "draw");
        match space {
            Keyspace::Server => &ON_SERVER,
            Keyspace::Slots => &IN_SLOT,
            Keyspace::Vote(_) => &OF_VOTE,
        }
    }
}

pub(super) static RENEW: Script = script!("renew");
pub(super) static FLOOR: Script = script!("floor");
pub(super) static RAISE: Script = script!("raise");
pub(super) static PLACES: Script = script!("places");
pub(super) static INSPECT: Script = script!("inspect");
pub(super) static TEST_MESSAGE: Script = script!("in_slot", "test_message");
