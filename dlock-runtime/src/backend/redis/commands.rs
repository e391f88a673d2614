//! Every command that dlock sends, and nothing else.

use std::time::Duration;

use redis::{Cmd, Pipeline};

use super::names::{LockValue, Name, Process, QueueEntry, Shown, TOKEN, freed_channel, mode_arg};
use super::scripts::{
    ACQUIRE, ALIVE, FLOOR, Form, INSPECT, RAISE, RELEASE, RELEASE_READ, RELEASE_VOTE, RENEW,
    RENEW_READ, Script,
};
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
pub(super) fn take(request: &Request) -> Cmd {
    let Request { key, owner, .. } = request;
    let mut set = Cmd::with_capacity(6, 64 + key.len());
    set.arg("SET")
        .arg(Name::lock(key))
        .arg(LockValue::writer(*owner))
        .arg("NX")
        .arg("PX")
        .arg(ttl_ms(request));
    set
}

/// Reserves the numbers of so many grants. The answer is the last of them.
pub(super) fn draw_tokens(grants: usize) -> Cmd {
    let mut draw = Cmd::with_capacity(3, 24);
    draw.arg("INCRBY")
        .arg(TOKEN)
        .arg(grants as u64 * TOKENS_PER_GRANT);
    draw
}

/// Lifts the token counter to the server's clock, and to `lowest`.
pub(super) fn lift_tokens(lowest: u64) -> Cmd {
    let mut lift = FLOOR.command(Form::Source, 1, 1);
    lift.arg(TOKEN).arg(lowest);
    lift
}

/// Raises the token counter to a number, if it is lower.
pub(super) fn raise_tokens(form: Form, to: u64) -> Cmd {
    let mut raise = RAISE.command(form, 1, 1);
    raise.arg(TOKEN).arg(to);
    raise
}

pub(super) fn acquire(form: Form, request: &Request, process: Process, patience: Patience) -> Cmd {
    let mut acquire = ACQUIRE.command(form, 2, 6);
    acquire
        .arg(Name::lock(&request.key))
        .arg(TOKEN)
        .arg(mode_arg(request.mode))
        .arg(Shown(request.owner))
        .arg(ttl_ms(request))
        .arg(Shown(process))
        .arg(u8::from(patience == Patience::Queue))
        .arg(TOKENS_PER_GRANT);
    acquire
}

pub(super) fn renew(form: Form, request: &Request) -> Cmd {
    let mut renew = for_holder(&RENEW, &RENEW_READ, form, request);
    renew.arg(ttl_ms(request));
    renew
}

/// Gives a lease back. With `queued_by`, the owner may be in the queue of that
/// process instead, or as well.
pub(super) fn release(form: Form, request: &Request, queued_by: Option<Process>) -> Cmd {
    let mut release = for_holder(&RELEASE, &RELEASE_READ, form, request);
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

/// Gives one node's vote for a lease back, and tells those who wait. Nobody
/// queues at a node.
pub(super) fn release_vote(form: Form, request: &Request, _queued_by: Option<Process>) -> Cmd {
    let mut release = RELEASE_VOTE.command(form, 1, 2);
    release
        .arg(Name::lock(&request.key))
        .arg(mode_arg(request.mode))
        .arg(Shown(request.owner));
    release
}

/// A script on the lease of a writer, or of a reader. A writer is known by the
/// whole value of its lock: the server need not take it apart.
fn for_holder(write: &'static Script, read: &'static Script, form: Form, request: &Request) -> Cmd {
    let Request {
        key, mode, owner, ..
    } = request;
    let script = match mode {
        Mode::Write => write,
        Mode::Read => read,
    };
    let mut command = script.command(form, 1, 2);
    command.arg(Name::lock(key));
    match mode {
        Mode::Write => command.arg(LockValue::writer(*owner)),
        Mode::Read => command.arg(Shown(owner)),
    };
    command
}

pub(super) fn inspect(form: Form, key: &str) -> Cmd {
    let mut inspect = INSPECT.command(form, 1, 0);
    inspect.arg(Name::lock(key));
    inspect
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
pub(super) fn value(key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(Name::lock(key));
    get
}

/// How many processes listen for the release of each of these locks.
pub(super) fn listeners<'a>(keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut count = redis::cmd("PUBSUB");
    count.arg("NUMSUB");
    for key in keys {
        count.arg(freed_channel(key));
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
pub(super) fn values<'a>(keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut get = redis::cmd("MGET");
    for key in keys {
        get.arg(Name::lock(key));
    }
    get
}

/// The waiters of this process are alive.
pub(super) fn heartbeat(process: Process) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(process.alive_key())
        .arg(1)
        .arg("PX")
        .arg(whole_ms(ALIVE));
    set
}

/// This process has no more waiters.
pub(super) fn farewell(process: Process) -> Cmd {
    let mut delete = redis::cmd("DEL");
    delete.arg(process.alive_key());
    delete
}

/// What stands where the keys of a lock belong: for an error message.
pub(super) fn types(key: &str) -> Pipeline {
    let type_of = |name: &dyn std::fmt::Display| {
        let mut command = redis::cmd("TYPE");
        command.arg(Shown(name));
        command
    };
    pipeline([
        type_of(&Name::lock(key)),
        type_of(&Name::queue(key)),
        type_of(&Name::readers(key)),
        type_of(&TOKEN),
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
