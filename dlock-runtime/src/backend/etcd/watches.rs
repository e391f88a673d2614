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
    GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions, WatchResponse,
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
                        if self.refused(&message, open) {
                            // The token that the stream was opened with may
                            // have ended: it is the stream's for ever.
                            if self.members.settings.has_user() {
                                let _ = timeout(patience, self.log_in()).await;
                            }
                            return Ended::Refused;
                        }
                        self.inner().heard = Instant::now();
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

    async fn log_in(&self) {
        if let Ok(asked) = self.members.client().await {
            let _ = asked.client.refresh_token().await;
        }
    }

    /// Tells whom a message concerns. Whether the server will not watch for us.
    fn refused(&self, message: &WatchResponse, open: &mut Open) -> bool {
        match Message::of(message).meaning(&mut open.on_server) {
            Meaning::Refused => return true,
            Meaning::Nothing => {}
            Meaning::LookAgain => {
                let key = self.inner().by_id.get(&message.watch_id()).cloned();
                if let Some(key) = key {
                    self.tell(&key);
                }
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
        let keys_only = GetOptions::new().with_keys_only();
        let gets: Vec<_> = keys
            .iter()
            .map(|(key, _)| TxnOp::get(&**key, Some(keys_only.clone())))
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
        for ((key, from), found) in keys.iter().zip(answer.value.op_responses()) {
            let TxnOpResponse::Get(found) = found else {
                continue;
            };
            let created = found.kvs().first().map(KeyValue::create_revision);
            if has_ended(created, *from) {
                silent |= self.inner().heard + PERIOD < began;
                self.tell(key);
            }
        }
        if silent {
            self.silent.notify_one();
        }
    }

    /// The keys in turn, and the revision that each is watched from.
    fn next_to_look_at(&self) -> Vec<(Arc<str>, i64)> {
        let mut inner = self.inner();
        let mut ids: Vec<i64> = inner.by_id.keys().copied().collect();
        let looked_at = inner.looked_at;
        // Those that come after the last one first.
        ids.sort_unstable_by_key(|&id| (id <= looked_at, id));
        ids.truncate(KEYS_AT_ONCE);
        inner.looked_at = ids.last().copied().unwrap_or(0);
        let keys = ids.iter().filter_map(|id| inner.by_id.get(id));
        keys.filter_map(|key| Some((Arc::clone(key), inner.keys.get(key)?.from)))
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

/// Whether a key that was there before `from` is not any more. Another one of the
/// same name may be: that of a session of Go's `concurrency.Mutex` that queues
/// again, behind us.
fn has_ended(created: Option<i64>, from: i64) -> bool {
    created.is_none_or(|created| created >= from)
}

/// What a message says.
#[derive(Clone, Copy)]
struct Message {
    id: i64,
    created: bool,
    canceled: bool,
    compacted: bool,
    events: bool,
}

/// What is to be done about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Nothing,
    /// The key has to be read again.
    LookAgain,
    /// The server will not watch for us.
    Refused,
}

impl Message {
    fn of(message: &WatchResponse) -> Self {
        Self {
            id: message.watch_id(),
            created: message.created(),
            canceled: message.canceled(),
            compacted: message.compact_revision() > 0,
            events: !message.events().is_empty(),
        }
    }

    fn meaning(self, on_server: &mut HashSet<i64>) -> Meaning {
        let ended = self.canceled && on_server.remove(&self.id);
        // Servers that are newer than 3.4 give a watch that they do not make the id
        // -1 (`recvLoop` in `server/etcdserver/api/v3rpc/watch.go`).
        let refused = self.canceled && (ended || self.created);
        // A revision that was compacted away is read again, like a deletion.
        if refused && !self.compacted {
            Meaning::Refused
        } else if ended || self.events {
            Meaning::LookAgain
        } else {
            Meaning::Nothing
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHED: i64 = 7;

    fn meaning(message: Message) -> (Meaning, bool) {
        let mut on_server = HashSet::from([WATCHED]);
        let meaning = message.meaning(&mut on_server);
        (meaning, on_server.contains(&WATCHED))
    }

    #[test]
    fn a_watch_that_was_refused_is_known_by_any_version() {
        let refused = Message {
            id: WATCHED,
            created: true,
            canceled: true,
            compacted: false,
            events: false,
        };
        // 3.4, and a watch that is ended later.
        assert_eq!(meaning(refused), (Meaning::Refused, false));
        let ended = Message {
            created: false,
            ..refused
        };
        assert_eq!(meaning(ended), (Meaning::Refused, false));
        // Newer servers.
        let nobodys = Message { id: -1, ..refused };
        assert_eq!(meaning(nobodys), (Meaning::Refused, true));
    }

    #[test]
    fn other_messages_are_no_refusals() {
        let made = Message {
            id: WATCHED,
            created: true,
            canceled: false,
            compacted: false,
            events: false,
        };
        assert_eq!(meaning(made), (Meaning::Nothing, true));
        let event = Message {
            created: false,
            events: true,
            ..made
        };
        assert_eq!(meaning(event), (Meaning::LookAgain, true));
        let compacted = Message {
            created: false,
            canceled: true,
            compacted: true,
            ..made
        };
        assert_eq!(meaning(compacted), (Meaning::LookAgain, false));
        // One that we have cancelled ourselves.
        let cancelled = Message {
            id: WATCHED + 1,
            created: false,
            canceled: true,
            ..made
        };
        assert_eq!(meaning(cancelled), (Meaning::Nothing, true));
    }

    #[test]
    fn a_key_of_the_same_name_is_not_the_same_key() {
        let from = 12;
        assert!(has_ended(None, from), "deleted");
        assert!(!has_ended(Some(10), from), "still there");
        assert!(has_ended(Some(12), from), "made again since");
    }
}
