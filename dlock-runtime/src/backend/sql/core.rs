//! A backend that has been started: what its operations share.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::driver::{Answer, Column, Driver, News};
use super::durability::Durability;
use super::opened::Opened;
use super::pace::{BEAT, CLEAN, Pace};
use super::script::{ALIVE, Args, Scripts};
use super::waiters::Waiters;
use crate::backend::unknown_outcomes::UnknownOutcomes;
use crate::backend::{BackendError, BackendErrorKind, TokenTier};
use crate::in_flight::{Counted, InFlight};

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) scripts: Scripts,
    pub(super) waiters: Waiters,
    /// This backend among all that share the database.
    pub(super) process: String,
    pub(super) pace: Pace,
    pub(super) request_timeout: Duration,
    /// Where all of it runs.
    pub(super) runtime: Handle,
    /// Messages come through.
    come: Arc<AtomicBool>,
    beat: Mutex<Beat>,
    /// A lock has been taken.
    use_: Notify,
    pub(super) unknown: UnknownOutcomes,
    pub(super) durability: Durability,
    /// Counts what the database has not been told yet.
    pub(super) unsettled: InFlight,
    /// Counts what goes on behind requests, also after the database was told.
    behind: InFlight,
    /// No lock is asked for any more.
    pub(super) over: CancellationToken,
    pub(super) stopping: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The signs of life of this process.
#[derive(Default)]
struct Beat {
    tried: Option<Instant>,
    /// Others know since then that it is alive.
    known: Option<Instant>,
}

impl Core {
    /// With a database that is open. Nothing goes on by itself yet.
    pub(super) fn new(
        opened: Opened,
        process: String,
        request_timeout: Duration,
    ) -> Result<(Self, Option<News>), BackendError> {
        let runtime = Handle::try_current().map_err(|_| outside_runtime())?;
        let come = opened.news.as_ref().map(|news| Arc::clone(&news.come));
        let core = Self {
            driver: opened.driver,
            scripts: Scripts::new(opened.dialect, CLEAN, request_timeout),
            waiters: Waiters::default(),
            process,
            pace: opened.pace,
            request_timeout,
            runtime,
            come: come.unwrap_or_default(),
            beat: Mutex::default(),
            use_: Notify::new(),
            unknown: UnknownOutcomes::default(),
            durability: opened.durability,
            unsettled: InFlight::default(),
            behind: InFlight::default(),
            over: CancellationToken::new(),
            stopping: CancellationToken::new(),
            tasks: Mutex::default(),
        };
        Ok((core, opened.news))
    }

    /// Runs this by itself from now on, and ends it when the backend stops.
    pub(super) fn add_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.runtime.spawn(task);
        self.tasks().push(task);
    }

    /// What the tokens are worth. If they are not strict it is looked at again
    /// behind this: who needs them so is refused, and would never learn that
    /// they are by now.
    pub(super) fn tokens(self: &Arc<Self>) -> TokenTier {
        let tier = self.durability.tier.get();
        if tier != TokenTier::Strict && !self.over.is_cancelled() && self.durability.is_due() {
            let core = Arc::clone(self);
            self.run_behind(|unsettled| async move {
                // Nobody has to wait for it.
                drop(unsettled);
                let looked = core.durability.look(&*core.driver).await;
                if let Err(error) = looked {
                    tracing::debug!(
                        target: "dlock::store",
                        "dlock cannot look at the settings of its database: {error}"
                    );
                }
            });
        }
        tier
    }

    /// Runs what a request has left behind. The work drops what it is given when
    /// nobody has to wait for the rest of it.
    pub(super) fn run_behind<F>(&self, work: impl FnOnce(Counted) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let behind = self.behind.count();
        let work = work(self.unsettled.count());
        self.runtime.spawn(async move {
            work.await;
            drop(behind);
        });
    }

    /// By when what is asked from now on is to be answered.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// Runs a script that nobody outside waits for.
    pub(super) async fn run(
        &self,
        script: &str,
        columns: &'static [Column],
    ) -> Result<Answer, BackendError> {
        self.driver.run(script, columns, self.deadline()).await
    }

    /// Begins to run a script. It is run to its end, whoever waits for it; the
    /// answer comes by the deadline, or a little later.
    pub(super) fn begin(
        &self,
        script: String,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Asked {
        let (tell, answer) = oneshot::channel();
        let driver = Arc::clone(&self.driver);
        // The driver ends by itself in time, unless it is stuck in the
        // operating system.
        let request_timeout = self.request_timeout;
        let limit = deadline + request_timeout / 4;
        let begun = Instant::now();
        let task = self.runtime.spawn(async move {
            let mut run = pin!(driver.run(&script, columns, deadline));
            match tokio::time::timeout_at(limit.into(), &mut run).await {
                Ok(answer) => {
                    let is_over = is_over(&*driver, &answer);
                    let _ = tell.send(answer);
                    is_over
                }
                Err(_) => {
                    let _ = tell.send(Err(BackendError::unavailable(format!(
                        "it did not answer within {request_timeout:?}; check that it runs and \
                         has room on its disk, or raise the request timeout"
                    ))));
                    is_over(&*driver, &run.await)
                }
            }
        });
        Asked {
            begun,
            task,
            answer,
        }
    }

    /// The database runs nothing of this script later.
    pub(super) fn is_over(&self, answer: &Result<Answer, BackendError>) -> bool {
        is_over(&*self.driver, answer)
    }

    /// Runs a script.
    pub(super) async fn ask(
        &self,
        script: String,
        columns: &'static [Column],
    ) -> Result<Answer, BackendError> {
        self.begin(script, columns, self.deadline()).answer().await
    }

    /// What every script of this process may be given.
    pub(super) fn args(&self) -> Args<'_> {
        Args {
            process: &self.process,
            ..Args::default()
        }
    }

    /// Messages tell the waiters when it is their turn.
    pub(super) fn hears(&self) -> bool {
        self.come.load(Ordering::Relaxed)
    }

    pub(super) fn is_used(&self) {
        self.use_.notify_one();
    }

    pub(super) async fn used(&self) {
        self.use_.notified().await;
    }

    /// The others know that this process is alive, and will for a while.
    pub(super) fn is_known(&self) -> bool {
        let known = self.beat().known;
        known.is_some_and(|known| known.elapsed() < 2 * BEAT)
    }

    /// When it is to say so again. The first waiter says it, who came then.
    pub(super) fn next_beat(&self, came: Instant) -> Instant {
        self.beat().tried.unwrap_or(came) + BEAT
    }

    /// It said so in a script sent then. Whether others may have taken it for
    /// dead before.
    pub(super) fn beats(&self, sent: Instant) -> bool {
        let mut beat = self.beat();
        let gap = beat
            .known
            .is_some_and(|known| sent.duration_since(known) >= ALIVE * 3 / 4);
        *beat = Beat {
            tried: Some(sent),
            known: Some(sent),
        };
        gap
    }

    pub(super) fn misses_beat(&self, tried: Instant) {
        self.beat().tried = Some(tried);
    }

    pub(super) fn forget_beat(&self) {
        *self.beat() = Beat::default();
    }

    /// Finishes what is in flight. Nobody asks for a lock from here on.
    pub(super) async fn settle(&self) {
        self.over.cancel();
        self.unsettled.wait_idle().await;
        let _ = tokio::time::timeout(self.request_timeout, self.driver.rest()).await;
    }

    /// Ends the tasks, and what is in flight within a request timeout.
    pub(super) async fn stop(&self) {
        let limit = self.request_timeout;
        let deadline = self.deadline().into();
        let _ = tokio::time::timeout_at(deadline, self.unsettled.wait_idle()).await;
        self.stopping.cancel();
        // Once more, for what may have come since.
        let _ = tokio::time::timeout_at(deadline, self.behind.wait_idle()).await;
        let tasks = std::mem::take(&mut *self.tasks());
        for mut task in tasks {
            if tokio::time::timeout(limit, &mut task).await.is_err() {
                task.abort();
            }
        }
        let _ = tokio::time::timeout(limit, self.driver.close()).await;
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every attempt to run a script was answered, so that none of them can be run
/// later.
fn is_over(driver: &dyn Driver, answer: &Result<Answer, BackendError>) -> bool {
    driver.always_answers() || answer.as_ref().is_ok_and(|answer| !answer.repeated)
}

/// A script that is being run.
pub(super) struct Asked {
    pub(super) begun: Instant,
    /// Ends when the driver is done with it, and says whether the database is
    /// too.
    task: JoinHandle<bool>,
    answer: oneshot::Receiver<Result<Answer, BackendError>>,
}

impl Asked {
    /// Waits until the driver is done with it: when it was begun, if the
    /// database may run it yet.
    pub(super) async fn unanswered(self) -> Option<Instant> {
        let is_over = self.task.await.unwrap_or(false);
        (!is_over).then_some(self.begun)
    }

    pub(super) async fn answer(&mut self) -> Result<Answer, BackendError> {
        match (&mut self.answer).await {
            Ok(answer) => answer,
            Err(_) => Err(BackendError::unavailable(
                "its thread has ended; the manager was shut down",
            )),
        }
    }
}

fn outside_runtime() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "called outside a tokio runtime; call it from a task of one, for example under \
         `#[tokio::main]`",
    )
}
