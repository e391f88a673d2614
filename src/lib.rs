//! A distributed lock in one line over an async function, on the store you
//! already run.
//!
//! Use it for work that must not happen twice at the same time: two copies of a
//! service must not both sell the last item, run the same nightly job, or import the
//! same batch. One attribute names the lock. dlock takes the lock before the body
//! runs, and gives it back however the body ends.
//!
//! ```
//! use dlock::{LockError, distributed_lock};
//!
//! #[distributed_lock(key = "stock:<sku>", ttl = "30s", timeout = "2s")]
//! async fn deduct(sku: &str, quantity: u32) -> Result<u32, LockError> {
//!     // One task at a time is here for this sku, in all processes.
//!     Ok(100 - quantity)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     // In a service: `dlock::Config::from_env()?`, which reads `DLOCK_URL`.
//!     dlock::init(dlock::Config::from_url("memory:")?).await?;
//!     let left = deduct("blue-mug", 1).await?;
//!     assert_eq!(left, 99);
//!     dlock::shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! This page shows what the attribute can do, one use after the other.
//! [`distributed_lock`] has the table of its arguments.
//!
//! # The key
//!
//! Each `<…>` in a template is an expression over the arguments, shown with
//! `Display`. dlock escapes the values, so different arguments never make the same
//! key. If a template is not enough, write any expression that makes a [`LockKey`].
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! # struct Order { id: u64, shop: String }
//! # fn key_of(order: &Order) -> String { format!("order:{}", order.id) }
//! #[distributed_lock(key = "shop:<order.shop.as_str()>:order:<order.id>")]
//! async fn ship(order: &Order) -> Result<(), LockError> {
//!     Ok(())
//! }
//!
//! #[distributed_lock(key = key_of(order))]
//! async fn cancel(order: &Order) -> Result<(), LockError> {
//!     Ok(())
//! }
//! ```
//!
//! Two functions with the same key exclude each other. They also exclude a call
//! without the attribute, such as
//! [`dlock::lock("stock:42").run(future)`](LockRequest::run). For such a call, mind how
//! dlock escapes: in a value of a template, `%`, `:` and the first character after the
//! `<…>` are percent-encoded. With the sku `a:b`, `"stock:<sku>"` is the lock
//! `stock:a%3Ab`, and `stock:a:b` is another one. A key that one function makes for both,
//! such as `key_of` above, is the same in both places.
//!
//! # How long to wait
//!
//! A call waits for the lock for as long as it takes (`wait`), gives up at once
//! (`try`), or gives up after some time (`timeout = "5s"`, an outage of the store
//! included). If the attribute does not say which, the [`Config`] decides.
//!
//! # When you do not get the lock
//!
//! The body does not run, and the error says why. [`Busy`](LockError::Busy) and
//! [`Timeout`](LockError::Timeout) mean that somebody has the lock.
//! [`Unavailable`](LockError::Unavailable) means that the store did not answer. The
//! function returns a `Result`, and its error type implements `From<LockError>`:
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! #[derive(Debug)]
//! enum ShopError {
//!     SoldOut,
//!     Lock(LockError),
//! }
//!
//! impl From<LockError> for ShopError {
//!     fn from(error: LockError) -> Self {
//!         Self::Lock(error)
//!     }
//! }
//!
//! #[distributed_lock(key = "stock:<sku>", timeout = "2s")]
//! async fn deduct(sku: &str) -> Result<u32, ShopError> {
//!     Err(ShopError::SoldOut)
//! }
//! ```
//!
//! With `on_error`, which makes the value in that case, the function may return any
//! type. Here, several copies of a service start a job, and one of them runs it:
//!
//! ```
//! # use dlock::{Config, LockError, LockManager, distributed_lock};
//! #[distributed_lock(key = "nightly", try, min_hold = "1m", on_error = |_| false)]
//! async fn nightly() -> bool {
//!     true
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let manager = LockManager::connect(Config::default()).await?;
//! # manager.scope(async {
//! assert!(nightly().await);
//! assert!(!nightly().await, "it has run in this minute");
//! # }).await; Ok(()) }
//! ```
//!
//! # Long jobs
//!
//! While the body runs, dlock renews the lease whenever a third of its ttl has
//! passed, on a thread of its own. So the ttl is not how long the work may take. It
//! is how soon others get the lock when this process dies.
//!
//! - `max_hold = "10m"` stops the renewals after this time, so a body that hangs
//!   cannot hold the lock for ever.
//! - `min_hold = "1m"` keeps the lock for at least this time, also after a body that
//!   was quicker.
//! - `renew = false` makes a fixed lease: the body must end within the ttl.
//!
//! # Two locks at once
//!
//! A call with several keys gets all of them or none. dlock sorts the keys, so two
//! transfers in opposite directions cannot deadlock.
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! #[distributed_lock(key = ["account:<from>", "account:<to>"])]
//! async fn transfer(from: u64, to: u64, amount: u64) -> Result<(), LockError> {
//!     Ok(())
//! }
//! ```
//!
//! Functions that take the same locks one inside the other, in opposite orders, can
//! deadlock. In debug builds dlock warns before that happens; see
//! [`Config::detect_lock_order`].
//!
//! # Readers and writers
//!
//! `mode = "read"` shares the lock with other readers. On stores with an order, readers
//! and writers wait in one queue, so neither starves the other.
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! #[distributed_lock(key = "catalogue", mode = "read")]
//! async fn search(word: &str) -> Result<Vec<String>, LockError> {
//!     Ok(Vec::new())
//! }
//!
//! #[distributed_lock(key = "catalogue")]
//! async fn reload() -> Result<(), LockError> {
//!     Ok(())
//! }
//! ```
//!
//! # Permits
//!
//! `permits = 10` lets at most ten bodies of a key run at once, over all processes.
//! Write a number, or an expression over the arguments.
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! #[distributed_lock(key = "api:<tenant>", permits = 10, timeout = "2s")]
//! async fn call_the_api(tenant: &str) -> Result<(), LockError> {
//!     Ok(())
//! }
//! ```
//!
//! # Once
//!
//! With `once = "48h"`, the store remembers for 48 hours that a body with this key
//! returned `Ok`. A call in that time returns [`LockError::Done`], and its body does not
//! run. After an `Err`, a panic or the death of the process, the next call runs the body.
//!
//! ```
//! # use dlock::{Config, LockError, LockManager, distributed_lock};
//! #[distributed_lock(key = "report:<day>", once = "48h")]
//! async fn write_the_report(day: &str) -> Result<(), LockError> {
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let manager = LockManager::connect(Config::default()).await?;
//! # manager.scope(async {
//! write_the_report("monday").await?;
//! let again = write_the_report("monday").await;
//! assert!(matches!(again, Err(LockError::Done { .. })));
//! # Ok(()) }).await }
//! ```
//!
//! # Without the attribute
//!
//! [`lock`] asks for a lock by its key. [`run`](LockRequest::run) does the same as
//! the attribute. [`acquire`](LockRequest::acquire) returns a [`LockGuard`], which
//! gives the lock back when it is dropped or [released](LockGuard::release).
//!
//! ```
//! # use std::time::Duration;
//! # use dlock::{Config, LockError, LockManager};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let manager = LockManager::connect(Config::default()).await?;
//! # manager.scope(async {
//! let name = dlock::lock("report").run(async { "march" }).await?;
//!
//! let guard = dlock::lock(format!("report:{name}"))
//!     .ttl(Duration::from_secs(15))
//!     .acquire_within(Duration::from_secs(2))
//!     .await?;
//! // … write it …
//! guard.release().await?;
//! # Ok(()) }).await }
//! ```
//!
//! # When a lease is lost
//!
//! A lease is lost if dlock cannot reach the store until the ttl has passed, or if
//! the store says that somebody else has the lock, or nobody. Then dlock drops the
//! body at its next await, and the call returns [`LockError::Lost`]. With
//! `on_lost = "continue"` the body goes on, and can ask whether it still has the lock:
//!
//! ```
//! # use dlock::backend::memory::Memory;
//! # use dlock::{Config, LockError, LockManager, distributed_lock};
//! #[distributed_lock(key = "import", on_lost = "continue")]
//! async fn import(records: u32) -> Result<u32, LockError> {
//!     let lock = dlock::current().expect("this body has one");
//!     let mut imported = 0;
//!     while imported < records && lock.is_held() {
//!         tokio::task::yield_now().await;
//!         imported += 1;
//! #       if imported == 10 { MEMORY.with(|memory| memory.faults().take_away("import")); }
//!     }
//!     Ok(imported)
//! }
//! # thread_local! { static MEMORY: Memory = Memory::new(); }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let memory = MEMORY.with(Memory::clone);
//! # let manager = LockManager::connect(Config::with_backend(memory)).await?;
//! # let imported = manager.scope(import(1_000_000)).await?;
//! # assert!(imported < 1_000_000, "{imported}");
//! # Ok(()) }
//! ```
//!
//! # Fencing
//!
//! A process that was paused for longer than its ttl may still write before it
//! reaches its next await. No lock can prevent that, but the resource can. Each grant
//! has a [`FencingToken`] greater than all before it. Send the token along with each
//! write, and let the resource refuse a token that is lower than the highest it has
//! seen:
//!
//! ```
//! # use dlock::{Config, FencingToken, LockError, LockManager};
//! # #[derive(Default)] struct Stock { highest: Option<FencingToken>, pieces: u32 }
//! impl Stock {
//!     fn write(&mut self, pieces: u32, token: FencingToken) -> bool {
//!         if self.highest.is_some_and(|highest| token < highest) {
//!             return false;
//!         }
//!         self.highest = Some(token);
//!         self.pieces = pieces;
//!         true
//!     }
//! }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let manager = LockManager::connect(Config::default()).await?;
//! # let token = async || manager.lock("stock").run(async {
//! #     dlock::current().expect("inside").token()
//! # }).await;
//! # let (early, late) = (token().await?, token().await?);
//! # let mut stock = Stock::default();
//! # assert!(stock.write(4, late) && stock.write(3, late) && !stock.write(4, early));
//! # Ok(()) }
//! ```
//!
//! With `fenced`, a call fails unless the store's tokens can never go back.
//!
//! # Re-entry, and spawned tasks
//!
//! Re-entry follows the chain of awaits, not the id of a task or thread. A body may
//! call this or another function with the same key: that call goes through at once
//! and has the same token. The two halves of a `join!` exclude each other: they share
//! a task, not a body. But inside a body that has the lock already, both re-enter, and
//! may overlap. A spawned task waits like any other caller, unless its future went
//! through [`in_lock_scope`](LockScopeExt::in_lock_scope):
//!
//! ```
//! use dlock::{LockError, LockScopeExt, distributed_lock};
//! # use dlock::{Config, LockManager};
//!
//! #[distributed_lock(key = "batch:<id>")]
//! async fn import(id: u32) -> Result<u32, LockError> {
//!     let other = tokio::spawn(part(id, 2).in_lock_scope());
//!     Ok(part(id, 1).await? + other.await.expect("no panic")?)
//! }
//!
//! #[distributed_lock(key = "batch:<id>")]
//! async fn part(id: u32, number: u32) -> Result<u32, LockError> {
//!     Ok(number)
//! }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! # let manager = LockManager::connect(Config::default()).await?;
//! # assert_eq!(manager.scope(import(7)).await?, 3);
//! # Ok(()) }
//! ```
//!
//! # Starting and stopping
//!
//! [`init`] connects once for the whole process. [`Config::from_env`] reads
//! `DLOCK_URL` (`redis://…`, or `memory:` for locks of this process only) and, if they
//! are set, `DLOCK_NAMESPACE`, `DLOCK_TTL`, `DLOCK_TIMEOUT` and more. Call [`shutdown`]
//! before `main` returns: it waits for the locks that are still on their way back to
//! the store. For a second store, connect a [`LockManager`].
//!
//! # Testing
//!
//! Each test has a store of its own in memory, and can pause time.
//! [`Memory::faults`](backend::memory::Memory::faults) takes a lease away, or makes
//! the store slow or unavailable.
//!
//! ```
//! # mod tests {
//! # use std::time::Duration;
//! # use dlock::{Config, LockError, LockManager, distributed_lock};
//! # #[distributed_lock(key = "stock:<sku>", timeout = "2s")]
//! # async fn deduct(sku: &str, quantity: u32) -> Result<u32, LockError> { Ok(100 - quantity) }
//! #[tokio::test(start_paused = true)]
//! # async fn not_collected() {}
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn who_waits_too_long_is_told() -> Result<(), LockError> {
//!     let manager = LockManager::connect(Config::default()).await?;
//!     let _held = manager.lock("stock:blue-mug").acquire().await?;
//!     let refused = manager.scope(deduct("blue-mug", 1)).await;
//!     assert!(matches!(refused, Err(LockError::Timeout { .. })));
//!     Ok(())
//! }
//! # pub(super) fn run() -> Result<(), LockError> { who_waits_too_long_is_told() }
//! # }
//! # fn main() -> Result<(), dlock::LockError> { tests::run() }
//! ```
//!
//! # Seeing what locks do
//!
//! Each critical section is a `tracing` span `lock` with its key, its token, the time
//! waited and the time held. The body runs inside this span. Waits, grants, renewals
//! and losses are events under the target `dlock`. With the feature `metrics`, dlock
//! counts them through the `metrics` facade, by template and store, never by key.
//! [`inspect`](LockManager::inspect) and [`list`](LockManager::list) show who holds
//! which lock.
//!
//! # Features
//!
//! - `redis` (default): the `redis://` store, one server.
//! - `redis-sentinel`, `redis-cluster`, `redis-redlock`: Redis on several servers.
//!   Each feature has its own URLs (`redis+sentinel://` and so on).
//! - `tls`: encrypted connections with rustls: `rediss://`, `etcds://`,
//!   `zookeeper+tls://`, databases.
//! - `etcd`: the `etcd://` store. The build needs `protoc`.
//! - `zookeeper`: the `zookeeper://` store.
//! - `postgres`, `mysql`, `sqlite`: the stores in databases.
//! - `memcached`: the `memcached://` store.
//! - `axum`: an axum handler may return a [`LockError`]. The page of that error says
//!   which status the response has.
//! - `tower`: a layer that limits how many requests of a key run at once, over all
//!   copies of a service.
//! - `metrics`: numbers on every lock, through the `metrics` facade.
//! - `serde`: tokens, and the results of [`inspect`](LockManager::inspect) and
//!   [`list`](LockManager::list), implement `Serialize` and `Deserialize`.
//!
//! The `memory:` store is always there.
//!
//! # Words
//!
//! A *key* is the name of a lock. A *holder* has a *lease* on the lock, for at most its
//! *ttl* unless the lease is *renewed*. A *waiter* queues for the lock. Every *grant*
//! has a *fencing token*, which tells a late writer from the present holder. A lease
//! may be *handed over* from one task to the next in a process, without asking the
//! store. A lease ends with its *release*, or it is *lost*.
//!
//! The folder `docs/` of the repository has more: the guarantees and the tests that
//! show them, fencing for each kind of resource, testing, operations, and why dlock is
//! built as it is.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub use dlock_macros::distributed_lock;
pub use dlock_runtime::{
    Config, Engine, ErrorCause, FencingToken, Held, InLockScope, LockError, LockGuard, LockKey,
    LockManager, LockRequest, LockScopeExt, LossReason, MAX_KEY_BYTES, OnLost, Patience, Run,
    TOKENS_PER_GRANT, backend, current, init, lock, manager, request, shutdown, store,
};

#[cfg(feature = "tower")]
pub use dlock_runtime::tower;

#[doc(hidden)]
pub use dlock_runtime::{__private, bare, parse_duration};
