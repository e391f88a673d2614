//! Leases that end by themselves.

use std::time::Duration;

use dlock::backend::redis::Cluster as Backing;
use dlock::backend::{Backend, Mode, Request};

use crate::support::cluster::Cluster;
use crate::support::lent::Lent;
use crate::support::wait::eventually;

/// A process ends its leases on most masters by itself. A grant that is read only after that must
/// count as lost, as on Redlock.
#[tokio::test]
async fn a_lease_that_has_ended_on_most_masters_is_known_to_have_ended() {
    let lent = Lent::<Cluster>::empty().await;
    let backing = Backing::from_url(&lent.url("?quorum=masters")).expect("a valid URL");
    backing.start().await.expect("the backend starts");
    let request = Request::new("key", Mode::Write, Duration::from_secs(2));
    let granted = backing.try_acquire(&request).await.expect("an answer");
    assert!(granted.is_some(), "the lock is free");
    eventually("the lease has ended", async || {
        backing.has_ended(request.owner).then_some(())
    })
    .await;
    backing.stop().await;
}
