//! A hold: what one critical section has, from its first lease to the moment
//! the last body inside it has ended.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::inner::ManagerId;
use crate::backend::{BackendError, Mode, Released};
use crate::error::{LockError, LossReason};
use crate::gate::Turn;
use crate::key::LockKey;
use crate::lease::Lease;
use crate::lock_order::WrittenLock;
use crate::observe::Holding;
use crate::options::Origin;
use crate::token::FencingToken;

/// The locks of one critical section. Everybody inside has a [`Stake`] in it:
/// the body that took it, and those that re-entered. The locks go back when
/// the last stake is gone, so that no body inside ever runs unlocked.
#[derive(Debug)]
pub(crate) struct Hold {
    manager: ManagerId,
    key: LockKey,
    /// One for each name of the key, in the order written, duplicates folded.
    locks: Vec<HeldLock>,
    state: Mutex<State>,
}

/// One lock of a hold.
#[derive(Clone, Debug)]
pub(crate) struct HeldLock {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) lease: Arc<Lease>,
    pub(crate) origin: Origin,
}

impl HeldLock {
    pub(crate) fn as_written(&self) -> WrittenLock<'_> {
        WrittenLock {
            name: &self.name,
            mode: self.mode,
            origin: self.origin,
        }
    }
}

/// What stands behind a lock of a hold.
#[derive(Debug)]
pub(crate) enum Tenure {
    /// A turn of its own.
    Own(Turn),
    /// A stake in the hold that has the lock already.
    Reentered(Stake),
}

#[derive(Debug)]
struct State {
    stakes: usize,
    /// No body inside was cancelled, panicked or lost its lease.
    clean: bool,
    /// A lease was lost before all bodies had ended.
    lost: bool,
    tenures: Vec<Tenure>,
    /// The locks go back no sooner than this.
    not_before: Option<Instant>,
    /// Ends with the last body. One that re-entered is part of another's.
    holding: Option<Holding>,
}

impl Hold {
    /// A hold on these locks, and the first stake in it.
    pub(crate) fn begin(
        manager: ManagerId,
        key: LockKey,
        locks: Vec<HeldLock>,
        tenures: Vec<Tenure>,
        not_before: Option<Instant>,
        holding: Option<Holding>,
    ) -> Stake {
        let state = State {
            stakes: 1,
            clean: true,
            lost: false,
            tenures,
            not_before,
            holding,
        };
        let hold = Arc::new(Self {
            manager,
            key,
            locks,
            state: Mutex::new(state),
        });
        Stake { hold: Some(hold) }
    }

    /// The lock of this name, if this hold is on it.
    pub(crate) fn find(&self, manager: ManagerId, name: &str) -> Option<&HeldLock> {
        if self.manager != manager {
            return None;
        }
        self.locks.iter().find(|lock| *lock.name == *name)
    }

    /// Another stake, for one of the locks, unless that was lost or all have
    /// gone back.
    pub(crate) fn stake(self: &Arc<Self>, lock: &HeldLock) -> Option<Stake> {
        if !lock.lease.is_held() {
            return None;
        }
        let mut state = self.state();
        if state.stakes == 0 {
            return None;
        }
        state.stakes += 1;
        drop(state);
        Some(Stake {
            hold: Some(Arc::clone(self)),
        })
    }

    /// The span of the critical section; none of a body that re-entered, which
    /// is inside of one already.
    pub(crate) fn span(&self) -> Span {
        let state = self.state();
        let holding = state.holding.as_ref();
        holding.map_or_else(Span::none, |holding| holding.span().clone())
    }

    /// The locks that are held; none if this is another manager's.
    pub(crate) fn held(&self, manager: ManagerId) -> impl Iterator<Item = &HeldLock> {
        let ours = self.manager == manager && !self.is_over();
        let locks = self.locks.iter().filter(move |_| ours);
        locks.filter(|lock| lock.lease.is_held())
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    pub(crate) fn locks(&self) -> &[HeldLock] {
        &self.locks
    }

    /// Whether the locks have gone back.
    pub(crate) fn is_over(&self) -> bool {
        self.state().stakes == 0
    }

    pub(crate) fn is_held(&self) -> bool {
        self.locks.iter().all(|lock| lock.lease.is_held()) && !self.is_over()
    }

    /// How a lease of this hold was lost, if one was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.locks.iter().find_map(|lock| lock.lease.loss())
    }

    /// The error of a release that the store did not take.
    pub(crate) fn not_released(&self, error: BackendError) -> LockError {
        LockError::of_store(format!("lock `{}`", self.key), "the", error)
    }

    /// The error of a body that lost this hold.
    pub(crate) fn lost_error(&self, reason: LossReason) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            token: self.token(),
            reason,
        }
    }

    /// The token of the first lock as written.
    pub(crate) fn token(&self) -> FencingToken {
        self.locks
            .first()
            .map_or(FencingToken::NONE, |lock| lock.token)
    }

    /// Each is cancelled when its lease is lost.
    pub(crate) fn loss_tokens(&self) -> impl Iterator<Item = CancellationToken> {
        self.locks.iter().map(|lock| lock.lease.loss_token())
    }

    /// Resolves when a lease of this hold is lost, never if the locks go back
    /// first: the lease may then be somebody else's.
    pub(crate) async fn lost(&self) {
        let mut waits: Vec<_> = self
            .loss_tokens()
            .map(|token| Box::pin(token.cancelled_owned()))
            .collect();
        poll_fn(|cx| {
            if waits
                .iter_mut()
                .any(|wait| wait.as_mut().poll(cx).is_ready())
            {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        if self.ended_unharmed() {
            std::future::pending().await
        }
    }

    fn ended_unharmed(&self) -> bool {
        let state = self.state();
        state.stakes == 0 && !state.lost
    }

    /// Takes a stake out. The last one gets what is left to end.
    fn leave(&self, clean: bool) -> Option<Ending> {
        let lost = self.loss().is_some();
        let mut state = self.state();
        state.lost |= lost;
        state.clean &= clean && !state.lost;
        state.stakes -= 1;
        if state.stakes > 0 {
            return None;
        }
        let ending = Ending {
            tenures: std::mem::take(&mut state.tenures),
            clean: state.clean,
            not_before: state.not_before,
        };
        let holding = state.holding.take();
        // Outside of the lock: a subscriber's code is not ours.
        drop(state);
        drop(holding);
        Some(ending)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of ours panics while it holds this.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A part in a [`Hold`]. Dropped, it counts as a body that did not end
/// normally.
pub(crate) struct Stake {
    /// Present until it is given up.
    hold: Option<Arc<Hold>>,
}

impl Stake {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        // Only `leave` and `drop` take it out, and they end `self`.
        self.hold
            .as_ref()
            .unwrap_or_else(|| unreachable!("a stake is given up once"))
    }

    /// Gives the stake up after a body that ended normally. What is returned,
    /// if this was the last stake, gives the locks back.
    pub(crate) fn leave(mut self) -> Option<Ending> {
        self.hold.take().and_then(|hold| hold.leave(true))
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        if let Some(ending) = self.hold.take().and_then(|hold| hold.leave(false)) {
            drop(ending);
        }
    }
}

impl fmt::Debug for Stake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stake")
            .field(&self.hold.as_ref().map(|hold| &hold.key))
            .finish()
    }
}

/// The end of a hold: its locks on their way back. Dropped, they go back in
/// the background.
#[derive(Debug)]
pub(crate) struct Ending {
    tenures: Vec<Tenure>,
    clean: bool,
    not_before: Option<Instant>,
}

impl Ending {
    /// Hands over what can be without waiting for anything. What is left has to
    /// be [finished](Self::finish).
    pub(crate) fn hand_over(mut self) -> Option<Self> {
        if !self.clean {
            return Some(self);
        }
        while let Some(tenure) = self.tenures.pop() {
            let left = match tenure {
                Tenure::Own(turn) => turn.hand_over(self.not_before).err().map(Tenure::Own),
                reentered @ Tenure::Reentered(_) => Some(reentered),
            };
            if let Some(left) = left {
                self.tenures.push(left);
                return Some(self);
            }
        }
        None
    }

    /// Gives the locks back, side by side: an outage is waited for once, and not
    /// once for every key. The answer is the first that is not good, of the last
    /// one taken first.
    pub(crate) async fn finish(mut self) -> Result<Released, BackendError> {
        let (clean, not_before) = (self.clean, self.not_before);
        let last = self.tenures.pop();
        if self.tenures.is_empty() {
            return match last {
                Some(tenure) => tenure.end(clean, not_before).await,
                None => Ok(Released::Released),
            };
        }
        let others = self.tenures.drain(..).rev();
        let releases = last.into_iter().chain(others).map(|tenure| Ongoing {
            future: Some(Box::pin(tenure.end(clean, not_before))),
            answer: Ok(Released::Released),
        });
        let mut releases: Vec<_> = releases.collect();
        poll_fn(|context| {
            // Each of them, also when one is not done: none waits for another.
            let left = releases.iter_mut().filter_map(|one| one.poll(context));
            if left.count() == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let mut answers = releases.into_iter().map(|one| one.answer);
        let bad = answers.find(|answer| !matches!(answer, Ok(Released::Released)));
        bad.unwrap_or(Ok(Released::Released))
    }
}

/// One of several locks on its way back.
struct Ongoing<F> {
    /// None once it has been answered.
    future: Option<Pin<Box<F>>>,
    answer: Result<Released, BackendError>,
}

impl<F: Future<Output = Result<Released, BackendError>>> Ongoing<F> {
    /// Says whether it goes on.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<()> {
        let future = self.future.as_mut()?;
        match future.as_mut().poll(context) {
            Poll::Pending => Some(()),
            Poll::Ready(answer) => {
                self.answer = answer;
                self.future = None;
                None
            }
        }
    }
}

impl Tenure {
    async fn end(self, clean: bool, not_before: Option<Instant>) -> Result<Released, BackendError> {
        match self {
            Self::Own(mut turn) => {
                if !clean {
                    turn.keep_to_oneself();
                }
                turn.end(not_before).await
            }
            Self::Reentered(stake) => match stake.leave() {
                Some(ending) => Box::pin(ending.finish()).await,
                None => Ok(Released::Released),
            },
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        while let Some(tenure) = self.tenures.pop() {
            match tenure {
                Tenure::Own(turn) => turn.abandon(self.not_before),
                Tenure::Reentered(stake) => drop(stake),
            }
        }
    }
}
