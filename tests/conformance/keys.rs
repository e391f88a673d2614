//! Which keys, namespaces and ttls are allowed, and how held locks are shown.

use std::time::{Duration, SystemTime};

use dlock::backend::{LockInfo, Mode, ProcessInfo};
use dlock::{LockError, LockGuard, LockManager, LockRequest};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{PASSED_OVER, Since, Store, connect, process};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    held, impatient, is_busy, is_misconfigured, is_no_key, nothing_left, says, shown,
};
use crate::support::wait::{HANG, eventually, until, within};

pub(crate) async fn keys_do_not_wait_for_each_other(store: &mut dyn Store) {
    let manager = process(store).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let key = format!("key:{number}");
        guards.push(manager.lock(key).try_acquire().await.expect("a free lock"));
    }
    let list = async || manager.list("key:").await.expect("list").len();
    assert_eq!(list().await, 20);
    drop(guards);
    until("all are free", list, |&left| left == 0).await;
}

pub(crate) async fn namespaces_keep_the_same_key_apart(store: &mut dyn Store) {
    let shop = connect(super::config(store).namespace("shop")).await;
    let branch = connect(super::config(store).namespace("shop:eu")).await;
    // Neither the same key collides, nor keys that are the same text with the namespace.
    for (here, there) in [("key", "key"), ("eu:key", "key")] {
        let guard = shop.lock(here).try_acquire().await.expect("a free lock");
        let other = branch.lock(there).try_acquire().await;
        let other = other.expect("another namespace's lock");
        assert_eq!(shop.list("").await.expect("list").len(), 1);
        // Shown without the namespace.
        assert_eq!(shown(&branch, there).await.key, there);
        other.release().await.expect("the release");
        assert!(branch.list("").await.expect("list").is_empty());
        assert!(guard.is_held());
        is_busy(shop.lock(here).try_acquire().await);
        guard.release().await.expect("the release");
    }
}

pub(crate) async fn any_text_can_be_a_key(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let longest = "k".repeat(holder.capabilities().max_key_bytes);
    for key in [
        "a key",
        "ключ/鍵",
        "a*b?[c]{d}\\e",
        "{",
        "}",
        "{}",
        "%2a:%",
        longest.as_str(),
    ] {
        let guard = holder.lock(key).try_acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("{key}: {error}"));
        is_busy(other.lock(key).try_acquire().await);
        assert_eq!(listed(&other, key).await, [key]);
        guard.release().await.expect("the release");
        let left = other.inspect(key).await.expect("inspect");
        assert!(left.is_none(), "{key}");
    }
    // A prefix that looks like a pattern is plain text.
    let _guard = holder.lock("abc").try_acquire().await.expect("a free lock");
    for prefix in ["*", "a*", "?", "[a]", "b"] {
        assert_eq!(listed(&other, prefix).await, [""; 0], "{prefix}");
    }
}

pub(crate) async fn what_cannot_be_a_key_is_refused(store: &mut dyn Store) {
    let manager = process(store).await;
    let too_long = "k".repeat(manager.capabilities().max_key_bytes + 1);
    for key in [
        "",
        "line\nbreak",
        "nul\0",
        "bell\u{7}",
        "\u{85}",
        too_long.as_str(),
    ] {
        for answer in [
            manager.lock(key).acquire().await.map(drop),
            manager.lock(key).try_acquire().await.map(drop),
            manager.lock(["fine", key]).acquire().await.map(drop),
            manager.lock(key).run(async {}).await,
        ] {
            let message = is_no_key(answer).to_string();
            let plain = !message.contains(['\n', '\0', '\u{7}']);
            assert!(message.len() < 600 && plain, "{message:?}");
        }
    }
    is_no_key(manager.lock(Vec::<String>::new()).acquire().await);
    assert!(manager.list("").await.expect("list").is_empty());
}

pub(crate) async fn a_ttl_that_the_store_cannot_keep_is_refused(store: &mut dyn Store) {
    let manager = process(store).await;
    let shortest = manager.capabilities().min_ttl;
    let below = shortest.saturating_sub(Duration::from_micros(1));
    for ttl in [Duration::ZERO, below, Duration::MAX] {
        let asked = manager.lock("key").ttl(ttl).acquire().await;
        let configured = LockManager::connect(super::config(store).ttl(ttl)).await;
        for answer in [asked.map(drop), configured.map(drop)] {
            says(&is_misconfigured(answer), &["ttl"]);
        }
    }
    // On a busy machine the answer may come after such a short ttl.
    eventually("the shortest ttl works", async || {
        let guard = manager.lock("key").ttl(shortest).try_acquire().await;
        guard.map(drop).ok()
    })
    .await;
}

/// Whatever order the store keeps its own names in.
pub(crate) async fn the_first_of_a_list_are_the_first_by_key(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let mut keys = [
        "a", "a b", "a!b", "a%b", "a-b", "a/b", "a0b", "aé", "b", "a:b",
    ];
    let mut guards = Vec::new();
    for key in keys {
        guards.push(held(manager.lock(key)).await);
    }
    keys.sort_unstable();
    for prefix in ["", "a"] {
        let all: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
        for most in 0..=all.len() + 1 {
            let part = within(HANG, other.list_some(prefix, most)).await;
            let part = part.expect("list");
            let shown: Vec<_> = part.locks.iter().map(|lock| &*lock.key).collect();
            let shows = most.min(all.len());
            assert_eq!(shown, keys[..shows], "{most} of {prefix:?}");
            assert_eq!(part.others, all.len() - shows, "{most} of {prefix:?}");
            let is_held = |lock: &LockInfo| matches!(&lock.holders[..], [_]);
            assert!(part.locks.iter().all(is_held), "{part:?}");
        }
    }
}

pub(crate) async fn inspect_and_list_show_what_is_held(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    assert!(manager.inspect("job:1").await.expect("inspect").is_none());
    let ttl = Duration::from_secs(20);
    let guard = held(manager.lock("job:1").ttl(ttl)).await;
    let _other = held(manager.lock("task:1")).await;

    let shown = shown(&other, "job:1").await;
    let nobody_waits = store.counts_waiters().then_some(0);
    assert_eq!((shown.key.as_str(), shown.waiters), ("job:1", nobody_waits));
    for lock in other.list("").await.expect("list") {
        assert_eq!(lock.waiters, nobody_waits, "{lock:?}");
    }
    assert_eq!(shown.mode.to_string(), "write");
    let [holder] = shown.holders.as_slice() else {
        panic!("one holder, not {shown:?}")
    };
    assert!(!holder.owner.is_empty());
    let left = holder.expires_in.unwrap_or(ttl);
    assert!(left <= ttl && !left.is_zero(), "{holder:?}");

    let keys = async |prefix: &str| listed(&other, prefix).await;
    assert_eq!(keys("").await, ["job:1", "task:1"]);
    assert_eq!(keys("job").await, ["job:1"]);
    assert!(keys("jobs").await.is_empty());
    guard.release().await.expect("the release");
    assert_eq!(keys("").await, ["task:1"]);
    assert!(other.inspect("job:1").await.expect("inspect").is_none());
}

/// The host, process and label of holders and waiters are shown, and since when.
pub(crate) async fn who_holds_and_who_waits_is_shown(store: &mut dyn Store) {
    let mut attempt = 0;
    unless_it_stands_still(PASSED_OVER / 3, async || {
        attempt += 1;
        who_is_shown(store, &format!("key:{attempt}")).await;
    })
    .await;
}

async fn who_is_shown(store: &dyn Store, key: &str) {
    /// The largest difference between this clock and that of a store on the same machine,
    /// including a pause of a busy machine.
    const AT_MOST: Duration = Duration::from_secs(60);
    let called = async |label: &str| connect(super::config(store).label(label)).await;
    let (holder, looker) = (called("holds").await, called("looks").await);
    let waiting = [called("first").await, called("second").await];
    let is_now = |time: SystemTime| {
        let apart = time.duration_since(SystemTime::now());
        let apart = apart.unwrap_or_else(|error| error.duration());
        assert!(apart < AT_MOST, "{apart:?}");
    };
    let is_shown = |process: Option<&ProcessInfo>, label: &str| {
        let process = process.expect("a process");
        assert_eq!((process.pid, &*process.label), (std::process::id(), label));
        assert!(!process.host.is_empty());
        is_now(process.asked_at);
    };
    let guard = held(holder.lock(key)).await;
    let is_held_by = async |label: &str| {
        for lock in [
            shown(&looker, key).await,
            looker.list(key).await.expect("list").remove(0),
        ] {
            if store.shows_processes() {
                is_shown(lock.holders[0].process.as_ref(), label);
            }
        }
    };
    is_held_by("holds").await;
    // While others wait, the value in the store may have a different form.
    let mut waiters = Vec::new();
    for (number, manager) in waiting.iter().enumerate() {
        waiters.push(waits(manager, key));
        super::queued(store, &looker, key, number + 1).await;
    }
    is_held_by("holds").await;
    let listed = looker.list(key).await.expect("list").remove(0);
    assert!(listed.queue.is_empty(), "only an inspection shows it");
    let queue = shown(&looker, key).await.queue;
    let is_fair = looker.capabilities().fair;
    if is_fair && store.shows_processes() {
        assert_eq!(queue.len(), 2, "{queue:?}");
    }
    for (place, label) in queue.iter().zip(["first", "second"]) {
        assert_eq!(place.mode, Mode::Write);
        assert!(!place.owner.is_empty());
        if store.shows_processes() {
            is_shown(place.process.as_ref(), label);
        }
    }
    guard.release().await.expect("the release");
    let [first, second] = <[_; 2]>::try_from(waiters).expect("two");
    if is_fair {
        // Whoever it is: the other would wait for it.
        let are_in = async || [&first, &second].map(JoinHandle::is_finished);
        let are_in = until("one is let in", are_in, |are_in| are_in.contains(&true)).await;
        assert_eq!(are_in, [true, false]);
        let first = first.await.expect("no panic");
        is_held_by("first").await;
        first.release().await.expect("the release");
        let second = second.await.expect("no panic");
        is_held_by("second").await;
        second.release().await.expect("the release");
    }
}

/// How a holder came to its lock, and whether nobody else has asked for it since.
#[derive(Clone, Copy)]
struct Came {
    waited: bool,
    is_last: bool,
}

/// The time shown is neither when the request asked nor when the lock was looked at.
pub(crate) async fn since_when_it_is_held_is_that_of_the_grant(store: &mut dyn Store) {
    // A waiter who is passed over takes the lock itself, of which the store may show less.
    unless_it_stands_still(PASSED_OVER / 3, async || since_when_is_shown(store).await).await;
}

async fn since_when_is_shown(store: &dyn Store) {
    /// The time between the request and the grant, and between the grant and the look.
    const A_WHILE: Duration = Duration::from_millis(1_500);
    /// Renewed within a second, and not lost while the machine stands still for as long.
    const TTL: Duration = Duration::from_secs(3);
    /// The largest difference between this clock and that of a store on the same machine.
    const APART: Duration = Duration::from_millis(500);
    let (holder, next, looker) = (
        process(store).await,
        process(store).await,
        process(store).await,
    );
    nothing_left(&looker).await;
    let shows = store.shows_since();
    let is_once_renewed = matches!(
        shows,
        Since::OfThoseWhoRenewed
            | Since::OfThoseWhoWaitedAndRenewed
            | Since::OfTheLastAndThoseWhoWaitedAndRenewed
    );
    let is_by_holders = is_once_renewed || shows == Since::OfAllByTheirClocks;
    // `granted`: the two moments between which the lock was granted.
    let is_shown =
        async |key: &'static str, granted: [SystemTime; 2], Came { waited, is_last }: Came| {
            let is_known = match shows {
                Since::OfAll | Since::OfAllByTheirClocks | Since::OfThoseWhoRenewed => true,
                Since::OfThoseWhoWaited | Since::OfThoseWhoWaitedAndRenewed => waited,
                Since::OfTheLastAndThoseWhoWaitedAndRenewed => waited || is_last,
                Since::OfNobody => false,
            };
            // A node that was made when its owner got the lock says so.
            let by_its_node = shows == Since::OfTheLastAndThoseWhoWaitedAndRenewed && !waited;
            if is_known && is_once_renewed {
                let since = async || shown(&looker, key).await.holders[0].since;
                until("it was renewed", since, Option::is_some).await;
            }
            for lock in [
                shown(&looker, key).await,
                looker.list(key).await.expect("list").remove(0),
            ] {
                let [holder] = &lock.holders[..] else {
                    panic!("one holder, not {lock:?}")
                };
                assert_eq!(
                    holder.since_by_holder,
                    is_known && is_by_holders && !by_its_node,
                    "{holder:?}"
                );
                assert_eq!(holder.since.is_some(), is_known, "{holder:?}");
                if let Some(since) = holder.since {
                    let granted = granted[0] - APART..=granted[1] + APART;
                    assert!(granted.contains(&since), "{since:?} not in {granted:?}");
                }
            }
        };
    let capabilities = looker.capabilities();
    type Ask = fn(LockRequest) -> LockRequest;
    let round = async |key: &'static str, known: bool, ask: Ask| {
        if !known {
            return;
        }
        let lock = |manager: &LockManager| match is_once_renewed {
            true => manager.lock(key).ttl(TTL),
            false => manager.lock(key),
        };
        let began = SystemTime::now();
        let guard = held(ask(lock(&holder))).await;
        let came = Came {
            waited: false,
            is_last: true,
        };
        is_shown(key, [began, SystemTime::now()], came).await;
        guard.release().await.expect("the release");

        let began = SystemTime::now();
        let guard = held(lock(&holder)).await;
        let had = SystemTime::now();
        let request = ask(lock(&next));
        let waiting = tokio::spawn(async move { held(request).await });
        super::queued(store, &looker, key, 1).await;
        sleep(A_WHILE).await;
        let came = Came {
            waited: false,
            is_last: false,
        };
        is_shown(key, [began, had], came).await;
        let given_back = SystemTime::now();
        guard.release().await.expect("the release");
        let guard = within(HANG, waiting).await.expect("no panic");
        let had = SystemTime::now();
        sleep(A_WHILE).await;
        let came = Came {
            waited: true,
            is_last: true,
        };
        is_shown(key, [given_back, had], came).await;
        guard.release().await.expect("the release");
    };
    tokio::join!(
        round("one", true, |request| request),
        round("readers", capabilities.read_write, LockRequest::read),
        round("permits", capabilities.permits, |request| request
            .permits(2)),
    );
}

/// A task that waits for the lock.
fn waits(manager: &LockManager, key: &str) -> JoinHandle<LockGuard> {
    let request = manager.lock(key);
    tokio::spawn(async move { held(request).await })
}

/// The keys of a list, sorted.
async fn listed(manager: &LockManager, prefix: &str) -> Vec<String> {
    let listed = manager.list(prefix).await.expect("list");
    let mut keys: Vec<_> = listed.into_iter().map(|lock| lock.key).collect();
    keys.sort();
    keys
}

/// In errors and in the guard, and also in an outage.
pub(crate) async fn a_key_is_shown_on_one_short_line(store: &mut dyn Store) {
    let manager = process(store).await;
    let timeout = store.request_timeout();
    let hasty = impatient(|| super::config(store).request_timeout(timeout)).await;
    let unprintable = "line\u{2028}right\u{202e}";
    let length = manager.capabilities().max_key_bytes - unprintable.len();
    let key = format!("{unprintable}{}", "k".repeat(length));
    let is_short = |shown: String| {
        assert!(shown.contains(r"line\u{2028}right\u{202e}kkk"), "{shown}");
        assert!(shown.len() < 1_000, "{shown}");
        assert!(!shown.contains(['\u{2028}', '\u{202e}', '\n']), "{shown:?}");
        assert!(!shown.contains(&"k".repeat(130)), "{shown}");
    };
    let guard = held(manager.lock(&*key)).await;
    is_short(format!("{guard:?}"));
    is_short(guard.key().to_string());
    assert_eq!(guard.key().first(), key);
    let busy = is_busy(manager.lock(&*key).try_acquire().await);
    is_short(busy.to_string());
    is_short(format!("{busy:?}"));
    guard.release().await.expect("the release");
    store.set_outage(true).await;
    for request in [hasty.lock(&*key), hasty.lock(&*key).read()] {
        let error = within(HANG, request.try_acquire()).await;
        let error = error.expect_err("an outage");
        if matches!(error, LockError::Unavailable { .. }) {
            is_short(error.to_string());
        }
    }
}
