//! A lease of etcd: who uses it, and how long it is known to last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::Scope;
use crate::sync::Mutex;

pub(crate) struct Lease {
    pub(super) id: i64,
    /// The ttl that was asked for, in seconds.
    pub(super) asked_for: i64,
    /// The ttl that the server keeps, which is no shorter.
    pub(super) ttl: Duration,
    time: Time,
    /// When the last request was sent that the server has confirmed: the lease lasts its ttl from
    /// then. `None`: it has ended, or must be taken to have.
    confirmed: watch::Sender<Option<Instant>>,
    users: Mutex<Users>,
    /// Notified when somebody needs a new confirmation, and when nobody can use the lease any more.
    demand: Notify,
}

struct Users {
    number: usize,
    /// When the last user left.
    left_at: Instant,
    /// Nobody else is let in. Once it has no users, the lease is revoked.
    retired: bool,
}

/// The right to attach keys to a lease. The lease is kept alive for it, until it leaves or is
/// dropped.
pub(crate) struct LeaseRef {
    pub(super) lease: Arc<Lease>,
    has_left: AtomicBool,
}

impl Lease {
    /// The lease with this id, which was asked for at `sent_at`, for its first user. A `private`
    /// lease has no others.
    pub(super) fn begin(
        id: i64,
        asked_for: i64,
        ttl: Duration,
        private: bool,
        sent_at: Instant,
        time: Time,
    ) -> LeaseRef {
        let users = Users {
            number: 1,
            left_at: sent_at,
            retired: private,
        };
        LeaseRef::to(Arc::new(Self {
            id,
            asked_for,
            ttl,
            time,
            confirmed: watch::Sender::new(Some(sent_at)),
            users: Mutex::new(users),
            demand: Notify::new(),
        }))
    }

    /// The scope of what is attached to it.
    pub(super) fn scope(&self) -> Scope {
        Scope(self.id.cast_unsigned())
    }

    /// Adds a user. `None`: nobody is let in any more.
    pub(super) fn enter(self: &Arc<Self>) -> Option<LeaseRef> {
        let mut users = self.users.lock();
        if users.retired {
            return None;
        }
        users.number += 1;
        Some(LeaseRef::to(Arc::clone(self)))
    }

    /// The oldest confirmation that is enough for a lock of this ttl, asked for at `asked_at`: the
    /// lock is promised the whole ttl. If there is none as new, this demands one.
    pub(super) fn demand(&self, ttl: Duration, asked_at: Instant) -> Instant {
        let oldest = asked_at.checked_sub(ttl / 50).unwrap_or(asked_at);
        if self.confirmed().is_some_and(|last| last < oldest) {
            self.demand.notify_one();
        }
        oldest
    }

    /// Resolves when the lease needs attention before its time.
    pub(super) async fn demanded(&self) {
        self.demand.notified().await;
    }

    /// When a confirmation was sent, if that is no longer ago than `oldest`. `None`: the lease has
    /// ended, or there was none by the deadline.
    pub(super) async fn confirmed_since(
        &self,
        oldest: Instant,
        deadline: Deadline,
    ) -> Option<Instant> {
        let mut confirmed = self.confirmed.subscribe();
        let is_new = |last: &Option<Instant>| last.is_none_or(|last| last >= oldest);
        let confirmed = self.time.bound(deadline, confirmed.wait_for(is_new)).await;
        *confirmed.ok()?.ok()?
    }

    /// Resolves when the lease has ended.
    pub(super) async fn gone(&self) {
        let mut confirmed = self.confirmed.subscribe();
        let _ = confirmed.wait_for(Option::is_none).await;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.confirmed().is_none()
    }

    pub(super) fn confirmed(&self) -> Option<Instant> {
        *self.confirmed.borrow()
    }

    pub(super) fn confirm(&self, sent_at: Instant) {
        self.confirmed.send_if_modified(|last| {
            *last = last.map(|_| sent_at);
            last.is_some()
        });
    }

    /// The server has reported that the lease has ended, or it must be taken to have.
    pub(super) fn end(&self) {
        self.users.lock().retired = true;
        self.confirmed.send_replace(None);
    }

    /// Lets nobody else in, so that the lease can end soon: a request that may still be run would
    /// attach a key to it that nobody wants any more. Returns whether somebody could enter before.
    pub(super) fn retire(&self) -> bool {
        let was_retired = std::mem::replace(&mut self.users.lock().retired, true);
        self.demand.notify_one();
        !was_retired
    }

    /// Whether nobody uses the lease, or will: it was retired, or has had no users for as long as
    /// it lasts. In the latter case, it is retired now.
    pub(super) fn is_unused(&self) -> bool {
        let mut users = self.users.lock();
        let unused = users.number == 0;
        let lasts_until = Deadline::from(users.left_at, self.ttl);
        users.retired |= unused && self.time.has_passed(lasts_until);
        unused && users.retired
    }
}

impl LeaseRef {
    fn to(lease: Arc<Lease>) -> Self {
        let has_left = AtomicBool::new(false);
        Self { lease, has_left }
    }

    /// The lease need not be kept alive for this user any more.
    pub(super) fn leave(&self) {
        if self.has_left.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut users = self.lease.users.lock();
        users.number -= 1;
        users.left_at = self.lease.time.now();
        if users.number == 0 && users.retired {
            self.lease.demand.notify_one();
        }
    }
}

impl Drop for LeaseRef {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may report any ttl.
    #[tokio::test]
    async fn a_lease_of_any_length_is_counted() {
        let time = Time::of_the_machine(tokio::runtime::Handle::current());
        for seconds in [1, i64::MAX.unsigned_abs()] {
            let (now, ttl) = (time.now(), Duration::from_secs(seconds));
            let first = Lease::begin(1, 1, ttl, false, now, time.clone());
            let lease = Arc::clone(&first.lease);
            assert!(!lease.is_unused());
            drop(first);
            assert!(!lease.is_unused(), "not for as long as it lasts");
        }
    }
}
