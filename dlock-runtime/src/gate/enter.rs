//! Waiting for a turn: in the queue, and by asking the store for it.

use std::future::poll_fn;
use std::sync::Arc;

use super::Gate;
use super::lead::Lead;
use super::outage::WaitState;
use super::queue::Queue;
use super::shared_lease::SharedLease;
use super::ticket::{Entry, Stage};
use super::turn::Turn;
use super::waiting::Waiting;
use crate::apart::apart;
use crate::backend::{Owner, Request};
use crate::lease::{Answer, NotGranted};

impl Gate {
    /// Waits for a turn on `key`. It may be dropped at any await: its place in the queue goes
    /// to the next task, as does a turn that arrives just then. It may also be left unpolled:
    /// the sweep takes back what it was given, and it queues again at its next poll.
    pub(crate) async fn enter(
        &self,
        key: Arc<str>,
        entry: &Entry<'_>,
        wait_state: Option<&WaitState>,
    ) -> Result<Turn, NotGranted> {
        let gives_up = wait_state.map(|wait_state| (wait_state, self.leases.now()));
        loop {
            let Some((queue, ticket)) = self.queues.join(&key, entry) else {
                return Err(NotGranted::Busy);
            };
            if let Some((wait_state, since)) = gives_up {
                wait_state.set(&queue, since);
            }
            let waiting = Waiting { queue, ticket };
            loop {
                match poll_fn(|cx| waiting.poll(cx)).await {
                    Stage::Lease(lease) => return Ok(Turn::new(lease, &waiting.queue)),
                    Stage::Failed(not_granted) => return Err(not_granted),
                    Stage::Lead(mut lead) => {
                        let Waiting { queue, ticket } = &waiting;
                        let answer = match lead.answer.take() {
                            // The question was that of a task that has left. Its answer may be
                            // outdated for this one.
                            Some(Err(NotGranted::Done))
                                if queue.came_since(lead.number, ticket) =>
                            {
                                queue.fail_who_waited(lead.number, &NotGranted::Done);
                                None
                            }
                            answer => answer,
                        };
                        let answer = match answer {
                            Some(answer) => answer,
                            None => match Owner::draw(self.origin) {
                                Ok(owner) => {
                                    self.ask(owner, lead, &waiting, entry);
                                    continue;
                                }
                                Err(error) => Err(error.into()),
                            },
                        };
                        return self.answered(answer, lead, &waiting.queue, entry);
                    }
                    Stage::Waits | Stage::Called => {}
                    Stage::Gone => break,
                }
            }
            drop(waiting);
            // What it had was taken back, so it asks again. A grant to its first request may
            // still be on its way back; a `try` must not find the lock held by that.
            if entry.try_only {
                apart(self.leases.wait_for_cleanup()).await;
            }
        }
    }

    /// Begins a request to the store, for the queue that this task leads.
    fn ask(&self, owner: Owner, lead: Lead, waiting: &Waiting, entry: &Entry<'_>) {
        let Waiting { queue, ticket } = waiting;
        let clock = self.leases.executor.clock();
        let key = Arc::clone(queue.key());
        let request = Request::of(owner, clock, key, entry.mode, queue.ttl());
        request.tells(&self.permits);
        let asked = request.clone();
        let labels = entry.section.labels();
        let (number, tries) = (lead.number, entry.try_only);
        let leases = Arc::clone(&self.leases);
        let answer = apart(async move { leases.request(request, tries, labels).await });
        ticket.asks(lead.asks(answer, tries));
        queue.asks(number, ticket, asked);
    }

    /// Hands the store's answer to the task that asked. If the answer also concerns the tasks that
    /// wait behind it, they are told as well.
    fn answered(
        &self,
        answer: Answer,
        lead: Lead,
        queue: &Arc<Queue>,
        entry: &Entry<'_>,
    ) -> Result<Turn, NotGranted> {
        let labels = entry.section.labels();
        let guard = answer.inspect_err(|not_granted| match not_granted {
            NotGranted::Busy => {}
            NotGranted::Done => queue.fail_who_waited(lead.number, not_granted),
            NotGranted::TakenOut => queue.place_was_taken(not_granted),
            NotGranted::Store(error) => {
                labels.store_error("acquire", error);
                queue.fail_all(not_granted);
            }
            // Concerns this request only: the next task asks for itself.
            NotGranted::TooLate(error) => labels.store_error("acquire", error),
        })?;
        let lease = guard.lease();
        lease.set_section(entry.section.clone());
        // A fresh lease serves the tasks that wait now, up to the limit. Those that come later
        // queue behind the other processes that wait in the store.
        let number = lead.number;
        let behind = u32::try_from(queue.holds(number, lease)).unwrap_or(u32::MAX);
        lead.follow(lease);
        let lease = SharedLease::new(guard, number, behind.min(self.handoff));
        Ok(Turn::new(lease, queue))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use futures_util::poll;
    use tokio::sync::Notify;
    use tokio::time::{Instant, sleep};

    use crate::backend::owner::refusal;
    use crate::backend::{
        Backend, BackendError, Capabilities, Grant, LockInfo, Released, Renewed, Request,
    };
    use crate::token::FencingToken;
    use crate::{Config, LockError, LockManager};

    /// A store that answers its first question late, with `Done`. By then, it has forgotten the
    /// mark.
    #[derive(Debug, Default)]
    struct Remembered {
        was_asked: AtomicBool,
        answers: Arc<Notify>,
        /// So the manager goes by the clock of the test.
        local: bool,
    }

    #[async_trait]
    impl Backend for Remembered {
        fn capabilities(&self) -> Capabilities {
            let mut capabilities = Capabilities::new("remembered");
            capabilities.once = true;
            capabilities.local = self.local;
            capabilities
        }

        async fn try_acquire(&self, _: &Request) -> Result<Option<Grant>, BackendError> {
            Ok(None)
        }

        async fn acquire(&self, _: &Request) -> Result<Grant, BackendError> {
            if !self.was_asked.swap(true, Ordering::Relaxed) {
                self.answers.notified().await;
                return Err(BackendError::done());
            }
            Ok(Grant::new(FencingToken::from(1), Instant::now()))
        }

        async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
            let sent_at = Instant::now();
            let extended = |_| Ok(Renewed::Extended { sent_at });
            requests.iter().map(extended).collect()
        }

        async fn release(&self, _: &Request) -> Result<Released, BackendError> {
            Ok(Released::Released)
        }

        async fn forget(&self, _: &str) -> Result<bool, BackendError> {
            Ok(true)
        }

        async fn inspect(&self, _: &str) -> Result<Option<LockInfo>, BackendError> {
            Ok(None)
        }

        async fn list(&self, _: &str) -> Result<Vec<LockInfo>, BackendError> {
            Ok(Vec::new())
        }
    }

    /// Also if the one who asked has left, and the other inherits the question.
    #[tokio::test]
    async fn what_was_done_when_another_asked_is_not_told_to_who_came_since() {
        for leaves in [false, true] {
            let store = Remembered::default();
            let answers = Arc::clone(&store.answers);
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it connects");
            let lock = || tokio::spawn(manager.lock("key").acquire());
            let before = lock();
            tokio::task::yield_now().await;
            assert!(manager.forget("key").await.expect("it answers"));
            let since = lock();
            tokio::task::yield_now().await;
            if leaves {
                before.abort();
                assert!(before.await.is_err(), "it has left");
                answers.notify_one();
            } else {
                answers.notify_one();
                let told = before.await.expect("no panic");
                assert!(matches!(told, Err(LockError::Done { .. })), "{told:?}");
            }
            let had = since.await.expect("no panic");
            assert!(had.is_ok(), "{leaves}: {had:?}");
        }
    }

    /// It finds the question of calls that are not polled, with an answer that nobody has read.
    #[tokio::test(start_paused = true)]
    async fn what_was_done_is_not_told_to_who_takes_up_the_question_of_those_who_do_not_come() {
        let store = Remembered {
            local: true,
            ..Remembered::default()
        };
        let answers = Arc::clone(&store.answers);
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it connects");
        let mut sleepy = [(); 2].map(|()| Box::pin(manager.lock("key").acquire()));
        for one in &mut sleepy {
            assert!(poll!(one.as_mut()).is_pending());
        }
        answers.notify_one();
        // The first had its time, and the place of both is kept until the next look.
        sleep(Duration::from_millis(3_250)).await;
        assert!(manager.forget("key").await.expect("it answers"));
        let since = manager.lock("key").acquire().await;
        assert!(since.is_ok(), "{since:?}");
    }

    /// Checks that the error says what is wrong and what to do.
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
