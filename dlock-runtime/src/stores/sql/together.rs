//! Sends the requests to take or give back a lock, alone or together.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::batches::Asked;
use super::connections::{Answer, Priority};
use super::database::{Database, RetryPolicy};
use super::exchange::{Came, Exchange};
use super::tables::Tables;
use super::work::{ACQUIRE_COLUMNS, Args, SingleStatement, Together, Work};
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::gathering::Entered;

/// How long a transaction keeps its [`Slot`]. It may wait for a row that another session keeps, and
/// others must not wait for that.
const SLOT_LIMIT: Duration = Duration::from_millis(500);

/// The right to run a transaction. When dropped, it goes to the requests that wait.
struct Slot<D: Database> {
    tables: Arc<Tables<D>>,
    what: Together,
}

impl<D: Database> Tables<D> {
    /// Takes or gives back a lock, alone or together with others, and returns the rows about this
    /// lock. Until its answer comes, the exchange is kept in `in_flight`.
    pub(super) async fn together(
        self: &Arc<Self>,
        what: Together,
        request: &Request,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let (asked, exchange) = Asked::new(request, &self.time, deadline);
        let now = self.time.now();
        let entered = match self.batches.is_asked_alone(&request.key, now) {
            true => {
                asked.leave.takes();
                Entered::Alone(asked)
            }
            false => self.batches.of(what).lock().enter(asked, now),
        };
        match entered {
            Entered::Goes(asked) => self.send(what, vec![asked], Some(self.slot(what))),
            Entered::Alone(asked) => self.send(what, vec![asked], None),
            Entered::Full(batch) if batch.is_empty() => {}
            Entered::Full(batch) => self.send(what, batch, Some(self.slot(what))),
            Entered::Waits => {}
        }
        self.reply(in_flight, exchange).await
    }

    fn slot(self: &Arc<Self>, what: Together) -> Slot<D> {
        let tables = Arc::clone(self);
        Slot { tables, what }
    }

    /// Sends these requests. When they have been answered, or have had the slot for long enough, it
    /// sends those that have gathered meanwhile.
    fn send(self: &Arc<Self>, what: Together, batch: Vec<Asked>, slot: Option<Slot<D>>) {
        let (this, counted) = (Arc::clone(self), self.running.count());
        self.time.spawn(async move {
            let _counted = counted;
            let mut run = pin!(this.run_together(what, batch));
            if let Some(slot) = slot {
                let limit = this.time.after(SLOT_LIMIT);
                let is_done = this.time.bound(limit, &mut run).await.is_ok();
                drop(slot);
                if is_done {
                    return;
                }
            }
            run.await;
        });
    }

    async fn run_together(self: &Arc<Self>, what: Together, batch: Vec<Asked>) {
        let (mut batch, late): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|asked| !self.time.has_passed(asked.deadline));
        for asked in late {
            asked.tell(Err(self.endpoint.not_reached::<D>()));
        }
        let is_alone = batch.len() == 1;
        if is_alone {
            batch = self.quickly(what, batch).await;
        }
        // None are left if all were late, or were answered.
        let Some(deadline) = batch.iter().map(|asked| asked.deadline).max() else {
            return;
        };
        batch.sort_unstable_by(|a, b| a.request.key.cmp(&b.request.key));
        let all: Vec<_> = batch.iter().map(|asked| Args::of(&asked.request)).collect();
        let (script, columns) = what.script(all.len());
        let script = self.scripts.fill(script, &all);
        let work = Work::Script(&script, columns);
        let came = self.answer(work, Priority::InTurn, deadline).await;
        match came {
            Ok(answer) => {
                for asked in batch {
                    let key = &*asked.request.key;
                    let its_own = answer.rows.iter().filter(|row| row.text(0) == key);
                    let rows: Vec<_> = its_own.cloned().collect();
                    if is_alone {
                        self.batches.forget_alone(key);
                        if what == Together::Take && rows.iter().any(|row| row.int(3) == 0) {
                            self.quick.note_row(key, self.time.now());
                        }
                    } else if what == Together::Take && D::EACH_COMMITS && rows.is_empty() {
                        self.send(what, vec![asked], None);
                        continue;
                    }
                    let sent_at = answer.sent_at;
                    asked.tell(Ok(Answer { rows, sent_at }));
                }
            }
            Err(failed) if is_alone || !failed.was_sent => {
                if failed.was_sent && failed.retry != RetryPolicy::Stop {
                    // Somebody may keep its row. The next time it waits beside the others.
                    self.batches.ask_alone(&batch, self.time.now());
                }
                for asked in batch {
                    asked.tell(Err(failed.clone()));
                }
            }
            Err(mut failed) => {
                failed.may_be_done = D::EACH_COMMITS && failed.retry != RetryPolicy::ReadOnly;
                if failed.retry != RetryPolicy::Again {
                    self.batches.ask_alone(&batch, self.time.now());
                }
                // Another session keeps the row of one of these locks, or the database refuses one
                // of them.
                let alone = matches!(failed.retry, RetryPolicy::Kept | RetryPolicy::Stop);
                for mut asked in batch {
                    if alone {
                        asked.may_be_done |= failed.may_be_done;
                        self.send(what, vec![asked], None);
                    } else {
                        asked.tell(Err(failed.clone()));
                    }
                }
            }
        }
    }

    /// Tries the statement. Returns the request if the script has to be run.
    async fn quickly(&self, what: Together, mut lone: Vec<Asked>) -> Vec<Asked> {
        let Some(asked) = lone.pop() else {
            return lone;
        };
        match self
            .by_statement(what.lone(), &asked.request, asked.deadline)
            .await
        {
            Some(came) => asked.tell(came),
            None => lone.push(asked),
        }
        lone
    }

    /// Asks for a waiter that has a place in the queue. It is likely to be first.
    pub(super) async fn turn(
        self: &Arc<Self>,
        args: Args<'_>,
        request: &Request,
        deadline: Deadline,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let script = self.scripts.fill("acquire", &[args]);
        let (tell, exchange) = Exchange::new(&self.time, deadline);
        exchange.leave.takes();
        let (this, counted, request) = (Arc::clone(self), self.running.count(), request.clone());
        self.time.spawn(async move {
            let _counted = counted;
            let came = match this
                .by_statement(SingleStatement::Turn, &request, deadline)
                .await
            {
                Some(came) => came,
                None => {
                    let work = Work::Script(&script, ACQUIRE_COLUMNS);
                    this.answer(work, Priority::InTurn, deadline).await
                }
            };
            let _ = tell.send(came);
        });
        self.reply(in_flight, exchange).await
    }

    /// The answer to the statement. `None`: it was not tried, or has done nothing.
    async fn by_statement(
        &self,
        what: SingleStatement,
        request: &Request,
        deadline: Deadline,
    ) -> Option<Came> {
        let key = &*request.key;
        if !self.quick.is_likely(what, key, self.time.now()) {
            return None;
        }
        let args = Args::of(request);
        let work = Work::Quick(what, self.quick.statement(what), &args);
        let came = self.answer(work, Priority::InTurn, deadline).await;
        let now = self.time.now();
        match &came {
            Ok(answer) if !answer.rows.is_empty() => {
                self.batches.forget_alone(key);
                self.quick.note_row(key, now);
                Some(came)
            }
            Err(failed) if !failed.was_sent => Some(came),
            Err(failed) if failed.retry.needs_another_connection() => {
                self.quick.forget(key);
                Some(came)
            }
            Ok(_) => {
                if what == SingleStatement::Take {
                    self.quick.forget(key);
                }
                None
            }
            // A statement that the database has refused has done nothing either.
            Err(failed) => {
                if failed.retry == RetryPolicy::Stop {
                    self.quick.note_refusal(now);
                }
                None
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
