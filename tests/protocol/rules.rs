//! Where a store differs from `memory:`, and why it may. Whatever is not here has to
//! be the same.

/// What one store does in its own way; the default is what `memory:` does. Times are
/// milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) name: &'static str,

    /// A voter has no queue: who waits is told of its end and asks all voters anew.
    /// `docs/design/quorum.md`.
    pub(crate) votes: bool,

    /// A grant that is handed over lasts so long, until its waiter has asked: it may
    /// have died. `docs/design/redis.md`, "A grant by transfer is a short one".
    pub(crate) claim: Option<u64>,

    /// A release frees the lock, and who is first asks for it, within this time.
    /// Then it goes to whoever asks, and those before it lose their places.
    /// `docs/design/sql.md`, "A release frees, it does not grant".
    pub(crate) reserved: Option<u64>,

    /// A process without a sign of life for so long is dead. Of `memory:` there is one
    /// process. `docs/design/redis.md` and `sql.md`, "A process is alive, not a waiter".
    pub(crate) dead_after: Option<u64>,

    /// A sign of life is one for the waiters of one lock: each lock of a cluster has its
    /// slot. The table of names in `names.rs`.
    pub(crate) lives_by_lock: bool,

    /// A process is told of a grant on a channel, and who cannot be told is passed over,
    /// and keeps its place. `advance` in `prelude.lua`.
    pub(crate) tells_of_grants: bool,

    /// The process of the first in the queue is told that the lock is free.
    /// `docs/design/sql.md`, "`NOTIFY` to the process of the first in the queue".
    pub(crate) tells_of_ends: bool,

    /// A lock that is free is had by a plain `SET NX`, which knows of no queue, so that
    /// its release does not either, nor why the lock is not free. There is a queue behind a free lock for a second at
    /// most, until somebody looks. `docs/design/redis.md`, "A release transfers".
    pub(crate) first_knows_no_queue: bool,

    /// The queue lasts for as long as the lock and the longer of a ttl and a claim:
    /// nothing outlives its lock by more. `keep_queue` in `prelude.lua`.
    pub(crate) queue_ends: bool,

    /// Others can be let in by whoever looks at the lock. Elsewhere a look changes
    /// nothing.
    pub(crate) looks_let_in: bool,

    /// Who has asked before asks as often as it likes. A `Backend` is asked once for
    /// each owner; only who waits there asks again.
    pub(crate) asks_again: bool,

    /// A place can be given back alone, for a grant to somebody who has gone.
    /// `docs/design/redis.md`, "A grant to nobody".
    pub(crate) disowns: bool,

    /// Closed connections are noticed.
    pub(crate) notices_deaths: bool,

    /// It has permits. What asks for one reads elsewhere.
    pub(crate) permits: bool,

    /// It remembers what has been done.
    pub(crate) once: bool,

    /// Who waits for what has been done keeps its place until it asks: by that a look
    /// finds it. `docs/design/sql.md`, "What has been done is a row".
    pub(crate) keeps_places: bool,
}

pub(crate) const MEMORY: Rules = Rules {
    name: "memory",
    looks_let_in: true,
    votes: false,
    claim: None,
    reserved: None,
    dead_after: None,
    lives_by_lock: false,
    tells_of_grants: false,
    tells_of_ends: false,
    first_knows_no_queue: false,
    queue_ends: false,
    asks_again: false,
    disowns: false,
    notices_deaths: false,
    permits: true,
    once: true,
    keeps_places: false,
};

pub(crate) const REDIS: Rules = Rules {
    name: "redis",
    claim: Some(3_000),
    dead_after: Some(8_000),
    tells_of_grants: true,
    first_knows_no_queue: true,
    queue_ends: true,
    looks_let_in: false,
    asks_again: true,
    disowns: true,
    notices_deaths: true,
    ..MEMORY
};

pub(crate) const CLUSTER: Rules = Rules {
    name: "cluster",
    lives_by_lock: true,
    // Its opening is the script.
    first_knows_no_queue: false,
    // A process has a subscription for each lock.
    notices_deaths: false,
    ..REDIS
};

pub(crate) const VOTER: Rules = Rules {
    name: "voter",
    votes: true,
    disowns: false,
    notices_deaths: false,
    permits: false,
    once: false,
    ..REDIS
};

pub(crate) const MYSQL: Rules = Rules {
    name: "mysql",
    reserved: Some(1_500),
    dead_after: Some(4_000),
    looks_let_in: false,
    asks_again: true,
    keeps_places: true,
    ..MEMORY
};

pub(crate) const SQLITE: Rules = Rules {
    name: "sqlite",
    ..MYSQL
};

pub(crate) const POSTGRES: Rules = Rules {
    name: "postgres",
    tells_of_ends: true,
    ..MYSQL
};
