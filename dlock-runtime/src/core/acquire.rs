//! From a key and options to a hold: what is checked, what is re-entered, what
//! is waited for.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::manager::LockManager;
use crate::api::scope::Scope;
use crate::backend::{Capabilities, MIN_TTL, Mode, TokenTier};
use crate::core::section::{HeldLock, Hold, Stake, Tenure};
use crate::error::LockError;
use crate::executor::check_runtime;
use crate::gate::{Collecting, Entry, Refusal, Turn, Whereabouts};
use crate::key::{LockKey, Shown, namespaced};
use crate::lease::{Lease, Renewals};
use crate::limits;
use crate::observe::{Asking, Operation, Section};
use crate::options::{Options, Patience};
use crate::token::FencingToken;

/// A key, and how it is asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) key: LockKey,
    pub(crate) options: Options,
}

/// Takes every lock of the key, or none; re-enters what the scope is inside of.
/// Dropped at any await, it leaves nothing behind.
pub(crate) async fn acquire(
    manager: LockManager,
    asked: Box<Asked>,
    scope: Scope,
) -> Result<Stake, LockError> {
    match reenter(&manager, &asked, &scope)? {
        Some(stake) => Ok(stake),
        None => acquire_anew(manager, asked, scope).await,
    }
}

/// Re-enters a lock that the scope is inside of, without I/O: for a key of one
/// name. One of several names is put together by [`acquire_anew`].
pub(crate) fn reenter(
    manager: &LockManager,
    asked: &Asked,
    scope: &Scope,
) -> Result<Option<Stake>, LockError> {
    let Asked { key, options } = asked;
    let Some(name) = key.single() else {
        return Ok(None);
    };
    let found = scope
        .reenter(manager.id(), name, options.mode)
        .inspect_err(|error| manager.labels(options).refused(error))?;
    let Some((stake, lock)) = found else {
        return Ok(None);
    };
    manager.labels(options).reentered();
    if stake.hold().key() == key {
        return Ok(Some(stake));
    }
    // One of several that are held: what shows inside is this one only.
    let tenures = vec![Tenure::Reentered(stake)];
    Ok(Some(Hold::begin(
        manager.id(),
        key.clone(),
        vec![lock],
        tenures,
        None,
        None,
    )))
}

/// The same as [`acquire`], for a caller who knows that there is nothing to
/// [`reenter`]. That is asked before a shutdown is looked at: a body that still
/// runs may go on as it was.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has room for its arguments twice: rust-lang/rust#62958"
)]
pub(crate) fn acquire_anew(
    manager: LockManager,
    asked: Box<Asked>,
    scope: Scope,
) -> impl Future<Output = Result<Stake, LockError>> + Send {
    async move {
        let labels = manager.labels(&asked.options);
        // Before any span has it.
        manager
            .check_key(&asked.key)
            .inspect_err(|error| labels.refused(error))?;
        let asking = Asking::begin(labels, &asked.key, manager.clock());
        let section = asking.section();
        // Pinned where it is made, here and below: a future that is moved leaves
        // room for two in the one around it.
        let taken = {
            let mut taken = pin!(take(&manager, &asked, &scope, section));
            poll_fn(|cx| section.enter(|| taken.as_mut().poll(cx))).await
        };
        match taken {
            Ok(taken) => Ok(taken.begin(&manager, *asked, asking)),
            Err(error) => {
                asking.refused(&error);
                Err(error)
            }
        }
    }
}

/// Takes every lock within the time that the caller has.
async fn take(
    manager: &LockManager,
    asked: &Asked,
    scope: &Scope,
    section: &Section,
) -> Result<Taken, LockError> {
    let Asked { key, options } = asked;
    let ttl = manager.check(key, options)?;
    let subject = || format!("lock `{key}`");
    check_runtime(subject)?;
    let shutdown = manager.leases().shutdown_token();
    let shut_down = || LockError::ShutDown { key: key.clone() };
    if shutdown.is_cancelled() {
        return Err(shut_down());
    }
    let patience = match options.patience {
        Patience::Configured => manager.patience(),
        asked => asked,
    };
    let (try_only, limit) = match patience {
        Patience::Try | Patience::Within(Duration::ZERO) => (true, None),
        Patience::Within(limit) => (false, Some(limit)),
        Patience::Configured | Patience::Wait => (false, None),
    };
    if !try_only && let Some(order) = manager.lock_order() {
        order.about_to_wait(key, options, scope.held(manager.id()));
    }
    let taking = Taking {
        manager,
        asked,
        scope,
        entry: Entry {
            mode: options.mode,
            ttl,
            try_only,
            fresh: !options.renew,
            section,
        },
        whereabouts: Whereabouts::new(limit.is_some()),
    };
    let mut locks = pin!(async {
        tokio::select! {
            biased;
            locks = taking.all() => {
                // Had or not, it comes too late.
                if shutdown.is_cancelled() { Err(shut_down()) } else { locks }
            }
            () = shutdown.cancelled() => Err(shut_down()),
        }
    });
    match limit {
        None => locks.await,
        Some(limit) => {
            let (gate, reach) = (manager.gate(), manager.leases().reach());
            let half_way = || {
                gate.make_sure_of_the_store(&taking.whereabouts);
                if gate.outage(&taking.whereabouts, limit / 2).is_some() {
                    reach.look();
                }
            };
            let outage = || {
                let silent = gate.outage(&taking.whereabouts, limit)?;
                Some(reach.explained_within(limit, silent))
            };
            let executor = manager.leases().executor();
            // Boxed, here and in the gate: not every call has room for it.
            let within = executor.timeout(limit, locks.as_mut(), half_way, outage);
            match Box::pin(within).await {
                Ok(answer) => answer,
                Err(None) => Err(LockError::Timeout {
                    key: key.clone(),
                    waited: limit,
                }),
                Err(Some(outage)) => {
                    let labels = section.labels();
                    labels.store_error(Operation::Acquire, outage.kind());
                    Err(manager.store_error(subject(), outage))
                }
            }
        }
    }
}

/// A call on its way to its locks.
struct Taking<'a> {
    manager: &'a LockManager,
    asked: &'a Asked,
    scope: &'a Scope,
    entry: Entry<'a>,
    whereabouts: Whereabouts,
}

impl Taking<'_> {
    /// Takes the locks, and again if one was lost while the others were waited
    /// for.
    async fn all(&self) -> Result<Taken, LockError> {
        let Asked { key, options } = self.asked;
        loop {
            let taken = match key.single() {
                // Nothing to re-enter: that was looked at just now.
                Some(name) => {
                    let (turn, lock) = self.one(name).await?;
                    Some((Tenure::Own(turn), lock).into())
                }
                None => Box::pin(self.each()).await?,
            };
            if let Some(taken) = taken
                && taken.locks.iter().all(|lock| lock.lease.is_held())
            {
                // The connection that was made for it may have found other
                // settings than the one before.
                self.manager.check_tokens(key, options)?;
                return Ok(taken);
            }
        }
    }

    /// Takes the locks in the order of their names, so that two tasks that want
    /// the same set never wait for each other. Dropped on the way, it gives back
    /// what was taken so far; not polled, that is taken from it, which is `None`.
    async fn each(&self) -> Result<Option<Taken>, LockError> {
        let Self { manager, .. } = self;
        let key = &self.asked.key;
        let written = key.distinct();
        let mut sorted = written.clone();
        sorted.sort_unstable();
        let collecting = Collecting::begin(manager.gate());
        let mut locks: Vec<HeldLock> = Vec::with_capacity(sorted.len());
        // None for a turn of its own.
        let mut stakes = Vec::with_capacity(sorted.len());
        for name in sorted {
            let entered = self.scope.reenter(manager.id(), &name, self.entry.mode)?;
            if let Some((stake, lock)) = entered {
                stakes.push(Some(stake));
                locks.push(lock);
                continue;
            }
            let Some(one) = collecting.wait_for(self.one(&name)).await else {
                return Ok(None);
            };
            let (turn, lock) = one?;
            if collecting.add(turn).is_none() {
                return Ok(None);
            }
            stakes.push(None);
            locks.push(lock);
        }
        if self.entry.fresh && locks.len() > 1 {
            // The first of them has been waiting for the last, and there will
            // be no renewal to make up for it.
            let leases: Vec<Arc<Lease>> =
                locks.iter().map(|lock| Arc::clone(&lock.lease)).collect();
            let renewing = manager.leases().renew_now(&leases);
            let Some(renewed) = collecting.wait_for(renewing).await else {
                return Ok(None);
            };
            if let Err(error) = renewed {
                return Err(manager.store_failed(format!("lock `{key}`"), error).await);
            }
        }
        let Some(turns) = collecting.finish() else {
            return Ok(None);
        };
        let mut turns = turns.into_iter();
        let tenures = stakes.into_iter().filter_map(|stake| match stake {
            Some(stake) => Some(Tenure::Reentered(stake)),
            None => turns.next().map(Tenure::Own),
        });
        let mut taken = Taken {
            tenures: tenures.collect(),
            locks,
        };
        let place = |lock: &HeldLock| written.iter().position(|name| *name == lock.name);
        taken.locks.sort_by_key(place);
        Ok(Some(taken))
    }

    async fn one(&self, name: &Arc<str>) -> Result<(Turn, HeldLock), LockError> {
        let Self {
            manager,
            asked: Asked { key, options },
            ..
        } = self;
        let full = namespaced(manager.namespace(), name);
        let entered = manager.gate().enter(full, &self.entry, &self.whereabouts);
        let turn = match entered.await {
            Ok(turn) => turn,
            Err(Refusal::Busy) => return Err(LockError::Busy { key: key.clone() }),
            Err(Refusal::Store(error)) => {
                let subject = format!("lock `{}`", Shown(name));
                return Err(manager.store_failed(subject, error).await);
            }
        };
        let lock = HeldLock {
            origin: options.origin(key, name),
            name: Arc::clone(name),
            mode: self.entry.mode,
            token: turn.token(),
            lease: Arc::clone(turn.lease()),
        };
        Ok((turn, lock))
    }
}

/// All locks of one key, before the work under them begins. Dropped, it gives
/// back what was taken.
struct Taken {
    tenures: Vec<Tenure>,
    /// In the order written.
    locks: Vec<HeldLock>,
}

impl From<(Tenure, HeldLock)> for Taken {
    fn from((tenure, lock): (Tenure, HeldLock)) -> Self {
        Self {
            tenures: vec![tenure],
            locks: vec![lock],
        }
    }
}

impl Taken {
    fn begin(mut self, manager: &LockManager, asked: Asked, asking: Asking) -> Stake {
        let Asked { key, options } = asked;
        let from_now = |limit| manager.now() + limit;
        let renewals = match (options.renew, options.max_hold) {
            (false, _) => Renewals::Never,
            (true, Some(limit)) => Renewals::Until(from_now(limit)),
            (true, None) => Renewals::Always,
        };
        for tenure in &mut self.tenures {
            if let Tenure::Own(turn) = tenure {
                turn.begin(asking.section().clone(), renewals);
            }
        }
        let token = self.locks.first().map(|lock| lock.token);
        let holding = asking.granted(token.unwrap_or(FencingToken::NONE));
        Hold::begin(
            manager.id(),
            key,
            self.locks,
            self.tenures,
            options.min_hold.map(from_now),
            Some(holding),
        )
    }
}

impl LockManager {
    /// Refuses what cannot work before anything is asked of the store, and
    /// says which ttl applies.
    fn check(&self, key: &LockKey, options: &Options) -> Result<Duration, LockError> {
        let capabilities = self.lasting_capabilities();
        let store = capabilities.name;
        let unsupported = |reason| LockError::Unsupported {
            subject: format!("lock `{key}`"),
            reason,
        };
        if options.mode == Mode::Read && !capabilities.read_write {
            return Err(unsupported(format!(
                "the {store} store has no read locks; use mode \"write\""
            )));
        }
        self.check_tokens(key, options)?;
        let ttl = options.ttl.unwrap_or(self.ttl());
        check_ttl(ttl, capabilities)?;
        limits::check_holds(options.renew, options.max_hold, options.min_hold)?;
        if let Some(least) = options.min_hold {
            check_longest("min_hold", least, capabilities)?;
        }
        if let Patience::Within(limit) = options.patience {
            limits::TIMEOUT.check(limit)?;
        }
        Ok(ttl)
    }

    /// Refuses tokens that are not strict, if they must be.
    fn check_tokens(&self, key: &LockKey, options: &Options) -> Result<(), LockError> {
        if !(options.fenced || self.is_fenced()) {
            return Ok(());
        }
        check_fenced(&self.capabilities()).map_err(|reason| LockError::Unsupported {
            subject: format!("lock `{key}`"),
            reason,
        })
    }
}

/// Says what to do about tokens that are not strict.
pub(crate) fn check_fenced(capabilities: &Capabilities) -> Result<(), String> {
    let tokens = match capabilities.tokens {
        TokenTier::Strict => return Ok(()),
        TokenTier::BestEffort => "best effort",
        TokenTier::None => "missing",
    };
    let remedy = match capabilities.strict_with {
        "" => "use another store".to_owned(),
        settings => format!("set {settings}, or use another store"),
    };
    let store = capabilities.name;
    Err(format!(
        "`fenced` needs tokens that never go back, and those of this {store} store are {tokens}; \
         {remedy}"
    ))
}

/// Refuses a ttl that a store cannot keep.
pub(crate) fn check_ttl(ttl: Duration, capabilities: &Capabilities) -> Result<(), LockError> {
    limits::TTL.check(ttl)?;
    let store = capabilities.name;
    let least = capabilities.min_ttl.max(MIN_TTL);
    if ttl < least {
        let rounds = match capabilities.ttl_step {
            Duration::ZERO => String::new(),
            step => format!(", and rounds up to whole steps of {step:?}"),
        };
        return Err(LockError::config(
            "ttl",
            format!("{ttl:?} is too short; the {store} store needs at least {least:?}{rounds}"),
        ));
    }
    check_longest("ttl", ttl, capabilities)
}

/// Refuses to let a lock stand for longer than a store can keep it.
fn check_longest(
    setting: &str,
    time: Duration,
    capabilities: &Capabilities,
) -> Result<(), LockError> {
    let (store, most) = (capabilities.name, capabilities.max_ttl);
    if time <= most {
        return Ok(());
    }
    const DAY: u64 = 24 * 60 * 60;
    let days = most.as_secs().div_ceil(DAY);
    let limit = match Duration::from_secs(days * DAY) == most {
        true => "at most",
        false => "less than",
    };
    Err(LockError::config(
        setting,
        format!(
            "{time:?} is too long; the {store} store keeps a lock for {limit} {days} days; give a \
             shorter time"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_store_goes_below_what_the_attribute_allows() {
        let shorter = MIN_TTL - Duration::from_millis(1);
        for least in [Duration::ZERO, MIN_TTL] {
            let mut store = Capabilities::new("any");
            store.min_ttl = least;
            let error = check_ttl(shorter, &store).expect_err("too short");
            assert!(error.to_string().contains("10ms"), "{error}");
            assert!(check_ttl(MIN_TTL, &store).is_ok());
        }
    }
}
