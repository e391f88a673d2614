//! Every command that dlock sends, and nothing else.

use std::time::Duration;

use redis::{Cmd, Pipeline, cmd};

use super::names::{Keyspace, VOTERS};
use super::redisson;
use super::scripts::{self, ALIVE_FOR, Script};
use super::values::{Process, Shown, WriterValue, letter, queue_entry};
use crate::backend::Request;
use crate::backend::owner::LONGEST_OWNER;
use crate::duration::milliseconds_up;
use crate::stores::stored_owner::StoredOwner;
use crate::token::TOKENS_PER_GRANT;

/// Takes a free lock. A token is drawn by a second command behind it, since one script that does
/// both is more expensive for the server. Between the two, nobody else can be granted the key
/// unless the server stalls for longer than the ttl, and then the lease has ended for its owner
/// too.
pub(super) fn take(space: &Keyspace, request: &Request) -> Cmd {
    let Request { key, owner, .. } = request;
    let mut set = Cmd::with_capacity(6, 64 + LONGEST_OWNER + key.len());
    set.arg("SET")
        .arg(space.lock(key))
        .arg(WriterValue(*owner))
        .arg("NX")
        .arg("PX")
        .arg(ttl_ms(request));
    set
}

/// Reserves the token numbers of this many grants, if all keys share one counter. The answer is
/// the last number.
pub(super) fn draw_tokens(space: &Keyspace, grants: usize) -> Cmd {
    let mut draw = Cmd::with_capacity(3, 24);
    draw.arg("INCRBY")
        .arg(space.counter(""))
        .arg(grants as u64 * TOKENS_PER_GRANT);
    draw
}

/// Raises the token counter to the server's clock, and at least to `lowest`. It is the first
/// command of a new connection, so the script is sent in full.
pub(super) fn raise_to_clock(space: &Keyspace, lowest: u64) -> Cmd {
    let counter = [space.counter("")].into_iter();
    scripts::in_full(Script::Raise.on(space, counter, 2).arg(lowest).arg(1))
}

/// Raises the token counter of a lock to this number, if it is lower.
pub(super) fn raise_tokens(space: &Keyspace, key: &str, to: u64) -> Cmd {
    let counter = [space.counter(key)].into_iter();
    Script::Raise.on(space, counter, 1).arg(to).take()
}

/// Reads the server's clock.
pub(super) fn clock() -> Cmd {
    cmd("TIME")
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
    if let Some(layout) = space.redisson() {
        return redisson::commands::acquire(layout, request, queues);
    }
    let key = &request.key;
    let names = space.script_keys(key).chain([space.counter(key)]);
    let mut acquire = Script::Acquire.on(space, names, 7);
    acquire
        .arg(letter(request.mode))
        .arg(Shown(StoredOwner::of(request)))
        .arg(ttl_ms(request))
        .arg(Shown(process))
        .arg(u8::from(queues))
        .arg(TOKENS_PER_GRANT);
    if *space == Keyspace::Slots {
        acquire.arg(lowest);
    }
    acquire
}

/// Extends a lease. For a writer, only the lock's own key is used: in a cluster, keys that belong
/// together can be on different nodes for a while, and a lease must not end because of that.
/// `token`, that of the grant, is written down in a key of its own unless it is 0, and with the
/// lock `since`: since when it is held, in unix ms.
pub(super) fn renew(space: &Keyspace, request: &Request, token: u64, since: Option<u64>) -> Cmd {
    if let Some(layout) = space.redisson() {
        return redisson::commands::renew(layout, request);
    }
    let told = space
        .script_keys(&request.key)
        .take(match request.mode.is_shared() {
            false => 1,
            true => usize::MAX,
        });
    let mut renew = Script::Renew.on(space, told, 3 + usize::from(since.is_some()));
    let stored = Shown(StoredOwner::of(request));
    renew.arg(stored).arg(ttl_ms(request)).arg(token);
    if let Some(since) = since {
        renew.arg(since);
    }
    renew
}

/// Gives a lease back. With `queued_by`, the owner may instead or also be in the queue, by that
/// process. With `done_for`, a mark stays for that long.
pub(super) fn release(
    space: &Keyspace,
    request: &Request,
    queued_by: Option<Process>,
    done_for: Option<Duration>,
) -> Cmd {
    if let Some(layout) = space.redisson() {
        return redisson::commands::release(layout, request, queued_by.is_some());
    }
    let stored = StoredOwner::of(request);
    let mut release = Script::Release.on(space, space.script_keys(&request.key), 3);
    match stored.mode.is_shared() {
        false => release.arg(WriterValue(stored.owner)),
        true => release.arg(Shown(stored)),
    };
    if let Some(process) = queued_by {
        release.arg(queue_entry(stored, ttl_ms(request), process));
    }
    if let Some(time) = done_for {
        release.arg(whole_ms(time));
    }
    release
}

/// Ends the vote of one node for a holder, as it was shown.
pub(super) fn break_vote(space: &Keyspace, key: &str, owner: &str) -> Cmd {
    let names = [space.lock(key), space.readers(key)].into_iter();
    let mut release = Script::ReleaseVote.on(space, names, 2);
    release.arg(owner).arg(1).take()
}

/// Gives one node's vote for a lease back. With `aloud`, it notifies the waiters.
pub(super) fn release_vote(space: &Keyspace, request: &Request, aloud: bool) -> Cmd {
    let Request { key, owner, .. } = request;
    // As few keys as possible, for the reason given at `renew`.
    let names = [space.lock(key), space.readers(key)].into_iter();
    let names = names.take(1 + usize::from(request.mode.is_shared()));
    let mut release = Script::ReleaseVote.on(space, names, 2);
    release.arg(Shown(*owner)).arg(u8::from(aloud)).take()
}

/// Reads the first `count` places in the queue of a lock.
pub(super) fn places(space: &Keyspace, key: &str, count: usize) -> Cmd {
    let mut places = cmd("LRANGE");
    places.arg(space.queue(key)).arg(0).arg(count - 1).take()
}

/// Undoes the places and grants of waiters that their process does not know.
pub(super) fn disown(space: &Keyspace, key: &str, entries: &[String]) -> Cmd {
    let mut disown = Script::Disown.on(space, space.script_keys(key), entries.len());
    disown.arg(entries).take()
}

/// Removes the mark of a body that has been done.
pub(super) fn forget(space: &Keyspace, key: &str) -> Cmd {
    Script::Forget.on(space, space.script_keys(key), 0)
}

/// Ends the lease of a holder, as it was shown.
pub(super) fn break_lease(space: &Keyspace, key: &str, owner: &str) -> Cmd {
    if let Some(layout) = space.redisson() {
        return redisson::commands::break_lease(layout, key, owner);
    }
    // The value of a writer's lock is not just the owner, so this never matches it directly, and
    // the script takes its long path, which recognizes a holder of any kind.
    let mut release = Script::Release.on(space, space.script_keys(key), 1);
    release.arg(owner).take()
}

/// Takes a waiter out of the queue, as it was shown.
pub(super) fn take_out(space: &Keyspace, key: &str, owner: &str) -> Cmd {
    let mut take_out = Script::TakeOut.on(space, space.script_keys(key), 1);
    take_out.arg(owner).take()
}

/// Looks at a lock, and at up to `waiters` places of its queue. With `votes`, the waiters are
/// those that listen to the lock.
pub(super) fn inspect(space: &Keyspace, key: &str, votes: bool, waiters: usize) -> Cmd {
    if let Some(layout) = space.redisson() {
        return redisson::commands::inspect(layout, key, waiters);
    }
    let mut inspect = Script::Inspect.on(space, space.script_keys(key), 2);
    inspect.arg(u8::from(votes)).arg(waiters).take()
}

/// One step of a scan of all key names. Keys of another type are not locks.
pub(super) fn scan(space: &Keyspace, cursor: u64, prefix: &str) -> Cmd {
    let of_type = match space {
        Keyspace::Redisson(_) => "hash",
        _ => "string",
    };
    let mut scan = cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(space.locks_with(prefix));
    scan.arg("COUNT").arg(1000).arg("TYPE").arg(of_type).take()
}

/// Reads the values of these locks.
pub(super) fn values<'a>(space: &Keyspace, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut get = cmd("MGET");
    for key in keys {
        get.arg(space.lock(key));
    }
    get
}

pub(super) fn ping() -> Cmd {
    cmd("PING")
}

/// Asks what a server says of itself in this section.
pub(super) fn info(section: &str) -> Cmd {
    cmd("INFO").arg(section).take()
}

/// Shows that the waiters of a process are still alive, those for which this key stands. The
/// answer is 0 if the key has gone, which then has to be [set again](heartbeat_again). A server
/// whose memory is full would refuse a `SET`.
pub(super) fn heartbeat(alive: &str) -> Cmd {
    let mut extend = cmd("PEXPIRE");
    extend.arg(alive).arg(whole_ms(ALIVE_FOR)).take()
}

/// The same, for a process that the server takes for dead.
pub(super) fn heartbeat_again(alive: &str) -> Cmd {
    let mut set = cmd("SET");
    set.arg(alive)
        .arg(1)
        .arg("PX")
        .arg(whole_ms(ALIVE_FOR))
        .take()
}

/// The opposite of [`heartbeat`]: there are no more waiters.
pub(super) fn farewell(alive: &str) -> Cmd {
    cmd("DEL").arg(alive).take()
}

/// Reads the last token of a lock, for an error message.
pub(super) fn counter(space: &Keyspace, key: &str) -> Pipeline {
    pipeline([cmd("GET").arg(space.counter(key)).take()])
}

/// Reads the types of the keys of a lock, for an error message.
pub(super) fn types(space: &Keyspace, key: &str) -> Pipeline {
    let parts = space.parts(key).into_iter();
    pipeline(parts.map(|(name, _)| cmd("TYPE").arg(name).take()))
}

/// Waits until this many replicas have all that was sent over this connection before, but no
/// longer than `limit`. The answer is how many have it.
pub(super) fn wait(replicas: usize, limit: Duration) -> Cmd {
    cmd("WAIT").arg(replicas).arg(whole_ms(limit)).take()
}

/// Names a connection, for the server's list of clients.
pub(super) fn name(label: &str) -> Cmd {
    cmd("CLIENT").arg("SETNAME").arg(label).take()
}

/// Asks for the server's role.
pub(super) fn role() -> Cmd {
    cmd("ROLE")
}

/// Asks a sentinel for its id, and for the address of the master.
pub(super) fn whereabouts(master: &str) -> Pipeline {
    let id = cmd("SENTINEL").arg("MYID").take();
    let mut address = cmd("SENTINEL");
    address.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    pipeline([id, address])
}

pub(super) fn setting(name: &str) -> Cmd {
    cmd("CONFIG").arg("GET").arg(name).take()
}

/// A message without a receiver, to check whether scripts may send messages. In a cluster, it is
/// sent in the slot of this tag.
pub(super) fn test_message(space: &Keyspace, process: Process, tag: &str) -> Cmd {
    if let Some(layout) = space.redisson() {
        return scripts::in_full(&redisson::commands::test_message(layout, tag));
    }
    let lock = [space.lock(tag)].into_iter();
    scripts::in_full(Script::TestMessage.on(space, lock, 1).arg(Shown(process)))
}

/// Reads which slots vote.
pub(super) fn voters() -> Cmd {
    cmd("GET").arg(VOTERS).take()
}

/// Sets which slots vote, if that is not set yet.
pub(super) fn propose_voters(tags: &str) -> Cmd {
    cmd("SET").arg(VOTERS).arg(tags).arg("NX").take()
}

/// Subscribes to a channel, or unsubscribes. `sharded`: the channel belongs to a slot.
pub(super) fn listen(channel: &str, sharded: bool, listens: bool) -> Cmd {
    let mut listen = cmd(match (sharded, listens) {
        (true, true) => "SSUBSCRIBE",
        (true, false) => "SUNSUBSCRIBE",
        (false, true) => "SUBSCRIBE",
        (false, false) => "UNSUBSCRIBE",
    });
    listen.arg(channel).take()
}

/// Asks which node of a cluster has which slots.
pub(super) fn slots() -> Pipeline {
    pipeline([cmd("CLUSTER").arg("SLOTS").take()])
}

/// Lets a node that is about to get the slot answer the next command.
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

/// The duration in milliseconds, rounded up since a lease must not end before its ttl. It is
/// limited to a century: the server refuses values that overflow its clock.
pub(super) fn whole_ms(duration: Duration) -> u64 {
    const CENTURY: u64 = 100 * 365 * 24 * 3600 * 1000;
    milliseconds_up(duration).clamp(1, CENTURY)
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
