//! The state of the `memory:` store: holders, queues and the token counter.
//! Nothing here waits; every operation is one step at a given time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::{
    Grant, HolderInfo, LockInfo, Mode, Owner, Released, Renewed, Request, SHOWN_WAITERS, WaiterInfo,
};
use crate::tables::HashMap;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// Locks that expired without a release are removed when the table has grown by this many.
const SWEEP_STEP: usize = 64;

#[derive(Debug)]
pub(super) struct Store {
    locks: HashMap<Arc<str>, Lock>,
    next_token: u64,
    sweep_at: usize,
}

#[derive(Debug, Default)]
struct Lock {
    /// One writer, or any number of readers and permits.
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
    /// The owner whose body has been done, and until when that is remembered.
    done: Option<(Owner, Instant)>,
}

#[derive(Debug)]
struct Holder {
    owner: Owner,
    mode: Mode,
    since: Instant,
    expires: Instant,
    /// Drawn when the request asks and learns that it has the lock.
    token: Option<FencingToken>,
}

#[derive(Debug)]
struct Waiter {
    request: Request,
    told: oneshot::Sender<Turn>,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has the lock.
    Granted,
    /// It was taken out of the queue.
    TakenOut,
}

/// The answer to a request for the lock.
pub(super) enum Answer<H> {
    Granted(Grant),
    /// Other requests hold it. Contains what else the operation returns, and the mode of a holder
    /// that goes by another number of permits.
    Held(H, Option<Mode>),
    /// Its body has been done.
    Done,
}

/// A place in the queue.
pub(super) struct Queued {
    /// Receives a message when there is cause to ask again.
    pub(super) told: oneshot::Receiver<Turn>,
    /// When the first lease of the present holders expires: a cause to ask again.
    pub(super) until: Instant,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            locks: HashMap::default(),
            next_token: TOKENS_PER_GRANT,
            sweep_at: SWEEP_STEP,
        }
    }
}

impl Store {
    pub(super) fn try_acquire(&mut self, request: &Request, now: Instant) -> Answer<()> {
        let had = self.change(&request.key, now, |lock| {
            if lock.done.is_some() {
                return Some(Answer::Done);
            }
            if lock.queue.is_empty() && lock.admits(request.mode) {
                lock.hold(request, now);
                return None;
            }
            Some(Answer::Held((), lock.other_number(request.mode)))
        });
        had.unwrap_or_else(|| Answer::Granted(self.grant(request, now)))
    }

    /// Takes the lock, or a place at the end of the queue, or keeps the place that the owner has.
    pub(super) fn acquire(&mut self, request: &Request, now: Instant) -> Answer<Queued> {
        let held = self.change(&request.key, now, |lock| {
            if lock.done.is_some() {
                return Some(Answer::Done);
            }
            if let Some(holder) = lock.holder(request.owner) {
                // It was granted while the request waited; the lease begins when the request
                // learns of it.
                holder.expires = now + request.ttl;
                return None;
            }
            let is_this = |waiter: &&mut Waiter| waiter.request.owner == request.owner;
            let place = lock.queue.iter_mut().find(is_this);
            let (sender, told) = oneshot::channel();
            if let Some(waiter) = place {
                waiter.told = sender;
            } else if lock.queue.is_empty() && lock.admits(request.mode) {
                lock.hold(request, now);
                return None;
            } else {
                lock.queue.push_back(Waiter {
                    request: request.clone(),
                    told: sender,
                });
            }
            let until = lock.holders.iter().map(|holder| holder.expires).min();
            let until = until.unwrap_or(now);
            let other = lock.other_number(request.mode);
            Some(Answer::Held(Queued { told, until }, other))
        });
        held.unwrap_or_else(|| Answer::Granted(self.grant(request, now)))
    }

    pub(super) fn renew(&mut self, request: &Request, now: Instant) -> Renewed {
        self.change(&request.key, now, |lock| match lock.holder(request.owner) {
            Some(holder) => {
                holder.expires = now + request.ttl;
                Renewed::Extended { sent_at: now }
            }
            None => Renewed::Gone,
        })
    }

    /// Gives back the lock or the place in the queue, whichever the owner has. If it had the lock
    /// and the body has been done, leaves a mark.
    pub(super) fn release(&mut self, request: &Request, now: Instant) -> Released {
        self.change(&request.key, now, |lock| {
            let holders = lock.holders.len();
            lock.holders.retain(|holder| holder.owner != request.owner);
            let released = lock.holders.len() < holders;
            lock.queue
                .retain(|waiter| waiter.request.owner != request.owner);
            match request.done_for() {
                Some(time) if released => {
                    lock.done = Some((request.owner, now + time));
                    // The waiters ask again, and then see the mark.
                    lock.queue.clear();
                }
                _ => lock.admit_waiters(now),
            }
            match released {
                true => Released::Released,
                false => Released::NotHeld,
            }
        })
    }

    /// Ends every lease on a key, and returns their owners.
    pub(super) fn take_away(&mut self, key: &str, now: Instant) -> Vec<Owner> {
        let Some(lock) = self.locks.get_mut(key) else {
            return Vec::new();
        };
        let owners = lock.holders.drain(..).map(|holder| holder.owner).collect();
        lock.admit_waiters(now);
        owners
    }

    /// Ends the lease of one holder, and returns its owner.
    pub(super) fn break_lock(&mut self, key: &str, owner: &str, now: Instant) -> Option<Owner> {
        self.change(&Arc::from(key), now, |lock| {
            let is_this = |holder: &Holder| holder.owner.to_string() == owner;
            let broken = lock.holders.iter().position(is_this)?;
            let broken = lock.holders.swap_remove(broken);
            lock.admit_waiters(now);
            Some(broken.owner)
        })
    }

    /// Takes one waiter out of the queue. Returns whether it was there.
    pub(super) fn break_waiter(&mut self, key: &str, owner: &str, now: Instant) -> bool {
        self.change(&Arc::from(key), now, |lock| {
            let is_this = |waiter: &Waiter| waiter.request.owner.to_string() == owner;
            let place = lock.queue.iter().position(is_this);
            let Some(waiter) = place.and_then(|place| lock.queue.remove(place)) else {
                return false;
            };
            // Fails if the waiter has left.
            let _ = waiter.told.send(Turn::TakenOut);
            lock.admit_waiters(now);
            true
        })
    }

    pub(super) fn raise_tokens(&mut self, floor: u64) {
        self.next_token = self.next_token.max(floor.saturating_add(1));
    }

    /// Removes the mark. Returns whether there was one.
    pub(super) fn forget(&mut self, key: &str, now: Instant) -> bool {
        self.change(&Arc::from(key), now, |lock| lock.done.take().is_some())
    }

    pub(super) fn inspect(&mut self, key: &str, now: Instant) -> Option<LockInfo> {
        let lock = self.locks.get_mut(key)?;
        lock.expire(now);
        lock.info(key, now)
    }

    pub(super) fn list(&mut self, prefix: &str, now: Instant) -> Vec<LockInfo> {
        self.sweep(now);
        let locks = self.locks.iter().filter(|(key, _)| key.starts_with(prefix));
        locks
            .filter_map(|(key, lock)| lock.info(key, now))
            .collect()
    }

    /// Runs one step on a lock, after removing what has expired. A lock that is free after the
    /// step is removed from the table.
    fn change<T>(&mut self, key: &Arc<str>, now: Instant, step: impl FnOnce(&mut Lock) -> T) -> T {
        if self.locks.len() >= self.sweep_at {
            self.sweep(now);
            self.sweep_at = self.locks.len() * 2 + SWEEP_STEP;
        }
        let lock = self.locks.entry(Arc::clone(key)).or_default();
        lock.expire(now);
        let done = step(lock);
        if lock.is_free() {
            self.locks.remove(key);
        }
        done
    }

    fn sweep(&mut self, now: Instant) {
        self.locks.retain(|_, lock| {
            lock.expire(now);
            !lock.is_free()
        });
    }

    fn grant(&mut self, request: &Request, now: Instant) -> Grant {
        let token = FencingToken::from(self.next_token);
        self.next_token += TOKENS_PER_GRANT;
        let lock = self.locks.get_mut(&request.key);
        if let Some(holder) = lock.and_then(|lock| lock.holder(request.owner)) {
            holder.token = Some(token);
        }
        Grant::new(token, now)
    }
}

impl Lock {
    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.done.is_none()
    }

    fn admits(&self, mode: Mode) -> bool {
        mode.fits(self.holders.iter().map(|holder| holder.mode))
    }

    /// The mode of a holder that goes by another number of permits.
    fn other_number(&self, mode: Mode) -> Option<Mode> {
        let mut held = self.holders.iter().map(|holder| holder.mode);
        held.find(|&held| matches!(held, Mode::Permits(_)) && held != mode)
    }

    fn holder(&mut self, owner: Owner) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.owner == owner)
    }

    fn hold(&mut self, request: &Request, now: Instant) {
        self.holders.push(Holder {
            owner: request.owner,
            mode: request.mode,
            since: now,
            expires: now + request.ttl,
            token: None,
        });
    }

    fn expire(&mut self, now: Instant) {
        self.holders.retain(|holder| holder.expires > now);
        self.done = self.done.filter(|(_, until)| *until > now);
        self.admit_waiters(now);
    }

    /// Grants the lock to the next waiters: one writer, or readers and permits up to the first
    /// waiter that does not fit.
    fn admit_waiters(&mut self, now: Instant) {
        while let Some(waiter) = self.queue.front() {
            if !waiter.told.is_closed() && !self.admits(waiter.request.mode) {
                return;
            }
            let Some(waiter) = self.queue.pop_front() else {
                return;
            };
            // A waiter that has gone is skipped; one that goes right now gives the lock back by
            // itself.
            if waiter.told.send(Turn::Granted).is_ok() {
                self.hold(&waiter.request, now);
            }
        }
    }

    fn info(&self, key: &str, now: Instant) -> Option<LockInfo> {
        let shown = |owner: Owner, until: Instant| {
            HolderInfo::new(
                owner.to_string(),
                Some(until.saturating_duration_since(now)),
            )
        };
        if let Some((owner, until)) = self.done {
            return Some(LockInfo::of_done(key.to_owned(), shown(owner, until)));
        }
        let mode = Mode::shown(self.holders.iter().map(|holder| holder.mode))?;
        let holders = self.holders.iter();
        let holders = holders.map(|holder| {
            let held_for = now.saturating_duration_since(holder.since);
            shown(holder.owner, holder.expires)
                .since(SystemTime::now().checked_sub(held_for))
                .token(holder.token)
        });
        let queue =
            self.queue.iter().take(SHOWN_WAITERS).map(|waiter| {
                WaiterInfo::new(waiter.request.owner.to_string(), waiter.request.mode)
            });
        let lock = LockInfo::new(key.to_owned(), mode, holders.collect(), self.queue.len());
        Some(lock.with_queue(queue.collect()))
    }
}
