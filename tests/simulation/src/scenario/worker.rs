//! A task that calls for locks, one call after the other.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock::{LockError, LockManager};

use super::calls::{How, ONCE};
use super::{Body, Ends, NotDone, Program};
use crate::history::{Key, name};
use crate::run::said;
use crate::world::Process;

/// A call that is dropped at some time is so within this.
const DROPPED_WITHIN: Duration = Duration::from_secs(3);

/// A guard's mark lasts so long at least and at most; now and then for longer.
const REMEMBERED: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(300),
    Duration::from_millis(1_500),
];

/// A body may end about when its lease does, which is of a second.
const AS_ITS_LEASE: (Duration, Duration) =
    (Duration::from_millis(970), Duration::from_millis(1_010));

/// What has come of a call.
enum Came<T> {
    Returned(T),
    Panicked(Box<dyn Any + Send>),
    Dropped,
}

pub(super) struct Worker {
    pub(super) program: Arc<Program>,
    pub(super) process: Arc<Process>,
    pub(super) manager: LockManager,
    pub(super) place: usize,
    pub(super) number: u32,
}

impl Worker {
    pub(super) async fn work(self) {
        let world = Arc::clone(self.process.world());
        world.log(|| format!("{:?}: worker {} begins", self.process.id, self.number));
        let mut calls = 0;
        while calls < self.program.size.calls || world.now() < self.program.size.until {
            let rest = match world.happens(300) {
                true => Duration::ZERO,
                false => world.between(Duration::ZERO, Duration::from_millis(300)),
            };
            self.process.sleep(rest).await;
            self.call().await;
            calls += 1;
        }
        self.program.worker_ended(self.place);
    }

    async fn call(&self) {
        let (program, world) = (&self.program, self.process.world());
        let can = program.stores.can();
        let how = world.draw(|chance| How::draw(chance, can));
        let keys = program.size.keys;
        let (key, next) = world.draw(|chance| (chance.u8(..keys), chance.u8(1..keys)));
        // Most of what is to run once is behind one of the keys.
        let key = match how.is_once() && world.happens(700) {
            true => keys - 1,
            false => key,
        };
        let other = (key + next) % keys;
        let wanted = match how {
            How::Both => vec![key, other],
            _ => vec![key],
        };
        // As while another version is rolled out.
        let permits = match world.happens(200) {
            true => world.draw(|chance| chance.u32(1..=5)),
            false => program.size.permits,
        };
        let mode = how.mode(permits);
        let call = program
            .history
            .begins(self.process.id, &wanted, how.name(), mode);
        world.log(|| {
            format!(
                "{:?}: call {call} {how:?} {wanted:?} {mode:?}",
                self.process.id
            )
        });
        let ends_with_its_lease = how == How::OnceRegardless && world.happens(150);
        // As a rule short, now and then longer than a ttl.
        let rests = match world.happens(30) {
            _ if ends_with_its_lease => world.between(AS_ITS_LEASE.0, AS_ITS_LEASE.1),
            true => world.between(Duration::from_secs(1), Duration::from_secs(4)),
            false => world.between(Duration::ZERO, Duration::from_millis(40)),
        };
        let body = Body {
            history: Arc::clone(&program.history),
            resource: Arc::clone(&program.resource),
            process: Arc::clone(&self.process),
            call,
            keys: wanted,
            mode,
            ends: match how.is_once() && world.happens(300) {
                true if world.happens(500) => Ends::Badly,
                true => Ends::Panics,
                false => Ends::Well,
            },
            goes_on: how == How::OnceRegardless,
            once: how.is_once().then(|| self.remembered(how)),
            rounds: match ends_with_its_lease {
                true => 1,
                false => world.draw(|chance| chance.u32(1..=2)),
            },
            rests,
        };
        let calling = self.manager.scope(how.call(key, other, body));
        // Dropped after so many polls or at some time, at any await.
        let polls = world
            .happens(60)
            .then(|| world.draw(|chance| chance.u32(1..=chance.clone().u32(1..=40))));
        let time = world
            .happens(40)
            .then(|| world.between(Duration::ZERO, DROPPED_WITHIN));
        match self.until_dropped(polls, time, calling).await {
            Came::Returned(Err(NotDone::Lock(error))) => {
                let is_done = matches!(error, LockError::Done { .. });
                program.history.ends(call, how.bound(), &Err(error));
                if is_done && world.happens(200) {
                    self.forget(key).await;
                }
            }
            Came::Returned(Err(NotDone::Failed)) => {
                program.history.ends(call, how.bound(), &Ok(()));
                program.history.state().counts.failed += 1;
            }
            Came::Returned(Ok(())) => program.history.ends(call, how.bound(), &Ok(())),
            Came::Panicked(payload) => {
                world.log(|| format!("call {call} panics"));
                if !Body::has_panicked(&*payload, call) {
                    let why = said(&*payload);
                    program
                        .history
                        .violation(format!("call {call} panics, and its body did not: {why}"));
                }
                program.history.is_over(call);
                program.history.state().counts.failed += 1;
            }
            Came::Dropped => {
                world.log(|| format!("call {call} is dropped"));
                program.history.is_over(call);
                program.history.state().counts.dropped += 1;
            }
        }
    }

    fn remembered(&self, how: How) -> Duration {
        let world = self.process.world();
        let [least, usual, most] = REMEMBERED;
        match how {
            How::OnceGuarded if world.happens(200) => world.between(least, most),
            How::OnceGuarded => world.between(least, usual),
            _ => ONCE,
        }
    }

    /// Has it done again.
    async fn forget(&self, key: Key) {
        let history = &self.program.history;
        let began = self.process.world().now();
        let answer = self.manager.forget(name(key)).await;
        history.forgets(self.process.id, key, began, &answer);
    }

    async fn until_dropped<F: Future>(
        &self,
        polls: Option<u32>,
        time: Option<Duration>,
        work: F,
    ) -> Came<F::Output> {
        let mut work = pin!(work);
        let mut timer = pin!(self.process.sleep(time.unwrap_or(DROPPED_WITHIN)));
        let mut left = polls;
        poll_fn(|context| {
            match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
                Ok(Poll::Ready(output)) => return Poll::Ready(Came::Returned(output)),
                Ok(Poll::Pending) => {}
                Err(payload) => return Poll::Ready(Came::Panicked(payload)),
            }
            if time.is_some() && timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Came::Dropped);
            }
            if let Some(left) = &mut left {
                *left -= 1;
                if *left == 0 {
                    return Poll::Ready(Came::Dropped);
                }
            }
            Poll::Pending
        })
        .await
    }
}
