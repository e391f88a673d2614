//! What `memory:` means, as a few lines that a script can be held against: who holds a
//! lock, who is next, who is told, what remains. Time is a number that the test sets.

use std::collections::VecDeque;
use std::time::Duration;

use dlock::backend::Mode;
use dlock::store::{Ending, Want};

use crate::rules::Rules;

/// One request: its place in the list of all.
pub(crate) type Who = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) key: usize,
    pub(crate) process: usize,
    pub(crate) mode: Mode,
    pub(crate) ttl: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    Busy,
    Queued,
    Done,
}

/// Whom a store has told of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// This waiter, by way of its process, that it was granted the lock.
    Grant(Who),
    /// This process, that the lock with this key is free or may be.
    End { process: usize, key: usize },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) who: Who,
    pub(crate) until: u64,
    /// It was handed the lock and has not asked since.
    pub(crate) unclaimed: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    /// One writer, or readers and permits.
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: VecDeque<Who>,
    /// Who has done its body, and until when that is remembered.
    pub(crate) done: Option<(Who, u64)>,
    /// The release of its writer looks into the queue.
    is_aware: bool,
    free_since: u64,
    pub(crate) queue_until: u64,
}

#[derive(Clone, Debug)]
struct Process {
    /// For the waiters of each lock.
    alive_until: Vec<u64>,
    /// Its connections are closed.
    is_closed: bool,
}

pub(crate) struct Reference {
    pub(crate) rules: Rules,
    pub(crate) now: u64,
    pub(crate) asked: Vec<Asked>,
    pub(crate) locks: Vec<Lock>,
    processes: Vec<Process>,
    /// Since it was last read.
    pub(crate) told: Vec<Told>,
}

/// What came of handing a lock on.
#[derive(Default)]
struct Passed {
    to: Option<Mode>,
    /// Who asks is among them.
    mine: bool,
    /// Somebody waits for those who share it.
    blocked: bool,
}

impl Reference {
    pub(crate) fn new(rules: Rules, keys: usize, processes: usize) -> Self {
        Self {
            rules,
            // Long after the last time that anything was free.
            now: 1_000_000,
            asked: Vec::new(),
            locks: vec![Lock::default(); keys],
            processes: vec![
                Process {
                    alive_until: vec![0; keys],
                    is_closed: false,
                };
                processes
            ],
            told: Vec::new(),
        }
    }

    // What is asked.

    pub(crate) fn take(&mut self, who: Who, want: Want) -> Answer {
        let Asked {
            key, mode, process, ..
        } = self.asked[who];
        let queues = matches!(want, Want::Queue { .. });
        let not_had = if queues { Answer::Queued } else { Answer::Busy };
        self.settle(key);
        if want == Want::First && self.rules.first_knows_no_queue {
            let lock = &self.locks[key];
            if !lock.holders.is_empty() || lock.done.is_some() {
                return Answer::Busy;
            }
            self.let_in(who, false);
            return Answer::Granted;
        }
        if self.locks[key].done.is_some() {
            self.is_told_that_it_is_done(who, want);
            return Answer::Done;
        }
        if let Some(reserved) = self.rules.reserved {
            let beats = matches!(want, Want::Queue { beat: true, .. });
            return if self.is_let_in(who, want, reserved, beats) {
                Answer::Granted
            } else {
                not_had
            };
        }
        if self.extend(who) {
            return Answer::Granted;
        }
        if self.admits(key, mode) && self.locks[key].queue.is_empty() {
            self.let_in(who, false);
            return Answer::Granted;
        }
        if queues {
            self.take_place(who, process);
        }
        if !self.admits(key, mode) {
            return not_had;
        }
        let passed = self.pass_on(key, Some(who));
        if passed.mine {
            return Answer::Granted;
        }
        if passed.blocked || !self.admits(key, mode) {
            return not_had;
        }
        // Those before it are dead, or cannot be told.
        self.let_in(who, !self.locks[key].queue.is_empty());
        Answer::Granted
    }

    /// Whether the lease was extended.
    pub(crate) fn renew(&mut self, who: Who) -> bool {
        let Asked { key, mode, .. } = self.asked[who];
        self.settle(key);
        let extended = self.extend(who);
        if extended && mode.is_shared() && self.rules.reserved.is_none() {
            self.pass_on(key, None);
        }
        if extended && !mode.is_shared() && self.rules.first_knows_no_queue {
            // Its token is kept beside the lock. So its release takes the long way, to remove that.
            self.locks[key].is_aware = true;
        }
        extended
    }

    /// Whether it had the lock.
    pub(crate) fn release(&mut self, who: Who, ending: Ending) -> bool {
        let Asked { key, mode, .. } = self.asked[who];
        self.settle(key);
        if let Ending::Done(time) = ending {
            return self.is_done(who, time);
        }
        let rules = self.rules;
        let only_lease = match ending {
            Ending::Left => false,
            _ => rules.claim.is_some() || (rules.reserved.is_some() && mode == Mode::Write),
        };
        let holder = self.holder(who).copied();
        let is_alone = only_lease
            && mode == Mode::Write
            && holder.is_some_and(|holder| !holder.unclaimed)
            && !self.locks[key].is_aware;
        if holder.is_some() {
            self.remove(key, who);
        }
        if rules.votes {
            let is_free = self.locks[key].holders.is_empty();
            if holder.is_some() && is_free && ending != Ending::Outvoted {
                // Whoever waits, wherever it is.
                let all = 0..self.processes.len();
                self.told
                    .extend(all.map(|process| Told::End { process, key }));
            }
        } else if rules.reserved.is_some() {
            if !only_lease {
                self.leave_queue(key, Some(who));
            }
            self.tell_of_end(key);
        } else {
            if !only_lease {
                self.locks[key].queue.retain(|&waiter| waiter != who);
            }
            if !(is_alone && rules.claim.is_some()) {
                self.pass_on(key, None);
            }
        }
        holder.is_some()
    }

    /// Whether there was something to forget.
    pub(crate) fn forget(&mut self, key: usize) -> bool {
        self.settle(key);
        let lock = &mut self.locks[key];
        let was_done = lock.done.take().is_some();
        if was_done {
            lock.free_since = self.now;
        }
        self.tell_of_end(key);
        was_done
    }

    /// A process shows that it is alive, for the waiters of this lock at least.
    pub(crate) fn beat(&mut self, process: usize, key: usize) {
        if let Some(dead_after) = self.rules.dead_after {
            let alive_until = &mut self.processes[process].alive_until;
            match self.rules.lives_by_lock {
                true => alive_until[key] = self.now + dead_after,
                false => alive_until.fill(self.now + dead_after),
            }
        }
    }

    /// It need not be thought alive any more.
    pub(crate) fn farewell(&mut self, process: usize) {
        self.processes[process].alive_until.fill(0);
    }

    /// Its connections are closed.
    pub(crate) fn close(&mut self, process: usize) {
        self.processes[process].is_closed = true;
    }

    pub(crate) fn is_closed(&self, process: usize) -> bool {
        self.processes[process].is_closed
    }

    /// Those of its process that it does not know: the one that was granted the lock,
    /// by its place, and whoever of the others is in the queue.
    pub(crate) fn disown(&mut self, granted: Who, unknown: &[Who]) {
        let key = self.asked[granted].key;
        let mut gone: Vec<Who> = self
            .queue(key)
            .filter(|who| unknown.contains(who))
            .collect();
        gone.push(granted);
        self.settle(key);
        for who in gone {
            if self.holder(who).is_some_and(|holder| holder.unclaimed) {
                self.remove(key, who);
            }
            self.locks[key].queue.retain(|&waiter| waiter != who);
        }
        self.pass_on(key, None);
    }

    /// Who of these has cause to ask, as a database says it.
    pub(crate) fn has_cause(&mut self, who: Who, beat: bool) -> bool {
        let Asked { key, mode, .. } = self.asked[who];
        self.settle(key);
        let lock = &self.locks[key];
        let Some(place) = lock.queue.iter().position(|&waiter| waiter == who) else {
            return beat;
        };
        if lock.done.is_some() {
            return true;
        }
        let is_let_in = match mode {
            Mode::Permits(_) => lock.holders.is_empty(),
            _ => self.admits(key, mode),
        };
        // Who is taken for dead hears of room beside others when it has shown that it lives:
        // with its next beat.
        let permit = matches!(mode, Mode::Permits(_)) && self.is_alive(who);
        self.is_open(key)
            || (is_let_in && self.is_first(key, place))
            || (permit && self.fits(key, place))
    }

    // What is seen.

    /// A look at a lock: those who hold it, and how many wait.
    pub(crate) fn look(&mut self, key: usize) -> (Vec<Holder>, usize) {
        if self.rules.looks_let_in {
            self.settle(key);
        }
        let now = self.now;
        let lock = &self.locks[key];
        let holders = lock.holders.iter().filter(|holder| holder.until > now);
        let waiters = if self.rules.reserved.is_some() {
            let alive = lock.queue.iter().filter(|&&who| self.is_alive(who));
            alive.count()
        } else {
            self.queue(key).count()
        };
        (holders.copied().collect(), waiters)
    }

    /// Who has done it, and until when that is remembered.
    pub(crate) fn done(&self, key: usize) -> Option<(Who, u64)> {
        let done = self.locks[key].done;
        done.filter(|(_, until)| *until > self.now)
    }

    /// The places in the queue, those of the dead among them.
    pub(crate) fn queue(&self, key: usize) -> impl Iterator<Item = Who> {
        let lock = &self.locks[key];
        let is_there = !self.rules.queue_ends || lock.queue_until > self.now;
        lock.queue.iter().copied().filter(move |_| is_there)
    }

    /// When something ends by itself.
    pub(crate) fn ends(&self) -> Vec<u64> {
        let processes = self.processes.iter();
        let mut ends: Vec<u64> = processes.flat_map(|of| of.alive_until.clone()).collect();
        for lock in &self.locks {
            let leases = lock.holders.iter().map(|holder| holder.until);
            let reserved = self.rules.reserved;
            ends.extend(leases.clone());
            // It is not free yet, but will be.
            ends.extend(
                reserved
                    .into_iter()
                    .flat_map(|time| leases.clone().map(move |end| end + time)),
            );
            ends.extend(reserved.map(|time| lock.free_since + time));
            let forgotten = lock.done.map(|(_, until)| until);
            ends.extend(forgotten);
            ends.extend(forgotten.map(|until| until + reserved.unwrap_or(0)));
            ends.extend(Some(lock.queue_until).filter(|_| self.rules.queue_ends));
        }
        ends
    }

    // How it is.

    fn holder(&mut self, who: Who) -> Option<&mut Holder> {
        let lock = &mut self.locks[self.asked[who].key];
        lock.holders.iter_mut().find(|holder| holder.who == who)
    }

    fn is_read(&self, key: usize) -> bool {
        let mut holders = self.locks[key].holders.iter();
        holders.any(|holder| self.asked[holder.who].mode.is_shared())
    }

    fn admits(&self, key: usize, mode: Mode) -> bool {
        let held = self.locks[key].holders.len();
        let has_room = match mode {
            Mode::Permits(most) => held < most as usize,
            _ => mode.is_shared(),
        };
        self.locks[key].done.is_none() && (held == 0 || (self.is_read(key) && has_room))
    }

    fn is_alive(&self, who: Who) -> bool {
        let asked = self.asked[who];
        let process = &self.processes[asked.process];
        self.rules.dead_after.is_none() || process.alive_until[asked.key] > self.now
    }

    /// It is free for longer than it was kept for the first.
    fn is_open(&self, key: usize) -> bool {
        let lock = &self.locks[key];
        let kept = self.rules.reserved.unwrap_or(0);
        lock.holders.is_empty() && lock.done.is_none() && lock.free_since + kept <= self.now
    }

    /// Nobody alive is before it who would keep it out: but readers, the first of all who
    /// have to be let in.
    fn is_first(&self, key: usize, place: usize) -> bool {
        let queue = &self.locks[key].queue;
        let mode = |who: Who| self.asked[who].mode;
        let mut before = queue.iter().take(place);
        !before.any(|&who| {
            self.is_alive(who) && (mode(who) != Mode::Read || mode(queue[place]) == Mode::Write)
        })
    }

    /// There is room for it, beside those who have the lock, and those alive who are before
    /// it.
    fn fits(&self, key: usize, place: usize) -> bool {
        let lock = &self.locks[key];
        let mode = |who: Who| self.asked[who].mode;
        let before = lock.queue.iter().copied().take(place);
        let before: Vec<Who> = before.filter(|&who| self.is_alive(who)).collect();
        let most = most(mode(lock.queue[place]));
        self.admits(key, mode(lock.queue[place]))
            && before.iter().all(|&who| self::most(mode(who)) >= most)
            && lock.holders.len() + before.len() < most
    }

    fn remains(&self, key: usize) -> u64 {
        let ends = self.locks[key].holders.iter().map(|holder| holder.until);
        ends.max().unwrap_or(0).saturating_sub(self.now)
    }

    // What changes it.

    /// What has ended goes.
    fn settle(&mut self, key: usize) {
        let (now, rules) = (self.now, self.rules);
        let lock = &mut self.locks[key];
        let last = lock.holders.iter().map(|holder| holder.until).max();
        lock.holders.retain(|holder| holder.until > now);
        if let Some(last) = last.filter(|_| lock.holders.is_empty()) {
            lock.free_since = last;
        }
        if let Some((_, until)) = lock.done.filter(|(_, until)| *until <= now) {
            (lock.done, lock.free_since) = (None, until);
        }
        if rules.queue_ends && lock.queue_until <= now {
            lock.queue.clear();
        }
        if rules.looks_let_in {
            self.pass_on(key, None);
        }
    }

    fn extend(&mut self, who: Who) -> bool {
        let (Asked { key, mode, ttl, .. }, now) = (self.asked[who], self.now);
        let Some(holder) = self.holder(who) else {
            return false;
        };
        holder.until = now + ttl;
        holder.unclaimed = false;
        if mode.is_shared() || self.locks[key].is_aware {
            let remains = self.remains(key);
            self.keep_queue(key, remains, ttl);
        }
        true
    }

    fn let_in(&mut self, who: Who, is_aware: bool) {
        let (Asked { key, ttl, .. }, now) = (self.asked[who], self.now);
        let lock = &mut self.locks[key];
        lock.is_aware = is_aware;
        lock.holders.push(Holder {
            who,
            until: now + ttl,
            unclaimed: false,
        });
    }

    fn remove(&mut self, key: usize, who: Who) {
        let now = self.now;
        let lock = &mut self.locks[key];
        lock.holders.retain(|holder| holder.who != who);
        if lock.holders.is_empty() {
            lock.free_since = now;
        }
    }

    /// It leaves a mark, and all who wait are told. Whether it is its own.
    fn is_done(&mut self, who: Who, time: Duration) -> bool {
        let Asked { key, .. } = self.asked[who];
        let rules = self.rules;
        let had = self.holder(who).is_some();
        if had {
            self.remove(key, who);
            let until = self.now + u64::try_from(time.as_millis()).expect("a short time");
            self.locks[key].done = Some((who, until));
        }
        let done = self.locks[key].done;
        if rules.keeps_places {
            self.leave_queue(key, Some(who));
            if done.is_some() && rules.tells_of_ends {
                self.tell(key, (0..self.locks[key].queue.len()).collect());
            }
        } else if had {
            let told = std::mem::take(&mut self.locks[key].queue).into_iter();
            let told = told.filter(|&who| !self.processes[self.asked[who].process].is_closed);
            if rules.tells_of_grants {
                self.told.extend(told.map(Told::Grant));
            }
        } else {
            self.locks[key].queue.retain(|&waiter| waiter != who);
            self.pass_on(key, None);
        }
        // A `Backend` is asked once.
        had || (rules.asks_again && done.is_some_and(|(by, _)| by == who))
    }

    /// Nothing of it stays.
    fn is_told_that_it_is_done(&mut self, who: Who, want: Want) {
        let Asked { key, process, .. } = self.asked[who];
        if self.rules.keeps_places && want != Want::First {
            let queue = &self.locks[key].queue;
            let stays = |&other: &Who| {
                other != who && (self.asked[other].process == process || self.is_alive(other))
            };
            self.locks[key].queue = queue.iter().copied().filter(stays).collect();
            if matches!(want, Want::Queue { beat: true, .. }) {
                self.beat(process, key);
            }
        }
    }

    fn take_place(&mut self, who: Who, process: usize) {
        let Asked { key, ttl, .. } = self.asked[who];
        let lock = &mut self.locks[key];
        if !lock.queue.contains(&who) {
            lock.queue.push_back(who);
        }
        // Whoever holds it is told by this that somebody waits.
        lock.is_aware = true;
        self.beat(process, key);
        let remains = self.remains(key);
        self.keep_queue(key, remains, ttl);
    }

    fn keep_queue(&mut self, key: usize, lock_for: u64, ttl: u64) {
        let until = self.now + lock_for + ttl.max(self.rules.claim.unwrap_or(0));
        let lock = &mut self.locks[key];
        if !lock.queue.is_empty() {
            lock.queue_until = until;
        }
    }

    /// Hands a lock on: to one writer, or to all readers and permits up to the first who
    /// does not fit.
    fn pass_on(&mut self, key: usize, asks: Option<Who>) -> Passed {
        let mut passed = Passed::default();
        if !self.admits(key, Mode::Read) {
            return passed;
        }
        let mut deaf = Vec::new();
        while passed.to != Some(Mode::Write) {
            let Some(&who) = self.locks[key].queue.front() else {
                break;
            };
            let Asked {
                mode, ttl, process, ..
            } = self.asked[who];
            let asks = asks == Some(who);
            if !asks && !self.is_alive(who) {
                self.locks[key].queue.pop_front();
                continue;
            }
            if !self.admits(key, mode) {
                passed.blocked = true;
                let remains = self.remains(key);
                self.keep_queue(key, remains, ttl);
                break;
            }
            self.locks[key].queue.pop_front();
            if !asks && self.processes[process].is_closed {
                deaf.push(who);
                continue;
            }
            let short = match self.rules.claim {
                Some(claim) if !asks => ttl.min(claim),
                _ => ttl,
            };
            if !asks && self.rules.tells_of_grants {
                self.told.push(Told::Grant(who));
            }
            self.let_in(who, true);
            let (now, is_claimed) = (self.now, asks || self.rules.claim.is_none());
            if let Some(holder) = self.holder(who) {
                holder.until = now + short;
                holder.unclaimed = !is_claimed;
            }
            passed.to = Some(mode);
            passed.mine |= asks;
            let remains = self.remains(key);
            self.keep_queue(key, remains, ttl);
        }
        for who in deaf.into_iter().rev() {
            self.locks[key].queue.push_front(who);
            let (remains, ttl) = (self.remains(key), self.asked[who].ttl);
            self.keep_queue(key, remains, ttl);
        }
        passed
    }

    // Where a release frees, and who is first asks.

    fn is_let_in(&mut self, who: Who, want: Want, reserved: u64, beats: bool) -> bool {
        let Asked {
            key,
            mode,
            process,
            ttl,
        } = self.asked[who];
        let held = self.holder(who).is_some();
        if want == Want::First {
            let is_free = self.locks[key].holders.is_empty() && self.locks[key].queue.is_empty();
            if held {
                self.extend(who);
            } else if is_free {
                self.let_in(who, true);
            }
            return held || is_free;
        }
        // Of the dead, and not of those who are shown to be alive by this.
        let is_there = |reference: &Self, other: Who| {
            reference.asked[other].process == process || reference.is_alive(other)
        };
        let queue = &self.locks[key].queue;
        let queue: VecDeque<Who> = queue
            .iter()
            .copied()
            .filter(|&other| is_there(self, other))
            .collect();
        self.locks[key].queue = queue;
        if held {
            let now = self.now;
            if let Some(holder) = self.holder(who) {
                holder.until = now + ttl;
            }
            if beats {
                self.beat(process, key);
            }
            self.locks[key].queue.retain(|&other| other != who);
            self.tell_beside(key, mode);
            return true;
        }
        let _ = reserved;
        if beats {
            self.beat(process, key);
        }
        let lock = &mut self.locks[key];
        if matches!(want, Want::Queue { .. }) && !lock.queue.contains(&who) {
            lock.queue.push_back(who);
        }
        let place = lock.queue.iter().position(|&other| other == who);
        let before: Vec<Who> = lock
            .queue
            .iter()
            .copied()
            .take(place.unwrap_or(lock.queue.len()))
            .collect();
        let keeps_out =
            |other: Who| mode == Mode::Write || most(self.asked[other].mode) < most(mode);
        let is_kept_out = before.iter().any(|&other| keeps_out(other));
        let has_room = match mode {
            Mode::Permits(most) => self.locks[key].holders.len() + before.len() < most as usize,
            _ => true,
        };
        let granted = self.is_open(key) || (self.admits(key, mode) && !is_kept_out && has_room);
        if granted {
            let passed_by =
                |other: Who| other == who || (before.contains(&other) && keeps_out(other));
            let queue = &self.locks[key].queue;
            let queue = queue
                .iter()
                .copied()
                .filter(|&other| !passed_by(other))
                .collect();
            self.locks[key].queue = queue;
            self.let_in(who, true);
            self.tell_beside(key, mode);
        }
        granted
    }

    /// Its place goes, and those of the dead.
    fn leave_queue(&mut self, key: usize, who: Option<Who>) {
        let queue = &self.locks[key].queue;
        let stays = |&&other: &&Who| Some(other) != who && self.is_alive(other);
        let queue = queue.iter().filter(stays).copied().collect();
        self.locks[key].queue = queue;
    }

    fn tell_of_end(&mut self, key: usize) {
        if !self.rules.tells_of_ends {
            return;
        }
        let places = 0..self.locks[key].queue.len();
        let first = places.filter(|&place| self.is_first(key, place));
        self.tell(key, first.collect());
    }

    /// A permit that was let in tells those for whom there is room beside it.
    fn tell_beside(&mut self, key: usize, mode: Mode) {
        if !self.rules.tells_of_ends || !matches!(mode, Mode::Permits(_)) {
            return;
        }
        let queue = &self.locks[key].queue;
        let fit =
            (0..queue.len()).filter(|&place| self.is_alive(queue[place]) && self.fits(key, place));
        self.tell(key, fit.collect());
    }

    /// Each process once; and each who waits for a permit, as there is not room for all of
    /// them.
    fn tell(&mut self, key: usize, places: Vec<usize>) {
        let asked = |place: &usize| self.asked[self.locks[key].queue[*place]];
        let (permits, others): (Vec<_>, Vec<_>) = places
            .iter()
            .map(asked)
            .partition(|asked| matches!(asked.mode, Mode::Permits(_)));
        let mut processes: Vec<usize> = others.iter().map(|asked| asked.process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.extend(permits.iter().map(|asked| asked.process));
        let told = processes
            .into_iter()
            .map(|process| Told::End { process, key });
        self.told.extend(told);
    }
}

/// How many may have a lock together, as this one would have it.
fn most(mode: Mode) -> usize {
    match mode {
        Mode::Write => 0,
        Mode::Permits(most) => most as usize,
        _ => usize::MAX,
    }
}
