//! Every command that is sent in this layout, and nothing else.

use std::time::Duration;

use redis::{Cmd, ToRedisArgs, cmd};

use super::super::commands::whole_ms;
use super::super::values::Shown;
use super::field::{Field, WRITE};
use super::scripts::Script;
use super::{Layout, Recipe};
use crate::backend::{Mode, Request};
use crate::store::Waiter;
use crate::token::TOKENS_PER_GRANT;

/// The owner of a request. A read/write lock also tells its writer from its readers.
fn field_of(layout: Layout, request: &Request) -> Field {
    Field {
        owner: request.owner,
        writes: layout.recipe == Recipe::ReadWrite && request.mode == Mode::Write,
    }
}

/// Asks for the lock, or for a place in its queue if it has one.
pub(in super::super) fn acquire(layout: Layout, request: &Request, queues: bool) -> Cmd {
    let key = &request.key;
    let ttl = layout
        .longest_for(request)
        .map_or(request.ttl, |longest| longest.min(request.ttl));
    let ttl = whole_ms(ttl);
    let one = [layout.lock(key)].into_iter();
    let field = field_of(layout, request);
    match (layout.recipe, request.mode) {
        (Recipe::Lock, _) => {
            let mut acquire = Script::LockAcquire.on(layout, one, 2);
            acquire.arg(field).arg(ttl).take()
        }
        (Recipe::Fenced, _) => {
            let keys = [layout.lock(key), layout.token(key)].into_iter();
            let mut acquire = Script::LockAcquire.on(layout, keys, 3);
            acquire.arg(field).arg(ttl);
            acquire.arg(TOKENS_PER_GRANT).take()
        }
        (Recipe::Fair(lasts), _) => {
            let mut acquire = of_fair(layout, Script::FairAcquire, lasts, key, field, 5);
            acquire.arg(ttl).arg(u8::from(queues)).take()
        }
        (Recipe::ReadWrite, Mode::Write) => {
            let mut acquire = Script::WriteAcquire.on(layout, one, 2);
            acquire.arg(field).arg(ttl).take()
        }
        (Recipe::ReadWrite, _) => {
            of_reader(layout, Script::ReadAcquire, key, &field.to_string(), 2)
                .arg(ttl)
                .take()
        }
    }
}

/// Extends a lease.
pub(in super::super) fn renew(layout: Layout, request: &Request) -> Cmd {
    let ttl = whole_ms(request.ttl);
    let field = field_of(layout, request);
    if layout.recipe == Recipe::ReadWrite && request.mode != Mode::Write {
        let reader = field.to_string();
        let mut renew = of_reader(layout, Script::ReadRenew, &request.key, &reader, 2);
        return renew.arg(ttl).take();
    }
    let one = [layout.lock(&request.key)].into_iter();
    let mut renew = Script::Renew.on(layout, one, 2);
    renew.arg(field).arg(ttl).take()
}

/// Gives a lease back. With `queued`, the owner may instead or also have a place in the queue.
pub(in super::super) fn release(layout: Layout, request: &Request, queued: bool) -> Cmd {
    let field = field_of(layout, request).to_string();
    let writes = request.mode == Mode::Write;
    end(layout, &request.key, &field, writes, queued, false)
}

/// Ends the lease of a holder, of dlock or of Redisson, by its field, however many times it has
/// the lock, as `forceUnlock` does.
pub(in super::super) fn break_lease(layout: Layout, key: &str, field: &str) -> Cmd {
    end(layout, key, field, field.ends_with(WRITE), false, true)
}

fn end(layout: Layout, key: &str, field: &str, writes: bool, queued: bool, breaks: bool) -> Cmd {
    let channel = layout.channel(key);
    let undivided = layout.undivided(key, [layout.lock(key)]);
    match (layout.recipe, writes) {
        (Recipe::Lock | Recipe::Fenced, _) => {
            let mut release = Script::LockRelease.on(layout, undivided, 2);
            release.arg(field).arg(channel).take()
        }
        (Recipe::Fair(lasts), _) => {
            let mut release = of_fair(layout, Script::FairRelease, lasts, key, field, 4);
            release.arg(u8::from(queued)).take()
        }
        (Recipe::ReadWrite, true) => {
            let mut release = Script::WriteRelease.on(layout, undivided, 2);
            release.arg(field).arg(channel).take()
        }
        (Recipe::ReadWrite, false) => of_reader(layout, Script::ReadRelease, key, field, 4)
            .arg(channel)
            .arg(layout.timeouts(key))
            .arg(u8::from(breaks))
            .take(),
    }
}

/// A script that gets the timeout key of a reader, and the reader.
fn of_reader(layout: Layout, script: Script, key: &str, reader: &str, args: usize) -> Cmd {
    let behind = format!(":{reader}:rwlock_timeout:1");
    let keys = [layout.lock(key), layout.timeout(key, &behind)];
    let mut command = match script {
        // This script also reads the timeouts of all other readers.
        Script::ReadRelease => script.on(layout, layout.undivided(key, keys), args),
        _ => script.on(layout, keys.into_iter(), args),
    };
    command.arg(reader);
    command
}

/// A script for a lock with a queue.
fn of_fair(
    layout: Layout,
    script: Script,
    lasts: Duration,
    key: &str,
    owner: impl ToRedisArgs,
    args: usize,
) -> Cmd {
    let keys = layout.undivided(key, layout.of_fair(key));
    let mut command = script.on(layout, keys, args);
    command.arg(whole_ms(lasts)).arg(owner);
    command.arg(layout.channel(key));
    command
}

/// Looks at a lock, and at up to `waiters` places of its queue.
pub(in super::super) fn inspect(layout: Layout, key: &str, waiters: usize) -> Cmd {
    let one = [layout.lock(key)];
    let mut inspect = match layout.recipe {
        Recipe::Fair(_) => Script::Inspect.on(layout, layout.of_fair(key).into_iter(), 3),
        Recipe::ReadWrite => Script::Inspect.on(layout, layout.undivided(key, one), 3),
        Recipe::Lock | Recipe::Fenced => Script::Inspect.on(layout, one.into_iter(), 3),
    };
    inspect.arg(layout.channel(key));
    inspect.arg(layout.timeouts(key)).arg(waiters).take()
}

/// Counts how many of these locks are held.
pub(super) fn count<'a>(layout: Layout, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut exists = cmd("EXISTS");
    for key in keys {
        exists.arg(layout.lock(key));
    }
    exists
}

/// Looks at these locks and at their waiters in this process.
pub(super) fn look<'a>(
    layout: Layout,
    keys: impl Iterator<Item = (&'a str, &'a [Waiter])> + Clone,
) -> Cmd {
    let Recipe::Fair(lasts) = layout.recipe else {
        return Script::Look.on(layout, keys.map(|(key, _)| layout.lock(key)), 0);
    };
    let names = keys.clone().flat_map(|(key, _)| layout.of_fair(key));
    let mut look = Script::FairLook.on(layout, names, 1 + 2 * keys.clone().count());
    look.arg(whole_ms(lasts));
    for (key, waiters) in keys {
        let owners = waiters.iter().map(|waiter| Field::of_owner(waiter.owner));
        let owners: Vec<_> = owners.map(|owner| owner.to_string()).collect();
        look.arg(layout.channel(key)).arg(owners.join(" "));
    }
    look
}

/// A message without a receiver, to check whether scripts may send messages.
pub(in super::super) fn test_message(layout: Layout, tag: &str) -> Cmd {
    let mut message = Script::TestMessage.on(layout, std::iter::empty(), 1);
    message.arg(Shown(layout.channel(tag))).take()
}
