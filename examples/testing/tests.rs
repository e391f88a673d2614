//! Each test has a store of its own, in memory, and a clock that jumps: an
//! import of a minute takes none. A manager stands for a copy of the service.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::{Config, LockError, LockManager, LossReason};
use tokio::time::{Instant, sleep};

use crate::importer::{Batch, ImportError, Imported, Importer};
use crate::ledger::{Ledger, Stale};

const WRITE: Duration = Duration::from_secs(1);

/// A copy of the service.
struct Copy {
    locks: LockManager,
    importer: Importer,
}

/// What the copies share.
struct World {
    store: Memory,
    ledger: Arc<Ledger>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            store: Memory::new(),
            ledger: Arc::new(Ledger::new(WRITE)),
        }
    }
}

impl World {
    async fn copy(&self) -> Copy {
        let config = Config::with_backend(self.store.clone());
        Copy {
            locks: LockManager::connect(config).await.expect("memory connects"),
            importer: Importer::new(Arc::clone(&self.ledger)),
        }
    }
}

impl Copy {
    /// What the service would do on a delivery.
    async fn import(&self, batch: &Batch) -> Result<Imported, ImportError> {
        self.locks.scope(self.importer.import(batch)).await
    }

    async fn clean_up(&self) -> usize {
        self.locks.scope(self.importer.clean_up()).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_delivered_twice_is_imported_once() {
    let world = World::default();
    let (one, other) = (world.copy().await, world.copy().await);
    let batch = Batch::new("monday", 50);

    let (first, second) = tokio::join!(one.import(&batch), other.import(&batch));
    assert_eq!(first.expect("it is free"), Imported::Now);
    assert_eq!(second.expect("its turn comes"), Imported::Before);
    assert_eq!(world.ledger.writes("monday"), 50);
}

#[tokio::test(start_paused = true)]
async fn batches_do_not_wait_for_each_other() {
    let world = World::default();
    let copy = world.copy().await;
    let (monday, tuesday) = (Batch::new("monday", 20), Batch::new("tuesday", 20));
    let start = Instant::now();
    let (one, other) = tokio::join!(copy.import(&monday), copy.import(&tuesday));
    assert_eq!((one.is_ok(), other.is_ok()), (true, true));
    assert_eq!(start.elapsed(), 20 * WRITE, "one after the other");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_stops_the_import() {
    let world = World::default();
    let copy = world.copy().await;
    let batch = Batch::new("monday", 50);
    let operator = async {
        // In the middle, somebody deletes the lock in the store.
        sleep(10 * WRITE + WRITE / 2).await;
        assert!(world.store.faults().take_away("import:monday"));
    };
    let (lost, ()) = tokio::join!(copy.import(&batch), operator);
    let Err(ImportError::Lock(LockError::Lost { reason, .. })) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(reason, LossReason::Gone);

    // Nothing goes on behind its back: neither the body nor what it spawned.
    let written = world.ledger.writes("monday");
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.ledger.writes("monday"), written);
    assert!(!world.ledger.is_complete("monday"));

    // The next delivery goes on.
    let next = world.copy().await.import(&batch).await;
    assert_eq!(next.expect("the lock is free"), Imported::Now);
    assert_eq!(world.ledger.rows("monday").len(), 50);
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_late_is_refused_by_the_ledger() {
    let world = World::default();
    let (paused, other) = (world.copy().await, world.copy().await);
    // As a copy would that was paused between its last look and the write.
    let late = paused.locks.lock("import:monday").acquire().await;
    let late = late.expect("the lock is free");
    assert!(world.store.faults().take_away("import:monday"));

    let batch = Batch::new("monday", 1);
    assert!(other.import(&batch).await.is_ok());
    let write = world.ledger.write("monday", 0, Some(late.token()));
    assert_eq!(write.await, Err(Stale));
    assert_eq!(world.ledger.writes("monday"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_imports_nothing_and_heals() {
    let world = World::default();
    let copy = world.copy().await;
    let batch = Batch::new("monday", 5);
    world.store.faults().set_unavailable(true);
    let refused = copy.import(&batch).await;
    assert!(
        matches!(
            refused,
            Err(ImportError::Lock(LockError::Unavailable { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(world.ledger.writes("monday"), 0);

    world.store.faults().set_unavailable(false);
    assert!(copy.import(&batch).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_stop_an_import() {
    let world = World::default();
    let copy = world.copy().await;
    let batch = Batch::new("monday", 120);
    let outage = async {
        sleep(5 * WRITE).await;
        world.store.faults().set_unavailable(true);
        // Less than the ttl: the lease is renewed when it is over.
        sleep(Duration::from_secs(12)).await;
        world.store.faults().set_unavailable(false);
    };
    let (imported, ()) = tokio::join!(copy.import(&batch), outage);
    assert_eq!(imported.expect("it is held all the time"), Imported::Now);
}

#[tokio::test(start_paused = true)]
async fn an_import_that_hangs_is_not_waited_for_longer_than_said() {
    let world = World::default();
    let (hangs, other) = (world.copy().await, world.copy().await);
    let held = hangs.locks.lock("import:monday").acquire().await;
    let batch = Batch::new("monday", 5);
    let start = Instant::now();
    let refused = other.import(&batch).await;
    assert!(
        matches!(refused, Err(ImportError::Lock(LockError::Timeout { .. }))),
        "{refused:?}"
    );
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn two_copies_do_not_clean_up_at_once() {
    let world = World::default();
    let (one, other) = (world.copy().await, world.copy().await);
    for day in ["monday", "tuesday"] {
        assert!(one.import(&Batch::new(day, 1)).await.is_ok());
    }
    let start = Instant::now();
    let (here, there) = tokio::join!(one.clean_up(), other.clean_up());
    assert_eq!((here, there), (2, 0));
    assert_eq!(
        start.elapsed(),
        WRITE,
        "the other did not wait for its turn"
    );
}
