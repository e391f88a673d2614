//! Three servers, some of which die, hang, or are cut off from the others.

use std::time::Duration;

use dlock_conformance::failover::{Failure, Led};
use dlock_conformance::{Store, async_trait, failovers};

use crate::harness::{config, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{had, healed, healed_at, held, impatient, queued, served};
use crate::support::polls::drive_until;
use crate::support::wait::{HANG, eventually, within};
use crate::support::zookeeper::{Ensemble, Setup};

fn url(ensemble: &Ensemble, session: &str) -> String {
    format!(
        "zookeeper://{}/locks?session_timeout={session}",
        ensemble.hosts()
    )
}

/// A server that was cut off from the others goes on answering questions. The
/// holder that is connected to it must not take that for a sign of life: the
/// leader, which hears nothing of its session, gives the lock to the next.
#[tokio::test]
async fn a_server_that_is_cut_off_keeps_nobody_in_his_lease() {
    // A quarter of the holder's session.
    unless_it_stands_still(Duration::from_millis(500), a_server_is_cut_off).await;
}

async fn a_server_is_cut_off() {
    let (ensemble, cuts) = Ensemble::start_divisible().await;
    let leader = ensemble.leader().await;
    let lonely = (leader + 1) % 3;
    let there = |server: usize, session: &str| {
        let port = ensemble.0[server].port();
        format!("zookeeper://127.0.0.1:{port}/locks?session_timeout={session}")
    };
    let holder = connect(&there(lonely, "2s")).await;
    let other = connect(&there(leader, "20s")).await;
    let guard = held(holder.lock("key")).await;
    let mut waiting = tokio::spawn(other.lock("key").acquire());
    drive_until(&mut waiting, queued(&other, "key", 1)).await;

    let client = ensemble.0[lonely].client().await;
    cuts.cut_off(lonely, true);
    // It is not aware of it: it answers.
    let nodes = client.list_children("/locks/key").await;
    let next = served(waiting).await;
    assert_eq!(nodes.expect("an answer").len(), 2);
    assert!(!guard.is_held(), "held by two");
    assert!(next.token() > guard.token());

    cuts.cut_off(lonely, false);
    ensemble.is_whole().await;
    drop(guard);
    next.release().await.expect("the release");
    healed(&holder).await;
    had(&holder, "key").await;
}

/// Without a majority nothing is granted, and that is said.
#[tokio::test]
async fn a_minority_grants_nothing() {
    let mut ensemble = Ensemble::start().await;
    let url = url(&ensemble, "20s");
    let manager = impatient(|| config(&url).request_timeout(Duration::from_secs(3))).await;
    healed_at(&manager, "key").await;
    for server in [0, 1] {
        ensemble.0[server].kill();
    }
    // What was under way when the second died may still be answered.
    eventually("it is unavailable", async || {
        match within(HANG, manager.lock("key").run(async {})).await {
            Err(dlock::LockError::Unavailable { .. }) => Some(()),
            Err(error) => panic!("{error:?}"),
            Ok(()) => None,
        }
    })
    .await;
    ensemble.0[0].restart().await;
    healed(&manager).await;
}

/// One whose leader fails.
struct Elected {
    ensemble: Ensemble,
    lost: Option<(usize, Failure)>,
}

#[async_trait(?Send)]
impl Store for Elected {
    async fn start() -> Self {
        Self {
            ensemble: Ensemble::with(Setup::default().extended()).await,
            lost: None,
        }
    }

    fn url(&self) -> String {
        url(&self.ensemble, "40s")
    }

    /// Longer than any election: nobody loses a lock here, so nobody may come in
    /// beside another.
    fn contenders_ttl(&self) -> Duration {
        Duration::from_secs(20)
    }
}

#[async_trait(?Send)]
impl Led for Elected {
    async fn lose_leader(&mut self, _: &str, failure: Failure) {
        let leader = self.ensemble.leader().await;
        match failure {
            Failure::Hangs => self.ensemble.0[leader].pause(),
            Failure::Dies => self.ensemble.0[leader].kill(),
            other => unreachable!("{other:?} is not among its failures"),
        }
        self.lost = Some((leader, failure));
    }

    async fn leader_is_back(&mut self) {
        match self.lost.take().expect("one that was lost") {
            (lost, Failure::Hangs) => self.ensemble.0[lost].resume(),
            (lost, Failure::Dies) => self.ensemble.0[lost].restart().await,
            (_, other) => unreachable!("{other:?} is not among its failures"),
        }
        self.ensemble.is_whole().await;
    }
}

failovers!(crate::ensemble::Elected);
