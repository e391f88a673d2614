//! A critical section: its locks and all bodies inside it, from the grant until the last body has
//! left.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all, select_all};
use smallvec::SmallVec;
use tokio::time::Instant;
use tracing::Span;

use super::inner::ManagerId;
use crate::apart::apart;
use crate::backend::{BackendError, Mode, Released};
use crate::error::{LockError, LossReason};
use crate::gate::Turn;
use crate::key::LockKey;
use crate::lease::Lease;
use crate::lock_order::WrittenLock;
use crate::observe::Holding;
use crate::options::Origin;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// One critical section. Each body inside has a [`SectionRef`] to it: the body that took the locks,
/// and those that re-entered. The locks go back when the last reference is gone, so that no body
/// inside ever runs unlocked.
pub(crate) struct Section {
    manager: ManagerId,
    key: LockKey,
    /// One lock for each distinct name of the key, in the order written.
    locks: Few<HeldLock>,
    state: Mutex<State>,
}

/// Most keys have one name, which costs no allocation.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// One lock of a section, as callers see it.
#[derive(Clone, Debug)]
pub(crate) struct HeldLock {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) lease: Arc<Lease>,
    pub(crate) origin: Origin,
}

impl HeldLock {
    pub(crate) fn as_written(&self) -> WrittenLock {
        WrittenLock::new(&self.name, self.mode, self.origin)
    }
}

/// One lock of a section, as it is given back.
#[derive(Debug)]
pub(crate) enum HeldKey {
    /// A turn that this section has taken itself.
    Own(Turn),
    /// Another section holds the lock, and this section is inside it.
    Reentered(SectionRef),
}

#[derive(Debug)]
struct State {
    /// Number of [`SectionRef`]s to this section.
    entered: usize,
    /// A lease was lost before all bodies had ended.
    lost: bool,
    /// Present until the last body has ended.
    teardown: Option<Teardown>,
    /// Ends with the last body. `None` for a section that re-entered: it is part of another one's.
    holding: Option<Holding>,
}

impl Section {
    /// Begins a section with these locks, and returns the first reference to it. `teardown` gives
    /// the locks back.
    pub(crate) fn begin(
        manager: ManagerId,
        key: LockKey,
        locks: Few<HeldLock>,
        teardown: Teardown,
        holding: Option<Holding>,
    ) -> SectionRef {
        let state = State {
            entered: 1,
            lost: false,
            teardown: Some(teardown),
            holding,
        };
        let section = Arc::new(Self {
            manager,
            key,
            locks,
            state: Mutex::new(state),
        });
        let mut first = SectionRef::to(section);
        first.took = true;
        first
    }

    /// The lock of this name, if this section belongs to `manager` and has it.
    pub(crate) fn find(&self, manager: ManagerId, name: &str) -> Option<&HeldLock> {
        if self.manager != manager {
            return None;
        }
        self.locks.iter().find(|lock| *lock.name == *name)
    }

    /// Another reference, taken to re-enter `lock`. `None` if that lock was lost or all locks have
    /// gone back.
    pub(crate) fn enter(self: &Arc<Self>, lock: &HeldLock) -> Option<SectionRef> {
        if !lock.lease.is_held() {
            return None;
        }
        let mut state = self.state.lock();
        state.teardown.as_ref()?;
        state.entered += 1;
        drop(state);
        Some(SectionRef::to(Arc::clone(self)))
    }

    /// The span of the critical section. `Span::none()` for a body that re-entered, since it is
    /// already inside a span.
    pub(crate) fn span(&self) -> Span {
        let state = self.state.lock();
        let holding = state.holding.as_ref();
        holding.map_or_else(Span::none, |holding| holding.span().clone())
    }

    /// The locks that are held. Empty if the section belongs to another manager.
    pub(crate) fn held(&self, manager: ManagerId) -> impl Iterator<Item = &HeldLock> {
        let ours = self.manager == manager && !self.is_over();
        let locks = self.locks.iter().filter(move |_| ours);
        locks.filter(|lock| lock.lease.is_held())
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    /// Whether the locks have gone back.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().teardown.is_none()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.locks.iter().all(|lock| lock.lease.is_held()) && !self.is_over()
    }

    /// Why a lease of this section was lost, if one was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.locks.iter().find_map(|lock| lock.lease.loss())
    }

    /// The error for a release that the store failed.
    pub(crate) fn not_released(&self, error: BackendError) -> LockError {
        LockError::of_store(format!("lock `{}`", self.key), "the", error)
    }

    /// The error of a body that lost one of these locks.
    pub(crate) fn lost_error(&self, reason: LossReason) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            token: self.token(),
            reason,
        }
    }

    /// The token of the first lock, in the order written.
    pub(crate) fn token(&self) -> FencingToken {
        self.locks
            .first()
            .map_or(FencingToken::NONE, |lock| lock.token)
    }

    /// Formats these locks for a user, under the name of the type that contains them.
    pub(crate) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        shown.field("key", &self.key);
        if let Some(first) = self.locks.first() {
            shown.field("mode", &first.mode);
        }
        match self.tokens().as_slice() {
            [token] => shown.field("token", token),
            tokens => shown.field("tokens", &tokens),
        };
        match self.loss() {
            Some(reason) => shown.field("lost", &reason),
            None => shown.field("is_held", &self.is_held()),
        };
        shown.finish_non_exhaustive()
    }

    /// The tokens of all locks.
    pub(crate) fn tokens(&self) -> Vec<FencingToken> {
        self.locks.iter().map(|lock| lock.token).collect()
    }

    /// A run-once body inside has ended. `done_for` says how long to remember it if it ended well.
    /// The section of such a body has one lock.
    pub(crate) fn body_ended(&self, done_for: Option<Duration>) {
        for lock in &self.locks {
            lock.lease.body_ended(done_for);
        }
    }

    /// The body that took the locks has not come to its end, so what bodies inside have done is
    /// not remembered. A section that only re-entered a lock leaves that to the one around it.
    fn is_not_done(&self) {
        let state = self.state.lock();
        let keys = state.teardown.iter().flat_map(|teardown| &teardown.keys);
        for key in keys {
            if let HeldKey::Own(turn) = key {
                turn.lease().body_ended(None);
            }
        }
    }

    /// The shortest ttl of the section's leases, as granted. Each renewal extends a lease by its
    /// ttl.
    pub(crate) fn ttl(&self) -> Duration {
        let granted = self.locks.iter().map(|lock| lock.lease.ttl());
        granted.min().unwrap_or_default()
    }

    /// Until when all locks of this section are surely held. `None` once a lock is lost or all have
    /// gone back.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadlines = self.locks.iter().map(|lock| lock.lease.deadline());
        deadlines.min().filter(|_| self.is_held())
    }

    /// Resolves when a lease of this section is lost. Never resolves if the locks go back first,
    /// since the lease may serve somebody else then.
    pub(crate) async fn lost(&self) -> LossReason {
        let lost = async |lock: &HeldLock| {
            let token = lock.lease.loss_token();
            let mut cancelled = pin!(token.cancelled());
            poll_fn(|cx| match lock.lease.loss() {
                // A process that was paused may come here before its keeper does.
                Some(reason) => Poll::Ready(Some(reason)),
                None => cancelled.as_mut().poll(cx).map(|()| None),
            })
            .await
        };
        let reason = match &self.locks[..] {
            // Most sections have one lock, and most bodies wait here, so this case does not
            // allocate.
            [lock] => lost(lock).await,
            locks => select_all(locks.iter().map(lost).map(Box::pin)).await.0,
        };
        self.unless_over().await;
        // Only the loss of a lease cancels its token.
        reason.unwrap_or(LossReason::Gone)
    }

    /// Resolves when at most `early` is left of a lease of this section, or it is lost. Never
    /// resolves if the locks go back first.
    pub(crate) async fn lost_within(&self, early: Duration) {
        let ends = self.locks.iter();
        select_all(ends.map(|lock| apart(lock.lease.lost_within(early)))).await;
        self.unless_over().await;
    }

    /// Pends for ever if the locks went back before one was lost.
    async fn unless_over(&self) {
        let ended_unharmed = {
            let state = self.state.lock();
            state.teardown.is_none() && !state.lost
        };
        if ended_unharmed {
            std::future::pending().await
        }
    }

    /// Removes one reference. The last one gets the teardown that gives the locks back.
    fn leave(&self, clean: bool) -> Option<Teardown> {
        let lost = self.loss().is_some();
        let mut state = self.state.lock();
        state.lost |= lost;
        let clean = clean && !state.lost;
        if let Some(teardown) = &mut state.teardown {
            teardown.clean &= clean;
        }
        state.entered -= 1;
        if state.entered > 0 {
            return None;
        }
        let (teardown, holding) = (state.teardown.take(), state.holding.take());
        // After the mutex is released: a subscriber's code is not ours.
        drop(state);
        drop(holding);
        teardown
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("Section", f)
    }
}

/// Keeps a [`Section`] from ending. If dropped, it counts as a body that did not end normally,
/// if its body has begun.
pub(crate) struct SectionRef {
    /// Present until the reference is given up.
    section: Option<Arc<Section>>,
    /// False for one that waits for further locks before its body begins.
    begun: bool,
    /// The body that took the locks has this one.
    took: bool,
}

impl SectionRef {
    fn to(section: Arc<Section>) -> Self {
        Self {
            section: Some(section),
            begun: true,
            took: false,
        }
    }

    /// Before a body that needs further locks. If dropped before it [begins](Self::begin), it
    /// counts as nothing.
    pub(crate) fn before_its_body(mut self) -> Self {
        self.begun = false;
        self
    }

    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    pub(crate) fn get(&self) -> &Arc<Section> {
        let section = self.section.as_ref();
        section.unwrap_or_else(|| unreachable!("a reference is given up once"))
    }

    /// Leaves after a body that ended normally; must be the last call on this reference. The last
    /// reference of the section returns the teardown that gives the locks back.
    pub(crate) fn leave(&mut self) -> Option<Teardown> {
        self.leave_as(true)
    }

    /// The same for a body that may not have ended normally, if `clean` is false.
    fn leave_as(&mut self, clean: bool) -> Option<Teardown> {
        self.section.take()?.leave(clean)
    }
}

impl Drop for SectionRef {
    fn drop(&mut self) {
        if let Some(section) = self.section.take() {
            if self.took {
                section.is_not_done();
            }
            drop(section.leave(!self.begun).and_then(Teardown::hand_over));
        }
    }
}

impl fmt::Debug for SectionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SectionRef")
            .field(&self.section.as_ref().map(|section| &section.key))
            .finish()
    }
}

/// The end of a section, which gives its locks back. If dropped, they go back in the background.
#[derive(Debug)]
pub(crate) struct Teardown {
    keys: Few<HeldKey>,
    /// No body inside was cancelled, panicked or lost its lease.
    clean: bool,
    /// The earliest time at which the locks go back.
    not_before: Option<Instant>,
}

impl Teardown {
    pub(crate) fn of(keys: Few<HeldKey>, not_before: Option<Instant>) -> Self {
        Self {
            keys,
            clean: true,
            not_before,
        }
    }

    /// Hands over the locks that can pass on without waiting. The rest must be
    /// [finished](Self::finish).
    pub(crate) fn hand_over(mut self) -> Option<Self> {
        while self.clean
            && let Some(key) = self.keys.pop()
        {
            let left = match key {
                HeldKey::Own(turn) => turn.hand_over(self.not_before).err().map(HeldKey::Own),
                reentered @ HeldKey::Reentered(_) => Some(reentered),
            };
            if let Some(left) = left {
                self.keys.push(left);
                break;
            }
        }
        (!self.keys.is_empty()).then_some(self)
    }

    /// Like [`finish`](Self::finish), for the locks of an outer section, which end with an inner
    /// one.
    fn finish_outer(self) -> BoxFuture<'static, Result<Released, BackendError>> {
        apart(self.finish())
    }

    /// Gives the locks back concurrently, so that an outage is waited for once and not once for
    /// each key. Returns the first answer other than `Released`, in reverse order of taking.
    pub(crate) async fn finish(mut self) -> Result<Released, BackendError> {
        let (clean, not_before) = (self.clean, self.not_before);
        if let [_] = &self.keys[..]
            && let Some(key) = self.keys.pop()
        {
            return key.end(clean, not_before).await;
        }
        let keys = self.keys.drain(..).rev();
        let answers = join_all(keys.map(|key| key.end(clean, not_before))).await;
        let is_bad = |answer: &Result<_, _>| !matches!(answer, Ok(Released::Released));
        let first = answers.into_iter().find(is_bad);
        first.unwrap_or(Ok(Released::Released))
    }
}

impl HeldKey {
    async fn end(self, clean: bool, not_before: Option<Instant>) -> Result<Released, BackendError> {
        match self {
            Self::Own(mut turn) => {
                if !clean {
                    turn.rule_out_handover();
                }
                turn.end(not_before).await
            }
            Self::Reentered(mut outer) => match outer.leave_as(clean) {
                Some(teardown) => teardown.finish_outer().await,
                None => Ok(Released::Released),
            },
        }
    }
}

impl Drop for Teardown {
    fn drop(&mut self) {
        while let Some(key) = self.keys.pop() {
            match key {
                HeldKey::Own(turn) => turn.abandon(self.not_before),
                HeldKey::Reentered(outer) => drop(outer),
            }
        }
    }
}
