//! What the voters report about the locks that are waited for.
//!
//! A voter whose vote is given back publishes this on the lock's own channel, to which a process
//! listens while a task in it waits. So there is no queue, no key and nothing to clean up: a
//! process that dies no longer listens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Notify;

use super::turns::Turns;
use super::voter::VoterSet;
use crate::backend::Request;
use crate::engine::events::Listener;
use crate::engine::time::Time;
use crate::sync::{Mutex, found};
use crate::tables::HashMap;

/// The keys that are listened to.
pub(super) struct Subscriptions {
    keys: Mutex<HashMap<Arc<str>, Listened>>,
    /// By voter: notified when the keys have changed, or the voter is not listened to any more.
    pub(super) changed: Vec<Notify>,
}

/// What was heard about a key.
#[derive(Default)]
struct Listened {
    subscribers: usize,
    /// The voters that are listened to for this key.
    listening: VoterSet,
    /// The number of messages so far.
    count: u64,
    /// By voter: the number of its last message.
    last: BTreeMap<usize, u64>,
    /// Notified at each message, and when a further voter is listened to. `Notify` wakes the
    /// waiters in the order in which they came; tokio's `watch` would wake them in random order.
    notified: Arc<Notify>,
}

/// A waiter's interest in a key, until it is dropped.
pub(super) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    key: Arc<str>,
    notified: Arc<Notify>,
}

impl Subscriptions {
    pub(super) fn of(voters: usize) -> Arc<Self> {
        Arc::new(Self {
            keys: Mutex::default(),
            changed: (0..voters).map(|_| Notify::new()).collect(),
        })
    }

    pub(super) fn subscribe(self: &Arc<Self>, key: &Arc<str>) -> Subscription {
        let mut keys = self.keys.lock();
        let listened = keys.entry(Arc::clone(key)).or_default();
        listened.subscribers += 1;
        if listened.subscribers == 1 {
            self.change();
        }
        Subscription {
            subscriptions: Arc::clone(self),
            key: Arc::clone(key),
            notified: Arc::clone(&listened.notified),
        }
    }

    fn change(&self) {
        self.changed.iter().for_each(Notify::notify_one);
    }

    pub(super) fn wanted(&self) -> BTreeSet<Arc<str>> {
        self.keys.lock().keys().cloned().collect()
    }

    /// Notes that a voter is listened to for these keys.
    pub(super) fn listens(&self, voter: usize, keys: &BTreeSet<Arc<str>>) {
        let mut wanted = self.keys.lock();
        for (_, listened) in wanted.iter_mut().filter(|(key, _)| keys.contains(*key)) {
            if listened.listening.insert(voter) {
                listened.notified.notify_waiters();
            }
        }
    }
}

impl Subscription {
    /// The number of messages so far.
    pub(super) fn count(&self) -> u64 {
        let keys = self.subscriptions.keys.lock();
        keys.get(&self.key).map_or(0, |listened| listened.count)
    }

    /// Waits until this many voters are listened to.
    pub(super) async fn listened(&self, voters: usize) {
        self.until(|listened| listened.listening.len() >= voters)
            .await;
    }

    /// Waits until this many voters have reported a release after message `since`.
    pub(super) async fn freed(&self, since: u64, voters: usize) {
        let freed =
            |listened: &Listened| listened.last.values().filter(|&&last| last > since).count();
        self.until(|listened| freed(listened) >= voters).await;
    }

    async fn until(&self, is_so: impl Fn(&Listened) -> bool) {
        let keys = &self.subscriptions.keys;
        let look = || is_so(keys.lock().get(&self.key)?).then_some(());
        found(&self.notified, look).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut keys = self.subscriptions.keys.lock();
        if let Some(listened) = keys.get_mut(&self.key) {
            listened.subscribers -= 1;
            if listened.subscribers == 0 {
                keys.remove(&self.key);
                self.subscriptions.change();
            }
        }
    }
}

/// Receives what one voter reports.
pub(super) struct VoterListener {
    pub(super) voter: usize,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) turns: Arc<Turns>,
    pub(super) time: Time,
}

impl Listener for VoterListener {
    fn freed(&self, key: &str) {
        if let Some(listened) = self.subscriptions.keys.lock().get_mut(key) {
            listened.count += 1;
            listened.last.insert(self.voter, listened.count);
            listened.notified.notify_waiters();
        }
    }

    fn given_back(&self, key: &str, owner: &str) {
        if let Some((key, _)) = self.subscriptions.keys.lock().get_key_value(key) {
            self.turns.heard_release_of(key, owner, self.time.now());
        }
    }

    fn notified(&self, request: &Request, processes: usize) {
        if let Some(own) = request.owner.process() {
            let listens = self.subscriptions.keys.lock().contains_key(&request.key);
            let others = processes.saturating_sub(usize::from(listens));
            self.turns
                .notified(&request.key, own, others, self.time.now());
        }
    }

    fn missed(&self) {
        for listened in self.subscriptions.keys.lock().values_mut() {
            listened.listening.remove(&self.voter);
        }
        self.subscriptions.changed[self.voter].notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_util::poll;
    use tokio::runtime::Handle;

    use super::*;

    /// An earlier message was a cause to ask, and the question that followed it has its answer.
    #[tokio::test]
    async fn what_was_heard_before_is_no_news() {
        let subscriptions = Subscriptions::of(3);
        let key = Arc::from("key");
        let subscription = subscriptions.subscribe(&key);
        let hears = |voter: usize| {
            let subscriptions = Arc::clone(&subscriptions);
            VoterListener {
                voter,
                subscriptions,
                turns: Arc::default(),
                time: Time::of_the_machine(Handle::current()),
            }
            .freed(&key);
        };
        for voters in 1..=3 {
            (0..3).for_each(&hears);
            let since = subscription.count();
            let mut freed = pin!(subscription.freed(since, voters));
            for voter in 0..voters {
                let answer = poll!(&mut freed);
                assert_eq!(answer, Poll::Pending, "{voter} of {voters}");
                hears(voter);
            }
            assert_eq!(poll!(&mut freed), Poll::Ready(()));
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A voter is asked to listen to all keys whenever one comes or goes. If that woke all waiters,
    /// many that come one by one would wake each other again and again.
    #[tokio::test]
    async fn only_who_was_not_listened_to_is_woken() {
        let subscriptions = Subscriptions::of(2);
        let [key, other] = ["key", "other"].map(Arc::from);
        let subscription = subscriptions.subscribe(&key);
        subscriptions.listens(0, &subscriptions.wanted());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut freed = pin!(subscription.freed(0, 1));
        assert!(
            freed
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let _other = subscriptions.subscribe(&other);
        subscriptions.listens(0, &subscriptions.wanted());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "nothing is new for it");
        subscriptions.listens(1, &subscriptions.wanted());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "one more voter");
    }

    /// A voter whose channel has broken is not listened to, and the waiters must know.
    #[tokio::test]
    async fn who_was_missed_is_listened_to_again() {
        let subscriptions = Subscriptions::of(3);
        let key = Arc::from("key");
        let subscription = subscriptions.subscribe(&key);
        let all = subscriptions.wanted();
        (0..3).for_each(|voter| subscriptions.listens(voter, &all));
        for voter in 0..3 {
            // The subscription itself is known by now.
            subscriptions.changed[voter].notified().await;
            let listener = VoterListener {
                voter,
                subscriptions: Arc::clone(&subscriptions),
                turns: Arc::default(),
                time: Time::of_the_machine(Handle::current()),
            };
            assert_eq!(poll!(pin!(subscription.listened(3))), Poll::Ready(()));
            listener.missed();
            assert_eq!(poll!(pin!(subscription.listened(3))), Poll::Pending);
            let changed = poll!(pin!(subscriptions.changed[voter].notified()));
            assert_eq!(changed, Poll::Ready(()), "{voter} is to be asked");
            subscriptions.listens(voter, &all);
        }
    }

    #[tokio::test]
    async fn a_key_is_listened_to_until_the_last_waiter_has_gone() {
        let subscriptions = Subscriptions::of(1);
        let changed = async || {
            let notified = pin!(subscriptions.changed[0].notified());
            poll!(notified).is_ready()
        };
        let key = Arc::from("key");
        let (one, two) = (subscriptions.subscribe(&key), subscriptions.subscribe(&key));
        assert!(changed().await);
        drop(one);
        assert!(subscriptions.wanted().contains(&key));
        assert!(!changed().await);
        drop(two);
        assert!(subscriptions.wanted().is_empty());
        assert!(changed().await, "the voters are told");
    }
}
