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
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

pub(super) use self::lease::{Lease, Tenancy};
use super::errors::silent;
use super::held::Held;
use super::members::Members;
use super::places::Places;
use crate::backend::BackendError;
use crate::in_flight::InFlight;

/// All leases of a backend.
pub(super) struct Leases {
    members: Arc<Members>,
    held: Arc<Held>,
    places: Arc<Places>,
    /// By their length in seconds, which is how etcd counts.
    shared: Mutex<HashMap<i64, Slot>>,
    stopping: CancellationToken,
    tasks: InFlight,
}

type Slot = Arc<OnceCell<Arc<Lease>>>;

impl Leases {
    pub(super) fn new(
        members: Arc<Members>,
        held: Arc<Held>,
        places: Arc<Places>,
        stopping: CancellationToken,
        tasks: InFlight,
    ) -> Arc<Self> {
        Arc::new(Self {
            members,
            held,
            places,
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
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
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
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let answer = self.members.call_until(since, deadline, grant).await?;
        let ttl = Duration::from_secs(answer.value.ttl().unsigned_abs());
        let lease = Lease::new(answer.value.id(), ttl, private, answer.sent_at);
        // Both end with the lease, and that with the backend.
        tokio::spawn(Arc::clone(self).keep(Arc::clone(&lease), self.tasks.count()));
        tokio::spawn(lease::clean(
            Arc::clone(&lease),
            Arc::clone(&self.members),
            self.tasks.count(),
        ));
        Ok(lease)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i64, Slot>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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
