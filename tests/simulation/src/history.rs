//! What was done in a run, as the checks see it while it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::faults::Fault;
use crate::network::{ServerId, Witness};
use crate::world::{At, ProcessId, World};

/// A key of the locks; and of what they guard.
pub(crate) type Key = u8;

/// The name of a key's lock.
pub(crate) fn name(key: Key) -> String {
    format!("stock:{key}")
}

pub(crate) struct History {
    pub(crate) world: Arc<World>,
    pub(crate) store: Arc<dyn Witness>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// By the order of entering.
    pub(crate) bodies: Vec<Entered>,
    /// Of each key, who entered last: to write, and to read.
    pub(crate) last: BTreeMap<Key, [Option<usize>; 2]>,
    pub(crate) calls: Vec<Call>,
    /// Times in which something was wrong: with one process, or with all.
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) violations: Vec<String>,
    pub(crate) counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sections: u64,
    pub(crate) had: u64,
    pub(crate) dropped: u64,
    pub(crate) reentered: u64,
    pub(crate) refused_writes: u64,
    pub(crate) writes: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.sections += other.sections;
        self.had += other.had;
        self.dropped += other.dropped;
        self.reentered += other.reentered;
        self.refused_writes += other.refused_writes;
        self.writes += other.writes;
    }
}

/// A body that has begun.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) call: usize,
    pub(crate) keys: Vec<(Key, u64)>,
    pub(crate) reads: bool,
    pub(crate) ended: Option<At>,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) process: ProcessId,
    pub(crate) keys: Vec<Key>,
    pub(crate) how: &'static str,
    pub(crate) began: At,
    pub(crate) entered: Option<At>,
    pub(crate) body_ended: Option<At>,
    pub(crate) ended: Option<At>,
}

/// Written whole into a trace.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) fault: Fault,
    pub(crate) process: Option<ProcessId>,
    /// `None`: it is about no server.
    pub(crate) server: Option<ServerId>,
    pub(crate) from: At,
    pub(crate) to: At,
    /// Whose runtime stands still, or its manager's thread.
    pub(crate) stands: Option<ProcessId>,
    /// The store cannot be reached, or does not answer.
    pub(crate) outage: bool,
}

impl History {
    pub(crate) fn new(world: &Arc<World>, store: Arc<dyn Witness>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            store,
            state: Mutex::default(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn violation(&self, what: String) {
        let at = self.world.now().as_secs_f64();
        self.world.log(|| format!("VIOLATION {what}"));
        let mut state = self.state();
        // The first ones say what is wrong; one that is found at each poll would fill the memory.
        if state.violations.len() < 20 {
            state.violations.push(format!("at {at:.6}: {what}"));
        }
    }

    pub(crate) fn broke_promise_to(&self, key: Key, token: u64) -> bool {
        self.store.broke_promise_to(&name(key), token)
    }

    pub(crate) fn forgot_number(&self, key: Key, token: u64) -> bool {
        self.store.forgot_number(&name(key), token)
    }

    /// Whether the store could be heard by this process since then.
    pub(crate) fn was_heard_since(&self, process: ProcessId, since: At) -> bool {
        self.store.was_heard_since(process, since)
    }

    pub(crate) fn was_held_since(&self, key: Key, since: At) -> bool {
        self.store.was_held_since(&name(key), since)
    }

    pub(crate) fn begins(&self, process: ProcessId, keys: &[Key], how: &'static str) -> usize {
        let began = self.world.now();
        let mut state = self.state();
        state.calls.push(Call {
            process,
            keys: keys.to_vec(),
            how,
            began,
            entered: None,
            body_ended: None,
            ended: None,
        });
        state.counts.sections += 1;
        state.calls.len() - 1
    }

    /// When the last call ended, of those that have.
    pub(crate) fn last_end(&self) -> Option<At> {
        self.state()
            .calls
            .iter()
            .filter_map(|call| call.ended)
            .max()
    }

    /// What it had begun has ended with it.
    pub(crate) fn killed(&self, process: ProcessId) {
        let now = self.world.now();
        let mut state = self.state();
        let calls = state
            .calls
            .iter_mut()
            .filter(|call| call.process == process);
        calls.for_each(|call| {
            call.ended.get_or_insert(now);
        });
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.world.log(|| format!("TROUBLE {trouble:?}"));
        self.state().troubles.push(trouble);
    }
}

impl State {
    /// Whether something was wrong for this process at some time between these, or so
    /// shortly before that it may still show: with itself, or at `blocking` servers.
    pub(crate) fn is_troubled(
        &self,
        process: ProcessId,
        from: At,
        to: At,
        blocking: usize,
    ) -> bool {
        const SHOWS: Duration = Duration::from_secs(12);
        reaches(blocking, self.troubles_of(process, from, to, SHOWS))
    }

    /// What was wrong for this process between these, or so shortly before.
    pub(crate) fn troubles_of(
        &self,
        process: ProcessId,
        from: At,
        to: At,
        shows: Duration,
    ) -> impl Iterator<Item = &Trouble> {
        self.troubles.iter().filter(move |trouble| {
            trouble.process.is_none_or(|known| known == process)
                && trouble.from <= to
                && trouble.to + shows >= from
        })
    }

    /// For how long this process stood still between these, or could not keep time.
    pub(crate) fn stood_still(&self, process: ProcessId, from: At, to: At) -> Duration {
        let stalls = self.troubles.iter().filter(|trouble| {
            trouble.stands.is_some() && trouble.process.is_none_or(|known| known == process)
        });
        let overlaps =
            stalls.map(|trouble| trouble.to.min(to).saturating_sub(trouble.from.max(from)));
        overlaps.sum()
    }

    /// Until when a lease is kept that its process was to give back by then: its manager
    /// does that once it does not stand still.
    pub(crate) fn given_back_by(&self, process: ProcessId, due: At) -> At {
        let stalls = self.troubles.iter().filter(|trouble| {
            trouble.stands == Some(process) && trouble.fault != Fault::CallerStands
        });
        // They are in the order of their beginnings.
        stalls.fold(due, |due, stall| match stall.from <= due {
            true => due.max(stall.to),
            false => due,
        })
    }

    /// Whether the store was out of this process's reach for all of this time.
    pub(crate) fn is_cut_off(&self, process: ProcessId, from: At, to: At, blocking: usize) -> bool {
        let outages = self.troubles.iter().filter(|trouble| {
            trouble.outage
                && trouble.process.is_none_or(|known| known == process)
                && trouble.from <= from
                && trouble.to >= to
        });
        reaches(blocking, outages)
    }
}

/// Whether these are about so many servers, or one is about none.
fn reaches<'t>(blocking: usize, troubles: impl Iterator<Item = &'t Trouble>) -> bool {
    let mut servers = BTreeSet::new();
    for trouble in troubles {
        match trouble.server {
            Some(server) => _ = servers.insert(server),
            None => return true,
        }
    }
    servers.len() >= blocking
}
