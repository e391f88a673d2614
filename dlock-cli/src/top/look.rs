//! What is asked of the store and of the services, and how often.

use std::time::{Duration, Instant, SystemTime};

use dlock::backend::LockInfo;
use dlock::{LockError, LockManager};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::metrics::fetch::Endpoint;
use super::metrics::text::Series;
use super::model::Lease;
use super::samples::Look;

/// How soon another key that was chosen is looked at: at most so often.
const CHOICE: Duration = Duration::from_millis(250);

/// What a list costs grows with the locks of the store: it takes no more of the time than one
/// part in so many.
const SHARE: u32 = 10;

/// What was heard.
pub(super) enum News {
    Looked(Result<Look, LockError>),
    Chosen(String, Option<LockInfo>),
    /// Whether it was broken, or its holder had it no more.
    Broken(Lease, Result<bool, LockError>),
    Scraped(usize, Instant, Result<Vec<Series>, String>),
}

/// Looks once at the locks that begin so, at `most` of them.
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

/// Looks again and again, one question at a time, until nobody listens.
pub(super) async fn keep_looking(
    manager: LockManager,
    prefix: String,
    most: usize,
    pause: Duration,
    mut chosen: watch::Receiver<Option<String>>,
    tell: mpsc::Sender<News>,
) {
    let mut took = Duration::ZERO;
    loop {
        // The chosen key follows the list, or comes before it when another is chosen.
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
        // An outage is no load.
        took = match looked {
            Ok(_) => began.elapsed(),
            Err(_) => Duration::ZERO,
        };
        if tell.send(News::Looked(looked)).await.is_err() {
            return;
        }
    }
}

/// Takes this lease from its holder, and nothing from whoever has the lock next.
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
