//! What the locks guard: a counter for each key, which refuses tokens lower than
//! the highest that it has seen. A write that it takes is never lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::history::{History, Key};
use crate::world::At;

/// To the resource, or back.
const ONE_WAY: Duration = Duration::from_millis(3);

pub(crate) struct Resource {
    history: Arc<History>,
    counters: Mutex<BTreeMap<Key, Counter>>,
}

#[derive(Clone, Copy, Default)]
struct Counter {
    /// The highest token that was seen.
    fence: u64,
    value: u64,
    /// By which token it was last written.
    written_by: u64,
}

#[derive(Debug)]
pub(crate) struct Refused;

#[derive(Clone, Copy)]
enum Operation {
    Read,
    /// It is what was read, and one more.
    Write(u64),
}

impl Resource {
    pub(crate) fn new(history: &Arc<History>) -> Arc<Self> {
        Arc::new(Self {
            history: Arc::clone(history),
            counters: Mutex::default(),
        })
    }

    pub(crate) async fn read(self: &Arc<Self>, key: Key, token: u64) -> Result<u64, Refused> {
        self.ask(key, token, Operation::Read).await
    }

    pub(crate) async fn write(
        self: &Arc<Self>,
        key: Key,
        token: u64,
        read: u64,
    ) -> Result<u64, Refused> {
        self.ask(key, token, Operation::Write(read)).await
    }

    /// On its way it is nobody's: it arrives, whatever becomes of who sent it.
    async fn ask(
        self: &Arc<Self>,
        key: Key,
        token: u64,
        operation: Operation,
    ) -> Result<u64, Refused> {
        let world = &self.history.world;
        let one_way = || world.now() + world.between(Duration::ZERO, ONE_WAY);
        let (tell, answer) = oneshot::channel();
        let (this, back) = (Arc::clone(self), world.between(Duration::ZERO, ONE_WAY));
        world.at(one_way(), move || {
            let done = this.run(key, token, operation);
            let arrives: At = this.history.world.now() + back;
            this.history
                .world
                .at(arrives, move || drop(tell.send(done)));
        });
        answer.await.unwrap_or(Err(Refused))
    }

    fn run(&self, key: Key, token: u64, operation: Operation) -> Result<u64, Refused> {
        let mut lost = None;
        let done = {
            let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
            let counter = counters.entry(key).or_default();
            if token < counter.fence {
                Err(Refused)
            } else {
                counter.fence = token;
                if let Operation::Write(read) = operation {
                    if read != counter.value {
                        lost = Some(*counter);
                    }
                    counter.value = read + 1;
                    counter.written_by = token;
                }
                Ok(counter.value)
            }
        };
        {
            let mut state = self.history.state();
            match (&done, operation) {
                (Err(_), _) => state.counts.refused_writes += 1,
                (Ok(_), Operation::Write(_)) => state.counts.writes += 1,
                (Ok(_), Operation::Read) => {}
            }
        }
        if let Some(counter) = lost
            && !self.history.forgot_number(key, token)
            && !self.history.forgot_number(key, counter.written_by)
        {
            self.history.violation(format!(
                "key {key}: a write by token {token} loses one by token {}",
                counter.written_by
            ));
        }
        done
    }
}
