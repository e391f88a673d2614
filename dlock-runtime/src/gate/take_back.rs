//! Taking back what a task does not collect.

use std::sync::Arc;

use super::queue::{Queue, Queues, Served};
use super::sweep::Tick;
use super::ticket::{Seen, Ticket};
use crate::backend::Request;
use crate::observe;

impl Queues {
    /// Takes back what was not collected. Returns whether there is anything left to look at.
    pub(super) fn look(&self, tick: Tick) -> bool {
        let mut outstanding = false;
        for queue in self.all() {
            outstanding |= self.look_at(&queue, tick);
        }
        outstanding
    }

    fn look_at(&self, queue: &Queue, tick: Tick) -> bool {
        let (served, is_waited_for) = queue.look();
        let looks = |served| self.look_at_one(queue, served, is_waited_for, tick);
        served
            .into_iter()
            .map(looks)
            .fold(false, |any, one| any | one)
    }

    fn look_at_one(&self, queue: &Queue, served: Served, is_waited_for: bool, tick: Tick) -> bool {
        let Served { ticket, asked } = served;
        match ticket.look(tick) {
            Seen::Gone => {
                queue.forget_served(&ticket);
                return false;
            }
            // The task is woken, to see at the next look whether it is polled then. Its runtime may
            // be blocked, and the store's answer may lie there unread.
            Seen::Comes { lease } if lease || is_waited_for => ticket.wake(),
            Seen::Comes { .. } => return false,
            Seen::Neglects { since, .. } if tick.is_too_long_after(since) => {
                if let Some(given) = ticket.take_back() {
                    observe::not_polled(queue.key());
                    queue.doubt();
                    drop(given);
                }
            }
            // The waiters behind it may not be polled either. All are called, and the next look
            // shows which of them are polled.
            Seen::Neglects { since, .. } if tick.is_last_look_after(since) => queue.call_all(),
            Seen::Neglects { lease: true, since } if since == tick => ticket.show(),
            // Something has woken the task that asks the store: probably the store's answer.
            Seen::Neglects {
                lease: false,
                since,
            } if tick.is_next_after(since) => {
                self.show_if_granted(asked, ticket);
            }
            Seen::Neglects { .. } | Seen::Waits => {}
        }
        true
    }

    /// Called for a task that does not read the store's answer: asks the store whether it has
    /// granted the lock and, if so, counts the lock as held.
    fn show_if_granted(&self, asked: Option<Request>, ticket: Arc<Ticket>) {
        let Some(request) = asked else {
            return;
        };
        let leases = &self.sweep.leases;
        let backend = Arc::clone(&leases.backend);
        leases.executor.spawn(async move {
            if let Ok(Some(lock)) = backend.inspect(&request.key).await
                && lock
                    .holders
                    .iter()
                    .any(|holder| backend.is_owner(holder, request.current_owner()))
            {
                ticket.show();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::poll;

    use crate::backend::memory::Memory;
    use crate::gate::ticket::Stage;
    use crate::{Config, LockManager};

    /// The sweep has seen a task unpolled, which has been polled since.
    #[tokio::test]
    async fn nothing_is_taken_back_from_a_task_that_is_polled() {
        let manager = LockManager::connect(Config::default()).await;
        let manager = manager.expect("memory connects");
        let _held = manager.lock("key").acquire().await.expect("it is free");
        // Another ttl has a queue of its own, and asks the store for itself.
        let asks = manager.lock("key").ttl(Duration::from_secs(7)).acquire();
        let mut asks = pin!(asks);
        assert!(poll!(asks.as_mut()).is_pending());
        let queues = manager.inner().gate.queues.all();
        let mut served = queues.iter().flat_map(|queue| queue.look().0);
        let ticket = served.next().expect("it asks the store").ticket;
        assert!(ticket.take_back().is_none());
        ticket.wake();
        assert!(ticket.take_back().is_some());
    }

    /// It has left already, and its place in the queue is about to go.
    #[tokio::test]
    async fn a_lease_for_a_waiter_who_has_just_left_goes_to_the_next() {
        let manager = LockManager::connect(Config::default()).await;
        let manager = manager.expect("memory connects");
        let first = manager.lock("key").acquire().await.expect("it is free");
        let waiters = [(); 3].map(|()| Box::pin(manager.lock("key").acquire()));
        let [mut holds, mut leaves, mut next] = waiters;
        for one in [&mut holds, &mut leaves, &mut next] {
            assert!(poll!(one.as_mut()).is_pending());
        }
        // A lease goes to those that waited when it was granted.
        drop(first);
        let held = holds.await.expect("it is next");
        let before = u64::from(held.token());
        let queues = manager.inner().gate.queues.all();
        let [queue] = &queues[..] else {
            panic!("they wait for the same lease")
        };
        let _gone = queue.first_waiter().leave();
        held.release().await.expect("it ends well");
        let had = next.await.expect("it was handed over");
        let token = u64::from(had.token());
        assert_eq!(token, before + 1, "it is the same lease");
    }

    /// Its lead is another task's by then, and who waits behind that has its own turn.
    #[tokio::test]
    async fn a_lease_that_has_just_been_lost_is_not_handed_over() {
        let memory = Memory::new();
        let manager = LockManager::connect(Config::with_backend(memory.clone())).await;
        let manager = manager.expect("memory connects");
        let lock = || Box::pin(manager.lock("key").acquire());
        let first = lock().await.expect("it is free");
        let [mut holds, mut has, mut leads, mut behind] = [(); 4].map(|()| lock());
        for one in [&mut holds, &mut has, &mut leads] {
            assert!(poll!(one.as_mut()).is_pending());
        }
        drop(first);
        let held = holds.await.expect("it is next");
        let queues = manager.inner().gate.queues.all();
        let [queue] = &queues[..] else {
            panic!("they wait for the same lease")
        };
        let next = queue.first_waiter();
        held.release().await.expect("it ends well");
        let Stage::Lease(shared) = next.leave() else {
            panic!("it was handed over")
        };
        assert!(memory.faults().take_away("key"));
        shared.guard.lease().lost_within(Duration::ZERO).await;
        assert!(poll!(behind.as_mut()).is_pending());
        let before = queue.first_waiter();
        assert!(queue.hand_over(shared).is_err(), "it is lost");
        assert!(Arc::ptr_eq(&before, &queue.first_waiter()), "it waits");
    }
}
