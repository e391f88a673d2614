//! One watch stream for all that a process waits for.
//!
//! A watch begins now. One that begins in the past is served by a loop of the
//! server's that runs every 100 ms (`syncWatchersLoop` in
//! `server/storage/mvcc/watchable_store.go`). What was read before the server has
//! made the watch is therefore read once more: the answer says behind which
//! revision the watch begins.
//!
//! What comes over the stream is a hint: whoever is told reads again. So a watch
//! that was cancelled, compacted, or broken costs its waiters a read; and one that
//! is silent costs them what it takes until their turn comes to be looked at,
//! which happens to a hundred keys every second.

mod look;
mod message;
mod orders;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, mpsc, watch};

pub(super) use self::look::PERIOD;
use self::orders::Order;
pub(super) use self::orders::Orders;
use super::members::Members;

pub(super) struct Watches {
    members: Arc<Members>,
    inner: Mutex<Inner>,
    orders: mpsc::UnboundedSender<Order>,
    /// Told when the stream was found to be silent.
    silent: Notify,
}

struct Inner {
    last_id: i64,
    last_listener: u64,
    keys: HashMap<Arc<str>, Watched>,
    by_id: HashMap<i64, Arc<str>>,
    /// The key that was looked at last.
    looked_at: i64,
    /// When the stream last said something.
    heard: Instant,
}

/// A key that somebody listens for.
struct Watched {
    id: i64,
    /// The server tells of each deletion after this revision.
    since: Option<i64>,
    /// The last deletion that it has told of.
    deleted: i64,
    listeners: HashMap<u64, Listener>,
}

/// Somebody who listens for the end of the key that was created at this
/// revision. Another one of the same name is another key: that of a session of
/// Go's `concurrency.Mutex` that queues again, or of a request of ours.
struct Listener {
    created: i64,
    news: watch::Sender<News>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The watch is not made yet.
    None,
    /// The watch tells of what is after this revision.
    Since(i64),
    /// The key is not there any more, or the watch.
    Ended,
}

/// Somebody who listens for the end of a key, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    key: Arc<str>,
    created: i64,
    number: u64,
    news: watch::Receiver<News>,
}

impl Watches {
    /// The receiver is for [`run`](Self::run).
    pub(super) fn new(members: Arc<Members>) -> (Arc<Self>, Orders) {
        let (orders, received) = mpsc::unbounded_channel();
        let watches = Arc::new(Self {
            inner: Mutex::new(Inner {
                last_id: 0,
                last_listener: 0,
                keys: HashMap::new(),
                by_id: HashMap::new(),
                looked_at: 0,
                heard: members.time.now(),
            }),
            members,
            orders,
            silent: Notify::new(),
        });
        (watches, Orders::from(received))
    }

    /// Listens for the end of this key, as `listening` does already if it still
    /// can.
    pub(super) fn keep_listening<'l>(
        self: &Arc<Self>,
        listening: &'l mut Option<Listening>,
        key: &str,
        created: i64,
    ) -> &'l Listening {
        let listens = |other: &Listening| {
            *other.key == *key && other.created == created && *other.news.borrow() != News::Ended
        };
        let other = listening.take().filter(listens);
        listening.insert(other.unwrap_or_else(|| self.listen(key, created)))
    }

    fn listen(self: &Arc<Self>, key: &str, created: i64) -> Listening {
        let mut inner = self.inner();
        inner.last_listener += 1;
        let number = inner.last_listener;
        let (key, new) = match inner.keys.get_key_value(key) {
            Some((key, _)) => (Arc::clone(key), None),
            None => {
                inner.last_id += 1;
                let (key, id) = (Arc::<str>::from(key), inner.last_id);
                inner.by_id.insert(id, Arc::clone(&key));
                (key, Some(id))
            }
        };
        let id = inner.last_id;
        let watched = inner.keys.entry(Arc::clone(&key));
        let watched = watched.or_insert_with(|| Watched::new(id));
        let (sender, news) = watch::channel(watched.news(created));
        let listener = Listener {
            created,
            news: sender,
        };
        watched.listeners.insert(number, listener);
        drop(inner);
        if let Some(id) = new {
            let _ = self.orders.send(Order::Watch(id));
        }
        Listening {
            watches: Arc::clone(self),
            key,
            created,
            number,
            news,
        }
    }

    /// The server has made this watch.
    fn made(&self, id: i64, since: i64) {
        let mut inner = self.inner();
        let Some(watched) = inner.of(id) else { return };
        watched.since = Some(since);
        for listener in watched.listeners.values() {
            listener.news.send_replace(News::Since(since));
        }
    }

    /// The key of this watch was deleted at this revision.
    fn deleted(&self, id: i64, revision: i64) {
        let mut inner = self.inner();
        let Some(watched) = inner.of(id) else { return };
        watched.deleted = watched.deleted.max(revision);
        self.end_those(inner, id, |created| created < revision);
    }

    /// This watch has ended.
    fn ended(&self, id: i64) {
        self.end_those(self.inner(), id, |_| true);
    }

    /// Tells those who listen for a key of the name that was created then; and
    /// ends the watch if there are no others.
    fn end_those(&self, mut inner: MutexGuard<'_, Inner>, id: i64, created: impl Fn(i64) -> bool) {
        let Some(watched) = inner.of(id) else { return };
        watched.listeners.retain(|_, listener| {
            let told = created(listener.created);
            if told {
                listener.news.send_replace(News::Ended);
            }
            !told
        });
        if watched.listeners.is_empty() {
            inner.remove(id);
            drop(inner);
            let _ = self.orders.send(Order::Cancel(id));
        }
    }

    fn all_ended(&self) {
        let ids: Vec<_> = self.inner().by_id.keys().copied().collect();
        for id in ids {
            self.ended(id);
        }
    }

    fn is_empty(&self) -> bool {
        self.inner().keys.is_empty()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn of(&mut self, id: i64) -> Option<&mut Watched> {
        self.keys.get_mut(self.by_id.get(&id)?)
    }

    fn remove(&mut self, id: i64) {
        if let Some(key) = self.by_id.remove(&id) {
            self.keys.remove(&key);
        }
    }
}

impl Watched {
    fn new(id: i64) -> Self {
        Self {
            id,
            since: None,
            deleted: 0,
            listeners: HashMap::new(),
        }
    }

    /// What there is to say to somebody who comes now.
    fn news(&self, created: i64) -> News {
        match self.since {
            // It told of it before there was anybody to hear.
            _ if created < self.deleted => News::Ended,
            Some(since) => News::Since(since),
            None => News::None,
        }
    }
}

impl Listening {
    /// Resolves when the key has to be read again by one who has seen it at this
    /// revision.
    pub(super) async fn told(&self, seen_at: i64) {
        let to_be_read = |news: &News| match *news {
            News::None => false,
            News::Since(revision) => revision > seen_at,
            News::Ended => true,
        };
        // The sender goes when there is nothing more to hear.
        let _ = self.news.clone().wait_for(to_be_read).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut inner = self.watches.inner();
        let Some(watched) = inner.keys.get_mut(&self.key) else {
            return;
        };
        // Another watch of the same key knows nothing of this listener.
        if watched.listeners.remove(&self.number).is_none() || !watched.listeners.is_empty() {
            return;
        }
        let id = watched.id;
        inner.remove(id);
        drop(inner);
        let _ = self.watches.orders.send(Order::Cancel(id));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::stores::etcd::settings::Settings;

    const KEY: &str = "dlock/key/place";

    /// Watches of a process that has asked no server yet.
    fn watches() -> (Arc<Watches>, Orders) {
        let settings = Settings::from_url("etcd://127.0.0.1").expect("a URL");
        Watches::new(Arc::new(Members::new(settings, crate::engine::context())))
    }

    impl Watches {
        fn id(&self) -> i64 {
            self.inner().keys[KEY].id
        }

        fn count(&self) -> usize {
            let inner = self.inner();
            assert_eq!(inner.keys.len(), inner.by_id.len());
            inner.keys.len()
        }
    }

    /// Whether one has to read again who has seen the key then.
    async fn is_told(listening: &Listening, seen_at: i64) -> bool {
        let told = listening.told(seen_at);
        timeout(std::time::Duration::ZERO, told).await.is_ok()
    }

    #[tokio::test]
    async fn what_was_seen_before_the_watch_was_made_is_read_again() {
        let (watches, _orders) = watches();
        let listening = watches.listen(KEY, 5);
        assert!(!is_told(&listening, 7).await, "not made yet");
        watches.made(watches.id(), 8);
        assert!(is_told(&listening, 7).await);
        assert!(!is_told(&listening, 8).await);
        // One who comes later, and may have read before.
        let another = watches.listen(KEY, 5);
        assert!(is_told(&another, 7).await);
        assert!(!is_told(&another, 9).await);
    }

    #[tokio::test]
    async fn a_key_of_the_same_name_is_not_the_same_key() {
        let (watches, _orders) = watches();
        let (old, new) = (watches.listen(KEY, 5), watches.listen(KEY, 9));
        let id = watches.id();
        watches.made(id, 9);
        watches.deleted(id, 7);
        assert!(is_told(&old, 9).await);
        assert!(!is_told(&new, 9).await, "it was deleted before");
        // Seen when it was there, and the news came before this.
        assert!(is_told(&watches.listen(KEY, 6), 9).await);
        watches.deleted(id, 12);
        assert!(is_told(&new, 9).await);
        drop((old, new));
        assert_eq!(watches.count(), 0);
    }

    #[tokio::test]
    async fn one_who_listens_already_goes_on() {
        let (watches, _orders) = watches();
        let mut listening = None;
        watches.keep_listening(&mut listening, KEY, 5);
        let id = watches.id();
        watches.keep_listening(&mut listening, KEY, 5);
        assert_eq!(watches.id(), id);
        assert_eq!(watches.inner().keys[KEY].listeners.len(), 1);
        watches.keep_listening(&mut listening, KEY, 9);
        assert_eq!(
            watches.inner().keys[KEY].listeners.len(),
            1,
            "for the new one"
        );
        // Its watch ends: it needs another.
        watches.ended(watches.id());
        assert_eq!(watches.count(), 0);
        let listening = watches.keep_listening(&mut listening, KEY, 9);
        assert!(!is_told(listening, 9).await);
        assert_ne!(watches.id(), id);
    }
}
