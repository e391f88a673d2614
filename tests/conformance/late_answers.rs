//! Answers that come late, or not by their deadline, although no network fails: the caller stands
//! still between a question and its answer, or the question waits in the caller's own process.
//! (Part of guarantees 2, 8 and 9.)

use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dlock::{LockError, LockGuard, LockManager};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::{Store, had, held, nothing_left, process};
use crate::support::calm::{always, unless_it_stands_still};
use crate::support::late::{Late, LateAnswers, LateBackend};
use crate::support::locks::{by, healed_at, impatient};
use crate::support::polls::join_all;
use crate::support::wait::{HANG, eventually, within};

/// Where an answer is late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    /// Its caller, which has been polled so often, is not polled meanwhile.
    AfterPolls(usize),
    /// On its way from the store, for one that receives it elsewhere.
    ByNobody,
}

/// The ways in which an answer can be late, each with a number. Those of one list go together.
fn ways(store: &dyn Store) -> [Vec<(usize, Seen)>; 2] {
    // The question is sent by the first poll or by the second, and a quick store may have answered
    // it by then.
    let not_polled = [1, 1, 1, 1, 1, 1, 2, 2].map(Seen::AfterPolls);
    let nobody_sees = match store.proxies() {
        [] => Vec::new(),
        _ => vec![(not_polled.len(), Seen::ByNobody)],
    };
    [not_polled.into_iter().enumerate().collect(), nobody_sees]
}

impl Seen {
    fn late(self, by: Duration) -> Late {
        match self {
            Self::AfterPolls(polls) => Late::By(by, polls),
            Self::ByNobody => Late::By(Duration::ZERO, 1),
        }
    }

    /// Keeps the answers of this time from all processes.
    async fn withheld(self, store: &dyn Store, time: Duration) {
        let stall = |stall| {
            let proxies = store.proxies().iter();
            proxies.for_each(|proxy| proxy.stall_replies(stall));
        };
        if self == Self::ByNobody {
            stall(true);
            sleep(time).await;
            stall(false);
        }
    }
}

/// A process that may see answers late. Its connection is open.
async fn late_process(store: &dyn Store, late: &Arc<LateAnswers>) -> LockManager {
    let backend = LateBackend::around(super::config(store), late).expect("the configuration");
    let manager = by(backend).await;
    had(&manager, "known").await;
    manager
}

/// A short ttl that the store keeps.
fn ttl_of(store: &dyn Store, manager: &LockManager) -> Duration {
    manager.capabilities().min_ttl.max(store.short_ttl())
}

/// How late an answer is. A quorum gives up on a voter after a quarter of the ttl.
fn lateness(ttl: Duration) -> Duration {
    ttl / 5
}

/// A lease that is counted from a late answer outlasts that at the store, and its holder would
/// still be inside when the next one is let in.
pub(crate) async fn a_lease_counts_from_its_question(store: &mut dyn Store) {
    let still = store.short_ttl() / 8;
    unless_it_stands_still(still, async || counts_from_question(store).await).await;
}

async fn counts_from_question(store: &dyn Store) {
    let other = process(store).await;
    let asked = async |number, seen: Seen| {
        let late = Arc::<LateAnswers>::default();
        let holder = late_process(store, &late).await;
        let ttl = ttl_of(store, &holder);
        let lock = |what| {
            holder
                .lock(format!("{what}:{number}"))
                .ttl(ttl)
                .renew(false)
        };
        late.of_takes(Some(seen.late(lateness(ttl))));
        let (tried, waited, ()) = tokio::join!(
            within(HANG, lock("tries").try_acquire()),
            within(HANG, lock("waits").acquire()),
            seen.withheld(store, lateness(ttl)),
        );
        let ends_first = async |guard: Result<LockGuard, LockError>| {
            let guard = guard.expect("the lock");
            let ends = guard.deadline().expect("it is held");
            is_over_for_its_holder(&guard, ends, &other).await;
        };
        tokio::join!(ends_first(tried), ends_first(waited));
    };
    for together in ways(store) {
        join_all(
            together
                .into_iter()
                .map(|(number, seen)| asked(number, seen)),
        )
        .await;
    }
}

pub(crate) async fn a_renewed_lease_counts_from_its_question(store: &mut dyn Store) {
    let still = store.short_ttl() / 8;
    unless_it_stands_still(still, async || counts_from_renewal(store).await).await;
}

async fn counts_from_renewal(store: &dyn Store) {
    let other = process(store).await;
    let is_renewed = async |number, seen: Seen| {
        let late = Arc::<LateAnswers>::default();
        let holder = late_process(store, &late).await;
        let ttl = ttl_of(store, &holder);
        // Another renewal would extend the lease at the store too.
        late.of_renewals([seen.late(lateness(ttl)), Late::NotSent]);
        let guard = held(holder.lock(format!("key:{number}")).ttl(ttl)).await;
        let granted = guard.deadline();
        let decided = eventually("it is renewed, or lost", async || {
            let ends = guard.deadline();
            (ends.is_none() || ends > granted).then_some(ends)
        });
        // The renewal is sent when a third of the ttl has passed.
        let (ends, ()) = tokio::join!(decided, seen.withheld(store, ttl / 3 + lateness(ttl)));
        // A store may refuse an answer that is so late.
        if let Some(ends) = ends {
            is_over_for_its_holder(&guard, ends, &other).await;
        }
        late.end();
        ends.is_some()
    };
    let mut renewed = Vec::new();
    for together in ways(store) {
        let together = together.into_iter();
        renewed.extend(join_all(together.map(|(number, seen)| is_renewed(number, seen))).await);
    }
    assert!(renewed.contains(&true), "no lease was renewed");
}

/// Another process has the lock only after its holder takes the lease for over, however long each
/// of them is kept from running.
async fn is_over_for_its_holder(guard: &LockGuard, ends: Instant, other: &LockManager) {
    let next = eventually("the lease ends", async || {
        match other.lock(guard.key().clone()).try_acquire().await {
            Ok(next) => Some(next),
            Err(LockError::Busy { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
    let before = ends.saturating_duration_since(Instant::now());
    let what = format!(
        "{}: another process has the lock {before:?} before the lease of its holder ends",
        guard.key()
    );
    always(before.is_zero(), what);
    next.release().await.expect("the release");
}

/// Long enough to ask.
const MOMENT: Duration = Duration::from_millis(50);

/// A deadline that is not kept would end a call only now.
const LIMIT: Duration = Duration::from_secs(30);

/// A store that asks in a thread has none here: one runtime has one thread that may block, and it is
/// taken. Such a question is given up, but not taken back, so what comes of it later is given
/// back. All other stores answer.
pub(crate) async fn a_question_that_has_to_wait_is_given_up_in_time(store: &mut dyn Store) {
    let other = process(store).await;
    let timeout = 2 * store.request_timeout();
    let manager = impatient(|| super::config(store).request_timeout(timeout)).await;
    healed_at(&manager, "known").await;
    let guard = held(other.lock("held")).await;
    let asking = manager.clone();
    let asked = std::thread::spawn(move || {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(ask_in_vain(asking));
    });
    let ended = within(HANG, spawn_blocking(|| asked.join())).await;
    if let Err(panic) = ended.expect("no panic") {
        resume_unwind(panic);
    }
    within(HANG, manager.shutdown()).await;
    guard.release().await.expect("the release");
    nothing_left(&other).await;
}

async fn ask_in_vain(manager: LockManager) {
    let (end, ends) = mpsc::channel::<()>();
    let taken = spawn_blocking(move || {
        let _ = ends.recv();
    });
    for key in ["free", "held"] {
        let call = manager.lock(key).try_acquire();
        is_told(within(LIMIT, call).await.map(drop));
        is_told(within(LIMIT, manager.inspect(key)).await.map(drop));
    }
    let waits = manager.lock("waits").acquire();
    is_told(within(LIMIT, waits).await.map(drop));
    is_told(within(LIMIT, manager.list("")).await.map(drop));
    // Nobody waits for the answer to this one.
    let _ = timeout(MOMENT, manager.lock("dropped").acquire()).await;
    drop(end);
    taken.await.expect("no panic");
    // Behind all that was asked.
    spawn_blocking(|| ()).await.expect("no panic");
}

/// There was an answer, or there was none in time.
fn is_told(answer: Result<(), LockError>) {
    match answer {
        Ok(()) | Err(LockError::Busy { .. } | LockError::Unavailable { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}
