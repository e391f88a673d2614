//! A task that calls for locks, one call after the other.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock::LockManager;

use super::calls::How;
use super::{Body, Program};
use crate::world::Process;

/// A call that is dropped at some time is so within this.
const DROPPED_WITHIN: Duration = Duration::from_secs(3);

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
        let has_readers = program.stores.has_readers();
        let how = world.draw(|chance| How::draw(chance, has_readers));
        let keys = program.size.keys;
        let (key, next) = world.draw(|chance| (chance.u8(..keys), chance.u8(1..keys)));
        let other = (key + next) % keys;
        let wanted = match how {
            How::Both => vec![key, other],
            _ => vec![key],
        };
        let call = program.history.begins(self.process.id, &wanted, how.name());
        world.log(|| format!("{:?}: call {call} {how:?} {wanted:?}", self.process.id));
        // As a rule short, now and then longer than a ttl.
        let rests = match world.happens(30) {
            true => world.between(Duration::from_secs(1), Duration::from_secs(4)),
            false => world.between(Duration::ZERO, Duration::from_millis(40)),
        };
        let body = Body {
            history: Arc::clone(&program.history),
            resource: Arc::clone(&program.resource),
            process: Arc::clone(&self.process),
            call,
            keys: wanted,
            reads: matches!(how, How::Reads),
            rounds: world.draw(|chance| chance.u32(1..=2)),
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
            Some(outcome) => program.history.ends(call, how.bound(), &outcome),
            None => {
                world.log(|| format!("call {call} is dropped"));
                program.history.is_over(call);
                program.history.state().counts.dropped += 1;
            }
        }
    }

    async fn until_dropped<F: Future>(
        &self,
        polls: Option<u32>,
        time: Option<Duration>,
        work: F,
    ) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut timer = pin!(self.process.sleep(time.unwrap_or(DROPPED_WITHIN)));
        let mut left = polls;
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if time.is_some() && timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            if let Some(left) = &mut left {
                *left -= 1;
                if *left == 0 {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }
}
