//! Every command that is sent in this layout, and nothing else.

use std::time::Duration;

use redis::{Cmd, cmd};

use super::super::commands::whole_ms;
use super::super::names::Name;
use super::super::values::Shown;
use super::field::Field;
use super::scripts::Script;
use super::{Layout, Recipe};
use crate::backend::{Mode, Request};
use crate::store::Waiter;
use crate::token::TOKENS_PER_GRANT;

/// Asks for the lock; or for a place in its queue, if it has one.
pub(in super::super) fn acquire(layout: Layout, request: &Request, queues: bool) -> Cmd {
    let key = &request.key;
    let ttl = layout
        .longest_for(request)
        .map_or(request.ttl, |longest| longest.min(request.ttl));
    let ttl = whole_ms(ttl);
    let one = [layout.lock(key)].into_iter();
    match (layout.recipe, request.mode) {
        (Recipe::Lock, _) => {
            let mut acquire = Script::LockAcquire.on(layout, one, 2);
            acquire.arg(Field::of(request)).arg(ttl).take()
        }
        (Recipe::Fenced, _) => {
            let keys = [layout.lock(key), layout.token(key)].into_iter();
            let mut acquire = Script::LockAcquire.on(layout, keys, 3);
            acquire.arg(Field::of(request)).arg(ttl);
            acquire.arg(TOKENS_PER_GRANT).take()
        }
        (Recipe::Fair(lasts), _) => {
            let mut acquire = of_fair(layout, Script::FairAcquire, lasts, request, 5);
            acquire.arg(ttl).arg(u8::from(queues)).take()
        }
        (Recipe::ReadWrite, Mode::Write) => {
            let mut acquire = Script::WriteAcquire.on(layout, one, 2);
            acquire.arg(Field::of_read_write(request)).arg(ttl).take()
        }
        (Recipe::ReadWrite, _) => of_reader(layout, Script::ReadAcquire, request, 2)
            .arg(ttl)
            .take(),
    }
}

/// Extends a lease.
pub(in super::super) fn renew(layout: Layout, request: &Request) -> Cmd {
    let ttl = whole_ms(request.ttl);
    let one = [layout.lock(&request.key)].into_iter();
    match (layout.recipe, request.mode) {
        (Recipe::Lock | Recipe::Fenced | Recipe::Fair(_), _) => {
            let mut renew = Script::Renew.on(layout, one, 2);
            renew.arg(Field::of(request)).arg(ttl).take()
        }
        (Recipe::ReadWrite, Mode::Write) => {
            let mut renew = Script::Renew.on(layout, one, 2);
            renew.arg(Field::of_read_write(request)).arg(ttl).take()
        }
        (Recipe::ReadWrite, _) => of_reader(layout, Script::ReadRenew, request, 2)
            .arg(ttl)
            .take(),
    }
}

/// Gives a lease back; with `queued`, the owner may have a place in the queue instead, or
/// as well.
pub(in super::super) fn release(layout: Layout, request: &Request, queued: bool) -> Cmd {
    let key = &request.key;
    let channel = layout.channel(key);
    let one = [layout.lock(key)].into_iter();
    match (layout.recipe, request.mode) {
        (Recipe::Lock | Recipe::Fenced, _) => {
            let mut release = Script::LockRelease.on(layout, one, 2);
            release.arg(Field::of(request)).arg(channel).take()
        }
        (Recipe::Fair(lasts), _) => {
            let mut release = of_fair(layout, Script::FairRelease, lasts, request, 4);
            release.arg(u8::from(queued)).take()
        }
        (Recipe::ReadWrite, Mode::Write) => {
            let mut release = Script::WriteRelease.on(layout, one, 2);
            let writer = Field::of_read_write(request);
            release.arg(writer).arg(channel).take()
        }
        (Recipe::ReadWrite, _) => of_reader(layout, Script::ReadRelease, request, 3)
            .arg(channel)
            .arg(layout.timeouts(key))
            .take(),
    }
}

/// A script that is told of the timeout of a reader, and of the reader.
fn of_reader(layout: Layout, script: Script, request: &Request, args: usize) -> Cmd {
    let key = &request.key;
    let reader = Field::of_read_write(request).to_string();
    let behind = format!(":{reader}:rwlock_timeout:1");
    let Name(mut parts) = layout.timeouts(key);
    parts[5] = &behind;
    let timeout = Name(parts);
    let keys = [layout.lock(key), timeout].into_iter();
    let mut command = script.on(layout, keys, args);
    command.arg(&reader);
    command
}

/// A script of a lock with a queue.
fn of_fair(layout: Layout, script: Script, lasts: Duration, request: &Request, args: usize) -> Cmd {
    let key = &request.key;
    let mut command = script.on(layout, layout.of_fair(key).into_iter(), args);
    command.arg(whole_ms(lasts)).arg(Field::of(request));
    command.arg(layout.channel(key));
    command
}

/// Looks at a lock.
pub(in super::super) fn inspect(layout: Layout, key: &str) -> Cmd {
    let keys = [layout.lock(key), layout.ends_of_places(key)].into_iter();
    let keys = keys.take(match layout.recipe {
        Recipe::Fair(_) => 2,
        Recipe::Lock | Recipe::ReadWrite | Recipe::Fenced => 1,
    });
    let mut inspect = Script::Inspect.on(layout, keys, 2);
    inspect.arg(layout.channel(key));
    inspect.arg(layout.timeouts(key)).take()
}

/// How many of these locks are held.
pub(super) fn count<'a>(layout: Layout, keys: impl Iterator<Item = &'a str>) -> Cmd {
    let mut exists = cmd("EXISTS");
    for key in keys {
        exists.arg(layout.lock(key));
    }
    exists
}

/// What holds these locks, for which those wait.
pub(super) fn look<'a>(
    layout: Layout,
    keys: impl Iterator<Item = (&'a str, &'a [Waiter])> + Clone,
) -> Cmd {
    let Recipe::Fair(lasts) = layout.recipe else {
        return Script::Look.on(layout, keys.map(|(key, _)| layout.lock(key)), 0);
    };
    let names = keys.clone().flat_map(|(key, _)| layout.of_fair(key));
    let mut look = Script::FairLook.on(layout, names, 1 + keys.clone().count());
    look.arg(whole_ms(lasts));
    for (_, waiters) in keys {
        let owners = waiters.iter().map(|waiter| Field::of_owner(waiter.owner));
        let owners: Vec<_> = owners.map(|owner| owner.to_string()).collect();
        look.arg(owners.join(" "));
    }
    look
}

/// A message to nobody in particular, to see whether scripts may send messages.
pub(in super::super) fn test_message(layout: Layout, tag: &str) -> Cmd {
    let mut message = Script::TestMessage.on(layout, std::iter::empty(), 1);
    message.arg(Shown(layout.channel(tag))).take()
}
