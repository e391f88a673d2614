//! What a backend or a store of a user's own need not have: the defaults of both traits.

use std::convert::Infallible;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::{
    Backend, BackendError, Capabilities, Grant, HolderInfo, LockInfo, Mode, Released, Renewed,
    Request, Servers,
};
use dlock_runtime::store::{
    Abandoned, Attempt, Attempted, Context, Deadline, Due, Ending, Freed, Late, LeftBehind, Looks,
    Opening, Store, Take, Waited, Want,
};
use dlock_runtime::{Config, Engine, LockError, LockManager};

use crate::support::locks::{held, is_unsupported};
use crate::{connect, seconds};

/// A backend that has only what it must.
#[derive(Debug, Default)]
struct Plain(Memory);

#[async_trait]
impl Backend for Plain {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.0.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.0.release(request).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list(prefix).await
    }
}

/// A store that has only what it must, and two locks that somebody holds for ever.
#[derive(Debug)]
struct Sparse;

fn locks() -> Vec<LockInfo> {
    let lock = |key: &str| {
        let holder = HolderInfo::new("somebody".to_owned(), Some(seconds(60)));
        LockInfo::new(key.to_owned(), Mode::Write, vec![holder], 0)
    };
    vec![lock("l"), lock("k")]
}

impl Store for Sparse {
    type Config = ();
    type Record = ();
    type Notes = ();
    type Flight = Infallible;
    type Watch = Infallible;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;

    fn open((): (), _: Context) -> Self {
        Self
    }

    async fn check(&self, _: Deadline) -> Attempted<()> {
        Ok(())
    }

    fn capabilities((): &()) -> Capabilities {
        let mut capabilities = Capabilities::new("sparse");
        capabilities.once = true;
        capabilities
    }

    fn servers((): &()) -> Option<Servers> {
        None
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Cheap
    }

    async fn take(&self, _: &Request, _: Want, _: Attempt<'_, Self>) -> Attempted<Take<Self>> {
        Ok(Take::Busy)
    }

    async fn renew(&self, due: &mut [Due<Self>], _: Deadline) -> Vec<Attempted<Renewed>> {
        due.iter().map(|_| Ok(Renewed::Gone)).collect()
    }

    async fn release(
        &self,
        _: &Request,
        _: Option<&()>,
        _: Ending,
        _: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        Ok(Freed::NotHeld)
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        BackendError::unavailable(format!("silent for {for_long:?}"))
    }

    fn abandon(&self, _: &Request, (): (), _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::at_rest(None)
    }

    fn late(&self, _: &Request, _: Option<&()>, _: Instant) -> Late {
        Late::Never
    }

    async fn recheck(&self, _: &mut [Waited<Self>], _: bool, _: Deadline) -> Attempted<()> {
        Ok(())
    }

    async fn inspect(&self, key: &str, _: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        Ok(locks().into_iter().find(|lock| lock.key == key))
    }

    async fn list(&self, _: &str, _: Attempt<'_, Self>) -> Attempted<Option<Vec<LockInfo>>> {
        Ok(Some(locks()))
    }
}

/// Each is refused, in a sentence that begins so.
async fn breaks_nothing(manager: &LockManager, store: &str) {
    let lock = manager.inspect("k").await.unwrap().expect("it is held");
    let owner = &lock.holders[0].owner;
    let says = |refused: LockError, what: &str| {
        let said = refused.to_string();
        assert!(said.contains(&format!("{store} {what}")), "{said}");
    };
    let cannot = "cannot break a lock; end the process";
    says(is_unsupported(manager.break_lock("k", None).await), cannot);
    says(
        is_unsupported(manager.break_holder("k", owner).await),
        cannot,
    );
    says(
        is_unsupported(manager.break_waiter("k", "somebody").await),
        "cannot take a waiter out of its queue",
    );
}

/// All that are listed, or a part.
async fn lists_a_part(manager: &LockManager) {
    for most in 0..3 {
        let listed = manager.list_some("", most).await.unwrap();
        let keys = listed.locks.iter().map(|lock| &*lock.key);
        assert_eq!(keys.collect::<Vec<_>>(), ["k", "l"][..most]);
        assert_eq!(listed.others, 2 - most);
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_need_not_break_locks() {
    let store = Plain::default();
    let there = connect(&store.0).await;
    let manager = LockManager::connect(Config::with_backend(store)).await;
    let manager = manager.expect("it connects");
    let held = (held(there.lock("l")).await, held(there.lock("k")).await);
    breaks_nothing(&manager, "the memory store").await;
    let token = Some(held.1.token());
    is_unsupported(manager.break_lock("k", token).await);
    assert!(held.1.is_held());
    lists_a_part(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_need_not_break_locks() {
    let config = Config::with_backend(Engine::<Sparse>::new(()));
    let manager = LockManager::connect(config).await.expect("it connects");
    breaks_nothing(&manager, "this store").await;
    let forgets = is_unsupported(manager.forget("k").await).to_string();
    assert!(forgets.contains("this store has no `once`"), "{forgets}");
    lists_a_part(&manager).await;
}
