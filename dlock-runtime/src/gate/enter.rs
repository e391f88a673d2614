//! Waiting for a turn: by leading the queue, behind others in it, or alone.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::alone::Alone;
use super::entry::{Entry, Refusal};
use super::leadership::Leadership;
use super::name::Name;
use super::place::StorePlace;
use super::probe::Probe;
use super::queue::Queue;
use super::state::Gate;
use super::ticket::{Came, Delivery};
use super::turn::Turn;
use super::wait_state::{WaitState, WaitsIn};
use super::waiting::Waiting;
use crate::backend::{BackendError, Mode, Progress};
use crate::observe;

/// For how long a task that does not wait for the lock leaves it to another, which
/// asks already, to hear from the store.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// How a task is received at the gate.
enum Joined {
    Leads(Leadership),
    Waits(Waiting),
    /// Somebody else speaks to the store. What that hears is the answer.
    Shares(Waiting),
    Busy,
}

impl Gate {
    /// Waits for a turn on `key`. May be dropped at any await: the place in
    /// the queue goes to the next task, and a turn that crosses with the drop
    /// is passed on. It may also be left unpolled: what it was given is then
    /// taken back, and it queues again when it is polled.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: Arc<str>,
        entry: &Entry<'_>,
        wait_state: &WaitState,
    ) -> Result<Turn, Refusal> {
        if entry.mode != Mode::Write {
            return Box::pin(self.enter_alone(key, entry, wait_state)).await;
        }
        let name = Name::new(key, entry.ttl, &self.hasher);
        wait_state.set(|| WaitsIn::Process {
            name: name.clone(),
            since: self.leases.now(),
        });
        loop {
            let came = match self.lead_or_queue(&name, entry) {
                Joined::Leads(leadership) => Came::For(Delivery::Lead(leadership)),
                Joined::Waits(mut waiting) => waiting.comes().await,
                Joined::Shares(waiting) => match Box::pin(self.share(waiting, entry)).await {
                    Some(answer) => return answer,
                    None => continue,
                },
                Joined::Busy => return Err(Refusal::Busy),
            };
            let leadership = match came {
                Came::For(Delivery::Turn(turn)) => return Ok(turn),
                Came::For(Delivery::Failed(refusal)) => return Err(refusal),
                Came::For(Delivery::Lead(leadership)) => leadership,
                Came::Called | Came::TooLate => continue,
            };
            if let Some(answer) = self.lead(leadership, entry).await {
                return answer;
            }
            self.was_taken_away(entry).await;
        }
    }

    /// Asks the store for one task only. Readers do: each has a lease of its own.
    async fn enter_alone(
        self: &Arc<Self>,
        key: Arc<str>,
        entry: &Entry<'_>,
        wait_state: &WaitState,
    ) -> Result<Turn, Refusal> {
        loop {
            let answer = match self.request(Arc::clone(&key), entry.mode, entry.ttl) {
                Ok(request) => {
                    wait_state.set(|| WaitsIn::Store(request.progress().clone()));
                    let place =
                        StorePlace::begin(&self.leases, request, entry.try_only, entry.section);
                    Alone::begin(self, place, entry.section.labels()).await
                }
                Err(error) => Some(Err(error.into())),
            };
            let Some(answer) = answer else {
                self.was_taken_away(entry).await;
                continue;
            };
            let lease = self.leases.answered(answer, entry.section.clone())?;
            return lease.map(Turn::alone).ok_or(Refusal::Busy);
        }
    }

    /// The request is asked anew. What the store may have granted to it is on its way
    /// back: to one who does not wait, that is nobody.
    async fn was_taken_away(&self, entry: &Entry<'_>) {
        if entry.try_only {
            Box::pin(self.leases.what_was_left_is_back()).await;
        }
    }

    /// Opens the queue, or joins it.
    fn lead_or_queue(self: &Arc<Self>, name: &Name, entry: &Entry<'_>) -> Joined {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            queues.insert(name.clone(), Queue::default());
            return Joined::Leads(self.leadership(name, None));
        };
        if let Some(place) = queue.take_loose() {
            return Joined::Leads(self.leadership(name, place));
        }
        if entry.try_only && queue.is_held() {
            return Joined::Busy;
        }
        let labels = entry.section.labels();
        let (ahead, is_asked) = (queue.len(), queue.progress().is_some());
        let ticket = if entry.try_only {
            queue.join_tries(labels)
        } else {
            queue.join(entry.fresh, labels)
        };
        drop(queues);
        let waiting = Waiting::new(Arc::clone(self), name.clone(), ticket, entry.try_only);
        if entry.try_only {
            return Joined::Shares(waiting);
        }
        if is_asked {
            self.sweep.arm();
        }
        observe::waits_in_process(name.key(), ahead);
        Joined::Waits(waiting)
    }

    /// Waits for what the store tells whoever speaks to it: that is the answer
    /// of a task that does not wait for the lock, too. But for what was told
    /// before it came: then the store is asked whether it is still there. And if
    /// nothing is told for a while, this task asks by itself: the runtime of the
    /// other may be blocked, and a backend need not say that the lock is held.
    ///
    /// Whoever else comes and goes meanwhile, a silent store is waited for only
    /// once. `None`: it was given something and did not come in time.
    async fn share(
        self: &Arc<Self>,
        mut waiting: Waiting,
        entry: &Entry<'_>,
    ) -> Option<Result<Turn, Refusal>> {
        let since = self.leases.now();
        let name = waiting.name().clone();
        let progress = || self.queues().get(&name).and_then(Queue::progress).cloned();
        let mut asked = progress();
        let heard_before = asked.as_ref().is_some_and(Progress::has_heard);
        let probe = heard_before.then(|| self.probe(&name)).flatten();
        let asks = AtomicBool::new(false);
        let mut alone = pin!(async {
            self.leases.executor().sleep(SHARED_FOR).await;
            asks.store(true, Relaxed);
            let nowhere = WaitState::new(false);
            let key = Arc::clone(name.key());
            self.enter_alone(key, entry, &nowhere).await
        });
        loop {
            tokio::select! {
                biased;
                came = waiting.comes() => match came {
                    // Somebody else asks now.
                    Came::Called => asked = progress(),
                    Came::TooLate => return None,
                    Came::For(Delivery::Turn(turn)) => return Some(Ok(turn)),
                    Came::For(Delivery::Failed(refusal)) => return Some(Err(refusal)),
                    // It has asked already.
                    Came::For(Delivery::Lead(leadership)) if asks.load(Relaxed) => {
                        drop(leadership);
                        return Some(alone.await);
                    }
                    Came::For(Delivery::Lead(leadership)) => return tokio::select! {
                        biased;
                        answer = self.lead(leadership, entry) => answer,
                        Err(error) = answer_of(probe.as_deref()) => Some(Err(error.into())),
                    },
                },
                () = hears(asked.as_ref(), since) => return Some(Err(Refusal::Busy)),
                answer = answer_of(probe.as_deref()) => return Some(Err(match answer {
                    // Whoever leads is before this one.
                    Ok(()) => Refusal::Busy,
                    Err(error) => error.into(),
                })),
                answer = &mut alone, if probe.is_none() => return Some(answer),
            }
        }
    }
}

async fn hears(progress: Option<&Progress>, since: tokio::time::Instant) {
    match progress {
        Some(progress) => progress.hears_since(since).await,
        None => std::future::pending().await,
    }
}

async fn answer_of(probe: Option<&Probe>) -> Result<(), BackendError> {
    match probe {
        Some(probe) => probe.answer().await,
        None => std::future::pending().await,
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
