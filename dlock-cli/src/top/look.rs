//! Asks the store and the services, again and again.

use std::time::{Duration, Instant, SystemTime};

use dlock::backend::LockInfo;
use dlock::{LockError, LockManager};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::metrics::fetch::Endpoint;
use super::metrics::text::Series;
use super::model::Lease;
use super::samples::Look;

/// The shortest time between two looks at the chosen key, for whoever scrolls through many keys.
const CHOICE: Duration = Duration::from_millis(250);

/// A list costs more the more locks the store has. So at most one part in `SHARE` of the time is
/// spent on lists.
const SHARE: u32 = 10;

/// An answer of the store or of a service.
pub(super) enum News {
    Looked(Result<Look, LockError>),
    Chosen(String, Option<LockInfo>),
    /// `true` if the lease was broken, `false` if its holder did not have it any more.
    Broken(Lease, Result<bool, LockError>),
    Scraped(usize, Instant, Result<Vec<Series>, String>),
}

/// Looks once at the locks whose keys begin with `prefix`, at `most` of them.
pub(super) async fn look(
    manager: &LockManager,
    prefix: &str,
    most: usize,
) -> Result<Look, LockError> {
    let listed = manager.list_some(prefix, most).await?;
    Ok(Look {
        at: Instant::now(),
        clock: SystemTime::now(),
        locks: listed.locks,
        others: listed.others,
    })
}

/// Looks again and again, with one question at a time, until nobody receives the answers. The
/// first look `took` this long.
pub(super) async fn keep_looking(
    mut took: Duration,
    manager: LockManager,
    prefix: String,
    most: usize,
    pause: Duration,
    mut chosen: watch::Receiver<Option<String>>,
    tell: mpsc::Sender<News>,
) {
    loop {
        // The chosen key is looked at after each list, and soon after another key is chosen.
        let again = tokio::time::sleep(pause.max(took * (SHARE - 1)));
        tokio::pin!(again);
        loop {
            let key = chosen.borrow_and_update().clone();
            if let Some(key) = key
                && let Ok(lock) = manager.inspect(&*key).await
                && tell.send(News::Chosen(key, lock)).await.is_err()
            {
                return;
            }
            tokio::time::sleep(CHOICE.min(pause)).await;
            tokio::select! {
                () = &mut again => break,
                changed = chosen.changed() => match changed {
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
        let began = Instant::now();
        let looked = look(&manager, &prefix, most).await;
        // A list that failed says nothing of what a list costs.
        if looked.is_ok() {
            took = began.elapsed();
        }
        if tell.send(News::Looked(looked)).await.is_err() {
            return;
        }
    }
}

/// Breaks this lease only: whoever has the lock next keeps it.
pub(super) async fn break_lease(manager: LockManager, lease: Lease, tell: mpsc::Sender<News>) {
    let broken = manager.break_holder(&*lease.key, &lease.owner).await;
    let broken = broken.map(|holder| holder.is_some());
    let _ = tell.send(News::Broken(lease, broken)).await;
}

/// Asks one service again and again.
pub(super) async fn keep_asking(
    number: usize,
    endpoint: Endpoint,
    pause: Duration,
    tell: mpsc::Sender<News>,
) {
    let mut again = interval(pause);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        again.tick().await;
        let answer = endpoint.fetch().await;
        let news = News::Scraped(number, Instant::now(), answer);
        if tell.send(news).await.is_err() {
            return;
        }
    }
}
