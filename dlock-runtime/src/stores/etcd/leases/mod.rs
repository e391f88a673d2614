//! etcd's leases: shared by all requests of a process that have the same ttl,
//! kept alive while anybody uses them, and given up when they have not been
//! confirmed for as long as they last.
//!
//! What the server may think of a lease is judged by the last confirmation
//! alone: a stream that stalls gives no error.

mod keep;
mod lease;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseGrantResponse};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub(super) use self::lease::{Lease, LeaseRef};
use super::errors::Failed;
use super::members::Members;
use super::places::Places;
use crate::deadline::Deadline;
use crate::in_flight::InFlight;
use crate::store::{Failure, Scope};

/// All leases of a backend.
pub(super) struct Leases {
    members: Arc<Members>,
    places: Arc<Places>,
    /// Those that have not ended.
    alive: Mutex<HashMap<Scope, Arc<Lease>>>,
    /// So that those who begin together share one.
    granting: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
    kept: InFlight,
}

impl Leases {
    pub(super) fn new(members: Arc<Members>, places: Arc<Places>) -> Arc<Self> {
        Arc::new(Self {
            members,
            places,
            alive: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
            kept: InFlight::default(),
        })
    }

    /// The lease of all requests that last as long, in the seconds that etcd counts;
    /// or a `private` one, which is revoked when its only request has left.
    pub(super) async fn take(
        self: &Arc<Self>,
        ttl: Duration,
        private: bool,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failure> {
        let seconds = seconds(ttl);
        if let Some(shared) = self.shared(seconds, private) {
            return Ok(shared);
        }
        let leases = Arc::clone(self);
        let (done, answer) = oneshot::channel();
        // A lease that was granted is somebody's, though who asked has left.
        self.members.time.spawn(async move {
            let _ = done.send(leases.begin(seconds, private, deadline).await);
        });
        answer.await.unwrap_or_else(|_| Err(Failure::not_sent()))
    }

    /// A lease that ends by itself, and when it was asked for.
    pub(super) async fn grant(
        &self,
        seconds: i64,
        deadline: Deadline,
    ) -> Result<(LeaseGrantResponse, Instant), Failure> {
        let sent_at = self.members.time.now();
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.members.ask(deadline, grant).await;
        Ok((granted.map_err(Failed::of_no_key)?, sent_at))
    }

    /// One that is kept alive. If the answer is lost it ends by itself, with nothing
    /// attached.
    async fn begin(
        self: &Arc<Self>,
        asked_for: i64,
        private: bool,
        deadline: Deadline,
    ) -> Result<LeaseRef, Failure> {
        let time = &self.members.time;
        let mut _alone = None;
        if !private {
            let alone = time.bound(deadline, self.granting.lock()).await;
            _alone = Some(alone.map_err(|_| Failure::not_sent())?);
        }
        if let Some(shared) = self.shared(asked_for, private) {
            return Ok(shared);
        }
        let (granted, sent_at) = self.grant(asked_for, deadline).await?;
        let ttl = Duration::from_secs(granted.ttl().unsigned_abs());
        let lease = Lease::new(granted.id(), asked_for, ttl, sent_at, time.clone());
        let lease_ref = LeaseRef::enter(&lease, private).ok_or_else(Failure::not_sent);
        self.alive().insert(lease.scope(), Arc::clone(&lease));
        time.spawn(Arc::clone(self).keep(lease, self.kept.count()));
        lease_ref
    }

    /// One that others have already.
    fn shared(&self, asked_for: i64, private: bool) -> Option<LeaseRef> {
        let alive = self.alive();
        let same = alive.values().filter(|lease| lease.asked_for == asked_for);
        same.filter(|_| !private)
            .find_map(|lease| LeaseRef::enter(lease, false))
    }

    /// Whether a lease has ended, or must be taken to have.
    pub(super) fn has_ended(&self, scope: Scope) -> bool {
        !self.alive().contains_key(&scope)
    }

    /// Revokes all of them.
    pub(super) async fn stop(&self, deadline: Deadline) {
        self.stopping.cancel();
        let time = &self.members.time;
        let _ = time.bound(deadline, self.kept.wait_idle()).await;
    }

    fn alive(&self) -> MutexGuard<'_, HashMap<Scope, Arc<Lease>>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// etcd counts in seconds, and lets no lease end before them.
pub(super) fn seconds(ttl: Duration) -> i64 {
    let whole = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX / 2);
    let rest = i64::from(ttl.subsec_nanos() > 0);
    (whole + rest).clamp(1, LONGEST_TTL)
}

/// What etcd takes (`MaxLeaseTTL` in `lease/lessor.go`).
const LONGEST_TTL: i64 = 9_000_000_000;
