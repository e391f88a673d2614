//! One watch stream for all that a process waits for.
//!
//! What comes over it is a hint: whoever is told reads again. So a watch that
//! was cancelled, compacted, or broken costs its waiters a read; and one that is
//! silent costs them what it takes until their turn comes to be looked at, which
//! happens to a hundred keys every second.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    GetOptions, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions, WatchResponse,
    WatchStream,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::members::Members;

/// How often some of the keys are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// How many: servers take 128 operations in a transaction (`--max-txn-ops`).
const KEYS_AT_ONCE: usize = 100;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Watches {
    members: Arc<Members>,
    inner: Mutex<Inner>,
    orders: mpsc::UnboundedSender<Order>,
    /// Told when somebody listens.
    arrival: Notify,
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
    from: i64,
    listeners: HashMap<u64, Arc<Notify>>,
}

/// What the stream's task is to do.
enum Order {
    Watch(i64),
    Cancel(i64),
}

/// Somebody who listens for the end of a key, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    key: Arc<str>,
    number: u64,
    told: Arc<Notify>,
}

impl Watches {
    /// The receiver is for [`run`](Self::run).
    pub(super) fn new(members: Arc<Members>) -> (Arc<Self>, Orders) {
        let (orders, received) = mpsc::unbounded_channel();
        let watches = Arc::new(Self {
            members,
            inner: Mutex::new(Inner {
                last_id: 0,
                last_listener: 0,
                keys: HashMap::new(),
                by_id: HashMap::new(),
                looked_at: 0,
                heard: Instant::now(),
            }),
            orders,
            arrival: Notify::new(),
            silent: Notify::new(),
        });
        (watches, Orders(received))
    }

    /// Listens for the end of `key` after `revision`, at which it was there.
    pub(super) fn listen(self: &Arc<Self>, key: &str, revision: i64) -> Listening {
        let told = Arc::new(Notify::new());
        let mut inner = self.inner();
        inner.last_listener += 1;
        let number = inner.last_listener;
        let (key, new) = match inner.keys.get_key_value(key) {
            Some((key, _)) => (Arc::clone(key), None),
            None => {
                inner.last_id += 1;
                let (key, id) = (Arc::<str>::from(key), inner.last_id);
                let watched = Watched {
                    id,
                    from: revision + 1,
                    listeners: HashMap::new(),
                };
                inner.keys.insert(Arc::clone(&key), watched);
                inner.by_id.insert(id, Arc::clone(&key));
                (key, Some(id))
            }
        };
        if let Some(watched) = inner.keys.get_mut(&key) {
            watched.listeners.insert(number, Arc::clone(&told));
        }
        drop(inner);
        if let Some(id) = new {
            let _ = self.orders.send(Order::Watch(id));
            self.arrival.notify_one();
        }
        Listening {
            watches: Arc::clone(self),
            key,
            number,
            told,
        }
    }

    /// Tells those who listen for a key; they may listen again.
    fn tell(&self, key: &str) {
        let watched = {
            let mut inner = self.inner();
            let Some(watched) = inner.keys.remove(key) else {
                return;
            };
            inner.by_id.remove(&watched.id);
            watched
        };
        let _ = self.orders.send(Order::Cancel(watched.id));
        for told in watched.listeners.values() {
            told.notify_one();
        }
    }

    fn tell_all(&self) {
        let keys: Vec<_> = self.inner().keys.keys().cloned().collect();
        for key in keys {
            self.tell(&key);
        }
    }

    fn is_empty(&self) -> bool {
        self.inner().keys.is_empty()
    }

    /// Keeps the stream while there is somebody to listen.
    pub(super) async fn run(self: Arc<Self>, mut orders: Orders) {
        let mut pause = FIRST_PAUSE;
        loop {
            // One that was made before has been noted with its key.
            while orders.0.try_recv().is_ok() {}
            if self.is_empty() {
                match orders.0.recv().await {
                    Some(_) => continue,
                    None => return,
                }
            }
            let Some(mut stream) = self.open().await else {
                sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
                continue;
            };
            let opened = Instant::now();
            let ended = self.serve(&mut stream, &mut orders).await;
            // What it has not said, it never will.
            self.tell_all();
            if matches!(ended, Ended::Refused) || opened.elapsed() < pause {
                sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            } else {
                pause = FIRST_PAUSE;
            }
        }
    }

    /// A stream that watches all keys of the moment.
    async fn open(&self) -> Option<Open> {
        let patience = self.members.settings.patience();
        let mut watched = self.watched().into_iter();
        let (id, key, options) = watched.next()?;
        let asked = timeout(patience, self.members.client()).await.ok()?.ok()?;
        let mut client = asked.client.clone();
        let stream = match timeout(patience, client.watch(&*key, Some(options))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) => {
                self.members.avoid(&asked);
                return None;
            }
            Err(_) => {
                self.members.discard(&asked);
                return None;
            }
        };
        let mut open = Open {
            stream,
            on_server: HashSet::from([id]),
        };
        for (id, key, options) in watched {
            let watching = open.stream.watch(&*key, Some(options));
            if !matches!(timeout(patience, watching).await, Ok(Ok(()))) {
                self.members.discard(&asked);
                return None;
            }
            open.on_server.insert(id);
        }
        self.inner().heard = Instant::now();
        Some(open)
    }

    /// Serves a stream until it says no more.
    async fn serve(&self, open: &mut Open, orders: &mut Orders) -> Ended {
        let patience = self.members.settings.patience();
        loop {
            tokio::select! {
                message = open.stream.message() => match message {
                    Ok(Some(message)) => {
                        self.inner().heard = Instant::now();
                        if self.refused(&message, open) {
                            // The token that the stream was opened with may
                            // have ended: it is the stream's for ever.
                            if let Ok(asked) = self.members.client().await
                                && self.members.settings.has_user()
                            {
                                let _ = timeout(patience, asked.client.refresh_token()).await;
                            }
                            return Ended::Refused;
                        }
                    }
                    Ok(None) | Err(_) => return Ended::Broken,
                },
                order = orders.0.recv() => {
                    let done = match order {
                        None => return Ended::Broken,
                        Some(Order::Watch(id)) => match self.options(id) {
                            Some((key, options)) if open.on_server.insert(id) => {
                                timeout(patience, open.stream.watch(&*key, Some(options))).await
                            }
                            _ => continue,
                        },
                        Some(Order::Cancel(id)) if open.on_server.remove(&id) => {
                            timeout(patience, open.stream.cancel(id)).await
                        }
                        Some(Order::Cancel(_)) => continue,
                    };
                    if !matches!(done, Ok(Ok(()))) {
                        return Ended::Broken;
                    }
                }
                () = self.silent.notified() => return Ended::Broken,
            }
        }
    }

    /// Tells whom a message concerns. Whether the server will not watch for us.
    fn refused(&self, message: &WatchResponse, open: &mut Open) -> bool {
        let id = message.watch_id();
        let ended = message.canceled() && open.on_server.remove(&id);
        // A revision that was compacted away is read again, like a deletion.
        let compacted = message.compact_revision() > 0;
        if ended && !compacted {
            return true;
        }
        if ended || !message.events().is_empty() {
            let key = self.inner().by_id.get(&id).cloned();
            if let Some(key) = key {
                self.tell(&key);
            }
        }
        false
    }

    /// Looks at some of the keys every second, while there are any.
    pub(super) async fn look_after(self: Arc<Self>) {
        loop {
            self.arrival.notified().await;
            while !self.is_empty() {
                sleep(PERIOD).await;
                self.look().await;
            }
        }
    }

    async fn look(&self) {
        let keys = self.next_to_look_at();
        if keys.is_empty() {
            return;
        }
        let began = Instant::now();
        let count = GetOptions::new().with_count_only();
        let gets: Vec<_> = keys
            .iter()
            .map(|key| TxnOp::get(&**key, Some(count.clone())))
            .collect();
        let txn = Txn::new().and_then(gets);
        let read = |mut client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        let Ok(answer) = self.members.call(read).await else {
            // Each finds out for itself, and fails if the outage lasts.
            self.tell_all();
            return;
        };
        let mut silent = false;
        for (key, found) in keys.iter().zip(answer.value.op_responses()) {
            if matches!(found, TxnOpResponse::Get(found) if found.count() == 0) {
                silent |= self.inner().heard + PERIOD < began;
                self.tell(key);
            }
        }
        if silent {
            self.silent.notify_one();
        }
    }

    /// The keys in turn.
    fn next_to_look_at(&self) -> Vec<Arc<str>> {
        let mut inner = self.inner();
        let mut ids: Vec<i64> = inner.by_id.keys().copied().collect();
        let looked_at = inner.looked_at;
        // Those that come after the last one first.
        ids.sort_unstable_by_key(|&id| (id <= looked_at, id));
        ids.truncate(KEYS_AT_ONCE);
        inner.looked_at = ids.last().copied().unwrap_or(0);
        ids.iter()
            .filter_map(|id| inner.by_id.get(id).cloned())
            .collect()
    }

    fn watched(&self) -> Vec<(i64, Arc<str>, WatchOptions)> {
        let inner = self.inner();
        let keys = inner.keys.iter();
        keys.map(|(key, watched)| (watched.id, Arc::clone(key), watched.options()))
            .collect()
    }

    fn options(&self, id: i64) -> Option<(Arc<str>, WatchOptions)> {
        let inner = self.inner();
        let key = inner.by_id.get(&id)?;
        Some((Arc::clone(key), inner.keys.get(key)?.options()))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn options(&self) -> WatchOptions {
        WatchOptions::new()
            .with_watch_id(self.id)
            .with_start_revision(self.from)
            .with_filters([WatchFilterType::NoPut])
    }
}

/// What listeners ask of the stream's task.
pub(super) struct Orders(mpsc::UnboundedReceiver<Order>);

struct Open {
    stream: WatchStream,
    /// The watches that the server has of us.
    on_server: HashSet<i64>,
}

#[derive(Clone, Copy)]
enum Ended {
    Broken,
    Refused,
}

impl Listening {
    /// Resolves when the key has to be read again.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let cancelled = {
            let mut inner = self.watches.inner();
            let Some(watched) = inner.keys.get_mut(&self.key) else {
                return;
            };
            // Another watch of the same key knows nothing of this listener.
            if watched.listeners.remove(&self.number).is_none() || !watched.listeners.is_empty() {
                return;
            }
            let id = watched.id;
            inner.keys.remove(&self.key);
            inner.by_id.remove(&id);
            id
        };
        let _ = self.watches.orders.send(Order::Cancel(cancelled));
    }
}
