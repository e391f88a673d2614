//! The recheck of the locks that somebody waits for. A message can be lost, and a holder that dies
//! sends none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::coop::consume_budget;

use super::Running;
use super::call::attempts;
use crate::store::{Looks, Store, Waited};
use crate::tables::HashMap;

/// How long to keep beating without waiters, so that the process stays known between waits that
/// follow each other closely.
const LINGERS: Duration = Duration::from_secs(2);

/// The keys that are waited for, and when to look at them. A key that nobody waits for any more is
/// removed at the next look.
struct Schedule<S: Store> {
    keys: HashMap<Arc<str>, Entry<S>>,
    /// None of the keys is due before.
    next: Option<Instant>,
    /// The store has changed, so that all keys are looked at now.
    has_changed: bool,
}

struct Entry<S: Store> {
    seen: S::Seen,
    /// When it was last looked at, or when the wait for it began.
    looked: Instant,
    next: Instant,
}

impl<S: Store> Entry<S> {
    /// For a key that was just looked at, or that is newly waited for.
    fn new(store: &S, mut seen: S::Seen, now: Instant) -> Self {
        Self {
            next: now + store.pace(&mut seen),
            seen,
            looked: now,
        }
    }

    fn is_looked_at(&self, now: Instant) -> bool {
        // A key that is almost due goes along, which saves a round trip.
        match S::LOOKS {
            Looks::Together => true,
            Looks::Each => self.next <= now + (self.next - self.looked) / 4,
        }
    }
}

impl<S: Store> Schedule<S> {
    fn insert(&mut self, key: Arc<str>, entry: Entry<S>) {
        self.next = self.next.into_iter().chain([entry.next]).min();
        self.keys.insert(key, entry);
    }

    /// Whether a key is to be looked at, or a beat to be sent.
    fn is_due(&self, beat: Option<Instant>, now: Instant) -> bool {
        let mut due = self.next.into_iter().chain(beat);
        self.has_changed || due.any(|due| due <= now)
    }

    /// Takes the keys to look at.
    fn take_due(&mut self, now: Instant) -> Vec<(Arc<str>, Entry<S>)> {
        let all = std::mem::take(&mut self.has_changed);
        let due = self.keys.extract_if(|_, key| all || key.is_looked_at(now));
        let due = due.collect();
        self.find_next();
        due
    }

    fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.keys.retain(|key, _| stays(key));
        self.find_next();
    }

    fn find_next(&mut self) {
        self.next = self.keys.values().map(|key| key.next).min();
    }
}

impl<S: Store> Default for Schedule<S> {
    fn default() -> Self {
        Self {
            keys: HashMap::default(),
            next: None,
            has_changed: false,
        }
    }
}

impl<S: Store> Running<S> {
    /// Runs until the engine is told to stop.
    pub(super) async fn look_after_waiters(self: Arc<Self>) {
        while !self.stopping.is_cancelled() {
            let waited = async {
                while self.events.waiters().is_empty() {
                    self.events.waiters().change().await;
                }
                self.look_and_beat().await;
            };
            let _ = self.stopping.run_until_cancelled(waited).await;
            if self.events.forget_beat() {
                // The last waiter of this process has left the queues, or is about to.
                let limit = self.time.after(self.request_timeout);
                self.store.farewell(limit).await;
                self.events.said_farewell();
            }
        }
    }

    /// Runs until nobody waits any more, or a little longer if this process sends beats: a waiter's
    /// place is lost when others take the process for dead.
    async fn look_and_beat(&self) {
        let mut schedule = Schedule::default();
        let mut beat = S::BEAT.map(|gap| self.time.now() + gap);
        let mut idle_since = None;
        loop {
            let now = self.time.now();
            if !self.events.waiters().is_empty() {
                idle_since = None;
            } else if beat.is_none()
                || now.duration_since(*idle_since.get_or_insert(now)) >= LINGERS
            {
                return;
            }
            self.add_new(&mut schedule, now);
            if schedule.is_due(beat, now) {
                schedule.retain(|key| self.events.waiters().is_waited(key));
            }
            if !schedule.is_due(beat, now) {
                let next = schedule.next.into_iter().chain(beat).min();
                tokio::select! {
                    biased;
                    () = self.events.waiters().change() => {}
                    () = self.time.sleep_until(next) => {}
                    () = self.store.changed(), if schedule.next.is_some() => {
                        schedule.has_changed = true;
                    }
                }
                // Callers on other threads may come without end, and renewals run on this one.
                consume_budget().await;
                continue;
            }
            let beats = S::BEAT.filter(|gap| beat.is_some_and(|beat| beat <= now + *gap / 4));
            if !self.look(&mut schedule, beats.is_some()).await {
                // Each waiter now finds out for itself, and fails if the outage lasts for the
                // request timeout.
                self.events.missed();
            }
            if let Some(gap) = beats {
                beat = Some(self.time.now() + gap);
            }
        }
    }

    /// Adds the keys that somebody waits for since the last call. That costs nothing for those that
    /// were waited for before, however many they are.
    fn add_new(&self, schedule: &mut Schedule<S>, now: Instant) {
        for key in self.events.waiters().newly_waited() {
            if !schedule.keys.contains_key(&key) {
                schedule.insert(key, Entry::new(&self.store, S::Seen::default(), now));
            }
        }
    }

    /// Looks at the keys that are due. Returns whether the store has answered.
    async fn look(&self, schedule: &mut Schedule<S>, beats: bool) -> bool {
        let now = self.time.now();
        let has_changed = schedule.has_changed;
        let due = schedule.take_due(now);
        let due_before: Vec<_> = due.iter().map(|(_, entry)| entry.next).collect();
        let waited = due.into_iter().map(|(key, entry)| Waited::<S> {
            waiters: self.events.waiters().of_key(&key),
            seen: entry.seen,
            key,
            refused: None,
        });
        let mut waited: Vec<_> = waited.collect();
        // The rest of the request timeout is left to the waiters themselves.
        let mut call = self.call_within(self.request_timeout / 2);
        let mut asked = self.time.now();
        let answered = attempts!(call, |attempt| {
            asked = self.time.now();
            self.store.recheck(&mut waited, beats, attempt.deadline)
        });
        if answered.is_ok() {
            self.events.answered(asked);
            if beats {
                self.events.beats(asked);
            }
        }
        let now = self.time.now();
        for (key, due) in waited.into_iter().zip(due_before) {
            if let Some(error) = &key.refused {
                self.events.waiters().refuse(&key.key, error);
            }
            for waiter in key.waiters.iter().filter(|waiter| waiter.wake) {
                self.events.waiters().wake(waiter.owner, &key.key);
            }
            let mut entry = Entry::new(&self.store, key.seen, now);
            if has_changed && due > now {
                // The change may have been noticed before it could be seen, so the look that was
                // due stays due.
                entry.next = entry.next.min(due);
            }
            schedule.insert(key.key, entry);
        }
        answered.is_ok()
    }
}
