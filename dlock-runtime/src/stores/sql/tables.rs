//! The tables of a database, and the scripts that are run on them.
//!
//! A task of the manager runs each script to its end, even if the caller leaves. A future that is
//! dropped in the middle of a statement would leave its connection in the middle of an answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::batches::Batches;
#[cfg(feature = "sqlite")]
use super::changes::Changes;
use super::connections::{Answer, Connections, DatabaseFile, Priority};
use super::database::{Database, RetryPolicy, SqlConfig};
use super::durability::Durability;
use super::errors::{Endpoint, Failed};
use super::exchange::{Came, Exchange};
use super::quick::Quick;
use super::script::{CLEANED_EVERY, Scripts};
use super::work::{Args, Work};
use crate::backend::{BackendError, Owner};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::in_flight::InFlight;
use crate::outlast::outlast;
use crate::store::{Applied, Cause, Context, Failure, Next};
use crate::sync::Mutex;
use crate::tables::HashSet;

/// As many locks are remembered at most whose rows are kept.
const MOST_KEPT: usize = 512;

/// A database that may notify clients of free locks.
pub trait Notifies: Database {
    /// Listens for notifications until it is dropped. `None`: the database sends none.
    fn listen(tables: Arc<Tables<Self>>) -> Option<BoxFuture<'static, ()>> {
        let _ = tables;
        None
    }
}

/// The tables, as this process sees them.
pub struct Tables<D: Database> {
    pub(super) config: SqlConfig<D>,
    pub(super) endpoint: Endpoint,
    pub(super) connections: Connections<D>,
    pub(super) scripts: Scripts,
    pub(super) batches: Batches,
    pub(super) quick: Quick,
    pub(super) durability: Durability,
    /// The name of this backend among all that share the database.
    #[cfg(feature = "postgres")]
    pub(super) process: Owner,
    /// Whether notifications come through.
    notified: AtomicBool,
    #[cfg(feature = "sqlite")]
    pub(super) changes: Changes,
    /// It was said that rows which nobody needs stay in the tables.
    warned: AtomicBool,
    /// Locks whose rows another session kept when a script was run last for which nobody waits.
    kept: Mutex<HashSet<String>>,
    /// Notified when a lock is asked for.
    pub(super) used: Notify,
    /// Counts the scripts that are running.
    pub(super) running: InFlight,
    pub(super) time: Time,
    pub(super) events: Events,
}

impl<D: Database> Tables<D> {
    pub(super) fn new(config: SqlConfig<D>, context: Context) -> Self {
        let request_timeout = context.request_timeout;
        let endpoint = Endpoint {
            name: config.name(),
            is_remote: config.servers().is_some(),
            request_timeout,
        };
        let process = Owner::unique();
        let scripts = Scripts::new::<D>(process, context.label.as_deref(), request_timeout);
        let file = D::file(&config.options)
            .map(|path| DatabaseFile::new(path, scripts.fill("create_tables", &[Args::default()])));
        Self {
            durability: Durability::unknown(D::DURABLE_WITH),
            connections: Connections::new(&config, endpoint.clone(), file),
            quick: Quick::new::<D>(&scripts),
            scripts,
            batches: Batches::new::<D>(&config),
            #[cfg(feature = "sqlite")]
            changes: Changes::of(D::file(&config.options)),
            config,
            endpoint,
            #[cfg(feature = "postgres")]
            process,
            notified: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            kept: Mutex::default(),
            used: Notify::new(),
            running: InFlight::default(),
            time: context.time,
            events: context.events,
        }
    }

    /// A lock is asked for.
    pub(super) fn note_use(&self) {
        self.connections.rest(false);
        self.used.notify_one();
    }

    /// A lock was granted. Whoever cleans the tables may have looked before it had a row.
    pub(super) fn note_row(&self) {
        self.used.notify_one();
    }

    pub(super) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Records whether notifications come through. Some may have been missed until now.
    #[cfg(feature = "postgres")]
    pub(super) fn notifications_come(&self, come: bool) {
        self.notified.store(come, Ordering::Relaxed);
        self.events.missed();
    }

    /// Starts a task that runs a script.
    pub(super) fn begin(
        self: &Arc<Self>,
        script: String,
        columns: usize,
        priority: Priority,
        deadline: Deadline,
    ) -> Exchange {
        let (tell, exchange) = Exchange::new(&self.time, deadline);
        exchange.leave.takes();
        let (this, counted) = (Arc::clone(self), self.running.count());
        self.time.spawn(async move {
            let _counted = counted;
            let work = Work::Script(&script, columns);
            let _ = tell.send(this.answer(work, priority, deadline).await);
        });
        exchange
    }

    /// Runs a script or a statement to its end.
    pub(super) async fn answer(
        &self,
        work: Work<'_>,
        priority: Priority,
        deadline: Deadline,
    ) -> Came {
        let run = self.connections.run(work, priority, deadline.at());
        // The driver panics over some answers that make no sense.
        let came = AssertUnwindSafe(run).catch_unwind().await;
        let came = came.unwrap_or_else(|_| Err(self.endpoint.unexpected_answer()));
        if let Ok(answer) = &came {
            self.events.answered(answer.sent_at);
        }
        came
    }

    /// Runs a script that leaves nothing to undo.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &str,
        args: Args<'_>,
        columns: usize,
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        self.ask(script, args, columns, deadline, &mut None).await
    }

    /// Runs a script that no caller waits for. Its error is only logged, since there is nobody to
    /// report it to.
    pub(super) async fn look_after(
        self: &Arc<Self>,
        script: &str,
        args: Args<'_>,
        columns: usize,
    ) -> Option<Answer> {
        let deadline = self.time.after(self.endpoint.request_timeout);
        let script = self.scripts.fill(script, &[args]);
        let exchange = self.begin(script, columns, Priority::Behind, deadline);
        let came = self.came(&mut None, exchange).await;
        came.and_then(|came| came.map_err(Failure::from))
            .inspect_err(|failure| {
                if let Cause::Error(error) | Cause::NotReached(error) = &failure.cause {
                    self.warn_if_it_lasts(failure, error);
                    tracing::debug!(
                        target: "dlock::store",
                        "dlock cannot look after its tables: {error}"
                    );
                }
            })
            .ok()
    }

    /// Says once that an error would come again, since the tables grow then.
    fn warn_if_it_lasts(&self, failure: &Failure, error: &BackendError) {
        let lasts = matches!(failure.next, Next::Stop) && !self.connections.is_closed();
        if lasts && !self.warned.swap(true, Ordering::Relaxed) {
            outlast(|| {
                tracing::warn!(
                    target: "dlock::store",
                    "dlock cannot look after its tables, and rows that nobody needs may stay \
                     there: {error}"
                );
            });
        }
    }

    /// Removes rows that nobody needs any more, for as long as the tables hold rows. Begins when a
    /// lock is asked for. Usually one process does this for all.
    pub(super) async fn keep_clean(self: Arc<Self>) {
        loop {
            self.used.notified().await;
            while !self.connections.rests() && self.clean().await {
                let pause = CLEANED_EVERY.mul_f64(1.0 + self.time.draw() / 2.0);
                self.time.sleep(self.time.after(pause)).await;
            }
        }
    }

    /// Cleans up if it is due. Returns whether the tables may hold rows.
    async fn clean(self: &Arc<Self>) -> bool {
        let state = self.look_after("is_clean", Args::default(), 2).await;
        let Some(state) = state.as_ref().and_then(|answer| answer.rows.first()) else {
            return true;
        };
        if state.int(0) == 1 {
            let waited = self.look_after("clean", Args::default(), 1).await;
            for row in waited.iter().flat_map(|answer| &answer.rows) {
                // Perhaps only dead waiters are left.
                self.give_up(Args::of_key(row.text(0))).await;
            }
        }
        state.int(1) == 1
    }

    /// Removes the place of an owner from a queue, or those of dead waiters. Returns whether the
    /// database has answered.
    pub(super) async fn give_up(self: &Arc<Self>, place: Args<'_>) -> bool {
        self.look_after("give_up", place, 0).await.is_some()
    }

    /// Runs a script. Until its answer comes, the exchange is kept in `in_flight`.
    pub(super) async fn ask(
        self: &Arc<Self>,
        script: &str,
        args: Args<'_>,
        columns: usize,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let script = self.scripts.fill(script, &[args]);
        let exchange = self.begin(script, columns, Priority::InTurn, deadline);
        self.reply(in_flight, exchange).await
    }

    /// Has a release run for which nobody waits. If another session keeps the row, the call ends: it
    /// is the pauses between such calls that grow, and the later ones are behind others.
    pub(super) async fn leave_soon(
        self: &Arc<Self>,
        key: &str,
        args: Args<'_>,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let script = self.scripts.fill("leave_soon", &[args]);
        let exchange = self.begin(script, 1, self.priority_of(key), deadline);
        let came = self.came(in_flight, exchange).await?;
        self.note_kept(key, &came);
        came.map_err(Failed::without_kept)
    }

    /// Of a script for this lock that nobody waits for.
    fn priority_of(&self, key: &str) -> Priority {
        match self.kept.lock().contains(key) {
            true => Priority::Behind,
            false => Priority::InTurn,
        }
    }

    /// Records whether another session keeps the row of this lock.
    fn note_kept(&self, key: &str, came: &Came) {
        let is_kept = matches!(came, Err(failed) if failed.retry == RetryPolicy::Kept);
        let mut kept = self.kept.lock();
        if !is_kept {
            kept.remove(key);
        } else if kept.len() < MOST_KEPT {
            kept.insert(key.to_owned());
        }
    }

    /// Waits until no script runs, and closes all connections.
    pub(super) async fn close_idle(&self, limit: Deadline) {
        let closed = async {
            self.running.wait_idle().await;
            self.connections.close_idle().await;
        };
        let _ = self.time.bound(limit, closed).await;
    }

    /// Waits for the answer. Until it comes, the exchange is kept in `in_flight`.
    pub(super) async fn reply(
        &self,
        in_flight: &mut Option<Exchange>,
        exchange: Exchange,
    ) -> Result<Answer, Failure> {
        let limit = exchange.limit.at();
        let came = self.came(in_flight, exchange).await?;
        came.map_err(
            |failed| match self.time.now() + self.endpoint.request_timeout / 4 < limit {
                true => failed.into(),
                // Another attempt would be cut off while it waits for the row, and its outcome would
                // not be known.
                false => failed.without_kept(),
            },
        )
    }

    async fn came(
        &self,
        in_flight: &mut Option<Exchange>,
        exchange: Exchange,
    ) -> Result<Came, Failure> {
        let exchange = in_flight.insert(exchange);
        let sent_at = exchange.begun;
        let Some(came) = exchange.reply(&self.time).await else {
            if exchange.stays() {
                *in_flight = None;
                return Err(self.endpoint.not_reached::<D>().into());
            }
            return Err(Failure::silent(Applied::OnItsWay));
        };
        *in_flight = None;
        match came {
            Ok(came) => Ok(came),
            Err(_) => {
                let ended = "its thread has ended; the manager was shut down";
                let failure = Failure::stop(BackendError::unavailable(ended));
                Err(failure.with(Applied::Unknown { sent_at }))
            }
        }
    }
}
