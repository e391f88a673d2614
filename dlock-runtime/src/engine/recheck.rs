//! The second look: for as long as somebody waits, at the locks that are waited
//! for. A message can be lost, and a holder that dies sends none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Running;
use super::call::attempts;
use crate::store::{Looks, Store, Waited};

/// Waits that follow each other closely keep the process alive in between.
const LINGERS: Duration = Duration::from_secs(2);

/// The keys that are waited for, and when they are looked at.
struct Schedule<S: Store>(HashMap<Arc<str>, Entry<S>>);

struct Entry<S: Store> {
    seen: S::Seen,
    /// When it was last looked at, or first waited for.
    looked: Instant,
    next: Instant,
    /// Somebody waits for it.
    waited: bool,
}

impl<S: Store> Running<S> {
    /// Until the engine is told to stop.
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
                // The queues hold nobody of this process now, or soon.
                let limit = self.time.after(self.request_timeout);
                self.store.farewell(limit).await;
                // Who came in the meantime may have been passed over as dead.
                self.events.missed();
            }
        }
    }

    /// Until nobody waits any more; and a little longer where who waits has a place,
    /// which it loses when others take this process for dead.
    async fn look_and_beat(&self) {
        let mut schedule = Schedule(HashMap::new());
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
            self.update(&mut schedule);
            let next = schedule.soonest().into_iter().chain(beat).min();
            if next.is_none_or(|next| next > now) {
                tokio::select! {
                    () = self.events.waiters().change() => {}
                    () = self.time.sleep_until(next) => {}
                }
                continue;
            }
            // What is not yet due goes along, and saves a trip.
            let keys = match S::LOOKS {
                Looks::Together => schedule.all(),
                Looks::Each => schedule.due(now),
            };
            let beats = S::BEAT.filter(|gap| beat.is_some_and(|beat| beat <= now + *gap / 4));
            if !self.look(&mut schedule, keys, beats.is_some()).await {
                // Each waiter now finds out for itself, and fails if the outage lasts
                // for the request timeout.
                self.events.missed();
            }
            if let Some(gap) = beats {
                beat = Some(self.time.now() + gap);
            }
        }
    }

    /// Enters the keys that somebody waits for now, and takes out the others.
    fn update(&self, schedule: &mut Schedule<S>) {
        let now = self.time.now();
        schedule.0.values_mut().for_each(|key| key.waited = false);
        self.events.waiters().for_each_key(|key| {
            let entry = schedule.0.entry(Arc::clone(key)).or_insert_with(|| {
                let mut seen = S::Seen::default();
                Entry {
                    next: now + self.store.pace(&mut seen),
                    seen,
                    looked: now,
                    waited: false,
                }
            });
            entry.waited = true;
        });
        schedule.0.retain(|_, key| key.waited);
    }

    /// Whether the store has answered.
    async fn look(&self, schedule: &mut Schedule<S>, keys: Vec<Arc<str>>, beats: bool) -> bool {
        let mut waited: Vec<_> = keys
            .into_iter()
            .map(|key| Waited::<S> {
                waiters: self.events.waiters().of_key(&key),
                seen: schedule.take(&key),
                key,
                refused: None,
            })
            .collect();
        // What is left of the request timeout is for the waiters themselves.
        let mut call = self.call_within(self.request_timeout / 2);
        let mut asked = self.time.now();
        let answered = attempts!(call, |deadline, _attempt| {
            asked = self.time.now();
            self.store.recheck(&mut waited, beats, deadline)
        });
        if answered.is_ok() {
            self.events.heard(asked);
            if beats {
                self.events.beats(asked);
            }
        }
        let now = self.time.now();
        for mut key in waited {
            if let Some(error) = &key.refused {
                self.events.waiters().refuse(&key.key, error);
            }
            for waiter in key.waiters.iter().filter(|waiter| waiter.wake) {
                self.events.waiters().wake(waiter.owner, &key.key);
            }
            let entry = Entry {
                next: now + self.store.pace(&mut key.seen),
                seen: key.seen,
                looked: now,
                waited: true,
            };
            schedule.0.insert(key.key, entry);
        }
        answered.is_ok()
    }
}

impl<S: Store> Schedule<S> {
    fn soonest(&self) -> Option<Instant> {
        self.0.values().map(|key| key.next).min()
    }

    fn all(&self) -> Vec<Arc<str>> {
        self.0.keys().cloned().collect()
    }

    /// What is due, and what will be soon: that saves a trip.
    fn due(&self, now: Instant) -> Vec<Arc<str>> {
        let soon = |key: &Entry<S>| key.next <= now + (key.next - key.looked) / 4;
        let due = self.0.iter().filter(|(_, key)| soon(key));
        due.map(|(key, _)| Arc::clone(key)).collect()
    }

    fn take(&mut self, key: &str) -> S::Seen {
        let entry = self.0.get_mut(key);
        entry.map_or_else(S::Seen::default, |entry| std::mem::take(&mut entry.seen))
    }
}
