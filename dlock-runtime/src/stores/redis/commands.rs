//! Every command that dlock sends, and nothing else.

use std::time::Duration;

use redis::{Cmd, Pipeline};

use super::names::{Keyspace, VOTERS};
use super::process::Process;
use super::scripts::{
    ALIVE, FLOOR, Form, INSPECT, PLACES, RAISE, RENEW, Script, Scripts, TEST_MESSAGE,
};
use super::values::{LockValue, QueueEntry, Shown, mode_arg};
use crate::backend::{Mode, Request};
use crate::token::TOKENS_PER_GRANT;

/// Whether one who does not get the lock stays in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Try,
    Queue,
}

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

/// Lifts the token counter to the server's clock, and to `lowest`.
pub(super) fn lift_tokens(space: &Keyspace, lowest: u64) -> Cmd {
    let mut lift = FLOOR.command(Form::Source, 1, 1);
    lift.arg(space.counter("")).arg(lowest);
    lift
}

/// Raises the token counter to a number, if it is lower.
pub(super) fn raise_tokens(space: &Keyspace, form: Form, to: u64) -> Cmd {
    let mut raise = RAISE.command(form, 1, 1);
    raise.arg(space.counter("")).arg(to);
    raise
}

/// Asks for the lock, or for a place in its queue. In a cluster the token is
/// drawn above `lowest`.
pub(super) fn acquire(
    space: &Keyspace,
    form: Form,
    request: &Request,
    process: Process,
    patience: Patience,
    lowest: u64,
) -> Cmd {
    let Request { key, .. } = request;
    let script = &Scripts::of(space).acquire;
    let mut acquire = match space {
        Keyspace::Server => {
            let mut acquire = script.command(form, 2, 6);
            acquire.arg(space.lock(key)).arg(space.counter(key));
            acquire
        }
        Keyspace::Slots | Keyspace::Vote(_) => {
            let whole = *space == Keyspace::Slots;
            let mut acquire = script.command(form, 4 + usize::from(whole), 7);
            acquire
                .arg(space.lock(key))
                .arg(space.counter(key))
                .arg(space.queue(key))
                .arg(space.readers(key));
            if whole {
                acquire.arg(space.never(key));
            }
            acquire
        }
    };
    acquire
        .arg(mode_arg(request.mode))
        .arg(Shown(request.owner))
        .arg(ttl_ms(request))
        .arg(Shown(process))
        .arg(u8::from(patience == Patience::Queue))
        .arg(TOKENS_PER_GRANT);
    if *space == Keyspace::Slots {
        acquire.arg(lowest);
    }
    acquire
}

pub(super) fn renew(space: &Keyspace, form: Form, request: &Request) -> Cmd {
    let Request { key, mode, .. } = request;
    let mut renew = match mode {
        // Of the lock alone: in a cluster, keys that belong together can be
        // apart for a while, and a lease must not end of that.
        Mode::Write => {
            let mut renew = RENEW.command(form, 1, 2);
            renew.arg(space.lock(key));
            renew
        }
        Mode::Read => on_lock(space, &Scripts::of(space).renew_read, form, key, 2),
    };
    as_holder(&mut renew, request).arg(ttl_ms(request));
    renew
}

/// Gives a lease back. With `queued_by`, the owner may be in the queue of that
/// process instead, or as well.
pub(super) fn release(
    space: &Keyspace,
    form: Form,
    request: &Request,
    queued_by: Option<Process>,
) -> Cmd {
    let scripts = Scripts::of(space);
    let script = match request.mode {
        Mode::Write => &scripts.release,
        Mode::Read => &scripts.release_read,
    };
    let mut release = on_lock(space, script, form, &request.key, 2);
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

/// The places that a process has in the queue of a lock.
pub(super) fn places(
    space: &Keyspace,
    form: Form,
    key: &str,
    process: Process,
    enough: usize,
) -> Cmd {
    let mut places = on_lock(space, &PLACES, form, key, 2);
    places.arg(Shown(process)).arg(enough);
    places
}

/// Undoes what there is of waiters whom their process does not know.
pub(super) fn disown(space: &Keyspace, form: Form, key: &str, entries: &[String]) -> Cmd {
    let script = &Scripts::of(space).disown;
    let mut disown = on_lock(space, script, form, key, entries.len());
    disown.arg(entries);
    disown
}

/// Gives one node's vote for a lease back, and tells those who wait. Nobody
/// queues at a node.
pub(super) fn release_vote(
    space: &Keyspace,
    form: Form,
    request: &Request,
    _queued_by: Option<Process>,
) -> Cmd {
    let Request { key, mode, .. } = request;
    let script = &Scripts::of(space).release_vote;
    let mut release = match (mode, space) {
        (Mode::Read, Keyspace::Vote(_)) => {
            let mut release = script.command(form, 2, 2);
            release.arg(space.lock(key)).arg(space.readers(key));
            release
        }
        _ => {
            let mut release = script.command(form, 1, 2);
            release.arg(space.lock(key));
            release
        }
    };
    release.arg(mode_arg(*mode)).arg(Shown(request.owner));
    release
}

/// A script on a lock and all that belongs to it. A cluster is told of every
/// key: only so does it refuse the script before it has begun while some of
/// them are on their way to another node. By which keys the waiters' processes
/// are alive is known to the queue alone; so there is one more that is missing
/// for certain.
fn on_lock(
    space: &Keyspace,
    script: &'static Script,
    form: Form,
    key: &str,
    arguments: usize,
) -> Cmd {
    match space {
        Keyspace::Server => {
            let mut command = script.command(form, 1, arguments);
            command.arg(space.lock(key));
            command
        }
        Keyspace::Slots | Keyspace::Vote(_) => {
            let whole = *space == Keyspace::Slots;
            let mut command = script.command(form, 3 + usize::from(whole), arguments);
            command
                .arg(space.lock(key))
                .arg(space.queue(key))
                .arg(space.readers(key));
            if whole {
                command.arg(space.never(key));
            }
            command
        }
    }
}

/// Says whose lease it is. A writer is known by the whole value of its lock: the
/// server need not take it apart.
fn as_holder<'c>(command: &'c mut Cmd, request: &Request) -> &'c mut Cmd {
    match request.mode {
        Mode::Write => command.arg(LockValue::writer(request.owner)),
        Mode::Read => command.arg(Shown(request.owner)),
    }
}

pub(super) fn inspect(space: &Keyspace, form: Form, key: &str) -> Cmd {
    on_lock(space, &INSPECT, form, key, 0)
}

/// One step through the names of all keys.
pub(super) fn scan(cursor: u64, pattern: &str) -> Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(1000);
    scan
}

/// What a lock holds.
pub(super) fn value(space: &Keyspace, key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(space.lock(key));
    get
}

/// How many processes listen for the release of each of these locks.
pub(super) fn listeners<'a>(space: &Keyspace, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut count = redis::cmd("PUBSUB");
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
    redis::cmd("PING")
}

/// Who the server is.
pub(super) fn identity() -> Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    info
}

/// What these locks hold.
pub(super) fn values<'a>(space: &Keyspace, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut get = redis::cmd("MGET");
    for key in keys {
        get.arg(space.lock(key));
    }
    get
}

/// The waiters of a process are alive: those that this key is for.
pub(super) fn heartbeat(alive: &str) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(alive).arg(1).arg("PX").arg(whole_ms(ALIVE));
    set
}

/// There are no more of them.
pub(super) fn farewell(alive: &str) -> Cmd {
    let mut delete = redis::cmd("DEL");
    delete.arg(alive);
    delete
}

/// What stands where the keys of a lock belong: for an error message.
pub(super) fn types(space: &Keyspace, key: &str) -> Pipeline {
    let type_of = |name: &dyn std::fmt::Display| {
        let mut command = redis::cmd("TYPE");
        command.arg(Shown(name));
        command
    };
    pipeline([
        type_of(&space.lock(key)),
        type_of(&space.queue(key)),
        type_of(&space.readers(key)),
        type_of(&space.counter(key)),
    ])
}

/// Waits until so many replicas have what was sent over this connection before,
/// but no longer than this. The answer is how many have it.
pub(super) fn wait(replicas: usize, limit: Duration) -> Cmd {
    let mut wait = redis::cmd("WAIT");
    wait.arg(replicas).arg(whole_ms(limit));
    wait
}

/// What a server says it is.
pub(super) fn role() -> Cmd {
    redis::cmd("ROLE")
}

/// Asks a sentinel who it is, and where the master is.
pub(super) fn whereabouts(master: &str) -> [Cmd; 2] {
    let mut id = redis::cmd("SENTINEL");
    id.arg("MYID");
    let mut address = redis::cmd("SENTINEL");
    address.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    [id, address]
}

pub(super) fn setting(name: &str) -> Cmd {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    get
}

/// A message to nobody in particular, to see whether messages may be sent.
pub(super) fn test_message(process: Process) -> Cmd {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(process.wake_channel()).arg("");
    publish
}

/// The same in the slot of a tag, in the way in which its scripts do it.
pub(super) fn test_message_in(space: &Keyspace, process: Process, tag: &str) -> Cmd {
    let mut publish = TEST_MESSAGE.command(Form::Source, 1, 1);
    publish.arg(space.lock(tag)).arg(Shown(process));
    publish
}

/// Which slots vote.
pub(super) fn voters() -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(VOTERS);
    get
}

/// The same, if that has not been written yet.
pub(super) fn propose_voters(tags: &str) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(VOTERS).arg(tags).arg("NX");
    set
}

/// Listens to a channel of a slot, or no longer.
pub(super) fn listen(channel: &str, sharded: bool, listens: bool) -> Cmd {
    let mut listen = redis::cmd(match (sharded, listens) {
        (true, true) => "SSUBSCRIBE",
        (true, false) => "SUNSUBSCRIBE",
        (false, true) => "SUBSCRIBE",
        (false, false) => "UNSUBSCRIBE",
    });
    listen.arg(channel);
    listen
}

/// Which node of a cluster has which slots.
pub(super) fn slots() -> Cmd {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    slots
}

/// The next command may be answered by a node that is about to get the slot.
pub(super) fn asking() -> Cmd {
    redis::cmd("ASKING")
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
