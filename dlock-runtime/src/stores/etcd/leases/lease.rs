//! A lease: who uses it, and how long it is known to last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::Scope;

/// A lease in etcd.
pub(crate) struct Lease {
    id: i64,
    /// In seconds, as it was asked for.
    pub(super) asked_for: i64,
    /// As the server keeps it: no shorter than was asked.
    pub(super) ttl: Duration,
    time: Time,
    state: watch::Sender<State>,
    /// Told when somebody needs to know that it lives, and when nobody can.
    demand: Notify,
}

struct State {
    /// It lasts for its ttl from when this request was sent, which the server has
    /// confirmed. `None`: it has ended, or must be taken to have.
    confirmed: Option<Instant>,
    users: usize,
    /// When the last of them left.
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
    /// The lease with this id, for which a request was sent then.
    pub(super) fn new(
        id: i64,
        asked_for: i64,
        ttl: Duration,
        sent_at: Instant,
        time: Time,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            asked_for,
            ttl,
            time,
            state: watch::Sender::new(State {
                confirmed: Some(sent_at),
                users: 0,
                left_at: sent_at,
                retired: false,
            }),
            demand: Notify::new(),
        })
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// What is attached to it ends with it.
    pub(crate) fn scope(&self) -> Scope {
        Scope(self.id.cast_unsigned())
    }

    /// The oldest confirmation that counts for a lock of this ttl that was asked for
    /// at `asked_at`: it is promised the whole ttl. If there is none as new, one is
    /// demanded.
    pub(crate) fn demand(&self, ttl: Duration, asked_at: Instant) -> Instant {
        let oldest = asked_at.checked_sub(ttl / 50).unwrap_or(asked_at);
        if self.confirmed().is_some_and(|last| last < oldest) {
            self.demand.notify_one();
        }
        oldest
    }

    /// Resolves when there is cause to look after it before its time.
    pub(super) async fn demanded(&self) {
        self.demand.notified().await;
    }

    /// When a confirmation was sent that is no older. `None` if the lease has ended,
    /// or there is none by the deadline.
    pub(crate) async fn confirmed_since(
        &self,
        oldest: Instant,
        deadline: Deadline,
    ) -> Option<Instant> {
        let mut state = self.state.subscribe();
        let is_new = |state: &State| state.confirmed.is_none_or(|last| last >= oldest);
        let confirmed = self.time.bound(deadline, state.wait_for(is_new)).await;
        confirmed.ok()?.ok()?.confirmed
    }

    /// Resolves when the lease has ended.
    pub(crate) async fn gone(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.confirmed.is_none()).await;
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.confirmed().is_none()
    }

    pub(super) fn confirmed(&self) -> Option<Instant> {
        self.state.borrow().confirmed
    }

    pub(super) fn confirm(&self, sent_at: Instant) {
        self.state.send_if_modified(|state| {
            let alive = state.confirmed.is_some();
            state.confirmed = alive.then_some(sent_at);
            alive
        });
    }

    /// The server says that it has ended, or it must be taken to have.
    pub(crate) fn end(&self) {
        self.state.send_modify(|state| {
            state.confirmed = None;
            state.retired = true;
        });
    }

    /// Nobody else is let in, so that it can end soon: a request may yet be done
    /// that attaches a key which nobody wants any more.
    pub(crate) fn retire(&self) {
        self.state.send_modify(|state| state.retired = true);
        self.demand.notify_one();
    }

    /// Nobody can use it any more, or has for as long as it lasts. Nobody is let in
    /// after that.
    pub(super) fn is_unused(&self) -> bool {
        let now = self.time.now();
        let mut unused = false;
        self.state.send_if_modified(|state| {
            unused = state.users == 0 && (state.retired || state.left_at + self.ttl <= now);
            state.retired |= unused;
            false
        });
        unused
    }
}

impl LeaseRef {
    /// `None`: nobody is let in any more. A private one lets nobody in after this.
    pub(super) fn enter(lease: &Arc<Lease>, private: bool) -> Option<Self> {
        let mut entered = false;
        // Nobody waits for this.
        lease.state.send_if_modified(|state| {
            entered = !state.retired;
            if entered {
                state.users += 1;
                state.retired = private;
            }
            false
        });
        entered.then(|| Self {
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
        let mut over = false;
        self.lease.state.send_if_modified(|state| {
            state.users -= 1;
            state.left_at = self.lease.time.now();
            over = state.users == 0 && state.retired;
            false
        });
        if over {
            self.lease.demand.notify_one();
        }
    }
}

impl Drop for LeaseRef {
    fn drop(&mut self) {
        self.leave();
    }
}
