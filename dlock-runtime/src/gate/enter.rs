//! Waiting for a turn: in the queue, and by asking the store for it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Gate;
use super::outage::WaitState;
use super::place::StorePlace;
use super::queue::Queue;
use super::shared_lease::SharedLease;
use super::ticket::{Came, Entry, Given, Stage, Ticket};
use super::turn::Turn;
use crate::backend::{BackendError, Owner, Request};
use crate::lease::{Answer, NotHad};
use crate::observe::Operation;

impl Gate {
    /// Waits for a turn on `key`. May be dropped at any await: the place in
    /// the queue goes to the next task, and a turn that crosses with the drop
    /// is passed on. It may also be left unpolled: what it was given is then
    /// taken back, and it queues again when it is polled.
    pub(crate) async fn enter(
        &self,
        key: Arc<str>,
        entry: &Entry<'_>,
        wait_state: &WaitState,
    ) -> Result<Turn, NotHad> {
        let since = wait_state.is_asked().then(|| self.leases.now());
        loop {
            let Some((queue, ticket)) = self.queues.join(&key, entry, &self.sweep) else {
                return Err(NotHad::Busy);
            };
            if let Some(since) = since {
                wait_state.set(&queue, since);
            }
            let mut waiting = Waiting {
                queue,
                ticket,
                leads: false,
            };
            loop {
                let answer = match waiting.comes().await {
                    Came::Lease(lease) => return Ok(Turn::new(lease, &waiting.queue)),
                    Came::Answer(answer) => answer,
                    Came::Failed(not_had) => return Err(not_had),
                    Came::Called => continue,
                    Came::Leads => match self.ask(&mut waiting, entry) {
                        Ok(()) => continue,
                        Err(error) => Err(error.into()),
                    },
                    Came::TooLate => break,
                };
                return self.answered(waiting, answer, entry);
            }
            drop(waiting);
            // The request is made anew. What the store may have granted to it is on its
            // way back: to one who does not wait, that is nobody.
            if entry.try_only {
                Box::pin(self.leases.what_was_left_is_back()).await;
            }
        }
    }

    /// Begins a request to the store for the queue that the task leads.
    fn ask(&self, waiting: &mut Waiting, entry: &Entry<'_>) -> Result<(), BackendError> {
        let queue = &waiting.queue;
        let request = Request::of(
            Owner::draw()?,
            self.leases.executor.clock(),
            Arc::clone(queue.key()),
            entry.mode,
            queue.ttl(),
        );
        let asked = request.clone();
        let labels = entry.section.labels();
        let place = StorePlace::begin(&self.leases, request, entry.try_only, labels);
        waiting.leads = false;
        waiting.ticket.asks(place);
        queue.asks(&waiting.ticket, asked);
        Ok(())
    }

    /// What the store has answered is for the task, and what it says of itself for
    /// all who wait behind it.
    fn answered(
        &self,
        mut waiting: Waiting,
        answer: Answer,
        entry: &Entry<'_>,
    ) -> Result<Turn, NotHad> {
        let labels = entry.section.labels();
        let lease = answer.inspect_err(|not_had| match not_had {
            NotHad::Busy => {}
            NotHad::Store(error) => {
                labels.store_error(Operation::Acquire, error.kind());
                waiting.queue.fail_all(not_had);
            }
            // The next one asks by itself.
            NotHad::TooLate(error) => labels.store_error(Operation::Acquire, error.kind()),
        })?;
        lease.lease().speak_for(entry.section.clone());
        // A fresh lease serves those who queue now, up to the limit: whoever comes
        // later queues behind the other processes that wait in the store.
        let behind = u32::try_from(waiting.queue.holds()).unwrap_or(u32::MAX);
        waiting.leads = false;
        lease.lease().follow_with(Arc::clone(&waiting.queue) as _);
        let lease = SharedLease::new(lease, behind.min(self.handoff));
        Ok(Turn::new(lease, &waiting.queue))
    }
}

/// A task's end of its [`Ticket`]. Dropped, whatever it has passes on.
#[derive(Debug)]
struct Waiting {
    queue: Arc<Queue>,
    ticket: Arc<Ticket>,
    /// It has the lead, which is not in the ticket.
    leads: bool,
}

impl Waiting {
    /// Waits to be given something.
    async fn comes(&mut self) -> Came {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came> {
        loop {
            let came = self.ticket.poll(cx);
            match came {
                Poll::Ready(Came::Called) => self.queue.take_loose(&self.ticket),
                Poll::Ready(Came::Leads | Came::Answer(_)) => {
                    self.leads = true;
                    return came;
                }
                _ => return came,
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        match self.ticket.leave() {
            _ if self.leads => self.queue.pass_on(None),
            Stage::Waits | Stage::Called => self.queue.left(),
            // What crossed with the drop.
            Stage::Has(Given::Lease(lease)) => drop(Turn::new(lease, &self.queue)),
            Stage::Has(Given::Lead(place)) => self.queue.pass_on(place),
            Stage::Has(Given::Failed(_)) | Stage::TakenBack | Stage::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::owner::refusal;
    use crate::{Config, LockError, LockManager};

    /// Says what is wrong, and what to do.
    fn is_told<T: std::fmt::Debug>(answer: Result<T, LockError>) {
        let error = answer.expect_err("the kernel refuses");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
        for part in ["`key`", "random numbers", "`getrandom`"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn no_request_is_made_of_what_a_clone_has_too() {
        let manager = LockManager::connect(Config::default()).await;
        let manager = manager.expect("memory connects");
        let lock = || manager.lock("key");
        refusal::set(true);
        is_told(lock().acquire().await);
        is_told(lock().read().acquire().await);
        is_told(lock().try_acquire().await);
        is_told(lock().read().try_acquire().await);
        is_told(manager.lock(["key", "other"]).acquire().await);
        refusal::set(false);

        // A turn that is not handed over leaves the next to ask the store.
        let guard = lock().acquire().await.expect("free");
        let behind = [(); 2].map(|()| tokio::spawn(lock().acquire()));
        tokio::task::yield_now().await;
        refusal::set(true);
        drop(guard);
        for one in behind {
            is_told(one.await.expect("no panic"));
        }
        refusal::set(false);

        drop(lock().acquire().await.expect("free again"));
        assert!(manager.list("").await.expect("it answers").is_empty());
    }
}
