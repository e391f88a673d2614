//! Runs a body under a lock, for the attribute and for `LockRequest::run`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::core::acquire::{LockSpec, acquire_anew, reenter};
use crate::core::inner::Inner;
use crate::core::once::OnceBody;
use crate::core::scope::Scope;
use crate::core::section::{Section, SectionRef, Teardown};
use crate::error::{LockError, LossReason};
use crate::key::LockKey;
use crate::options::{OnLost, Options};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pin_project! {
    /// A body that runs under a lock: takes it, runs, and gives it back.
    ///
    /// The future is only a little larger than the body: what waits for the store is boxed. Dropped
    /// at any await, it drops the body first and then gives the lock back in the background.
    #[must_use = "futures do nothing unless polled"]
    pub struct Run<F: Future> {
        // Declared before `state`, so that it is dropped before the lock goes back.
        #[pin]
        body: Option<F>,
        output: Option<F::Output>,
        // Present for a body that has to run once.
        is_done: Option<fn(&F::Output) -> bool>,
        state: State,
    }

    impl<F: Future> PinnedDrop for Run<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // The destructors of a cancelled body still run inside the lock.
            if let State::Running(running) = this.state {
                running.enter_to_drop(|| this.body.set(None));
            }
        }
    }
}

enum State {
    New(Option<Arc<Inner>>, Box<LockSpec>),
    Acquiring(Boxed<Result<Running, LockError>>),
    Running(Running),
    TearingDown(Boxed<()>),
    Done,
}

struct Running {
    /// Declared before `section`: if it is dropped, the body counts as not done before the lock
    /// goes back.
    once: Option<Box<OnceBody>>,
    section: SectionRef,
    scope: Scope,
    on_lost: OnLost,
    span: Span,
    /// Wakes this task when a lock is lost. Created at the first wait.
    lost: Option<Boxed<LossReason>>,
}

impl<F: Future> Run<F> {
    pub(crate) fn new(
        manager: Option<Arc<Inner>>,
        key: LockKey,
        options: Options,
        body: F,
    ) -> Self {
        Self {
            body: Some(body),
            output: None,
            is_done: None,
            state: State::New(manager, Box::new(LockSpec { key, options })),
        }
    }

    /// Sets how to tell from an output whether the body has done its work.
    pub(crate) fn done_if(mut self, is_done: fn(&F::Output) -> bool) -> Self {
        self.is_done = Some(is_done);
        self
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state {
                State::New(..) => {
                    let State::New(manager, spec) = this.state.take() else {
                        unreachable!("it is new")
                    };
                    start(manager, spec)
                }
                State::Acquiring(acquiring) => {
                    ready!(acquiring.as_mut().poll(cx)).map(State::Running)
                }
                State::Running(running) => {
                    if let Some(error) = running.cancelled() {
                        running.enter(|| this.body.set(None));
                        Err(error)
                    } else {
                        let Some(body) = this.body.as_mut().as_pin_mut() else {
                            unreachable!("a running body is there")
                        };
                        let Poll::Ready(output) = running.enter(|| body.poll(cx)) else {
                            ready!(running.poll_lost(cx));
                            continue;
                        };
                        running.ended(this.is_done.is_some_and(|is_done| is_done(&output)));
                        // What the body borrowed or owned goes before the lock does.
                        this.body.set(None);
                        let State::Running(mut running) = this.state.take() else {
                            unreachable!("the body was running")
                        };
                        match running.section.leave().and_then(Teardown::hand_over) {
                            None => return Poll::Ready(Ok(output)),
                            Some(teardown) => {
                                *this.output = Some(output);
                                Ok(State::TearingDown(give_back(teardown)))
                            }
                        }
                    }
                }
                State::TearingDown(teardown) => {
                    ready!(teardown.as_mut().poll(cx));
                    *this.state = State::Done;
                    let Some(output) = this.output.take() else {
                        unreachable!("the output of an ended body is there")
                    };
                    return Poll::Ready(Ok(output));
                }
                State::Done => panic!("`Run` was polled after it had completed"),
            };
            match next {
                Ok(state) => *this.state = state,
                Err(error) => {
                    *this.state = State::Done;
                    this.body.set(None);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl State {
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Done)
    }
}

/// A release that fails is not the body's failure: it is retried in the background, and its result
/// never replaces the body's.
fn give_back(teardown: Teardown) -> Boxed<()> {
    // The lease reports the failure and retries. Mapped, since an `async` block would have room for
    // the teardown twice, which is too much for the allocator's cache of the thread.
    Box::pin(teardown.finish().map(drop))
}

fn start(manager: Option<Arc<Inner>>, spec: Box<LockSpec>) -> Result<State, LockError> {
    let Options { on_lost, once, .. } = spec.options;
    let scope = Scope::current();
    let manager = scope.manager(manager, &spec.key)?;
    Ok(match reenter(&manager, &spec, &scope)? {
        Some(section) => State::Running(Running::begin(section, scope, on_lost, once)),
        None => State::Acquiring(Box::pin(async move {
            let section = acquire_anew(manager, spec, &scope).await?;
            Ok(Running::begin(section, scope, on_lost, once))
        })),
    })
}

impl Running {
    fn begin(section: SectionRef, outer: Scope, on_lost: OnLost, once: Option<Duration>) -> Self {
        let scope = outer.inside(Arc::clone(section.get()));
        Self {
            once: once.map(|lasts| Box::new(OnceBody::begin(section.get(), lasts))),
            span: section.get().span(),
            section,
            scope,
            on_lost,
            lost: None,
        }
    }

    /// Polls the body, inside the lock.
    fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        let _in_span = self.span.enter();
        self.scope.clone().enter(body)
    }

    /// Drops the body, inside the lock. Works in a `Drop`, and while the thread ends.
    fn enter_to_drop(&self, drop_it: impl FnOnce()) {
        let _in_span = self.span.enter();
        self.scope.clone().enter_to_drop(drop_it);
    }

    fn section(&self) -> &Section {
        self.section.get()
    }

    /// The body has ended. The mark of a body that re-entered is set when the outer one has ended.
    fn ended(&mut self, done: bool) {
        if let Some(once) = self.once.take() {
            once.end(done);
        }
    }

    /// The reason why the body must stop, if it must.
    fn cancelled(&self) -> Option<LockError> {
        match self.on_lost {
            OnLost::Continue => None,
            OnLost::Cancel => self
                .section()
                .loss()
                .map(|reason| self.section().lost_error(reason)),
        }
    }

    /// Ready when a lock is lost and the body has to stop.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.on_lost == OnLost::Continue {
            return Poll::Pending;
        }
        let lost = self.lost.get_or_insert_with(|| {
            let section = Arc::clone(self.section.get());
            Box::pin(async move { section.lost().await })
        });
        lost.as_mut().poll(cx).map(drop)
    }
}

impl<F: Future> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::New(..) => "new",
            State::Acquiring(..) => "acquiring",
            State::Running(_) => "running",
            State::TearingDown(_) => "ending",
            State::Done => "done",
        };
        f.debug_struct("Run")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
