//! A lease of etcd: who uses it, and how long it is known to last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::{Failure, Scope};
use crate::sync::Mutex;

pub(crate) struct Lease {
    pub(super) id: i64,
    /// The ttl that was asked for, in seconds.
    pub(super) asked_for: i64,
    /// The ttl that the server keeps, which is no shorter.
    pub(super) ttl: Duration,
    time: Time,
    known: watch::Sender<Known>,
    users: Mutex<Users>,
    /// Notified when somebody needs a new confirmation, and when nobody can use the lease any more.
    demand: Notify,
}

/// What the server has said of a lease.
struct Known {
    /// When the last request was sent that the server has confirmed: the lease lasts its ttl from
    /// then. `None`: it has ended, or must be taken to have.
    confirmed: Option<Instant>,
    /// Why the server has refused to keep it alive, since it last did.
    refusal: Option<Failure>,
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
            known: watch::Sender::new(Known {
                confirmed: Some(sent_at),
                refusal: None,
            }),
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

    /// When a confirmation was sent that is no older than `oldest`. `None`: the lease has ended.
    /// Fails if there was none by the deadline, or if the server refuses to keep the lease alive.
    pub(super) async fn confirmed_since(
        &self,
        oldest: Instant,
        deadline: Deadline,
    ) -> Result<Option<Instant>, Failure> {
        let is_new = |known: &Known| known.confirmed.is_none_or(|last| last >= oldest);
        let mut known = self.known.subscribe();
        let told = known.wait_for(|known| is_new(known) || known.refusal.is_some());
        let told = self.time.bound(deadline, told).await;
        let Ok(Ok(known)) = told else {
            return Err(Failure::not_sent());
        };
        match &known.refusal {
            Some(refusal) if !is_new(&known) => Err(refusal.clone()),
            _ => Ok(known.confirmed),
        }
    }

    /// Resolves when the lease has ended.
    pub(super) async fn gone(&self) {
        let mut known = self.known.subscribe();
        let _ = known.wait_for(|known| known.confirmed.is_none()).await;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.confirmed().is_none()
    }

    pub(super) fn confirmed(&self) -> Option<Instant> {
        self.known.borrow().confirmed
    }

    pub(super) fn confirm(&self, sent_at: Instant) {
        self.known.send_if_modified(|known| {
            known.confirmed = known.confirmed.map(|_| sent_at);
            known.refusal = None;
            known.confirmed.is_some()
        });
    }

    /// The server refuses to keep the lease alive, because of one of the keys that are attached to
    /// it. This tells all who wait for a confirmation. Nobody else is let in, so that other locks
    /// get a lease that does not end with these.
    pub(super) fn refuse(&self, refusal: Failure) {
        self.users.lock().retired = true;
        self.known
            .send_modify(|known| known.refusal = Some(refusal));
    }

    /// The server has reported that the lease has ended, or it must be taken to have.
    pub(super) fn end(&self) {
        self.users.lock().retired = true;
        self.known.send_modify(|known| known.confirmed = None);
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
