//! Locks that are taken, or given back, in one transaction.
//!
//! What a transaction costs is that it is committed, and put to disk: for many locks
//! hardly more than for one. The rows of all are kept from others until it ends, which is
//! soon. Should somebody keep one of them, the others do not wait for long: they are
//! undone, as they are with one that the database refuses, and each is asked for again by
//! itself.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::database::{Database, RetryPolicy, SqlConfig};
use super::pooled::{Answer, Priority};
use super::script::Args;
use super::tables::{Came, Exchange, Leave, Tables};
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::gathering::{Entered, Gathering, Part};
use crate::sync::Mutex;

/// So many transactions of a kind run at a time, before those that come wait for
/// company; a file has only one.
const AT_ONCE: usize = 2;

/// What is done with locks together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Together {
    Take,
    Release,
}

/// What waits to be sent.
pub(super) struct Batches {
    takes: Mutex<Gathering<Asked>>,
    releases: Mutex<Gathering<Asked>>,
}

struct Asked {
    request: Request,
    deadline: Deadline,
    leave: Leave,
    tell: oneshot::Sender<Came>,
}

/// The right to have a transaction run. Dropped, it goes to those who wait.
struct Slot<D: Database> {
    tables: Arc<Tables<D>>,
    what: Together,
}

impl Part for Asked {
    fn lock(&self) -> &str {
        &self.request.key
    }

    fn leaves(&self, _: Instant) -> bool {
        self.leave.takes()
    }
}

impl Together {
    /// The name of its script, and how many columns that answers with.
    fn script(self) -> (&'static str, usize) {
        match self {
            Self::Take => ("take", 4),
            Self::Release => ("release", 1),
        }
    }
}

impl Batches {
    pub(super) fn new<D: Database>(config: &SqlConfig<D>) -> Self {
        let at_once = if D::IS_FILE { 1 } else { AT_ONCE };
        let connections = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        let gathering = || Mutex::new(Gathering::new(at_once.min(connections), D::TOGETHER));
        Self {
            takes: gathering(),
            releases: gathering(),
        }
    }

    fn of(&self, what: Together) -> &Mutex<Gathering<Asked>> {
        match what {
            Together::Take => &self.takes,
            Together::Release => &self.releases,
        }
    }
}

impl<D: Database> Tables<D> {
    /// Does it with a lock, alone or with others: the rows that are about this one. While
    /// there is no answer it is in `in_flight`.
    pub(super) async fn together(
        self: &Arc<Self>,
        what: Together,
        request: &Request,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let (tell, exchange) = Exchange::new(&self.time, deadline);
        let asked = Asked {
            request: request.clone(),
            deadline,
            leave: exchange.leave(),
            tell,
        };
        let now = self.time.now();
        let entered = self.batches.of(what).lock().enter(asked, now);
        match entered {
            Entered::Goes(asked) => {
                asked.leaves(now);
                self.send(what, vec![asked], Some(self.slot(what)));
            }
            Entered::Full(batch) if batch.is_empty() => {}
            Entered::Full(batch) => self.send(what, batch, Some(self.slot(what))),
            Entered::Alone(asked) => {
                asked.leaves(now);
                self.send(what, vec![asked], None);
            }
            Entered::Waits => {}
        }
        self.reply(in_flight, exchange).await
    }

    fn slot(self: &Arc<Self>, what: Together) -> Slot<D> {
        let tables = Arc::clone(self);
        Slot { tables, what }
    }

    /// Sends these, and those that have gathered meanwhile behind them.
    fn send(self: &Arc<Self>, what: Together, batch: Vec<Asked>, slot: Option<Slot<D>>) {
        let (this, counted) = (Arc::clone(self), self.running.count());
        self.time.spawn(async move {
            let (_counted, _slot) = (counted, slot);
            this.run_together(what, batch).await;
        });
    }

    async fn run_together(self: &Arc<Self>, what: Together, batch: Vec<Asked>) {
        let (mut batch, late): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|asked| !self.time.has_passed(asked.deadline));
        for asked in late {
            let _left = asked.tell.send(Err(self.endpoint.not_reached::<D>()));
        }
        batch.sort_unstable_by(|a, b| a.request.key.cmp(&b.request.key));
        let all: Vec<_> = batch.iter().map(|asked| Args::of(&asked.request)).collect();
        let (script, columns) = what.script();
        let script = self.scripts.fill(script, &all);
        let deadlines = batch.iter().map(|asked| asked.deadline);
        let Some(deadline) = deadlines.max() else {
            return;
        };
        let came = self
            .answer(&script, columns, Priority::InTurn, deadline)
            .await;
        match came {
            Ok(answer) => {
                for asked in batch {
                    let rows = answer.rows.iter();
                    let its_own = rows.filter(|row| row.text(0) == &*asked.request.key);
                    let its_answer = Answer {
                        rows: its_own.cloned().collect(),
                        sent_at: answer.sent_at,
                    };
                    let _left = asked.tell.send(Ok(its_answer));
                }
            }
            // Somebody keeps the row of one of them, or one of them is refused.
            Err(failed)
                if batch.len() > 1
                    && matches!(failed.retry, RetryPolicy::Kept | RetryPolicy::Stop) =>
            {
                for asked in batch {
                    self.send(what, vec![asked], None);
                }
            }
            Err(failed) => {
                for asked in batch {
                    let _left = asked.tell.send(Err(failed.clone()));
                }
            }
        }
    }
}

impl<D: Database> Drop for Slot<D> {
    fn drop(&mut self) {
        let tables = &self.tables;
        let now = tables.time.now();
        let batch = tables.batches.of(self.what).lock().came_back(now);
        if !batch.is_empty() {
            tables.send(self.what, batch, Some(tables.slot(self.what)));
        }
    }
}
