//! From a key and options to a section: which checks are made, which locks are re-entered, and
//! which are waited for.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow::{Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;

use super::inner::Inner;
use super::requirements::{
    check_constants, check_fenced, check_key, check_longest, check_once, check_permits,
    check_shared, check_ttl,
};
use super::scope::Scope;
use super::section::{Few, HeldKey, HeldLock, Section, SectionRef, Teardown};
use crate::apart::apart;
use crate::backend::{BackendError, Mode};
use crate::error::LockError;
use crate::executor::check_runtime;
use crate::gate::{Collecting, Entry, Known, Turn, WaitState};
use crate::key::{LockKey, Shown, namespaced};
use crate::lease::{NotGranted, Renewals};
use crate::limits;
use crate::observe::{Asking, SectionSpan};
use crate::options::{Options, Patience};
use crate::token::FencingToken;

/// A key, and how to lock it.
#[derive(Debug)]
pub(crate) struct LockSpec {
    pub(crate) key: LockKey,
    pub(crate) options: Options,
}

/// Re-enters the locks of a key if all of them surround the caller, without I/O. A caller that
/// would wait for itself is refused here, before it waits for anybody.
pub(crate) fn reenter(
    manager: &Inner,
    spec: &LockSpec,
    scope: &Scope,
) -> Result<Option<SectionRef>, LockError> {
    let LockSpec { key, options } = spec;
    // Checked for a re-entered lock too, so that a call that works in one place is not refused in
    // another.
    check_permits(options, manager.settings.fenced)
        .and_then(|()| check_once(options, key, &manager.at_start))
        .and_then(|()| check_shared(options.mode, &manager.at_start, || format!("lock `{key}`")))
        .inspect_err(|error| manager.labels(options).refused(error))?;
    if scope.sections().next().is_none() {
        return Ok(None);
    }
    manager
        .check(key, options)
        .inspect_err(|error| manager.labels(options).refused(error))?;
    let entered = match key.single() {
        Some(name) => reenter_one(manager, key, name, options.mode, scope),
        None => reenter_all(manager, key, options.mode, scope),
    };
    let entered = entered.inspect_err(|error| manager.labels(options).refused(error))?;
    if entered.is_some() {
        manager.labels(options).reentered();
    }
    Ok(entered)
}

fn reenter_one(
    manager: &Inner,
    key: &LockKey,
    name: &Arc<str>,
    mode: Mode,
    scope: &Scope,
) -> Result<Option<SectionRef>, LockError> {
    let Some((section, lock)) = scope.reenter(manager.id, name, mode)? else {
        return Ok(None);
    };
    manager.note_permits(name, mode);
    if section.get().key() == key {
        return Ok(Some(section));
    }
    // The outer section holds several locks. Code inside this section sees only the lock of this
    // key.
    let outer = Teardown::of(smallvec![HeldKey::Reentered(section)], None);
    let inner = Section::begin(manager.id, key.clone(), smallvec![lock], outer, None);
    Ok(Some(inner))
}

/// Re-enters each lock of the key, or none.
fn reenter_all(
    manager: &Inner,
    key: &LockKey,
    mode: Mode,
    scope: &Scope,
) -> Result<Option<SectionRef>, LockError> {
    let mut keys = Few::new();
    let mut locks = Few::<HeldLock>::new();
    let mut all = true;
    for name in key.distinct() {
        match scope.reenter(manager.id, &name, mode)? {
            Some((section, lock)) => {
                keys.push(section.before_its_body());
                locks.push(lock);
            }
            None => all = false,
        }
    }
    if !all {
        return Ok(None);
    }
    for lock in &locks {
        manager.note_permits(&lock.name, mode);
    }
    let begun = keys.into_iter().map(|mut outer| {
        outer.begin();
        HeldKey::Reentered(outer)
    });
    let outer = Teardown::of(begun.collect(), None);
    let inner = Section::begin(manager.id, key.clone(), locks, outer, None);
    Ok(Some(inner))
}

/// Takes every lock of the key, or none, for a caller that found nothing to [`reenter`]. Re-entry
/// is tried before the check for a shutdown, so that a body that still runs may continue. Dropped
/// at any await, it leaves nothing behind.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has room for its arguments twice: rust-lang/rust#62958"
)]
pub(crate) fn acquire_anew(
    manager: Arc<Inner>,
    spec: Box<LockSpec>,
    scope: &Scope,
) -> impl Future<Output = Result<SectionRef, LockError>> + Send {
    async move {
        let labels = manager.labels(&spec.options);
        // Checked before any span records the key.
        let most = manager.at_start.max_key_bytes;
        check_key(&spec.key, &manager.settings.namespace, most)
            .and_then(|()| check_constants(&spec.key, spec.options.shapes))
            .inspect_err(|error| labels.refused(error))?;
        let asking = Asking::begin(labels, &spec.key, manager.clock());
        let span = asking.section();
        // Pinned where it is created, here and below: moving a future reserves space for it twice
        // in the future around it.
        let taken = {
            let mut taken = pin!(take(&manager, &spec, scope, span));
            poll_fn(|cx| span.enter(|| taken.as_mut().poll(cx))).await
        };
        match taken {
            Ok(taken) => Ok(taken.begin(&manager, *spec, asking)),
            Err(error) => {
                asking.refused(&error);
                Err(error)
            }
        }
    }
}

/// Takes every lock within the time limit of the caller.
async fn take(
    manager: &Inner,
    spec: &LockSpec,
    scope: &Scope,
    span: &SectionSpan,
) -> Result<Taken, LockError> {
    let LockSpec { key, options } = spec;
    let ttl = manager.check(key, options)?;
    let subject = || format!("lock `{key}`");
    check_runtime(subject)?;
    let shutdown = &manager.leases.shut_down;
    let shut_down = || LockError::ShutDown { key: key.clone() };
    if shutdown.has_begun() {
        return Err(shut_down());
    }
    let patience = match options.patience {
        Patience::Configured => manager.settings.patience,
        given => given,
    };
    let (try_only, limit) = match patience {
        Patience::Try | Patience::Within(Duration::ZERO) => (true, None),
        Patience::Within(limit) => (false, Some(limit)),
        Patience::Configured | Patience::Wait => (false, None),
    };
    if !try_only && let Some(order) = &manager.lock_order {
        let held = scope.held(manager.id).map(HeldLock::as_written);
        order.about_to_wait(key, options, held);
    }
    let taking = Taking {
        manager,
        spec,
        scope,
        entry: Entry {
            mode: options.mode,
            ttl,
            try_only,
            fresh: !options.renew,
            section: span,
        },
        wait_state: limit.map(|_| WaitState::default()),
    };
    let mut locks = pin!(async {
        // Dropped after the call has left the gate and the store, which a shutdown waits for. A call
        // that gets its locks at once is not counted.
        let mut _counted = None;
        tokio::select! {
            biased;
            locks = taking.all() => {
                // After the shutdown has begun, the call is refused, whether the locks were granted
                // or not.
                if shutdown.has_begun() { Err(shut_down()) } else { locks }
            }
            () = async {
                _counted = Some(manager.leases.calls.count_here());
                shutdown.begins().await;
            } => Err(shut_down()),
        }
    });
    let Some((limit, wait_state)) = limit.zip(taking.wait_state.as_ref()) else {
        return locks.await;
    };
    let (gate, reach) = (&manager.gate, &manager.leases.reach);
    let half_way = || {
        gate.make_sure_of_the_store(wait_state);
        let known = gate.known(wait_state, limit / 2, limit / 4);
        if matches!(known, Known::Outage(_)) {
            reach.look();
        }
    };
    let why = |looked| match gate.known(wait_state, limit, looked) {
        Known::Held => Break(None),
        Known::Outage(silent) => Break(Some(reach.explained_within(limit, silent))),
        Known::Nothing => Continue(None),
    };
    let executor = &manager.leases.executor;
    // Boxed, here and in the gate: a rare path must not enlarge every call's future.
    let within = executor.timeout(limit, locks.as_mut(), half_way, why);
    match apart(within).await {
        Ok(answer) => answer,
        Err(None) => Err(LockError::Timeout {
            key: key.clone(),
            waited: limit,
        }),
        Err(Some(outage)) => {
            span.labels().store_error("acquire", &outage);
            Err(manager.store_error(subject(), outage))
        }
    }
}

/// The pauses of a call that has lost one of its locks twice in a row, or more often.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// A call that is about to take its locks.
struct Taking<'a> {
    manager: &'a Inner,
    spec: &'a LockSpec,
    scope: &'a Scope,
    entry: Entry<'a>,
    /// Present for a call with a time limit.
    wait_state: Option<WaitState>,
}

impl Taking<'_> {
    /// Takes the locks, and takes them again if one was lost while the call waited for the others.
    async fn all(&self) -> Result<Taken, LockError> {
        let LockSpec { key, options } = self.spec;
        let mut lost = 0;
        loop {
            let taken = match key.single() {
                // The caller has just looked for a lock to re-enter and found none.
                Some(name) => {
                    let (turn, lock) = self.one(name).await?;
                    Some(Taken {
                        keys: smallvec![HeldKey::Own(turn)],
                        locks: smallvec![lock],
                    })
                }
                None => apart(self.each()).await?,
            };
            if let Some(taken) = taken
                && taken.locks.iter().all(|lock| lock.lease.is_held())
            {
                // A connection made for this request may have found other server settings than the
                // one before.
                self.manager.check_tokens(key, options)?;
                return Ok(taken);
            }
            lost += 1;
            if lost > 1 {
                apart(self.lost_again(lost)).await?;
            }
        }
    }

    /// Each time, a lock was lost before the call had all of them. A call that waits pauses before
    /// it takes them again, so that a store that takes back what it gives is not asked at once for
    /// ever. A `try` has no time for that.
    async fn lost_again(&self, lost: u32) -> Result<(), LockError> {
        let manager = self.manager;
        if self.entry.try_only {
            let (subject, error) = (
                format!("lock `{}`", self.spec.key),
                BackendError::lost_at_once(),
            );
            self.entry.section.labels().store_error("acquire", &error);
            return Err(manager.store_error(subject, error));
        }
        if let Some(wait_state) = &self.wait_state {
            wait_state.pauses();
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << (lost - 2).min(8));
        manager.leases.executor.sleep(pause.min(LAST_PAUSE)).await;
        Ok(())
    }

    /// Takes the locks in the order of their names, so that two tasks that want the same set never
    /// wait for each other. If dropped on the way, it gives back the locks taken so far. If it is
    /// not polled, others may take those locks away: then it returns `None`.
    async fn each(&self) -> Result<Option<Taken>, LockError> {
        let Self { manager, .. } = self;
        let key = &self.spec.key;
        let written = key.distinct();
        let mut sorted = written.clone();
        sorted.sort_unstable();
        let mut collecting = Collecting::default();
        let mut locks = Few::<HeldLock>::with_capacity(sorted.len());
        let mut keys = Few::with_capacity(sorted.len());
        let mut taken = Vec::with_capacity(sorted.len());
        for name in sorted {
            let found = self.scope.reenter(manager.id, &name, self.entry.mode)?;
            if let Some((section, lock)) = found {
                manager.note_permits(&name, self.entry.mode);
                keys.push(HeldKey::Reentered(section.before_its_body()));
                locks.push(lock);
                continue;
            }
            let Some(one) = collecting.wait_for(self.one(&name)).await else {
                return Ok(None);
            };
            let (turn, lock) = one?;
            taken.push(turn.renewable());
            collecting.add(turn, &self.entry);
            locks.push(lock);
        }
        if self.entry.fresh && taken.len() > 1 {
            // The first lease has aged while the call waited for the last one, and no renewal will
            // extend it later. A lease that surrounds the caller ends when it is to end.
            if let Some(wait_state) = &self.wait_state {
                wait_state.asks(manager.now());
            }
            let renewing = manager.leases.renew_now(taken);
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
        keys.extend(turns.into_iter().map(HeldKey::Own));
        let mut in_order = Few::with_capacity(locks.len());
        for name in &written {
            let at = locks.iter().position(|lock| lock.name == *name);
            in_order.extend(at.map(|at| locks.swap_remove(at)));
        }
        debug_assert!(locks.is_empty(), "each has one of these names");
        let locks = in_order;
        Ok(Some(Taken { keys, locks }))
    }

    async fn one(&self, name: &Arc<str>) -> Result<(Turn, HeldLock), LockError> {
        let Self {
            manager,
            spec: LockSpec { key, options },
            ..
        } = self;
        manager.note_permits(name, options.mode);
        let full = namespaced(&manager.settings.namespace, name);
        let entered = manager
            .gate
            .enter(full, &self.entry, self.wait_state.as_ref());
        let turn = match entered.await {
            Ok(turn) => turn,
            Err(NotGranted::Busy) => return Err(LockError::Busy { key: key.clone() }),
            Err(NotGranted::Done) => return Err(LockError::Done { key: key.clone() }),
            Err(NotGranted::TakenOut) => return Err(LockError::TakenOut { key: key.clone() }),
            Err(NotGranted::Store(error) | NotGranted::TooLate(error)) => {
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

/// All locks of one key, before the work under them begins. Gives them back when dropped.
struct Taken {
    keys: Few<HeldKey>,
    /// In the order in which the key names them.
    locks: Few<HeldLock>,
}

impl Taken {
    fn begin(mut self, manager: &Inner, spec: LockSpec, asking: Asking) -> SectionRef {
        let LockSpec { key, options } = spec;
        let from_now = |limit| manager.now() + limit;
        let renewals = match (options.renew, options.max_hold) {
            (false, _) => Renewals::Never,
            (true, Some(limit)) => Renewals::Until(from_now(limit)),
            (true, None) => Renewals::Always,
        };
        for key in &mut self.keys {
            match key {
                HeldKey::Own(turn) => turn.begin(asking.section().clone(), renewals),
                HeldKey::Reentered(outer) => outer.begin(),
            }
        }
        let token = self.locks.first().map(|lock| lock.token);
        let holding = asking.granted(token.unwrap_or(FencingToken::NONE));
        let teardown = Teardown::of(self.keys, options.min_hold.map(from_now));
        Section::begin(manager.id, key, self.locks, teardown, Some(holding))
    }
}

impl Inner {
    /// Refuses requests that cannot work before the store is asked, except those that [`reenter`]
    /// has refused already. Returns the ttl that applies.
    fn check(&self, key: &LockKey, options: &Options) -> Result<Duration, LockError> {
        let capabilities = &self.at_start;
        self.check_tokens(key, options)?;
        let ttl = options.ttl.unwrap_or(self.settings.ttl);
        check_ttl(ttl, capabilities)?;
        self.short_ttl.look(ttl, options.template);
        limits::check_holds(options.renew, options.max_hold, options.min_hold)?;
        if let Some(least) = options.min_hold {
            check_longest("min_hold", least, capabilities)?;
        }
        if let Patience::Within(limit) = options.patience {
            limits::TIMEOUT.check(limit)?;
        }
        Ok(ttl)
    }

    /// Notes the number of permits that this request goes by, if it wants one.
    fn note_permits(&self, name: &Arc<str>, mode: Mode) {
        if let Mode::Permits(most) = mode {
            self.permits.note(name, most);
        }
    }

    /// Refuses tokens that are not strict if the options or the settings require strict tokens.
    fn check_tokens(&self, key: &LockKey, options: &Options) -> Result<(), LockError> {
        match options.fenced || self.settings.fenced {
            true => check_fenced(&self.capabilities(), || format!("lock `{key}`")),
            false => Ok(()),
        }
    }
}
