//! A lease: who uses it, how long it is known to last, and what is still to be
//! deleted under it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::backend::etcd::members::Members;
use crate::backend::etcd::places::Name;
use crate::in_flight::Counted;

/// How often a lease is kept alive while it lasts once.
pub(super) const BEATS: u32 = 3;

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Servers take 128 operations in a transaction (`--max-txn-ops`).
const DELETES_AT_ONCE: usize = 100;

/// A lease in etcd.
pub(crate) struct Lease {
    id: i64,
    /// As the server keeps it: no shorter than was asked.
    ttl: Duration,
    /// For one request only.
    private: bool,
    state: watch::Sender<State>,
    /// Told when somebody needs to know that it lives.
    demand: Notify,
    use_: Mutex<Use>,
    /// Told when there is less use of it, or more to give back.
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

struct Use {
    tenants: usize,
    left_at: Instant,
    /// Nobody else is let in. Without tenants, it is revoked.
    retired: bool,
    owed: Vec<Owed>,
}

/// A key that is to be deleted.
struct Owed {
    name: Arc<Name>,
    /// A request may yet be done that makes it anew: deleted again and again
    /// until the lease has ended, as nothing can be attached to it then.
    ghost: bool,
    due: Instant,
    pause: Duration,
    /// Until it has been deleted once.
    counted: Option<Counted>,
}

/// The right to attach keys to a lease, which is kept alive for it.
pub(crate) struct Tenancy(Arc<Lease>);

impl Lease {
    /// The lease with this id, which was asked for at `sent_at`.
    pub(super) fn new(id: i64, ttl: Duration, private: bool, sent_at: Instant) -> Arc<Self> {
        Arc::new(Self {
            id,
            ttl,
            private,
            state: watch::Sender::new(State::Alive { confirmed: sent_at }),
            demand: Notify::new(),
            use_: Mutex::new(Use {
                tenants: 0,
                left_at: Instant::now(),
                retired: false,
                owed: Vec::new(),
            }),
            changed: Notify::new(),
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

    /// When the request was sent that was last confirmed; `None` if the lease
    /// has ended.
    pub(super) fn confirmed(&self) -> Option<Instant> {
        match *self.state.borrow() {
            State::Alive { confirmed } => Some(confirmed),
            State::Gone => None,
        }
    }

    /// The same, of a request that was sent at `oldest` or later. `None` too if
    /// it is not confirmed by the deadline.
    pub(crate) async fn confirmed_since(
        &self,
        oldest: Instant,
        deadline: Instant,
    ) -> Option<Instant> {
        let mut state = self.state.subscribe();
        loop {
            match *state.borrow_and_update() {
                State::Gone => return None,
                State::Alive { confirmed } if confirmed >= oldest => return Some(confirmed),
                State::Alive { .. } => {}
            }
            self.demand.notify_one();
            timeout_at(deadline, state.changed()).await.ok()?.ok()?;
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
        let owed = {
            let mut use_ = self.use_();
            use_.retired = true;
            std::mem::take(&mut use_.owed)
        };
        drop(owed);
        self.state.send_replace(State::Gone);
    }

    /// Has a key deleted that is attached to this lease. A ghost is one that a
    /// request may yet make anew: then nobody else gets this lease, so that it
    /// can end soon.
    pub(crate) fn give_back(&self, name: Arc<Name>, ghost: bool, counted: Counted) {
        let mut use_ = self.use_();
        if self.is_gone() {
            return;
        }
        use_.retired |= ghost;
        use_.owed.push(Owed {
            name,
            ghost,
            due: Instant::now(),
            pause: FIRST_PAUSE,
            counted: Some(counted),
        });
        drop(use_);
        self.changed();
    }

    /// Resolves when nobody has used it for as long as it lasts, or can use it
    /// any more. Nobody is let in after that.
    pub(super) async fn unused(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let at = {
                let mut use_ = self.use_();
                let now = Instant::now();
                let at = match use_.tenants {
                    0 if use_.retired => Some(now),
                    0 if use_.owed.is_empty() => Some(use_.left_at + self.ttl),
                    _ => None,
                };
                if at.is_some_and(|at| at <= now) {
                    use_.retired = true;
                    return;
                }
                at
            };
            match at {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// Those keys whose time it is to be deleted, or when the next one's comes.
    fn due(&self) -> Result<Vec<Arc<Name>>, Option<Instant>> {
        let use_ = self.use_();
        let now = Instant::now();
        let due = use_.owed.iter().filter(|owed| owed.due <= now);
        let due: Vec<_> = due
            .take(DELETES_AT_ONCE)
            .map(|owed| Arc::clone(&owed.name))
            .collect();
        if due.is_empty() {
            return Err(use_.owed.iter().map(|owed| owed.due).min());
        }
        Ok(due)
    }

    fn deleted(&self, keys: &[Arc<Name>], deleted: bool) {
        let longest = if deleted {
            self.ttl / BEATS
        } else {
            LAST_PAUSE
        };
        let mut use_ = self.use_();
        use_.owed.retain_mut(|owed| {
            if !keys.iter().any(|key| Arc::ptr_eq(key, &owed.name)) {
                return true;
            }
            if deleted {
                owed.counted = None;
            }
            owed.due = Instant::now() + owed.pause;
            owed.pause = (owed.pause * 2).min(longest.max(FIRST_PAUSE));
            owed.ghost || !deleted
        });
        drop(use_);
        self.changed();
    }

    fn changed(&self) {
        self.changed.notify_waiters();
    }

    fn use_(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenancy {
    pub(super) fn enter(lease: &Arc<Lease>) -> Option<Self> {
        let mut use_ = lease.use_();
        if use_.retired || lease.is_gone() || (lease.private && use_.tenants > 0) {
            return None;
        }
        use_.tenants += 1;
        use_.retired |= lease.private;
        drop(use_);
        lease.changed();
        Some(Self(Arc::clone(lease)))
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.0
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let mut use_ = self.0.use_();
        use_.tenants -= 1;
        use_.left_at = Instant::now();
        drop(use_);
        self.0.changed();
    }
}

/// Deletes the key if it is still that of the request: what comes late must not
/// find somebody else there.
fn delete(name: &Name) -> TxnOp {
    let own = Compare::value(name.key(), CompareOp::Equal, name.value());
    let delete = TxnOp::delete(name.key(), None);
    TxnOp::txn(Txn::new().when([own]).and_then([delete]))
}

/// Deletes what is owed until the lease has ended.
pub(super) async fn clean(lease: Arc<Lease>, members: Arc<Members>, _counted: Counted) {
    let clean = async {
        loop {
            let changed = lease.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match lease.due() {
                Ok(keys) => {
                    let deletes: Vec<_> = keys.iter().map(|key| delete(key)).collect();
                    let txn = Txn::new().and_then(deletes);
                    let delete = |mut client: etcd_client::Client| {
                        let txn = txn.clone();
                        async move { client.txn(txn).await }
                    };
                    let answer = members.call(delete).await;
                    lease.deleted(&keys, answer.is_ok());
                }
                Err(Some(next)) => tokio::select! {
                    () = sleep_until(next) => {}
                    () = changed => {}
                },
                Err(None) => changed.await,
            }
        }
    };
    tokio::select! {
        biased;
        () = lease.gone() => {}
        () = clean => {}
    }
}
