//! A distributed lock in one line over an async function, on the store you
//! already run.
//!
//! It is for what must not happen twice at once: two copies of a service that
//! sell the last item, run the same nightly job, import the same batch. One
//! attribute names the lock; the lock is taken before the body runs and given
//! back whatever ends it.
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
//! This page shows what the attribute can do, use by use. [`distributed_lock`]
//! has the table of its arguments.
//!
//! # The key
//!
//! `<…>` holds an expression over the arguments, shown with `Display`. Values
//! are escaped, so different arguments never make the same key. Where a template
//! is not enough, any expression will do that makes a [`LockKey`].
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
//! Two functions with the same key exclude each other; so does a call without
//! the attribute, [`dlock::lock("stock:42").run(future)`](LockRequest::run).
//!
//! # How long to wait
//!
//! A call waits for the lock for as long as it takes (`wait`), gives up at once
//! (`try`), or after some time (`timeout = "5s"`, an outage of the store
//! included). What holds where the attribute does not say is the [`Config`]'s.
//!
//! # When the lock is not had
//!
//! The body does not run, and the call says why: [`Busy`](LockError::Busy) and
//! [`Timeout`](LockError::Timeout) mean that somebody has the lock,
//! [`Unavailable`](LockError::Unavailable) that the store did not answer. The
//! function returns a `Result` whose error is made `From<LockError>`:
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
//! or anything else, where `on_error` makes the value. A job that several copies
//! start, and one of them runs:
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
//! A lease is renewed at a third of its ttl for as long as the body runs, from a
//! thread of dlock's own. So the ttl is not how long the work may take: it is how
//! soon others get the lock when this process dies.
//!
//! - `max_hold = "10m"` ends the renewals: a body that hangs cannot hold the lock
//!   for ever.
//! - `min_hold = "1m"` keeps the lock for some time after a body that was quick.
//! - `renew = false` is a fixed lease: the body must end within the ttl.
//!
//! # Two locks at once
//!
//! Several keys are one lock: sorted, so that two transfers in opposite
//! directions do not wait for each other, and had all or none.
//!
//! ```
//! # use dlock::{LockError, distributed_lock};
//! #[distributed_lock(key = ["account:<from>", "account:<to>"])]
//! async fn transfer(from: u64, to: u64, amount: u64) -> Result<(), LockError> {
//!     Ok(())
//! }
//! ```
//!
//! Locks that are taken one under the other, in opposite orders, can deadlock.
//! In debug builds a warning says so before it happens; see
//! [`Config::detect_lock_order`].
//!
//! # Readers and writers
//!
//! `mode = "read"` shares the lock with other readers. Both wait in one queue, so
//! neither starves the other.
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
//! `permits = 10` lets at most ten bodies of a key run at once, over all processes: a
//! number, or an expression over the arguments.
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
//! `once = "48h"` remembers a body that returned `Ok`, under its key: calls meanwhile are
//! [`LockError::Done`], and nothing runs. After an `Err`, a panic or a death, the next call
//! runs it.
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
//! [`lock`] asks for a lock by name. [`run`](LockRequest::run) does as the
//! attribute does; [`acquire`](LockRequest::acquire) gives a [`LockGuard`], which
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
//!     .ttl(Duration::from_secs(10))
//!     .acquire_within(Duration::from_secs(2))
//!     .await?;
//! // … write it …
//! guard.release().await?;
//! # Ok(()) }).await }
//! ```
//!
//! # When it is lost
//!
//! A lease ends before its body when the store cannot be reached until the ttl
//! has passed, or says that the lock is somebody else's. Then the body is dropped
//! at its next await, and the call ends with [`LockError::Lost`]. With
//! `on_lost = "continue"` the body goes on, and can ask:
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
//! comes to its next await. No lock can prevent that; the resource can. Each grant
//! has a [`FencingToken`] greater than all before it. Send it along with each
//! write, and refuse one that is lower than the highest seen:
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
//! `fenced` refuses a store whose tokens could go back.
//!
//! # Re-entry, and spawned tasks
//!
//! Reentrancy follows the chain of awaits, not a task or thread. A call inside the
//! body, of this or another function with the same key, goes through at once and
//! has the same token. The two halves of a `join!` exclude each other: they share
//! a task, not a body. A spawned task queues like anyone, unless its future went
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
//! `DLOCK_URL` (`redis://…`, or `memory:` for locks of this process only) and where
//! they are set `DLOCK_NAMESPACE`, `DLOCK_TTL`, `DLOCK_TIMEOUT` and more. Before
//! `main` returns, [`shutdown`] waits for the locks that are still on their way
//! back. For a second store, connect a [`LockManager`].
//!
//! # Testing
//!
//! Each test has a store of its own, and its time may be paused.
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
//! Each critical section is a `tracing` span `lock` with its key, token, the time
//! waited and the time held; the body runs inside it. Waits, grants, renewals and
//! losses are events under the target `dlock`. With the feature `metrics` they are
//! counted through the `metrics` facade, by template and store, never by key.
//! [`inspect`](LockManager::inspect) and [`list`](LockManager::list) show who holds
//! what.
//!
//! # Features
//!
//! - `redis` (default): the `redis://` store, one server.
//! - `redis-sentinel`, `redis-cluster`, `redis-redlock`: several of them, each with
//!   its own URLs (`redis+sentinel://` and so on).
//! - `tls` (default): encrypted connections, `rediss://`, with rustls.
//! - `etcd`: the `etcd://` store. Building it takes `protoc`.
//! - `zookeeper`: the `zookeeper://` store.
//! - `postgres`, `mysql`, `sqlite`: the stores in databases.
//! - `memcached`: the `memcached://` store.
//! - `axum`: an axum handler may return a [`LockError`], whose page says with
//!   which status.
//! - `tower`: a layer that limits how many requests of a key run at once, over all
//!   copies of a service.
//! - `metrics`: numbers on every lock, through the `metrics` facade.
//! - `serde`: tokens, and what [`inspect`](LockManager::inspect) and
//!   [`list`](LockManager::list) show, can be written and read.
//!
//! The `memory:` store is always there.
//!
//! # Words
//!
//! A *key* names a lock; a *holder* has a *lease* on it for at most its *ttl*
//! unless it *renews*; a *waiter* queues; every *grant* carries a *fencing token*,
//! which tells a late writer from the present holder. A lease may be *handed over*
//! from task to task inside a process without the store being asked. It ends with
//! its *release*, or is *lost*.
//!
//! The repository's `docs/` has more: the guarantees and the tests that show them,
//! fencing for each kind of resource, testing, operations, and why it is built as
//! it is.

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
