//! etcd's leases: shared by all requests of a process that have the same ttl,
//! kept alive while anybody uses them, and given up when they have not been
//! confirmed for as long as they last.
//!
//! What the server may think of a lease is judged by the last confirmation
//! alone: a stream that stalls gives no error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Error, LeaseKeepAliveStream, LeaseKeeper, Txn, TxnOp};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::errors::{Verdict, silent, verdict};
use super::held::Held;
use super::members::{Asked, Members};
use crate::backend::BackendError;
use crate::under_way::{Counted, UnderWay};

/// How often a lease is kept alive while it lasts once.
const BEATS: u32 = 3;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Servers take 128 operations in a transaction (`--max-txn-ops`).
const DELETES_AT_ONCE: usize = 100;

/// All leases of a backend.
pub(super) struct Leases {
    members: Arc<Members>,
    held: Arc<Held>,
    /// By their length in seconds, which is how etcd counts.
    shared: Mutex<HashMap<i64, Slot>>,
    stopping: CancellationToken,
    tasks: UnderWay,
}

type Slot = Arc<OnceCell<Arc<Lease>>>;

/// A lease in etcd.
pub(super) struct Lease {
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
    key: String,
    /// A request may yet be done that makes it anew: deleted again and again
    /// until the lease has ended, as nothing can be attached to it then.
    ghost: bool,
    due: Instant,
    pause: Duration,
    /// Until it has been deleted once.
    counted: Option<Counted>,
}

/// The right to attach keys to a lease, which is kept alive for it.
pub(super) struct Tenancy(Arc<Lease>);

impl Leases {
    pub(super) fn new(
        members: Arc<Members>,
        held: Arc<Held>,
        stopping: CancellationToken,
        tasks: UnderWay,
    ) -> Arc<Self> {
        Arc::new(Self {
            members,
            held,
            shared: Mutex::default(),
            stopping,
            tasks,
        })
    }

    /// The lease of all requests that last as long.
    pub(super) async fn shared(
        self: &Arc<Self>,
        ttl: Duration,
        since: Instant,
        deadline: Instant,
    ) -> Result<Tenancy, BackendError> {
        let seconds = seconds(ttl);
        loop {
            let slot = Arc::clone(self.slots().entry(seconds).or_default());
            let granted = slot.get_or_try_init(|| self.grant(seconds, false, since, deadline));
            let lease = timeout_at(deadline, granted)
                .await
                .map_err(|_| silent(self.members.place(), since.elapsed()))??;
            if let Some(tenancy) = Tenancy::enter(lease) {
                return Ok(tenancy);
            }
            let mut slots = self.slots();
            if slots
                .get(&seconds)
                .is_some_and(|now| Arc::ptr_eq(now, &slot))
            {
                slots.remove(&seconds);
            }
        }
    }

    /// A lease for one request alone, revoked when that has left.
    pub(super) async fn private(
        self: &Arc<Self>,
        ttl: Duration,
        since: Instant,
        deadline: Instant,
    ) -> Result<Tenancy, BackendError> {
        let lease = self.grant(seconds(ttl), true, since, deadline).await?;
        Tenancy::enter(&lease).ok_or_else(|| silent(self.members.place(), since.elapsed()))
    }

    /// A lease that ends by itself, and when it was asked for.
    pub(super) async fn fixed(&self, ttl: Duration) -> Result<(i64, Instant), BackendError> {
        let seconds = seconds(ttl);
        let grant = |mut client: etcd_client::Client| async move {
            client.lease_grant(seconds, None).await
        };
        let answer = self.members.call(grant).await?;
        Ok((answer.value.id(), answer.sent_at))
    }

    async fn grant(
        self: &Arc<Self>,
        seconds: i64,
        private: bool,
        since: Instant,
        deadline: Instant,
    ) -> Result<Arc<Lease>, BackendError> {
        // A grant whose answer is lost ends by itself, with nothing attached.
        let grant = |mut client: etcd_client::Client| async move {
            client.lease_grant(seconds, None).await
        };
        let answer = self.members.call_until(since, deadline, grant).await?;
        let lease = Arc::new(Lease {
            id: answer.value.id(),
            ttl: Duration::from_secs(answer.value.ttl().unsigned_abs()),
            private,
            state: watch::Sender::new(State::Alive {
                confirmed: answer.sent_at,
            }),
            demand: Notify::new(),
            use_: Mutex::new(Use {
                tenants: 0,
                left_at: Instant::now(),
                retired: false,
                owed: Vec::new(),
            }),
            changed: Notify::new(),
        });
        // Both end with the lease, and that with the backend.
        tokio::spawn(Arc::clone(self).keep(Arc::clone(&lease), self.tasks.count()));
        tokio::spawn(clean(
            Arc::clone(&lease),
            Arc::clone(&self.members),
            self.tasks.count(),
        ));
        Ok(lease)
    }

    /// The life of a lease.
    async fn keep(self: Arc<Self>, lease: Arc<Lease>, _counted: Counted) {
        if self.beat_while_used(&lease).await == End::Revoke {
            self.revoke(&lease).await;
        }
        lease.end();
        self.held.lost_with(lease.id);
        let is_this = |slot: &Slot| slot.get().is_some_and(|other| other.id == lease.id);
        self.slots().retain(|_, slot| !is_this(slot));
    }

    async fn beat_while_used(&self, lease: &Lease) -> End {
        let mut stream = Stream::default();
        let mut pause = FIRST_PAUSE;
        let Some(mut confirmed) = lease.confirmed() else {
            return End::Leave;
        };
        let mut next = confirmed + lease.ttl / BEATS;
        loop {
            let ends = confirmed + lease.ttl;
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Revoke,
                () = lease.gone() => return End::Leave,
                () = sleep_until(ends) => return End::Leave,
                () = lease.unused() => return End::Revoke,
                () = sleep_until(next) => {}
                () = lease.demand.notified() => {}
            }
            let limit = ends.min(Instant::now() + self.members.settings.patience());
            let beat = timeout_at(limit, self.beat(lease, &mut stream));
            let answer = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::Revoke,
                answer = beat => answer,
            };
            match answer {
                Ok(Ok(sent_at)) => {
                    self.members.heard(sent_at);
                    confirmed = sent_at;
                    lease.confirm(sent_at);
                    pause = FIRST_PAUSE;
                    next = sent_at + lease.ttl / BEATS;
                }
                Ok(Err(Verdict::LeaseNotFound)) => return End::Leave,
                failed => {
                    // The next one goes out over another stream.
                    match std::mem::take(&mut stream).asked {
                        Some(asked) if failed.is_err() => self.members.discard(&asked),
                        Some(asked) => self.members.avoid(&asked),
                        None => {}
                    }
                    next = Instant::now() + pause;
                    pause = (pause * 2).min(LAST_PAUSE).min(lease.ttl / 10);
                }
            }
        }
    }

    /// Keeps the lease alive once: when the request was sent.
    ///
    /// It goes where other requests go: a leader that was replaced, and stands
    /// still, confirms leases which it does not keep any more, but it cannot
    /// answer those (etcd issue 15247).
    async fn beat(&self, lease: &Lease, stream: &mut Stream) -> Result<Instant, Verdict> {
        if let Some(asked) = &stream.asked
            && !self.members.is_current(asked)
        {
            *stream = Stream::default();
        }
        if let Some((keeper, answers)) = &mut stream.open {
            let sent_at = Instant::now();
            keeper.keep_alive().await.map_err(|e| verdict(&e))?;
            return match answers.message().await.map_err(|e| verdict(&e))? {
                Some(answer) if answer.ttl() > 0 => Ok(sent_at),
                Some(_) => Err(Verdict::LeaseNotFound),
                None => Err(Verdict::AskElsewhere),
            };
        }
        let asked = self.members.client().await.map_err(|e| verdict(&e))?;
        let mut client = asked.client.clone();
        stream.asked = Some(asked);
        let sent_at = Instant::now();
        match client.lease_keep_alive(lease.id).await {
            Ok(open) => {
                stream.open = Some(open);
                Ok(sent_at)
            }
            Err(Error::LeaseKeepAliveError(text)) if text.contains("not found") => {
                Err(Verdict::LeaseNotFound)
            }
            Err(error) => {
                let verdict = verdict(&error);
                if verdict == Verdict::LogIn {
                    // Should it fail, so will the next beat.
                    let _ = client.refresh_token().await;
                }
                Err(verdict)
            }
        }
    }

    /// Ends a lease and all that is attached to it, if the server can be reached
    /// before it ends by itself.
    async fn revoke(&self, lease: &Lease) {
        let Some(confirmed) = lease.confirmed() else {
            return;
        };
        let mut ends = confirmed + lease.ttl;
        if self.stopping.is_cancelled() {
            ends = ends.min(Instant::now() + self.members.settings.request_timeout);
        }
        let id = lease.id;
        let revoke = |mut client: etcd_client::Client| async move { client.lease_revoke(id).await };
        let _ = self.members.call_until(confirmed, ends, revoke).await;
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i64, Slot>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has ended, or nobody can say.
    Leave,
    Revoke,
}

/// The stream on which a lease is kept alive.
#[derive(Default)]
struct Stream {
    /// Whoever it goes to.
    asked: Option<Asked>,
    open: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
}

impl Lease {
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// When the request was sent that was last confirmed; `None` if the lease
    /// has ended.
    fn confirmed(&self) -> Option<Instant> {
        match *self.state.borrow() {
            State::Alive { confirmed } => Some(confirmed),
            State::Gone => None,
        }
    }

    /// The same, of a request that was sent at `oldest` or later. `None` too if
    /// it is not confirmed by the deadline.
    pub(super) async fn confirmed_since(
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
    pub(super) async fn gone(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| *state == State::Gone).await;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.confirmed().is_none()
    }

    fn confirm(&self, sent_at: Instant) {
        self.state.send_if_modified(|state| {
            let alive = *state != State::Gone;
            if alive {
                *state = State::Alive { confirmed: sent_at };
            }
            alive
        });
    }

    /// The server says that it has ended, or it must be taken to have.
    pub(super) fn end(&self) {
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
    pub(super) fn give_back(&self, key: String, ghost: bool, counted: Counted) {
        let mut use_ = self.use_();
        if self.is_gone() {
            return;
        }
        use_.retired |= ghost;
        use_.owed.push(Owed {
            key,
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
    async fn unused(&self) {
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
    fn due(&self) -> Result<Vec<String>, Option<Instant>> {
        let use_ = self.use_();
        let now = Instant::now();
        let due = use_.owed.iter().filter(|owed| owed.due <= now);
        let due: Vec<_> = due
            .take(DELETES_AT_ONCE)
            .map(|owed| owed.key.clone())
            .collect();
        if due.is_empty() {
            return Err(use_.owed.iter().map(|owed| owed.due).min());
        }
        Ok(due)
    }

    fn deleted(&self, keys: &[String], deleted: bool) {
        let longest = if deleted {
            self.ttl / BEATS
        } else {
            LAST_PAUSE
        };
        let mut use_ = self.use_();
        use_.owed.retain_mut(|owed| {
            if !keys.contains(&owed.key) {
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

/// Deletes what is owed until the lease has ended.
async fn clean(lease: Arc<Lease>, members: Arc<Members>, _counted: Counted) {
    let clean = async {
        loop {
            let changed = lease.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match lease.due() {
                Ok(keys) => {
                    let delete = |key: &String| TxnOp::delete(key.as_str(), None);
                    let deletes: Vec<_> = keys.iter().map(delete).collect();
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

impl Tenancy {
    fn enter(lease: &Arc<Lease>) -> Option<Self> {
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

    pub(super) fn lease(&self) -> &Arc<Lease> {
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

/// etcd counts in seconds, and lets no lease end before them.
fn seconds(ttl: Duration) -> i64 {
    let whole = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX / 2);
    let rest = i64::from(ttl.subsec_nanos() > 0);
    (whole + rest).clamp(1, LONGEST_TTL)
}

/// What etcd takes (`MaxLeaseTTL` in `lease/lessor.go`).
const LONGEST_TTL: i64 = 9_000_000_000;
