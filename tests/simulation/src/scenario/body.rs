//! The body of a critical section.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock::backend::Mode;
use dlock::{FencingToken, LockError, LockGuard};

use crate::checker::Resource;
use crate::history::{History, Key};
use crate::world::Process;

/// How a body ends that is not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Well,
    Badly,
    Panics,
}

/// Why a call did not do its work.
#[derive(Debug)]
pub(crate) enum NotDone {
    Lock(LockError),
    /// The body said so.
    Failed,
}

impl From<LockError> for NotDone {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// What is done under a lock. Read from the seed before it is called.
#[derive(Clone)]
pub(crate) struct Body {
    pub(crate) history: Arc<History>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) process: Arc<Process>,
    pub(crate) call: usize,
    pub(crate) keys: Vec<Key>,
    pub(crate) mode: Mode,
    pub(crate) ends: Ends,
    /// It goes on when its lease was lost.
    pub(crate) goes_on: bool,
    /// It is to run once, and so long that is remembered.
    pub(crate) once: Option<Duration>,
    /// How often it goes through what it does, and how long it rests before each.
    pub(crate) rounds: u32,
    pub(crate) rests: Duration,
}

impl Body {
    /// Whether it was the body of this call that panicked.
    pub(crate) fn has_panicked(payload: &(dyn Any + Send), call: usize) -> bool {
        let of = payload.downcast_ref::<BodyPanics>();
        of.is_some_and(|BodyPanics(of)| *of == call)
    }

    /// Inside the lock: reads, and writes what it has read and one more.
    pub(crate) async fn run(self) -> Result<(), NotDone> {
        let Some(held) = dlock::current() else {
            self.history
                .violation(format!("call {} runs unlocked", self.call));
            return Ok(());
        };
        let is_held = move || held.is_held();
        let tokens = dlock::current().map(|held| held.tokens());
        self.run_by(tokens.unwrap_or_default(), is_held).await
    }

    /// Beside a guard, which cancels nothing.
    pub(crate) async fn run_beside(self, guard: &LockGuard) -> Result<(), NotDone> {
        tokio::select! {
            biased;
            _ = guard.lost() => Ok(()),
            ended = self.run_by(guard.tokens(), || guard.is_held()) => ended,
        }
    }

    async fn run_by(
        self,
        tokens: Vec<FencingToken>,
        is_held: impl Fn() -> bool,
    ) -> Result<(), NotDone> {
        let tokens = tokens.into_iter().map(u64::from);
        let keys: Vec<_> = self.keys.iter().copied().zip(tokens).collect();
        let body = self
            .history
            .enters(self.call, self.process.id, keys.clone(), self.mode);
        let (history, ends, once) = (Arc::clone(&self.history), self.ends, self.once);
        let call = self.call;
        let entered = Entered {
            history: Arc::clone(&history),
            body,
        };
        Acting {
            entered: &entered,
            is_held: &is_held,
            goes_on: self.goes_on,
            work: Box::pin(self.work(keys)),
        }
        .await;
        match ends {
            Ends::Well => {
                once.inspect(|time| history.returns_ok(body, *time, is_held()));
                Ok(())
            }
            Ends::Badly => Err(NotDone::Failed),
            // As a panic that was printed already.
            Ends::Panics => std::panic::resume_unwind(Box::new(BodyPanics(call))),
        }
    }

    async fn work(self, keys: Vec<(Key, u64)>) {
        for _ in 0..self.rounds {
            for &(key, token) in &keys {
                let Ok(read) = self.resource.read(key, token).await else {
                    return;
                };
                self.process.sleep(self.rests).await;
                if !self.mode.is_shared() && self.resource.write(key, token, read).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// What a body panics with, of this call. Any other panic is one of the runtime.
struct BodyPanics(usize);

/// A body, from its first poll until it is dropped.
struct Entered {
    history: Arc<History>,
    body: usize,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.history.leaves(self.body);
    }
}

/// Whenever it is polled, it does something. It is not polled after its lease was lost, unless
/// it is one that goes on.
struct Acting<'h, H> {
    entered: &'h Entered,
    is_held: &'h H,
    goes_on: bool,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<H: Fn() -> bool> Future for Acting<'_, H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_held = (self.is_held)();
        if is_held || !self.goes_on {
            self.entered.history.acts(self.entered.body);
        }
        if !is_held && !self.goes_on {
            self.entered.history.acts_unheld(self.entered.body);
        }
        self.work.as_mut().poll(context)
    }
}
