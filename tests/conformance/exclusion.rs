//! Guarantees 1 and 2: no body runs without the lock, and no two bodies run together.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::Mode;
use dlock::{LockError, LockManager};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::{PASSED_OVER, Store, free, had, held, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::critical::Section;
use crate::support::locks::{all_served, is_busy, served, shown, wants};
use crate::support::wait::until;

async fn three_processes(store: &dyn Store) -> (LockManager, LockManager, LockManager) {
    let first = process(store).await;
    (first, process(store).await, process(store).await)
}

pub(crate) async fn bodies_of_one_key_do_not_overlap(store: &mut dyn Store) {
    let section = Arc::new(Section::default());
    let mut contenders = JoinSet::new();
    for _ in 0..3 {
        let manager = process(store).await;
        for _ in 0..4 {
            let (manager, section) = (manager.clone(), Arc::clone(&section));
            contenders.spawn(async move {
                for _ in 0..10 {
                    manager.lock("key").run(section.visit()).await?;
                }
                Ok::<_, LockError>(())
            });
        }
    }
    all_served(contenders).await;
    assert_eq!(section.entries(), 3 * 4 * 10);
    assert_eq!(section.most(), 1);
}

pub(crate) async fn readers_share_and_a_writer_is_alone(store: &mut dyn Store) {
    let managers = [process(store).await, process(store).await];
    if !managers[0].capabilities().read_write {
        return;
    }
    // Readers of two processes are inside together: none passes the barrier before all are
    // inside.
    let all_inside = Arc::new(Barrier::new(4));
    let mut readers = JoinSet::new();
    for manager in managers.iter().cycle().take(4) {
        let all_inside = Arc::clone(&all_inside);
        let body = async move {
            all_inside.wait().await;
        };
        readers.spawn(manager.lock("key").read().run(body));
    }
    all_served(readers).await;

    // Writers and readers at once: a reader never sees half of a write.
    let section = Arc::new(Section::default());
    let halves = Arc::new(tokio::sync::RwLock::new(()));
    let mut contenders = JoinSet::new();
    for number in 0..12 {
        let manager = managers[number % 2].clone();
        let (section, halves) = (Arc::clone(&section), Arc::clone(&halves));
        contenders.spawn(async move {
            for _ in 0..5 {
                if number % 3 == 0 {
                    let write = async {
                        // Fails only if the distributed lock does not exclude others.
                        let _alone = halves.try_write().expect("the writer is alone");
                        section.visit().await;
                    };
                    manager.lock("key").run(write).await?;
                } else {
                    let read = async {
                        let _shared = halves.try_read().expect("no writer is inside");
                        tokio::task::yield_now().await;
                    };
                    manager.lock("key").read().run(read).await?;
                }
            }
            Ok::<_, LockError>(())
        });
    }
    all_served(contenders).await;
    assert_eq!(section.most(), 1);
    assert_eq!(section.entries(), 4 * 5);
}

pub(crate) async fn a_reader_waits_for_the_writer_that_holds(store: &mut dyn Store) {
    let (writer, reader) = (process(store).await, process(store).await);
    if !writer.capabilities().read_write {
        return;
    }
    let guard = held(writer.lock("key")).await;
    is_busy(reader.lock("key").read().try_acquire().await);

    let waiting = tokio::spawn(reader.lock("key").read().acquire());
    queued(store, &writer, "key", 1).await;
    guard.release().await.expect("the release");
    drop(served(waiting).await);
}

pub(crate) async fn a_writer_waits_for_every_reader(store: &mut dyn Store) {
    let (one, other, writer) = three_processes(store).await;
    if !one.capabilities().read_write {
        return;
    }
    let first = held(one.lock("key").read()).await;
    let second = held(other.lock("key").read()).await;
    let waiting = tokio::spawn(writer.lock("key").acquire());
    queued(store, &one, "key", 1).await;

    first.release().await.expect("the release");
    let shown = shown(&one, "key").await;
    assert_eq!(shown.mode, Mode::Read);
    assert_eq!(
        (shown.holders.len(), shown.waiters),
        (1, Some(1)),
        "{shown:?}"
    );
    is_busy(one.lock("key").try_acquire().await);
    assert!(!waiting.is_finished());

    second.release().await.expect("the release");
    let guard = served(waiting).await;
    guard.release().await.expect("the release");
    free(&one, "key").await;
}

/// A waiting writer gets the lock although readers keep coming.
pub(crate) async fn readers_do_not_starve_a_writer(store: &mut dyn Store) {
    let (readers, writer) = (process(store).await, process(store).await);
    let capabilities = readers.capabilities();
    if !capabilities.read_write || !capabilities.fair {
        return;
    }
    let mut reading = JoinSet::new();
    for number in 0..4 {
        let lock = readers.lock("key").read();
        // They overlap, so that without a queue the key would never be free.
        let pause = Duration::from_millis(10 + 3 * number);
        reading.spawn(async move {
            loop {
                let read = lock.clone().run(sleep(pause)).await;
                read.expect("the read lock");
            }
        });
    }
    for _ in 0..5 {
        had(&writer, "key").await;
    }
    reading.shutdown().await;
}

/// Readers that wait behind a writer get the lock when the writer leaves.
pub(crate) async fn readers_behind_a_writer_who_leaves_are_let_in(store: &mut dyn Store) {
    let (holder, writer, reader) = three_processes(store).await;
    if !holder.capabilities().read_write {
        return;
    }
    let guard = held(holder.lock("key").read()).await;
    let writing = tokio::spawn(writer.lock("key").acquire());
    queued(store, &holder, "key", 1).await;
    let reading = tokio::spawn(reader.lock("key").read().acquire());
    if holder.capabilities().fair {
        queued(store, &holder, "key", 2).await;
    }
    writing.abort();
    let beside = served(reading).await;
    assert!(guard.is_held());
    for reader in [guard, beside] {
        reader.release().await.expect("the release");
    }
    free(&holder, "key").await;
}

/// There is one queue, served in order: readers that are next to each other get the lock
/// together, and nobody overtakes a waiting writer.
pub(crate) async fn readers_and_writers_are_let_in_as_they_came(store: &mut dyn Store) {
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(process(store).await);
    }
    let holder = process(store).await;
    let capabilities = holder.capabilities();
    if !capabilities.read_write || !capabilities.fair {
        return;
    }
    let mut attempt = 0;
    unless_it_stands_still(PASSED_OVER / 3, async || {
        attempt += 1;
        are_let_in_as_they_came(store, &holder, &others, &format!("key:{attempt}")).await;
    })
    .await;
}

async fn are_let_in_as_they_came(
    store: &dyn Store,
    holder: &LockManager,
    others: &[LockManager],
    key: &str,
) {
    let reader = held(holder.lock(key).read()).await;
    let mut waiting = Vec::new();
    for (other, reads) in others.iter().zip([false, true, true, false]) {
        let request = wants(other.lock(key), reads);
        waiting.push(tokio::spawn(request.acquire()));
        queued(store, holder, key, waiting.len()).await;
    }
    is_busy(holder.lock(key).read().try_acquire().await);
    reader.release().await.expect("the release");
    // Whoever it is: the others would wait for it.
    let are_in = async || -> Vec<bool> { waiting.iter().map(JoinHandle::is_finished).collect() };
    let are_in = until("one is let in", are_in, |are_in| are_in.contains(&true)).await;
    assert_eq!(are_in, [true, false, false, false]);
    let last = waiting.pop().expect("a writer");
    let mut waiting = waiting.into_iter();
    let writer = served(waiting.next().expect("a writer")).await;
    queued(store, holder, key, 3).await;
    writer.release().await.expect("the release");
    let mut readers = Vec::new();
    for reading in waiting {
        readers.push(served(reading).await);
    }
    let shown = shown(holder, key).await;
    assert_eq!((shown.mode, shown.holders.len()), (Mode::Read, 2));
    assert!(shown.waiters == Some(1) && !last.is_finished());
    drop(readers);
    served(last).await.release().await.expect("the release");
}
