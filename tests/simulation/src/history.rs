//! What was done in a run, as the checks see it while it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock::backend::Mode;

use crate::checker::Seen;
use crate::checker::once::Done;
use crate::checker::order::{Grants, Line};
use crate::checker::permits::Permits;
use crate::faults::{Effect, Fault};
use crate::network::{ServerId, Witness};
use crate::world::{At, ProcessId, World};

/// A key of the locks; and of what they guard.
pub(crate) type Key = u8;

/// The name of a key's lock.
pub(crate) fn name(key: Key) -> String {
    format!("stock:{key}")
}

/// What a run's store and settings promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    pub(crate) keys: Key,
    /// So many hand-overs in a row at most.
    pub(crate) handoff: u32,
    /// Processes are served in the order in which they came.
    pub(crate) fair: bool,
    /// Who is next is granted the lock, and need not ask for it.
    pub(crate) hands_on: bool,
    /// When something was wrong with others, it is had within this time.
    pub(crate) wakes_late: Duration,
    /// Within this time a lock that is free is had by who waits for it.
    pub(crate) wakes: Duration,
}

pub(crate) struct History {
    pub(crate) world: Arc<World>,
    pub(crate) promises: Promises,
    pub(crate) store: Arc<dyn Witness>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// By the order of entering.
    pub(crate) bodies: Vec<Entered>,
    /// Of each key, who entered last: alone, and to share it.
    pub(crate) last: BTreeMap<Key, [Option<usize>; 2]>,
    pub(crate) calls: Vec<Call>,
    /// Those that have not ended.
    pub(crate) open: BTreeSet<usize>,
    /// In each line, who waits has asked the store since then at the earliest.
    pub(crate) lines: BTreeMap<Line, At>,
    /// When each process last gave back what it had of a lock.
    pub(crate) released: BTreeMap<(ProcessId, Key), At>,
    pub(crate) grants: Grants,
    pub(crate) permits: Permits,
    /// What was to be done once, and has been.
    pub(crate) done: Vec<Done>,
    /// When a call of several keys last gave back what it had of them.
    pub(crate) collected: BTreeMap<(ProcessId, Key), At>,
    /// Processes that were killed.
    pub(crate) ended: BTreeSet<ProcessId>,
    /// When the manager of a process had shut down.
    pub(crate) shut_down: BTreeMap<ProcessId, At>,
    pub(crate) seen: Seen,
    /// Locks that were found to be idle or kept, and since when.
    pub(crate) told: BTreeSet<(Key, At)>,
    /// Those that have struck.
    pub(crate) faults: Vec<Fault>,
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
    /// Bodies that came in by a permit.
    pub(crate) permits: u64,
    /// Bodies that were to run once, and have returned `Ok`.
    pub(crate) once: u64,
    /// Those of them that were marked.
    pub(crate) marks: u64,
    /// Marks that were forgotten for somebody.
    pub(crate) forgotten: u64,
    /// Calls that were told that it had been done.
    pub(crate) told_done: u64,
    /// Bodies that returned `Err`, or panicked.
    pub(crate) failed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.sections += other.sections;
        self.had += other.had;
        self.dropped += other.dropped;
        self.reentered += other.reentered;
        self.refused_writes += other.refused_writes;
        self.writes += other.writes;
        self.permits += other.permits;
        self.once += other.once;
        self.marks += other.marks;
        self.forgotten += other.forgotten;
        self.told_done += other.told_done;
        self.failed += other.failed;
    }
}

/// A body that has begun.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) call: usize,
    pub(crate) keys: Vec<(Key, u64)>,
    pub(crate) mode: Mode,
    pub(crate) ended: Option<At>,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) process: ProcessId,
    pub(crate) keys: Vec<Key>,
    pub(crate) how: &'static str,
    pub(crate) mode: Mode,
    pub(crate) began: At,
    /// Since when its line had its place in the store, when its body began.
    pub(crate) placed: Option<At>,
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
    pub(crate) fn new(
        world: &Arc<World>,
        store: Arc<dyn Witness>,
        promises: Promises,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            promises,
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

    pub(crate) fn may_be_overlapped(&self, key: Key, token: u64) -> bool {
        self.store.may_be_overlapped(&name(key), token)
    }

    pub(crate) fn forgot_number(&self, key: Key, token: u64) -> bool {
        self.store.forgot_number(&name(key), token)
    }

    /// Whether the store could be heard by this process since then.
    pub(crate) fn was_heard_since(&self, process: ProcessId, since: At) -> bool {
        self.store.was_heard_since(process, since)
    }

    /// Whether something was wrong that can have had this effect on a process: at `blocking`
    /// servers, or with itself. A connection that broke without a word is found out when it is next
    /// used.
    pub(crate) fn has_cause(
        &self,
        effect: Effect,
        process: ProcessId,
        (from, to): (At, At),
        blocking: usize,
    ) -> bool {
        let in_vain = self
            .store
            .sent_in_vain_since(process, from.saturating_sub(effect.shows()));
        let state = self.state();
        // A process that stands still does not ask again meanwhile.
        let stood = state.stood_still(process, from.saturating_sub(effect.shows()), from);
        let troubles = state.troubles_of(process, from, to, effect.shows() + stood);
        let causes = troubles.filter(|trouble| effect.is_of(trouble.fault));
        let servers = causes.map(|trouble| trouble.server);
        reaches(blocking, servers.chain(in_vain.into_iter().map(Some)))
    }

    pub(crate) fn was_held_since(&self, key: Key, since: At) -> bool {
        self.store.was_held_since(&name(key), since)
    }

    pub(crate) fn begins(
        &self,
        process: ProcessId,
        keys: &[Key],
        how: &'static str,
        mode: Mode,
    ) -> usize {
        let began = self.world.now();
        let mut state = self.state();
        state.calls.push(Call {
            process,
            keys: keys.to_vec(),
            how,
            mode,
            began,
            placed: None,
            entered: None,
            body_ended: None,
            ended: None,
        });
        state.counts.sections += 1;
        let call = state.calls.len() - 1;
        state.open.insert(call);
        state.queues(call, began);
        call
    }

    /// It will do no more. Says what it was.
    pub(crate) fn is_over(&self, call: usize) -> Call {
        let now = self.world.now();
        let mut state = self.state();
        state.open.remove(&call);
        state.calls[call].ended = Some(now);
        let this = state.calls[call].clone();
        if this.entered.is_none() {
            state.gives_up(call, now, self.promises.handoff);
        }
        if this.keys.len() > 1 {
            for key in &this.keys {
                state.collected.insert((this.process, *key), now);
            }
        }
        this
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
        let State {
            calls, open, ended, ..
        } = &mut *state;
        open.retain(|call| calls[*call].process != process);
        ended.insert(process);
        let calls = calls.iter_mut().filter(|call| call.process == process);
        calls.for_each(|call| {
            call.ended.get_or_insert(now);
        });
    }

    /// What comes to a server later is given back by nobody.
    pub(crate) fn has_shut_down(&self, process: ProcessId) {
        let now = self.world.now();
        self.state().shut_down.insert(process, now);
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.world.log(|| format!("TROUBLE {trouble:?}"));
        let mut state = self.state();
        state.faults.push(trouble.fault);
        state.troubles.push(trouble);
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
        const SHOWS: Duration = Duration::from_secs(5);
        let troubles = self.troubles_of(process, from, to, SHOWS);
        reaches(blocking, troubles.map(|trouble| trouble.server))
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

    /// When nothing of what was wrong shows any more, and nothing that it left.
    pub(crate) fn recovered(&self, ttl: Duration) -> At {
        const SHOWS: Duration = Duration::from_secs(10);
        let ends = self.troubles.iter().map(|trouble| trouble.to + SHOWS + ttl);
        ends.max().unwrap_or_default()
    }

    /// For how long this process stood still between these, or one of its runtimes.
    pub(crate) fn stood_still(&self, process: ProcessId, from: At, to: At) -> Duration {
        // They are in the order of their beginnings, and may overlap.
        let mut until = from;
        let mut stood = Duration::ZERO;
        for stall in self.stalls(process) {
            let end = stall.to.min(to);
            stood += end.saturating_sub(stall.from.max(until));
            until = until.max(end);
        }
        stood
    }

    pub(crate) fn stood_still_within(&self, process: ProcessId, from: At, to: At) -> bool {
        self.stalls(process)
            .any(|stall| stall.from <= to && stall.to >= from)
    }

    fn stalls(&self, process: ProcessId) -> impl Iterator<Item = &Trouble> {
        let stalls = self.troubles.iter();
        stalls.filter(move |trouble| trouble.stands == Some(process))
    }

    /// Until when a lease is kept that its process was to give back by then: its manager
    /// does that once it does not stand still.
    pub(crate) fn given_back_by(&self, process: ProcessId, due: At) -> At {
        let stalls = self
            .stalls(process)
            .filter(|trouble| trouble.fault != Fault::CallerStands);
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
        reaches(blocking, outages.map(|trouble| trouble.server))
    }
}

/// Whether these are so many servers, or one is none.
fn reaches(blocking: usize, struck: impl Iterator<Item = Option<ServerId>>) -> bool {
    let mut servers = BTreeSet::new();
    for server in struck {
        match server {
            Some(server) => _ = servers.insert(server),
            None => return true,
        }
    }
    servers.len() >= blocking
}
