//! Waiting for locks that are held: one look for all waiters of a key, and one
//! round trip for all keys that are due.
//!
//! memcached tells nobody that an item is gone, so this looks: soon after a
//! waiter has come or the lock has changed hands, and then less and less often,
//! up to four times a second. The pauses are drawn at random, so that processes
//! which wait for the same lock do not look at the same time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::core::Shared;
use super::{errors, names};
use crate::backend::BackendError;
use crate::backend::clock::Backoff;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause for so long after the lock was seen to change hands: who has
/// it over and over [lets others in](super::turns) for no longer than that.
const ALERT_PAUSE: Duration = Duration::from_millis(16);
const ALERT: Duration = Duration::from_secs(1);

/// So many items are asked for in one round trip.
pub(super) const READ_AT_ONCE: usize = 256;

/// The locks that this process waits for.
#[derive(Default)]
pub(super) struct Watch {
    table: Mutex<Table>,
    /// Somebody has come who waits for a lock that nobody waited for.
    more: Notify,
}

#[derive(Default)]
struct Table {
    waited_for: HashMap<Arc<str>, Waited>,
    /// Nobody looks any more.
    closed: bool,
}

struct Waited {
    waiters: Vec<Waiter>,
    backoff: Backoff,
    /// When it was last looked at, and when it will be.
    looked: Instant,
    next: Instant,
    /// Who held it then.
    holder: Option<Vec<u8>>,
    /// When it was seen last that it had changed hands.
    changed: Option<Instant>,
}

/// Who waits, as the item of the lock would name it.
struct Waiter {
    owner: String,
    tell: oneshot::Sender<Result<(), BackendError>>,
}

impl Watch {
    /// Waits until nobody holds the lock, or did a moment ago, or `owner` itself
    /// does. An error if the server is not heard of for the request timeout.
    pub(super) async fn free(&self, key: &Arc<str>, owner: &str) -> Result<(), BackendError> {
        let (tell, told) = oneshot::channel();
        let mut waiting = Waiting {
            watch: self,
            key,
            told,
        };
        let first = {
            let mut table = self.table();
            if table.closed {
                return Err(errors::stopped());
            }
            let entry = table.waited_for.entry(Arc::clone(key));
            let waited = entry.or_insert_with(Waited::from_now);
            waited.waiters.push(Waiter {
                owner: owner.to_owned(),
                tell,
            });
            waited.waiters.len() == 1
        };
        if first {
            self.more.notify_one();
        }
        // Nobody takes it out without a word but the end of the backend.
        let told = (&mut waiting.told).await;
        told.unwrap_or_else(|_| Err(errors::stopped()))
    }

    /// The keys to look at now, or when to come back.
    fn due(&self) -> Result<Vec<Arc<str>>, Option<Instant>> {
        let now = Instant::now();
        let waited_for = &self.table().waited_for;
        let soonest = waited_for.values().map(|waited| waited.next).min();
        match soonest {
            Some(soonest) if soonest <= now => {}
            later => return Err(later),
        }
        // Those that are due soon come along: that saves a round trip.
        let soon = waited_for
            .iter()
            .filter(|(_, waited)| waited.next <= now + (waited.next - waited.looked) / 4);
        Ok(soon.map(|(key, _)| Arc::clone(key)).collect())
    }

    /// Takes note of who holds a lock; nobody: all who wait for it are woken. One
    /// of them: that one is, as it does not know.
    fn seen(&self, key: &str, holder: Option<Vec<u8>>) {
        let waited_for = &mut self.table().waited_for;
        match holder {
            None => {
                if let Some(waited) = waited_for.remove(key) {
                    waited.tell(&Ok(()));
                }
            }
            Some(holder) => {
                if let Some(waited) = waited_for.get_mut(key) {
                    waited.held_by(holder);
                }
            }
        }
    }

    /// What stands there was not written by dlock, and may stand there for ever.
    fn is_foreign(&self, key: &str, error: BackendError) {
        if let Some(waited) = self.table().waited_for.remove(key) {
            waited.tell(&Err(error));
        }
    }

    /// The server was not heard of.
    fn failed(&self, error: BackendError) {
        let waited_for = std::mem::take(&mut self.table().waited_for);
        let error = Err(error);
        for waited in waited_for.into_values() {
            waited.tell(&error);
        }
    }

    /// Those who wait hear that there is nothing to wait for.
    fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.waited_for.clear();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waited {
    fn from_now() -> Self {
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let looked = Instant::now();
        Self {
            waiters: Vec::with_capacity(1),
            next: looked + backoff.pause(),
            backoff,
            looked,
            holder: None,
            changed: None,
        }
    }

    fn held_by(&mut self, holder: Vec<u8>) {
        let holds = |waiter: &mut Waiter| waiter.owner.as_bytes() == holder;
        for waiter in self.waiters.extract_if(.., holds) {
            let _ = waiter.tell.send(Ok(()));
        }
        let before = self.holder.replace(holder);
        self.looked = Instant::now();
        if before.is_some() && before != self.holder {
            // It goes from hand to hand: it may soon be free again.
            self.backoff = Backoff::new(FIRST_PAUSE, ALERT_PAUSE);
            self.changed = Some(self.looked);
        }
        let alert = |changed: &mut Instant| self.looked.saturating_duration_since(*changed) > ALERT;
        if self.changed.take_if(alert).is_some() {
            self.backoff = Backoff::new(ALERT_PAUSE, LAST_PAUSE);
        }
        self.next = self.looked + self.backoff.pause();
    }

    fn tell(self, what: &Result<(), BackendError>) {
        for waiter in self.waiters {
            // Who has gone meanwhile need not know.
            let _ = waiter.tell.send(what.clone());
        }
    }
}

/// A waiter. Dropped, it is waited for no more.
struct Waiting<'a> {
    watch: &'a Watch,
    key: &'a Arc<str>,
    told: oneshot::Receiver<Result<(), BackendError>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.told.close();
        let waited_for = &mut self.watch.table().waited_for;
        if let Some(waited) = waited_for.get_mut(self.key) {
            waited.waiters.retain(|waiter| !waiter.tell.is_closed());
            if waited.waiters.is_empty() {
                waited_for.remove(self.key);
            }
        }
    }
}

/// Looks at the locks that are waited for, whenever one of them is due.
pub(super) async fn keep_watch(shared: Arc<Shared>, stopping: CancellationToken) {
    let look = async {
        loop {
            match shared.watch.due() {
                Ok(keys) => look_at(&shared, &keys).await,
                Err(Some(next)) => {
                    tokio::select! {
                        () = shared.watch.more.notified() => {}
                        () = tokio::time::sleep_until(next.into()) => {}
                    }
                }
                Err(None) => shared.watch.more.notified().await,
            }
        }
    };
    tokio::select! {
        () = look => {}
        () = stopping.cancelled() => {}
    }
    shared.watch.close();
}

async fn look_at(shared: &Shared, keys: &[Arc<str>]) {
    for keys in keys.chunks(READ_AT_ONCE) {
        let names: Arc<[Vec<u8>]> = keys.iter().map(|key| names::lock(key)).collect();
        let mut call = shared.own_call();
        let read = call.ask(|mut connection| {
            let names = Arc::clone(&names);
            async move {
                let read = connection.read(&names).await;
                (connection, read)
            }
        });
        match read.await {
            Ok(items) => {
                let mut free: HashSet<&str> = keys.iter().map(|key| &**key).collect();
                for item in items.value {
                    let Some(key) = names::key(&item.name) else {
                        continue;
                    };
                    free.remove(&*key);
                    if names::is_owner(&item.value) {
                        shared.watch.seen(&key, Some(item.value));
                    } else {
                        let foreign = errors::foreign(&shared.lanes.settings, &item.name);
                        shared.watch.is_foreign(&key, foreign);
                    }
                }
                for key in free {
                    shared.watch.seen(key, None);
                }
            }
            Err(error) => return shared.watch.failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// A command of its own may be run late, and lock the key for the very one
    /// who waits for it: to everybody else it is held.
    #[test]
    fn who_holds_the_lock_does_not_wait_for_it() {
        let (watch, key) = (Watch::default(), Arc::from("key"));
        let context = &mut Context::from_waker(Waker::noop());
        let mut first = pin!(watch.free(&key, "1.1"));
        let mut second = pin!(watch.free(&key, "2.2"));
        assert!(first.as_mut().poll(context).is_pending());
        assert!(second.as_mut().poll(context).is_pending());
        watch.seen(&key, Some(b"3.3".to_vec()));
        assert!(first.as_mut().poll(context).is_pending());
        watch.seen(&key, Some(b"1.1".to_vec()));
        assert!(matches!(first.as_mut().poll(context), Poll::Ready(Ok(()))));
        assert!(second.as_mut().poll(context).is_pending());
    }
}
