//! Every command that dlock sends, and nothing else.

use std::time::Duration;

use redis::{Cmd, Pipeline, cmd};

use super::names::{Keyspace, VOTERS};
use super::scripts::{self, ALIVE, FLOOR, INSPECT, PLACES, RAISE, RENEW, Scripts, TEST_MESSAGE};
use super::values::{LockValue, Process, QueueEntry, Shown, letter};
use crate::backend::{Mode, Request};
use crate::token::TOKENS_PER_GRANT;

/// Takes a free lock. A token is drawn behind it: two plain commands, as a
/// script that does both is dearer for the server than the two together.
/// Nobody else can be granted the key between them, unless the server stalls
/// for longer than the ttl, and then the lease has ended for its owner too.
pub(super) fn take(space: &Keyspace, request: &Request) -> Cmd {
    let Request { key, owner, .. } = request;
    let mut set = Cmd::with_capacity(6, 64 + key.len());
    set.arg("SET")
        .arg(space.lock(key))
        .arg(LockValue::writer(*owner))
        .arg("NX")
        .arg("PX")
        .arg(ttl_ms(request));
    set
}

/// Reserves the numbers of so many grants, where one counter is for all keys.
/// The answer is the last of them.
pub(super) fn draw_tokens(space: &Keyspace, grants: usize) -> Cmd {
    let mut draw = Cmd::with_capacity(3, 24);
    draw.arg("INCRBY")
        .arg(space.counter(""))
        .arg(grants as u64 * TOKENS_PER_GRANT);
    draw
}

/// Lifts the token counter to the server's clock, and to `lowest`. A new connection
/// begins with it, so it is sent in full.
pub(super) fn lift_tokens(space: &Keyspace, lowest: u64) -> Cmd {
    let counter = [space.counter("")].into_iter();
    scripts::in_full(FLOOR.on(counter, 1).arg(lowest))
}

/// Raises the token counter to a number, if it is lower.
pub(super) fn raise_tokens(space: &Keyspace, to: u64) -> Cmd {
    let counter = [space.counter("")].into_iter();
    RAISE.on(counter, 1).arg(to).take()
}

/// Asks for the lock, or for a place in its queue. In a cluster the token is
/// drawn above `lowest`.
pub(super) fn acquire(
    space: &Keyspace,
    request: &Request,
    process: Process,
    queues: bool,
    lowest: u64,
) -> Cmd {
    let names = space.told_to_draw(&request.key);
    let mut acquire = Scripts::of(space).acquire.on(names, 7);
    acquire
        .arg(letter(request.mode))
        .arg(Shown(request.owner))
        .arg(ttl_ms(request))
        .arg(Shown(process))
        .arg(u8::from(queues))
        .arg(TOKENS_PER_GRANT);
    if *space == Keyspace::Slots {
        acquire.arg(lowest);
    }
    acquire
}

pub(super) fn renew(space: &Keyspace, request: &Request) -> Cmd {
    let key = &request.key;
    let mut renew = match request.mode {
        // Of the lock alone: in a cluster, keys that belong together can be
        // apart for a while, and a lease must not end of that.
        Mode::Write => RENEW.on([space.lock(key)].into_iter(), 2),
        Mode::Read => Scripts::of(space).renew_read.on(space.told(key), 2),
    };
    as_holder(&mut renew, request).arg(ttl_ms(request));
    renew
}

/// Gives a lease back. With `queued_by`, the owner may be in the queue of that
/// process instead, or as well.
pub(super) fn release(space: &Keyspace, request: &Request, queued_by: Option<Process>) -> Cmd {
    let scripts = Scripts::of(space);
    let script = match request.mode {
        Mode::Write => &scripts.release,
        Mode::Read => &scripts.release_read,
    };
    let mut release = script.on(space.told(&request.key), 2);
    as_holder(&mut release, request);
    if let Some(process) = queued_by {
        release.arg(Shown(QueueEntry {
            mode: request.mode,
            owner: request.owner,
            ttl_ms: ttl_ms(request),
            process,
        }));
    }
    release
}

/// Says whose lease it is. A writer is known by the whole value of its lock: the
/// server need not take it apart.
fn as_holder<'c>(command: &'c mut Cmd, request: &Request) -> &'c mut Cmd {
    match request.mode {
        Mode::Write => command.arg(LockValue::writer(request.owner)),
        Mode::Read => command.arg(Shown(request.owner)),
    }
}

/// Gives one node's vote for a lease back, and tells those who wait. Nobody
/// queues at a node.
pub(super) fn release_vote(space: &Keyspace, request: &Request) -> Cmd {
    let Request { key, mode, .. } = request;
    let reads = *mode == Mode::Read && *space != Keyspace::Server;
    let names = [space.lock(key), space.readers(key)].into_iter();
    let mut release = Scripts::of(space)
        .release_vote
        .on(names.take(1 + usize::from(reads)), 2);
    release.arg(letter(*mode)).arg(Shown(request.owner));
    release
}

/// The places that a process has in the queue of a lock.
pub(super) fn places(space: &Keyspace, key: &str, process: Process, enough: usize) -> Cmd {
    let mut places = PLACES.on(space.told(key), 2);
    places.arg(Shown(process)).arg(enough).take()
}

/// Undoes what there is of waiters whom their process does not know.
pub(super) fn disown(space: &Keyspace, key: &str, entries: &[String]) -> Cmd {
    let script = &Scripts::of(space).disown;
    let mut disown = script.on(space.told(key), entries.len());
    disown.arg(entries).take()
}

pub(super) fn inspect(space: &Keyspace, key: &str) -> Cmd {
    INSPECT.on(space.told(key), 0)
}

/// One step through the names of all keys.
pub(super) fn scan(cursor: u64, pattern: &str) -> Cmd {
    let mut scan = cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern);
    scan.arg("COUNT").arg(1000).take()
}

/// What a lock holds.
pub(super) fn value(space: &Keyspace, key: &str) -> Cmd {
    cmd("GET").arg(space.lock(key)).take()
}

/// What these locks hold.
pub(super) fn values<'a>(space: &Keyspace, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut get = cmd("MGET");
    for key in keys {
        get.arg(space.lock(key));
    }
    get
}

/// How many processes listen for the release of each of these locks.
pub(super) fn listeners<'a>(space: &Keyspace, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut count = cmd("PUBSUB");
    count.arg(match space {
        Keyspace::Server => "NUMSUB",
        Keyspace::Slots | Keyspace::Vote(_) => "SHARDNUMSUB",
    });
    for key in keys {
        count.arg(space.freed_channel(key));
    }
    count
}

pub(super) fn ping() -> Cmd {
    cmd("PING")
}

/// Who the server is.
pub(super) fn identity() -> Cmd {
    cmd("INFO").arg("server").take()
}

/// The waiters of a process are alive: those that this key is for.
pub(super) fn heartbeat(alive: &str) -> Cmd {
    let mut set = cmd("SET");
    set.arg(alive).arg(1).arg("PX").arg(whole_ms(ALIVE)).take()
}

/// There are no more of them.
pub(super) fn farewell(alive: &str) -> Cmd {
    cmd("DEL").arg(alive).take()
}

/// What stands where the keys of a lock belong: for an error message.
pub(super) fn types(space: &Keyspace, key: &str) -> Pipeline {
    let names = [
        space.lock(key),
        space.queue(key),
        space.readers(key),
        space.counter(key),
    ];
    pipeline(names.map(|name| cmd("TYPE").arg(name).take()))
}

/// Waits until so many replicas have what was sent over this connection before,
/// but no longer than this. The answer is how many have it.
pub(super) fn wait(replicas: usize, limit: Duration) -> Cmd {
    cmd("WAIT").arg(replicas).arg(whole_ms(limit)).take()
}

/// What a server says it is.
pub(super) fn role() -> Cmd {
    cmd("ROLE")
}

/// Asks a sentinel who it is, and where the master is.
pub(super) fn whereabouts(master: &str) -> Pipeline {
    let id = cmd("SENTINEL").arg("MYID").take();
    let mut address = cmd("SENTINEL");
    address.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    pipeline([id, address])
}

pub(super) fn setting(name: &str) -> Cmd {
    cmd("CONFIG").arg("GET").arg(name).take()
}

/// A message to nobody in particular, to see whether messages may be sent: in a
/// cluster, in the slot of this tag, and in the way in which its scripts do it.
pub(super) fn test_message(space: &Keyspace, process: Process, tag: &str) -> Cmd {
    if *space == Keyspace::Server {
        let channel = space.wake_channel(process, "");
        return cmd("PUBLISH").arg(channel).arg("").take();
    }
    let lock = [space.lock(tag)].into_iter();
    scripts::in_full(TEST_MESSAGE.on(lock, 1).arg(Shown(process)))
}

/// Which slots vote.
pub(super) fn voters() -> Cmd {
    cmd("GET").arg(VOTERS).take()
}

/// The same, if that has not been written yet.
pub(super) fn propose_voters(tags: &str) -> Cmd {
    cmd("SET").arg(VOTERS).arg(tags).arg("NX").take()
}

/// Listens to a channel of a slot, or no longer.
pub(super) fn listen(channel: &str, sharded: bool, listens: bool) -> Cmd {
    let mut listen = cmd(match (sharded, listens) {
        (true, true) => "SSUBSCRIBE",
        (true, false) => "SUNSUBSCRIBE",
        (false, true) => "SUBSCRIBE",
        (false, false) => "UNSUBSCRIBE",
    });
    listen.arg(channel).take()
}

/// Which node of a cluster has which slots.
pub(super) fn slots() -> Pipeline {
    pipeline([cmd("CLUSTER").arg("SLOTS").take()])
}

/// The next command may be answered by a node that is about to get the slot.
pub(super) fn asking() -> Cmd {
    cmd("ASKING")
}

pub(super) fn pipeline(commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    let commands = commands.into_iter();
    let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

fn ttl_ms(request: &Request) -> u64 {
    whole_ms(request.ttl)
}

/// Redis counts in milliseconds; a lease must not end before its ttl. A
/// century is as good as any longer one, and the server refuses those that
/// overflow its clock.
fn whole_ms(duration: Duration) -> u64 {
    const CENTURY: u128 = 100 * 365 * 24 * 3600 * 1000;
    let ms = duration.as_nanos().div_ceil(1_000_000).clamp(1, CENTURY);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_not_shortened_by_rounding() {
        assert_eq!(whole_ms(Duration::from_millis(250)), 250);
        assert_eq!(whole_ms(Duration::from_nanos(1_000_001)), 2);
        assert_eq!(whole_ms(Duration::ZERO), 1);
        assert_eq!(whole_ms(Duration::MAX), 3_153_600_000_000);
    }
}
