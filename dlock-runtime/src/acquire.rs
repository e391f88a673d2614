//! From a key and options to a hold: what is checked, what is re-entered, what
//! is waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Mode, TokenTier};
use crate::error::LockError;
use crate::executor::current_runtime;
use crate::gate::{Entry, Refusal};
use crate::hold::{HeldLock, Hold, Stake, Tenure};
use crate::key::{LockKey, namespaced};
use crate::lease::Renewals;
use crate::manager::LockManager;
use crate::options::{Options, Patience};
use crate::scope::Scope;

/// Longer than any lease should be, and far from where clocks overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Takes every lock of `key`, or none. Dropped at any await, it leaves nothing
/// behind.
pub(crate) async fn acquire(
    manager: LockManager,
    key: LockKey,
    options: Options,
    scope: Scope,
) -> Result<Stake, LockError> {
    let ttl = manager.check(&key, &options)?;
    if let Some(stake) = reenter(&manager, &key, options.mode, &scope)? {
        return Ok(stake);
    }
    current_runtime(key.first())?;
    let patience = match options.patience {
        Patience::Configured => manager.patience(),
        Patience::Within(Duration::ZERO) => Patience::Try,
        asked => asked,
    };
    let entry = Entry {
        mode: options.mode,
        ttl,
        try_only: patience == Patience::Try,
        fresh: !options.renew,
    };
    let locks = take_all(&manager, &key, entry, &options, &scope);
    match patience {
        Patience::Within(limit) => tokio::time::timeout(limit, locks)
            .await
            .map_err(|_| LockError::Timeout { key: key.clone(), waited: limit })?,
        Patience::Configured | Patience::Wait | Patience::Try => locks.await,
    }
}

/// Re-enters a lock that the scope is inside of, without I/O: for a key of one
/// name. One of several names is put together by [`acquire`].
pub(crate) fn reenter(
    manager: &LockManager,
    key: &LockKey,
    mode: Mode,
    scope: &Scope,
) -> Result<Option<Stake>, LockError> {
    let Some(name) = key.single() else { return Ok(None) };
    Ok(scope.reenter(manager.id(), name, mode)?.map(|(stake, _)| stake))
}

/// Takes the locks in the order of their names, so that two tasks that want
/// the same set never wait for each other.
async fn take_all(
    manager: &LockManager,
    key: &LockKey,
    entry: Entry,
    options: &Options,
    scope: &Scope,
) -> Result<Stake, LockError> {
    let written = key.distinct();
    let mut sorted = written.clone();
    sorted.sort_unstable();
    // Dropped on the way, they give back what was taken so far.
    let mut tenures = Vec::with_capacity(sorted.len());
    let mut locks = Vec::with_capacity(sorted.len());
    for name in sorted {
        let (tenure, lock) = match scope.reenter(manager.id(), &name, entry.mode)? {
            Some((stake, lock)) => (Tenure::Reentered(stake), lock),
            None => take_one(manager, key, name, entry).await?,
        };
        tenures.push(tenure);
        locks.push(lock);
    }
    let now = manager.now();
    let renewals = match (options.renew, options.max_hold) {
        (false, _) => Renewals::Never,
        (true, Some(limit)) => Renewals::Until(now + limit),
        (true, None) => Renewals::Always,
    };
    for tenure in &mut tenures {
        if let Tenure::Own(turn) = tenure {
            turn.begin(renewals);
        }
    }
    locks.sort_by_key(|lock| written.iter().position(|name| *name == lock.name));
    let not_before: Option<Instant> = options.min_hold.map(|least| now + least);
    Ok(Hold::begin(manager.id(), key.clone(), locks, tenures, not_before))
}

async fn take_one(
    manager: &LockManager,
    key: &LockKey,
    name: Arc<str>,
    entry: Entry,
) -> Result<(Tenure, HeldLock), LockError> {
    let full = namespaced(manager.namespace(), &name);
    let turn = manager.gate().enter(full, entry).await.map_err(|refusal| match refusal {
        Refusal::Busy => LockError::Busy { key: key.clone() },
        Refusal::Store(error) => {
            LockError::of_store(&name, manager.capabilities().name, error)
        }
    })?;
    let lock = HeldLock {
        name,
        mode: entry.mode,
        token: turn.token(),
        lease: Arc::clone(turn.lease()),
    };
    Ok((Tenure::Own(turn), lock))
}

impl LockManager {
    /// Refuses what cannot work before anything is asked of the store, and
    /// says which ttl applies.
    fn check(&self, key: &LockKey, options: &Options) -> Result<Duration, LockError> {
        if self.is_shut_down() {
            return Err(LockError::ShutDown { key: key.clone() });
        }
        let capabilities = self.capabilities();
        key.validate(self.namespace(), capabilities.max_key_bytes)?;
        let store = capabilities.name;
        let unsupported = |reason: String| LockError::Unsupported { key: key.to_string(), reason };
        if options.mode == Mode::Read && !capabilities.read_write {
            return Err(unsupported(format!(
                "the {store} store has no read locks; use mode \"write\""
            )));
        }
        if options.fenced && capabilities.tokens != TokenTier::Strict {
            return Err(unsupported(format!(
                "`fenced` needs tokens that never go back, and those of this {store} store are \
                 {}; see the store's page for how to set it up, or use another store",
                match capabilities.tokens {
                    TokenTier::None => "missing",
                    _ => "best effort",
                }
            )));
        }
        let ttl = options.ttl.unwrap_or(self.ttl());
        check_ttl(ttl, capabilities.min_ttl, store)?;
        for (setting, limit) in [("max_hold", options.max_hold), ("min_hold", options.min_hold)] {
            if limit.is_some_and(|limit| limit > LONGEST) {
                return Err(LockError::config(setting, "over ten years; give a shorter time"));
            }
        }
        Ok(ttl)
    }
}

/// Refuses a ttl that a store cannot keep.
pub(crate) fn check_ttl(ttl: Duration, least: Duration, store: &str) -> Result<(), LockError> {
    if ttl < least {
        return Err(LockError::config(
            "ttl",
            format!("{ttl:?} is too short; the {store} store needs at least {least:?}"),
        ));
    }
    if ttl > LONGEST {
        return Err(LockError::config("ttl", "over ten years; give a shorter time"));
    }
    Ok(())
}
