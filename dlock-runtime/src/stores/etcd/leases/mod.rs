//! etcd's leases: shared by all requests of a process that have the same ttl,
//! kept alive while anybody uses them, and given up when they have not been
//! confirmed for as long as they last.
//!
//! What the server may think of a lease is judged by the last confirmation
//! alone: a stream that stalls gives no error.

mod keep;
mod lease;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::Client;
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;

pub(super) use self::lease::{Lease, LeaseRef};
use super::errors::Failed;
use super::members::Members;
use super::places::Places;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::in_flight::InFlight;
use crate::store::Scope;

/// All leases of a backend.
pub(super) struct Leases {
    members: Arc<Members>,
    places: Arc<Places>,
    events: Events,
    /// By their length in seconds, which is how etcd counts.
    shared: Mutex<HashMap<i64, Slot>>,
    /// Those that have not ended.
    alive: Mutex<HashSet<Scope>>,
    stopping: CancellationToken,
    kept: InFlight,
}

type Slot = Arc<OnceCell<Arc<Lease>>>;

impl Leases {
    pub(super) fn new(members: Arc<Members>, places: Arc<Places>, events: Events) -> Arc<Self> {
        Arc::new(Self {
            members,
            places,
            events,
            shared: Mutex::default(),
            alive: Mutex::default(),
            stopping: CancellationToken::new(),
            kept: InFlight::default(),
        })
    }

    /// The lease of all requests that last as long.
    pub(super) async fn shared(
        self: &Arc<Self>,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failed> {
        let seconds = seconds(ttl);
        let slot = self.slots().get(&seconds).cloned();
        let lease = slot.as_ref().and_then(|slot| slot.get());
        if let Some(lease_ref) = lease.and_then(|lease| LeaseRef::enter(lease, false)) {
            return Ok(lease_ref);
        }
        let leases = Arc::clone(self);
        let begin = async move { leases.begin_shared(seconds, deadline).await };
        Box::pin(self.to_its_end(begin)).await
    }

    async fn begin_shared(
        self: &Arc<Self>,
        seconds: i64,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failed> {
        loop {
            let slot = Arc::clone(self.slots().entry(seconds).or_default());
            let granted = slot.get_or_try_init(|| self.grant(seconds, deadline));
            let granted = self.members.time.bound(deadline, granted).await;
            let lease = granted.map_err(|_| Failed::not_sent())??;
            if let Some(lease_ref) = LeaseRef::enter(lease, false) {
                return Ok(lease_ref);
            }
            let mut slots = self.slots();
            let is_this = |now: &Slot| Arc::ptr_eq(now, &slot);
            if slots.get(&seconds).is_some_and(is_this) {
                slots.remove(&seconds);
            }
        }
    }

    /// A lease for one request alone, revoked when that has left.
    pub(super) async fn private(
        self: &Arc<Self>,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failed> {
        let leases = Arc::clone(self);
        self.to_its_end(async move {
            let lease = leases.grant(seconds(ttl), deadline).await?;
            LeaseRef::enter(&lease, true).ok_or_else(Failed::not_sent)
        })
        .await
    }

    /// A lease that ends by itself, and when it was asked for.
    pub(super) async fn fixed(
        &self,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<(i64, Instant), Failed> {
        let seconds = seconds(ttl);
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let answer = self.members.ask(deadline, grant).await?;
        Ok((answer.value.id(), answer.sent_at))
    }

    async fn grant(
        self: &Arc<Self>,
        seconds: i64,
        deadline: Deadline,
    ) -> Result<Arc<Lease>, Failed> {
        // A grant whose answer is lost ends by itself, with nothing attached.
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let answer = self.members.ask(deadline, grant).await?;
        let ttl = Duration::from_secs(answer.value.ttl().unsigned_abs());
        let time = &self.members.time;
        let lease = Lease::new(answer.value.id(), ttl, answer.sent_at, time.clone());
        self.alive().insert(lease.scope());
        time.spawn(Arc::clone(self).keep(Arc::clone(&lease), self.kept.count()));
        Ok(lease)
    }

    /// A lease that was granted is somebody's, though who asked has left.
    async fn to_its_end(
        &self,
        work: impl Future<Output = Result<LeaseRef, Failed>> + Send + 'static,
    ) -> Result<LeaseRef, Failed> {
        let (done, answer) = oneshot::channel();
        self.members.time.spawn(async move {
            let _ = done.send(work.await);
        });
        answer.await.unwrap_or_else(|_| Err(Failed::not_sent()))
    }

    /// Whether a lease has ended, or must be taken to have.
    pub(super) fn has_ended(&self, scope: Scope) -> bool {
        !self.alive().contains(&scope)
    }

    /// Revokes all of them.
    pub(super) async fn stop(&self, deadline: Deadline) {
        self.stopping.cancel();
        let time = &self.members.time;
        let _ = time.bound(deadline, self.kept.wait_idle()).await;
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i64, Slot>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> MutexGuard<'_, HashSet<Scope>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
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
