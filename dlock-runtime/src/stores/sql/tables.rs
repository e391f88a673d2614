//! The tables of a database, and what is run on them.
//!
//! A script is run by a task of the manager's, to its end, whoever waits for it: a
//! future that is dropped in the middle of a statement would leave its connection
//! in the middle of an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::database::{Database, SqlConfig};
use super::errors::{Endpoint, Failed};
use super::pooled::{Pooled, Priority};
use super::retry::RetryPolicy;
use super::rows::Answer;
use super::script::Scripts;
use crate::backend::{BackendError, Owner};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::in_flight::InFlight;
use crate::store::{Applied, Cause, Context, Failure, Next};
use crate::stores::tier::FoundTier;
use crate::sync::Mutex;

/// The task of a script tells so long after its deadline that there is no answer,
/// if the driver has not: it may be stuck in the operating system.
const STUCK: Duration = Duration::from_millis(20);

/// A database that may tell of free locks.
pub trait Notifies: Database {
    /// Hears of them until it is dropped.
    #[doc(hidden)]
    fn listen(tables: Arc<Tables<Self>>) -> Option<BoxFuture<'static, ()>> {
        let _ = tables;
        None
    }
}

/// The tables, as this process sees them.
pub struct Tables<D: Database> {
    pub(super) config: SqlConfig<D>,
    pub(super) endpoint: Endpoint,
    pub(super) pooled: Pooled<D>,
    pub(super) scripts: Scripts,
    pub(super) durability: Durability,
    /// This backend among all that share the database.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "the others have no channel to name after it")
    )]
    pub(super) process: Owner,
    /// Messages tell the waiters when it is their turn.
    notified: AtomicBool,
    /// A lock has been asked for.
    pub(super) used: Notify,
    /// Counts the scripts that are run.
    pub(super) running: InFlight,
    pub(super) time: Time,
    pub(super) events: Events,
}

/// A script that is being run.
pub(crate) struct Exchange(oneshot::Receiver<Reply>);

/// What has come of one.
pub(super) enum Reply {
    Came(Result<Answer, Failed>),
    /// Nothing yet: it comes here.
    Late(Exchange),
}

impl<D: Database> Tables<D> {
    pub(super) fn new(config: SqlConfig<D>, context: Context) -> Self {
        let request_timeout = context.request_timeout;
        let endpoint = Endpoint {
            name: config.name(),
            request_timeout,
        };
        let pool = config.connections(config.max_connections, request_timeout);
        let process = Owner::unique();
        Self {
            durability: Durability::unknown(),
            pooled: Pooled::new(pool, endpoint.clone()),
            scripts: Scripts::new::<D>(process, request_timeout),
            config,
            endpoint,
            process,
            notified: AtomicBool::new(false),
            used: Notify::new(),
            running: InFlight::default(),
            time: context.time,
            events: context.events,
        }
    }

    /// A lock is asked for.
    pub(super) fn is_used(&self) {
        self.pooled.rest(false);
        self.used.notify_one();
    }

    pub(super) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Whether messages come through at present. Some may have been missed.
    #[cfg(feature = "postgres")]
    pub(super) fn notifications_come(&self, come: bool) {
        self.notified.store(come, Ordering::Relaxed);
        self.events.missed();
    }

    /// Begins to run a script.
    pub(super) fn begin(
        self: &Arc<Self>,
        script: String,
        columns: usize,
        priority: Priority,
        deadline: Deadline,
    ) -> Exchange {
        let (tell, reply) = oneshot::channel();
        let (this, counted) = (Arc::clone(self), self.running.count());
        self.time.spawn(async move {
            let _counted = counted;
            let mut run = std::pin::pin!(async {
                let run = this.pooled.run(&script, columns, priority, deadline.at());
                let came = run.await;
                if let Ok(answer) = &came {
                    this.events.heard(answer.sent_at);
                }
                Reply::Came(came)
            });
            let limit = deadline.at() + STUCK;
            match tokio::time::timeout_at(limit.into(), &mut run).await {
                Ok(reply) => {
                    let _ = tell.send(reply);
                }
                Err(_) => {
                    let (tell_late, late) = oneshot::channel();
                    let _ = tell.send(Reply::Late(Exchange(late)));
                    let _ = tell_late.send(run.await);
                }
            }
        });
        Exchange(reply)
    }

    /// Runs a script of which nothing is left to undo.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: String,
        columns: usize,
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        self.ask(script, columns, deadline, &mut None).await
    }

    /// Runs a script that nobody waits for: its error is logged, as there is nobody to
    /// tell who could do something about it.
    pub(super) async fn look_after(
        self: &Arc<Self>,
        script: String,
        columns: usize,
    ) -> Option<Answer> {
        let deadline = self.time.after(self.endpoint.request_timeout);
        let answer = self.run(script, columns, deadline).await;
        answer
            .inspect_err(|failure| {
                if let Cause::Error(error) | Cause::NotReached(error) = &failure.cause {
                    tracing::debug!(
                        target: "dlock::store",
                        "dlock cannot look after its tables: {error}"
                    );
                }
            })
            .ok()
    }

    /// Runs a script. While there is no answer it is in `in_flight`.
    pub(super) async fn ask(
        self: &Arc<Self>,
        script: String,
        columns: usize,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let begun = self.time.now();
        let exchange = self.begin(script, columns, Priority::InTurn, deadline);
        let reply = in_flight.insert(exchange).reply().await;
        *in_flight = None;
        match reply {
            Some(Reply::Came(came)) => came.map_err(Failure::from),
            Some(Reply::Late(exchange)) => {
                *in_flight = Some(exchange);
                Err(Failure {
                    cause: Cause::Silence,
                    next: Next::Pause,
                    applied: Applied::OnItsWay,
                })
            }
            None => Err(Failure {
                cause: Cause::Error(BackendError::unavailable(
                    "its thread has ended; the manager was shut down",
                )),
                next: Next::Stop,
                applied: Applied::Unknown { sent_at: begun },
            }),
        }
    }
}

impl Exchange {
    /// `None` if the manager's thread has ended.
    pub(super) async fn reply(&mut self) -> Option<Reply> {
        (&mut self.0).await.ok()
    }

    /// Waits for as long as it takes: whether it is known what became of it.
    pub(super) async fn ends(mut self) -> bool {
        loop {
            match self.reply().await {
                Some(Reply::Late(exchange)) => self = exchange,
                Some(Reply::Came(Ok(_))) => return true,
                Some(Reply::Came(Err(failed))) => return failed.retry != RetryPolicy::Reconnect,
                None => return false,
            }
        }
    }
}

/// How often those who were refused have it looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the database has last said of it.
pub(super) struct Durability {
    pub(super) tier: FoundTier,
    /// Of the tables. They are looked at when connecting.
    pub(super) tables: AtomicBool,
    looked: Mutex<Instant>,
}

impl Durability {
    /// Nothing has been looked at yet.
    fn unknown() -> Self {
        Self {
            tier: FoundTier::unknown(),
            tables: AtomicBool::new(false),
            looked: Mutex::new(Instant::now()),
        }
    }

    /// Whether to look again now, as somebody asks who may be refused.
    pub(super) fn is_due(&self) -> bool {
        let mut looked = self.looked.lock();
        let due = looked.elapsed() >= AGAIN;
        if due {
            *looked = Instant::now();
        }
        due
    }
}
