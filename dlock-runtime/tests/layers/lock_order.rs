//! Orders of locks that can end in a deadlock are told before one does.

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{
    Config, LockError, LockManager, LockRequest, LockScopeExt, Patience, current, lock,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;

use crate::support::locks;
use crate::support::log::Log;
use crate::{seconds, settle};

/// The warnings of this test.
struct Warnings(
    Log,
    #[expect(dead_code, reason = "until it is dropped")] DefaultGuard,
);

impl Warnings {
    fn capture() -> Self {
        let (log, guard) = Log::of_this_thread();
        Self(log, guard)
    }

    fn texts(&self) -> Vec<String> {
        self.0.lines_with("WARN dlock::order ")
    }

    #[track_caller]
    fn none(&self) {
        assert_eq!(self.texts(), Vec::<String>::new());
    }

    /// The only one, which is about this circle.
    #[track_caller]
    fn only(&self, circle: &str) -> String {
        let texts = self.texts();
        let [text] = &texts[..] else {
            panic!("not one warning: {texts:#?}")
        };
        let told = format!("circle={circle} ");
        assert!(format!("{text} ").contains(&told), "{text}");
        text.clone()
    }
}

async fn connect(config: Config) -> LockManager {
    locks::connect(config.detect_lock_order(true)).await
}

/// The warnings of this test, and a manager of its own.
async fn scene() -> (Warnings, LockManager) {
    (Warnings::capture(), connect(Config::default()).await)
}

/// Takes one lock under another, which are both free.
async fn nested(outer: LockRequest, inner: LockRequest) {
    let body = async { inner.run(async {}).await.expect("the inner lock is free") };
    outer.run(body).await.expect("the outer lock is free");
}

fn account(manager: &LockManager, id: u32) -> LockRequest {
    let lock = manager.lock(format!("acct:{id}"));
    lock.template("acct:<id>")
}

#[tokio::test(start_paused = true)]
async fn a_deadlock_is_told_before_anyone_waits() {
    let (warnings, manager) = scene().await;
    let start = Instant::now();
    let both_hold = tokio::sync::Barrier::new(2);
    let half = |outer, inner| {
        let (manager, both_hold) = (&manager, &both_hold);
        manager.lock(outer).run(async move {
            both_hold.wait().await;
            manager.lock(inner).acquire_within(seconds(5)).await
        })
    };
    let is_told = async {
        settle().await;
        assert_eq!(start.elapsed(), seconds(0));
        assert_eq!(warnings.texts().len(), 1);
    };
    let (one, other, ()) = tokio::join!(half("a", "b"), half("b", "a"), is_told);
    let inner = [one.expect("free"), other.expect("free")];
    // The first to give up lets the other in.
    let timed_out = |inner| matches!(inner, &Err(LockError::Timeout { .. }));
    assert!(inner.iter().any(timed_out), "{inner:?}");
    assert_eq!(start.elapsed(), seconds(5));
    assert_eq!(warnings.texts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_names_both_places_and_a_way_out() {
    let (warnings, manager) = scene().await;
    let above = line!();
    let a1 = manager.lock("a");
    let b1 = manager.lock("b");
    let b2 = manager.lock("b");
    let a2 = manager.lock("a");
    nested(a1, b1).await;
    warnings.none();
    nested(b2, a2).await;
    let text = warnings.only("b -> a -> b");
    let [a1, b1, b2, a2] = [1, 2, 3, 4].map(|n| format!("{}:{}:22", file!(), above + n));
    for part in [
        format!("(1) `b`, taken at {b2}, is held while `a` is taken at {a2}; "),
        format!("(2) `a`, taken at {a1}, is held while `b` is taken at {b1}. "),
        format!("`lock([\"b\", \"a\"])` at {b2}, `lock([\"a\", \"b\"])` at {a1}"),
    ] {
        assert!(text.contains(&part), "{part}\nis not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_circle_is_told_once() {
    let (warnings, manager) = scene().await;
    for _ in 0..3 {
        nested(manager.lock("a"), manager.lock("b")).await;
        nested(manager.lock("b"), manager.lock("a")).await;
    }
    warnings.only("b -> a -> b");
}

#[tokio::test(start_paused = true)]
async fn a_circle_of_three_is_one() {
    let (warnings, manager) = scene().await;
    nested(manager.lock("a"), manager.lock("b")).await;
    nested(manager.lock("b"), manager.lock("c")).await;
    warnings.none();
    nested(manager.lock("c"), manager.lock("a")).await;
    warnings.only("c -> a -> b -> c");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_closes_several_circles_is_one_mistake() {
    let (warnings, manager) = scene().await;
    let three = |keys: [&'static str; 3]| {
        let [first, second, third] = keys.map(|key| manager.lock(key));
        first.run(async { nested(second, third).await })
    };
    three(["a", "b", "c"]).await.expect("free");
    warnings.none();
    let (one, other) = (manager.lock("b"), manager.lock("c"));
    let innermost = nested(manager.lock("d"), manager.lock("a"));
    let inner = async { other.run(innermost).await };
    one.run(inner).await.expect("free").expect("free");
    // One of the shortest, and of these the one of the call nearest by.
    warnings.only("c -> a -> c");
}

#[tokio::test(start_paused = true)]
async fn one_order_everywhere_is_no_circle() {
    let (warnings, manager) = scene().await;
    for (outer, inner) in [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("c", "d")] {
        nested(manager.lock(outer), manager.lock(inner)).await;
    }
    // One after the other is not one under the other.
    for key in ["d", "c", "b", "a"] {
        manager.lock(key).run(async {}).await.expect("free");
    }
    warnings.none();
}

#[tokio::test(start_paused = true)]
async fn keys_of_one_template_are_one_lock() {
    let (warnings, manager) = scene().await;
    let stock = |sku| manager.lock(format!("stock:{sku}")).template("stock:<sku>");
    let other_name = manager.lock("acct:9").template("acct:<from.id>");
    nested(account(&manager, 1), stock(1)).await;
    nested(stock(2), other_name).await;
    let text = warnings.only("stock:<> -> acct:<> -> stock:<>");
    for part in ["`acct:<id>`", "`acct:<from.id>`", "`stock:<sku>`"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_keys_of_a_template_are_a_circle_in_both_orders() {
    let (warnings, manager) = scene().await;
    for (outer, inner) in [(1, 2), (2, 3), (1, 9)] {
        nested(account(&manager, outer), account(&manager, inner)).await;
    }
    warnings.none();
    nested(account(&manager, 3), account(&manager, 1)).await;
    let text = warnings.only("acct:<> -> acct:<> -> acct:<>");
    let proposal = "`key = [\"acct:<id>\", \"acct:<…>\"]`";
    assert!(text.contains(proposal), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_asked_for_by_key_is_that_of_the_constant_template() {
    let (warnings, manager) = scene().await;
    let audit = manager.lock("audit").template("audit");
    nested(audit, account(&manager, 1)).await;
    nested(account(&manager, 2), manager.lock("audit")).await;
    warnings.only("acct:<> -> audit -> acct:<>");
}

/// A name for metrics that says nothing of the keys.
#[tokio::test(start_paused = true)]
async fn keys_under_a_plain_name_stand_for_themselves() {
    let (warnings, manager) = scene().await;
    let order = |id: &'static str| manager.lock(id).template("order");
    nested(order("1"), order("2")).await;
    nested(order("3"), order("2")).await;
    nested(order("2"), order("4")).await;
    warnings.none();
    nested(order("4"), order("1")).await;
    warnings.only("4 -> 1 -> 2 -> 4");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_taken_at_once_are_sorted() {
    let (warnings, manager) = scene().await;
    let at_once = async |keys| manager.lock(keys).run(async {}).await.expect("free");
    at_once(["a", "b"]).await;
    at_once(["b", "a"]).await;
    at_once(["c", "b"]).await;
    // As keys they are in one order always, whatever their templates.
    let shops = |keys| manager.lock(keys).template("<shop>:stock, <shop>:orders");
    for keys in [["1:stock", "1:orders"], ["1:stock", "2:orders"]] {
        shops(keys).run(async {}).await.expect("free");
    }
    warnings.none();
    // But one under the other in another order meets them.
    nested(manager.lock("b"), manager.lock("a")).await;
    let text = warnings.only("b -> a -> b");
    assert!(text.contains("`a` and `b` are taken at once at "), "{text}");
    assert_eq!(text.matches("`lock([").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn each_of_several_keys_has_its_template() {
    let stock = |manager: &LockManager| manager.lock("stock:1").template("stock:<sku>");
    for (keys, template) in [
        (["audit", "acct:1"], "audit, acct:<id>"),
        (["acct:1", "acct:2"], "acct:<id>, acct:<id>"),
        (["acct:1", "acct:2"], "acct:<id>"),
    ] {
        let (warnings, manager) = scene().await;
        nested(manager.lock(keys).template(template), stock(&manager)).await;
        nested(stock(&manager), account(&manager, 9)).await;
        warnings.only("stock:<> -> acct:<> -> stock:<>");
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_several_keys_is_waited_for() {
    let (warnings, manager) = scene().await;
    nested(manager.lock("m"), manager.lock(["z", "a"])).await;
    nested(manager.lock(["z", "y"]), manager.lock("m")).await;
    warnings.only("z -> m -> z");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_already_is_not_waited_for() {
    let (warnings, manager) = scene().await;
    nested(manager.lock(["a", "b"]), manager.lock("b")).await;
    nested(manager.lock(["a", "b"]), manager.lock("a")).await;
    nested(manager.lock(["a", "b"]), manager.lock(["b", "a"])).await;
    nested(manager.lock("a"), manager.lock(["a", "b"])).await;
    warnings.none();
}

#[tokio::test(start_paused = true)]
async fn who_only_tries_waits_for_nothing() {
    let (warnings, manager) = scene().await;
    let tries = |key| manager.lock(key).patience(Patience::Try);
    nested(manager.lock("a"), manager.lock("b")).await;
    nested(manager.lock("b"), tries("a")).await;
    let within = |limit| manager.lock("a").patience(Patience::Within(seconds(limit)));
    nested(manager.lock("b"), within(0)).await;
    warnings.none();
    // But what it has, it holds.
    nested(tries("b"), within(1)).await;
    warnings.only("b -> a -> b");
}

#[tokio::test(start_paused = true)]
async fn readers_count_as_they_wait_behind_writers() {
    let (warnings, manager) = scene().await;
    nested(manager.lock("a").read(), manager.lock("b")).await;
    nested(manager.lock("b"), manager.lock("a").read()).await;
    let text = warnings.only("b -> a -> b");
    assert!(text.contains("`a` (for reading)"), "{text}");
    assert!(text.contains("waiting writer"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_holds_what_it_takes_along() {
    let (warnings, manager) = scene().await;
    let child = |key| {
        let lock = manager.lock(key);
        async { lock.run(async {}).await.expect("free") }
    };
    let spawned = async { tokio::spawn(child("a")).await.expect("no panic") };
    nested(manager.lock("a"), manager.lock("b")).await;
    manager.lock("b").run(spawned).await.expect("free");
    warnings.none();
    let along = async { tokio::spawn(child("a").in_lock_scope()).await };
    let along = manager.lock("b").run(along).await;
    along.expect("free").expect("no panic");
    warnings.only("b -> a -> b");
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_is_not_held() {
    let warnings = Warnings::capture();
    let memory = Memory::new();
    let manager = connect(Config::with_backend(memory.clone())).await;
    nested(manager.lock("a"), manager.lock("b")).await;
    let body = async {
        assert!(memory.faults().take_away("b"));
        let held = current().expect("inside");
        held.lost().await;
        manager.lock("a").run(async {}).await.expect("free");
    };
    let lock = manager.lock("b").on_lost(dlock_runtime::OnLost::Continue);
    lock.run(body).await.expect("it goes on");
    warnings.none();
}

/// The lease of the parent's lock has gone to another task of the process.
#[tokio::test(start_paused = true)]
async fn what_the_parent_has_given_back_is_not_held() {
    let (warnings, manager) = scene().await;
    nested(manager.lock("a"), manager.lock("b")).await;
    let (go, gone) = oneshot::channel::<()>();
    let a = manager.lock("a");
    let child = async move {
        gone.await.expect("the test sends");
        a.run(async {}).await.expect("free");
    };
    let next = manager.lock("b").acquire();
    let parent = manager.lock("b").run(async {
        let next = tokio::spawn(next);
        settle().await;
        (tokio::spawn(child.in_lock_scope()), next)
    });
    let (child, next) = parent.await.expect("free");
    let next = next.await.expect("no panic").expect("handed over");
    go.send(()).expect("the child waits");
    child.await.expect("no panic");
    next.release().await.expect("held");
    warnings.none();
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_seen_when_it_is_waited_for() {
    let (warnings, manager) = scene().await;
    // Where the guard is from then on, nobody knows.
    let guard = manager.lock("b").acquire().await.expect("free");
    nested(manager.lock("a"), manager.lock("c")).await;
    guard.release().await.expect("held");
    nested(manager.lock("c"), manager.lock("b")).await;
    warnings.none();
    let body = async { drop(manager.lock("a").acquire().await.expect("free")) };
    manager.lock("b").run(body).await.expect("free");
    warnings.only("b -> a -> c -> b");
}

#[tokio::test(start_paused = true)]
async fn managers_have_an_order_each() {
    let warnings = Warnings::capture();
    let memory = Memory::new();
    let here = connect(Config::with_backend(memory.clone())).await;
    let there = connect(Config::with_backend(memory)).await;
    nested(here.lock("a"), here.lock("b")).await;
    nested(there.lock("b"), there.lock("a")).await;
    nested(here.lock("c"), here.lock("d")).await;
    nested(there.lock("d"), here.lock("c")).await;
    warnings.none();
}

#[tokio::test(start_paused = true)]
async fn it_can_be_turned_off() {
    let warnings = Warnings::capture();
    let config = Config::default().detect_lock_order(false);
    let manager = LockManager::connect(config).await.expect("memory connects");
    nested(manager.lock("a"), manager.lock("b")).await;
    nested(manager.lock("b"), manager.lock("a")).await;
    warnings.none();
}

#[tokio::test(start_paused = true)]
async fn it_is_on_in_debug_builds() {
    let warnings = Warnings::capture();
    let manager = LockManager::connect(Config::default()).await;
    let body = async {
        nested(lock("a"), lock("b")).await;
        nested(lock("b"), lock("a")).await;
    };
    manager.expect("memory connects").scope(body).await;
    assert_eq!(warnings.texts().len(), usize::from(cfg!(debug_assertions)));
}

/// One function that makes its keys by itself, with ever new ones.
#[tokio::test(start_paused = true)]
async fn one_mistake_with_many_keys_does_not_flood_the_log() {
    let (warnings, manager) = scene().await;
    let keys = |id: u32| [format!("{id}:a"), format!("{id}:b")];
    for id in 0..1000 {
        let [a, b] = keys(id);
        for (outer, inner) in [(a.clone(), b.clone()), (b, a)] {
            nested(manager.lock(outer), manager.lock(inner)).await;
        }
    }
    let told = warnings.texts().len();
    assert!((1..10).contains(&told), "{told}");
}
