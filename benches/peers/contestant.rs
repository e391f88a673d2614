//! The locks, and the programs that use them.

use std::path::PathBuf;

use tokio::process::Command;

/// A lock, and the program that uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    /// What the program calls it.
    pub(crate) lock: &'static str,
    /// Within `target/peers`; none is dlock's own.
    program: Option<&'static str>,
}

pub(crate) const DLOCK: Contestant = Contestant {
    name: "dlock",
    lock: "dlock",
    program: None,
};

pub(crate) const ON_REDIS: [Contestant; 4] = [
    peer("Redisson", "redisson", "jvm/run"),
    peer("redsync", "redsync", "redis-go"),
    peer("redislock", "redislock", "redis-go"),
    peer("rueidislock", "rueidislock", "redis-go"),
];

pub(crate) const ON_ZOOKEEPER: [Contestant; 1] = [peer("Curator", "curator", "jvm/run")];

const fn peer(name: &'static str, lock: &'static str, program: &'static str) -> Contestant {
    Contestant {
        name,
        lock,
        program: Some(program),
    }
}

impl Contestant {
    pub(crate) fn is_dlock(&self) -> bool {
        self.program.is_none()
    }

    pub(crate) fn is_built(&self) -> bool {
        self.path().exists()
    }

    /// Starts the program.
    pub(crate) fn command(&self) -> Command {
        Command::new(self.path())
    }

    fn path(&self) -> PathBuf {
        let Some(program) = self.program else {
            return PathBuf::from(env!("CARGO_BIN_EXE_contender"));
        };
        let peers = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers"));
        peers.join(program)
    }
}
