//! Whose turn it is at a lock without a queue.
//!
//! No voter alone can hand a lock on, so after a release the first process that asks gets it: with
//! bad luck, always another one. But each message about a release names the owner, and so the
//! process, that had the lock. Hence all processes that listen know who had it when. They ask one
//! after the other: the process that has been without the lock for longest asks at once, the next
//! one a moment later. The process that has just released it asks last.
//!
//! A process that has never had the lock is in no such message, so the others do not know it. But
//! the answer to a release says how many processes listen. If they are more than those known here,
//! the process that has released the lock lets the unknown ones go first.
//!
//! This is a matter of manners. Safety does not depend on it, and neither does progress: nobody
//! pauses for long, and a process that does not take its turn is soon not waited for any more.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::origin::Process;
use crate::sync::Mutex;
use crate::tables::HashMap;

/// A process pauses for at most this many others.
const MOST: usize = 8;

/// A process that has let so many turns pass does not want the lock any more.
const PASSED_OVER: u32 = 3;

/// So many releases are remembered. Each voter reports each release, and it counts only once.
const REPORTED: usize = 8;

/// The limits of a moment: how long it takes until others see an election, on a fast network and on
/// a slow one.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(20);

/// What was heard longer ago says nothing about who wants the lock.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The turns at all locks for which another process contends.
#[derive(Default)]
pub(super) struct Turns {
    rounds: Mutex<HashMap<Arc<str>, Round>>,
    /// How long the last election took, in microseconds.
    election: AtomicU64,
}

/// The processes that contend for a lock, the one that has been without it for longest first.
struct Round {
    order: Vec<Contender>,
    /// This process, which waits however often others go before it.
    own: Option<Process>,
    /// How many processes listen that nobody knows by name, and that have let their turns pass.
    /// Nobody waits for them.
    silent: usize,
    /// How many others were notified of the last release of this process: the highest number that a
    /// voter reported.
    notified: usize,
    /// The releases that were heard of last.
    reported: VecDeque<u64>,
    /// When the lock was released last, as far as that was heard.
    released_at: Instant,
}

struct Contender {
    /// `None`: some process that has never had the lock.
    process: Option<Process>,
    /// How often others went before it since it had the lock.
    passed_over: u32,
}

impl Contender {
    fn new(process: Option<Process>) -> Self {
        Self {
            process,
            passed_over: 0,
        }
    }
}

impl Round {
    fn new(now: Instant) -> Self {
        Self {
            order: Vec::new(),
            own: None,
            silent: 0,
            notified: 0,
            reported: VecDeque::new(),
            released_at: now,
        }
    }

    fn place_of(&self, process: Process) -> Option<usize> {
        self.order
            .iter()
            .position(|one| one.process == Some(process))
    }

    /// It has had the lock.
    fn goes_to_the_back(&mut self, process: Process) {
        self.order.retain(|one| one.process != Some(process));
        self.order.push(Contender::new(Some(process)));
    }

    /// It has got the lock. Whoever was before it has let its turn pass.
    fn goes_past(&mut self, process: Process) {
        let before = self.place_of(process).unwrap_or(self.order.len());
        let passed = self.order[..before].iter_mut();
        passed.for_each(|one| one.passed_over += 1);
        let own = self.own;
        let is_another = |one: &Contender| one.process.is_none_or(|process| own != Some(process));
        let is_over = |one: &mut Contender| one.passed_over >= PASSED_OVER && is_another(one);
        let gone = self.order.extract_if(.., is_over);
        self.silent += gone.filter(|one| one.process.is_none()).count();
    }

    /// Whether this release was not heard of before.
    fn is_news(&mut self, release: u64) -> bool {
        if self.reported.contains(&release) {
            return false;
        }
        self.reported.truncate(REPORTED - 1);
        self.reported.push_front(release);
        true
    }

    /// It asks for the first time: behind those that have waited for longer, but before the one
    /// that has just had the lock. Returns its place.
    fn enters(&mut self, process: Process) -> usize {
        let place = self.order.len().saturating_sub(1);
        self.order.insert(place, Contender::new(Some(process)));
        place
    }
}

impl Turns {
    /// A voter reports that the owner of this name has released the lock. Each voter does.
    pub(super) fn heard_release_of(&self, key: &Arc<str>, owner: &str, now: Instant) {
        let Some(process) = Process::of(owner) else {
            return;
        };
        let mut release = DefaultHasher::new();
        owner.hash(&mut release);
        self.note(key, now, |round| {
            // What this process has released itself is noted already.
            if round.own == Some(process) || !round.is_news(release.finish()) {
                return;
            }
            if round.place_of(process).is_none() {
                // It was one of those that were not known.
                match round.order.iter().position(|one| one.process.is_none()) {
                    Some(unknown) => _ = round.order.remove(unknown),
                    None => round.silent = round.silent.saturating_sub(1),
                }
            }
            round.goes_past(process);
            round.goes_to_the_back(process);
            round.released_at = now;
        });
    }

    /// This process has released the lock, and this many others were notified.
    pub(super) fn notified(&self, key: &Arc<str>, own: Process, others: usize, now: Instant) {
        self.note(key, now, |round| {
            round.own = Some(own);
            if round.place_of(own).is_none() {
                round.goes_to_the_back(own);
            }
            round.notified = round.notified.max(others);
            let is_known = |one: &&Contender| one.process.is_some_and(|process| process != own);
            let known = round.order.iter().filter(is_known).count();
            let unknown = round.notified.saturating_sub(known + round.silent);
            let noted = round.order.iter().filter(|one| one.process.is_none());
            for _ in noted.count()..unknown.min(MOST) {
                round.order.insert(0, Contender::new(None));
            }
        });
    }

    fn note(&self, key: &Arc<str>, now: Instant, note: impl FnOnce(&mut Round)) {
        let mut rounds = self.rounds.lock();
        // The table is full: make room before it grows.
        if rounds.len() == rounds.capacity() {
            rounds.retain(|_, round| now.saturating_duration_since(round.released_at) < FORGOTTEN);
            let left = rounds.len();
            rounds.reserve(left.max(1));
        }
        note(
            rounds
                .entry(Arc::clone(key))
                .or_insert_with(|| Round::new(now)),
        );
    }

    /// This process has released the lock. Nothing is noted of a lock that no other process wants.
    pub(super) fn released(&self, key: &str, own: Process, now: Instant) {
        if let Some(round) = self.rounds.lock().get_mut(key) {
            round.own = Some(own);
            round.silent = round.silent.min(round.notified);
            round.notified = 0;
            round.goes_to_the_back(own);
            round.released_at = now;
        }
    }

    /// This process has got the lock in an election that took this long.
    pub(super) fn got(&self, key: &str, own: Process, election: Duration) {
        let election = u64::try_from(election.as_micros()).unwrap_or(u64::MAX);
        self.election.store(election, Ordering::Relaxed);
        if let Some(round) = self.rounds.lock().get_mut(key) {
            round.own = Some(own);
            round.goes_past(own);
        }
    }

    /// How long this process leaves the lock, which was released just now, to those that have
    /// been without it for longer.
    pub(super) fn pause(&self, key: &str, own: Process) -> Duration {
        let mut rounds = self.rounds.lock();
        let Some(round) = rounds.get_mut(key) else {
            return Duration::ZERO;
        };
        round.own = Some(own);
        let place = round.place_of(own).unwrap_or_else(|| round.enters(own));
        self.moment() * place.min(MOST) as u32
    }

    /// Like [`pause`](Self::pause), for a process that has not waited. It ends at most [`LONGEST`]
    /// after the last release, since the call may have little time. `None`: it need not pause.
    pub(super) fn pause_before_trying(
        &self,
        key: &str,
        own: Process,
        now: Instant,
    ) -> Option<Duration> {
        let released_at = self.rounds.lock().get(key)?.released_at;
        let ago = now.saturating_duration_since(released_at);
        let pause = self.pause(key, own).min(LONGEST).checked_sub(ago)?;
        (!pause.is_zero()).then_some(pause)
    }

    /// Enough for an election of another process to be seen.
    fn moment(&self) -> Duration {
        let election = Duration::from_micros(self.election.load(Ordering::Relaxed));
        (2 * election).clamp(SHORTEST, LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "key";

    /// An owner of a process.
    fn owner(number: usize, sequence: u32) -> String {
        format!("0a.{sequence:x}@web-{number},1,shop,1")
    }

    fn process(number: usize) -> Process {
        Process::of(&owner(number, 1)).expect("a signature")
    }

    /// What `count` processes know that listen to one lock.
    struct Crowd {
        turns: Vec<Turns>,
        now: Instant,
        sections: u32,
        late: Option<String>,
    }

    impl Crowd {
        fn of(count: usize) -> Self {
            Self {
                turns: (0..count).map(|_| Turns::default()).collect(),
                now: Instant::now(),
                sections: 0,
                late: None,
            }
        }

        /// Of these, the first to ask. If several are, each may be.
        fn first(&self, wanting: &[usize], chosen: usize) -> usize {
            let pauses = wanting.iter().map(|&who| {
                let pause = self.turns[who].pause(KEY, process(who));
                (pause, who)
            });
            let pauses: Vec<_> = pauses.collect();
            let least = pauses.iter().map(|(pause, _)| *pause).min();
            let first = pauses.iter().filter(|(pause, _)| Some(*pause) == least);
            let first: Vec<_> = first.map(|(_, who)| *who).collect();
            first[chosen % first.len()]
        }

        /// `others`: so many are told of its end.
        fn section(&mut self, who: usize, others: usize) {
            let own = process(who);
            self.turns[who].got(KEY, own, Duration::ZERO);
            self.now += Duration::from_millis(70);
            self.sections += 1;
            self.turns[who].released(KEY, own, self.now);
            // One voter is slow: its report comes behind the next release.
            let release = owner(who, self.sections);
            let late = self.late.replace(release.clone());
            for (_, turns) in self
                .turns
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != who)
            {
                turns.heard_release_of(&KEY.into(), &release, self.now);
                if let Some(late) = &late {
                    turns.heard_release_of(&KEY.into(), late, self.now);
                }
            }
            for told in [others, others / 2].into_iter().filter(|told| *told > 0) {
                self.turns[who].notified(&KEY.into(), own, told, self.now);
            }
        }
    }

    #[test]
    fn after_a_while_all_have_their_turn() {
        for seed in 0..100 {
            let (mut crowd, mut random) = (Crowd::of(4), fastrand::Rng::with_seed(seed));
            let mut turns = Vec::new();
            for _ in 0..60 {
                // The same one is always a little faster, or any is.
                let chosen = if seed == 0 { 0 } else { random.usize(..) };
                let who = crowd.first(&[0, 1, 2, 3], chosen);
                crowd.section(who, 3);
                turns.push(who);
            }
            let mut last: Vec<_> = turns[52..].to_vec();
            let second = last.split_off(4);
            assert_eq!(last, second, "{turns:?}");
            last.sort_unstable();
            assert_eq!(last, [0, 1, 2, 3], "{turns:?}");
        }
    }

    #[test]
    fn who_has_had_it_asks_behind_the_others() {
        let mut crowd = Crowd::of(2);
        for who in [0, 1, 0] {
            crowd.section(who, 1);
        }
        let pause = |who: usize, ago: Duration| {
            crowd.turns[who].pause_before_trying(KEY, process(who), crowd.now + ago)
        };
        assert_eq!(pause(0, Duration::ZERO), Some(SHORTEST));
        assert_eq!(pause(1, Duration::ZERO), None);
        assert_eq!(pause(0, SHORTEST), None, "nobody is about to take it");
    }

    #[test]
    fn who_does_not_want_it_is_not_waited_for() {
        let mut crowd = Crowd::of(3);
        for who in [0, 1, 2, 0, 1, 2] {
            crowd.section(who, 2);
        }
        let pauses: Vec<_> = (0..5)
            .map(|_| {
                let pause = crowd.turns[2].pause(KEY, process(2));
                crowd.section(2, 0);
                pause
            })
            .collect();
        let expected = [2, 2, 2, 0, 0].map(|moments| SHORTEST * moments);
        assert_eq!(pauses, expected);
    }

    /// In a rolling deploy the old processes go, and the new one does not know them.
    #[test]
    fn who_waits_does_not_wait_for_those_that_are_gone() {
        let mut crowd = Crowd::of(5);
        for who in [0, 1, 2, 3, 0, 1, 2, 3] {
            crowd.section(who, 3);
        }
        // Of the old ones only the last is left; the new one knows nobody.
        for _ in 0..3 {
            assert!(crowd.turns[3].pause(KEY, process(3)) > Duration::ZERO);
            crowd.section(4, 1);
        }
        assert_eq!(crowd.turns[3].pause(KEY, process(3)), Duration::ZERO);
    }

    /// It has waited for less time than the others, but the last of them has just had the lock.
    #[test]
    fn who_is_new_asks_before_the_one_that_had_the_lock_last() {
        let (turns, now) = (Turns::default(), Instant::now());
        for number in 1..=3 {
            turns.heard_release_of(&KEY.into(), &owner(number, 1), now);
        }
        assert_eq!(turns.pause(KEY, process(0)), 2 * SHORTEST);
        assert_eq!(turns.pause(KEY, process(3)), 3 * SHORTEST);
    }

    /// Such as commands that run for a moment under the lock.
    #[test]
    fn many_that_come_once_hold_nobody_up() {
        let (turns, now) = (Turns::default(), Instant::now());
        let own = process(0);
        for number in 1..1_000 {
            turns.heard_release_of(&KEY.into(), &owner(number, 1), now);
            let pause = turns.pause(KEY, own);
            let known = turns.rounds.lock()[KEY].order.len();
            assert!(known <= 2 + PASSED_OVER as usize, "{known}");
            let most = if number < 8 { 3 } else { 0 };
            assert!(pause <= SHORTEST * most, "{pause:?} behind {number}");
        }
    }

    /// Such as one that only wants to know when the lock is free.
    #[test]
    fn who_only_listens_is_not_waited_for() {
        let mut crowd = Crowd::of(1);
        let pauses: Vec<_> = (0..10)
            .map(|_| {
                crowd.section(0, 1);
                crowd.turns[0].pause(KEY, process(0))
            })
            .collect();
        let expected: Vec<_> = (0..10).map(|turn| SHORTEST * u32::from(turn < 3)).collect();
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_lock_of_one_process_is_not_noted() {
        let turns = Turns::default();
        let (own, now) = (process(0), Instant::now());
        turns.got(KEY, own, Duration::ZERO);
        turns.released(KEY, own, now);
        assert_eq!(turns.pause_before_trying(KEY, own, now), None);
        assert_eq!(turns.pause(KEY, own), Duration::ZERO);
        assert!(turns.rounds.lock().is_empty());
    }

    #[test]
    fn pauses_are_as_long_as_elections_within_limits() {
        let mut crowd = Crowd::of(2);
        for who in [1, 0] {
            crowd.section(who, 1);
        }
        let (turns, own) = (&crowd.turns[0], process(0));
        for (election, moment) in [
            (Duration::ZERO, SHORTEST),
            (Duration::from_millis(4), Duration::from_millis(8)),
            (Duration::from_secs(1), LONGEST),
        ] {
            turns.got(KEY, process(1), election);
            assert_eq!(turns.pause(KEY, own), moment);
        }
    }

    /// Turns are taken also where each has the lock for long, and at many locks at the same time.
    #[test]
    fn what_is_known_is_kept_while_there_is_room_or_it_is_news() {
        let (turns, now) = (Turns::default(), Instant::now());
        turns.heard_release_of(&KEY.into(), &owner(1, 1), now);
        let later = now + 2 * FORGOTTEN;
        turns.heard_release_of(&KEY.into(), &owner(2, 1), later);
        assert_eq!(turns.pause(KEY, process(0)), SHORTEST);
        for number in 0..100 {
            turns.heard_release_of(&format!("key:{number}").into(), &owner(1, number), later);
        }
        assert_eq!(turns.rounds.lock().len(), 101);
    }

    #[test]
    fn only_the_last_releases_are_remembered() {
        let (turns, now) = (Turns::default(), Instant::now());
        for sequence in 0..1_000 {
            turns.heard_release_of(&KEY.into(), &owner(1, sequence), now);
        }
        assert_eq!(turns.rounds.lock()[KEY].reported.len(), REPORTED);
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let turns = Turns::default();
        let mut now = Instant::now();
        for number in 0..100 {
            turns.heard_release_of(&format!("key:{number}").into(), &owner(0, number), now);
            now += FORGOTTEN;
        }
        assert!(turns.rounds.lock().capacity() < 10);
    }
}
