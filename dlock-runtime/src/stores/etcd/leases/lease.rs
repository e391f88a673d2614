//! A lease: who uses it, and how long it is known to last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::Scope;

/// A lease in etcd.
pub(crate) struct Lease {
    id: i64,
    /// As the server keeps it: no shorter than was asked.
    ttl: Duration,
    time: Time,
    state: watch::Sender<State>,
    /// Told when somebody needs to know that it lives.
    demand: Notify,
    refs: Mutex<Refs>,
    /// Told when more or fewer have it, or nobody else is let in.
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It lasts for its ttl from when this request was sent, which the server
    /// confirmed.
    Alive { confirmed: Instant },
    /// It has ended, or must be taken to have.
    Gone,
}

struct Refs {
    number: usize,
    left_at: Instant,
    /// Nobody else is let in. Once nobody has it, it is revoked.
    retired: bool,
}

/// The right to attach keys to a lease, which is kept alive for it until it leaves
/// or is dropped.
pub(crate) struct LeaseRef {
    lease: Arc<Lease>,
    has_left: AtomicBool,
}

impl Lease {
    /// The lease with this id, which was asked for at `sent_at`.
    pub(super) fn new(id: i64, ttl: Duration, sent_at: Instant, time: Time) -> Arc<Self> {
        Arc::new(Self {
            id,
            ttl,
            state: watch::Sender::new(State::Alive { confirmed: sent_at }),
            demand: Notify::new(),
            refs: Mutex::new(Refs {
                number: 0,
                left_at: sent_at,
                retired: false,
            }),
            changed: Notify::new(),
            time,
        })
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Resolves when somebody needs to know that it lives.
    pub(super) async fn demanded(&self) {
        self.demand.notified().await;
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// What is attached to it ends with it.
    pub(crate) fn scope(&self) -> Scope {
        Scope(self.id.cast_unsigned())
    }

    /// When the request was sent that was last confirmed; `None` if the lease
    /// has ended.
    pub(super) fn confirmed(&self) -> Option<Instant> {
        match *self.state.borrow() {
            State::Alive { confirmed } => Some(confirmed),
            State::Gone => None,
        }
    }

    /// The same, of a request that was sent within the last fiftieth of this ttl, or
    /// is sent now. `None` too if it is not confirmed by the deadline.
    pub(crate) async fn confirmed_lately(
        &self,
        ttl: Duration,
        deadline: Deadline,
    ) -> Option<Instant> {
        let now = self.time.now();
        let oldest = now.checked_sub(ttl / 50).unwrap_or(now);
        let mut state = self.state.subscribe();
        loop {
            match *state.borrow_and_update() {
                State::Gone => return None,
                State::Alive { confirmed } if confirmed >= oldest => return Some(confirmed),
                State::Alive { .. } => {}
            }
            self.demand.notify_one();
            let changed = self.time.bound(deadline, state.changed()).await;
            changed.ok()?.ok()?;
        }
    }

    /// Resolves when the lease has ended.
    pub(crate) async fn gone(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| *state == State::Gone).await;
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.confirmed().is_none()
    }

    pub(super) fn confirm(&self, sent_at: Instant) {
        self.state.send_if_modified(|state| {
            let alive = *state != State::Gone;
            if alive {
                *state = State::Alive { confirmed: sent_at };
            }
            alive
        });
    }

    /// The server says that it has ended, or it must be taken to have.
    pub(crate) fn end(&self) {
        self.refs().retired = true;
        self.state.send_replace(State::Gone);
    }

    /// Nobody else is let in, so that it can end soon: a request may yet be done
    /// that attaches a key which nobody wants any more.
    pub(crate) fn retire(&self) {
        self.refs().retired = true;
        self.changed.notify_waiters();
    }

    /// Resolves when nobody has used it for as long as it lasts, or can use it
    /// any more. Nobody is let in after that.
    pub(super) async fn unused(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let at = {
                let mut refs = self.refs();
                let now = self.time.now();
                let at = match refs.number {
                    0 if refs.retired => Some(now),
                    0 => Some(refs.left_at + self.ttl),
                    _ => None,
                };
                if at.is_some_and(|at| at <= now) {
                    refs.retired = true;
                    return;
                }
                at
            };
            match at {
                Some(at) => tokio::select! {
                    () = self.time.sleep(Deadline::from(at, Duration::ZERO)) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    fn refs(&self) -> MutexGuard<'_, Refs> {
        self.refs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseRef {
    /// `None`: nobody is let in any more. A private one lets nobody in after this.
    pub(super) fn enter(lease: &Arc<Lease>, private: bool) -> Option<Self> {
        let mut refs = lease.refs();
        if refs.retired || lease.is_gone() {
            return None;
        }
        refs.number += 1;
        refs.retired = private;
        drop(refs);
        lease.changed.notify_waiters();
        Some(Self {
            lease: Arc::clone(lease),
            has_left: AtomicBool::new(false),
        })
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// The lease need not be kept alive for this any more.
    pub(crate) fn leave(&self) {
        if self.has_left.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut refs = self.lease.refs();
        refs.number -= 1;
        refs.left_at = self.lease.time.now();
        drop(refs);
        self.lease.changed.notify_waiters();
    }
}

impl Drop for LeaseRef {
    fn drop(&mut self) {
        self.leave();
    }
}
