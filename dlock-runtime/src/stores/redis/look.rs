//! The second look: at what the locks hold that somebody waits for. A message can
//! be lost, and a holder that dies sends none.
//!
//! On one server, one `MGET` is for all the waiters of a process, and every three
//! seconds the sign goes with it that the process is alive: waiting costs less than
//! two commands a second, however many wait. In a cluster locks are in slots of their
//! own, and one command cannot ask for two of them: it is one for each lock that is
//! waited for, and those of one node go out together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;

use super::commands;
use super::servers::{Attempt, Servers};
use super::values::{LockValue, Process};
use crate::backend::Mode;
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure, Store, Waited};

/// A waiter of a busy key makes sure of its place in the queue this often.
const VERIFY: Duration = Duration::from_secs(10);

/// What a lock held when it was last looked at.
#[derive(Default)]
pub(crate) struct Seen {
    value: Option<Vec<u8>>,
    free: bool,
}

pub(super) async fn at_server<S: Store<Seen = Seen>>(
    servers: &Servers,
    process: Process,
    waited: &mut [Waited<S>],
    beat: bool,
    deadline: Deadline,
) -> Result<(), Failure> {
    let heartbeat = || commands::heartbeat(&servers.space().alive_key(process, ""));
    let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
    let values = servers.values(&keys, beat.then(heartbeat), deadline).await;
    let values = values.inspect_err(|failure| {
        if let (Cause::Error(error), Applied::Answered) = (&failure.cause, failure.applied) {
            tracing::warn!(target: "dlock::store", "dlock cannot look after its waiters: {error}");
        }
    })?;
    for (key, value) in waited.iter_mut().zip(values) {
        wake(key, value);
    }
    Ok(())
}

/// A node that does not answer must not keep the others from being looked at: its
/// own waiters find out for themselves.
pub(super) async fn at_slots<S: Store<Seen = Seen>>(
    servers: &Servers,
    process: Process,
    waited: &mut [Waited<S>],
    beat: bool,
    deadline: Deadline,
) -> Result<(), Failure> {
    let looks = waited.iter_mut().map(|key| async move {
        let (space, name) = (servers.space(), Arc::clone(&key.key));
        let alive = async {
            if beat {
                let alive = space.alive_key(process, &name);
                let attempt = &mut Attempt::default();
                let beats = servers.ask(&name, deadline, attempt, || commands::heartbeat(&alive));
                let _ = beats.await;
            }
        };
        let attempt = &mut Attempt::default();
        let look = servers.ask(&name, deadline, attempt, || commands::value(space, &name));
        let (looked, ()) = tokio::join!(look, alive);
        match looked {
            Ok(answer) => {
                let topology = servers.topology();
                if topology.is_some_and(|topology| topology.subscriptions.is_deaf(&name)) {
                    // Its turn would pass by.
                    key.wake_all();
                }
                wake(key, answer.value);
                Ok(())
            }
            Err(failure) => {
                key.wake_all();
                Err(failure)
            }
        }
    });
    let mut looked = join_all(looks).await;
    let failed = looked.iter().position(Result::is_err);
    if let Some(Err(Failure {
        cause: Cause::Error(error),
        ..
    })) = failed.map(|failed| &looked[failed])
    {
        tracing::debug!(target: "dlock::store", "dlock cannot look after its waiters: {error}");
    }
    // Nobody has answered.
    if !looked.is_empty() && looked.iter().all(Result::is_err) {
        return looked.swap_remove(0);
    }
    Ok(())
}

/// Nobody in this process waits any more: in a cluster, for this lock.
pub(super) async fn farewell(servers: &Servers, process: Process, key: &str, deadline: Deadline) {
    let alive = servers.space().alive_key(process, key);
    let (attempt, farewell) = (&mut Attempt::default(), || commands::farewell(&alive));
    let _ = servers.ask(key, deadline, attempt, farewell).await;
}

/// Says who should ask again, by what the lock holds now.
fn wake<S: Store<Seen = Seen>>(key: &mut Waited<S>, value: Value) {
    let Value::BulkString(value) = value else {
        // It is free, or of another type, which asking shows. The holder has died, or
        // the server has lost its data. Whoever asks makes the server grant the lock to
        // the first in the queue; if one was no help, they may all have lost their
        // places.
        let all = if key.seen.free { usize::MAX } else { 1 };
        let waiters = key.waiters.iter_mut().take(all);
        waiters.for_each(|waiter| waiter.wake = true);
        key.seen.free = true;
        return;
    };
    let now = Instant::now();
    let changed = key.seen.value.as_ref() != Some(&value);
    let holder = LockValue::parse(&value);
    for waiter in &mut key.waiters {
        let cause = match holder {
            // The message that said so was lost; or the holder has overtaken the
            // queue, does not know of it, and would not hand the lock on.
            Some(LockValue {
                mode: Mode::Write,
                owner,
                waited,
            }) => owner == waiter.owner || !waited,
            // Other readers may have been let in, so why not this.
            Some(LockValue {
                mode: Mode::Read, ..
            }) => changed && waiter.mode == Mode::Read,
            // Asking shows what it is.
            None => changed,
        };
        // The lock goes from hand to hand and passes this one by.
        let passed_by = changed && now.saturating_duration_since(waiter.since) >= VERIFY;
        waiter.wake |= cause || passed_by;
    }
    key.seen.free = false;
    key.seen.value = Some(value);
}
