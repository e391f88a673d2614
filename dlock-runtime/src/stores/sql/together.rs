//! Sends what goes together, alone or with others.

use std::sync::Arc;

use super::batches::{Asked, Together};
use super::connections::Priority;
use super::database::{Database, RetryPolicy};
use super::exchange::Exchange;
use super::run::Answer;
use super::script::Args;
use super::tables::Tables;
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::gathering::Entered;

/// The right to have a transaction run. Dropped, it goes to those who wait.
struct Slot<D: Database> {
    tables: Arc<Tables<D>>,
    what: Together,
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
        let (asked, exchange) = Asked::new(request, &self.time, deadline);
        let now = self.time.now();
        let entered = match self.batches.is_suspect(&request.key, now) {
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
            asked.tell(Err(self.endpoint.not_reached::<D>()));
        }
        batch.sort_unstable_by(|a, b| a.request.key.cmp(&b.request.key));
        let all: Vec<_> = batch.iter().map(|asked| Args::of(&asked.request)).collect();
        let (script, columns) = what.script(all.len());
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
                let is_alone = batch.len() == 1;
                for asked in batch {
                    let key = &*asked.request.key;
                    let its_own = answer.rows.iter().filter(|row| row.text(0) == key);
                    let rows: Vec<_> = its_own.cloned().collect();
                    if is_alone {
                        self.batches.is_answered(key);
                    } else if what == Together::Take && D::EACH_COMMITS && rows.is_empty() {
                        self.send(what, vec![asked], None);
                        continue;
                    }
                    let sent_at = answer.sent_at;
                    asked.tell(Ok(Answer { rows, sent_at }));
                }
            }
            Err(failed) if batch.len() == 1 || !failed.was_sent => {
                for asked in batch {
                    asked.tell(Err(failed.clone()));
                }
            }
            Err(mut failed) => {
                failed.may_be_done = D::EACH_COMMITS;
                if failed.retry != RetryPolicy::Again {
                    self.batches.suspect(&batch, self.time.now());
                }
                // Somebody keeps the row of one of them, or one of them is refused.
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
