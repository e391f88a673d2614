//! Looking at locks that are held: one look for all waiters of a key, and one round trip for all
//! keys that are due.
//!
//! memcached notifies nobody when an item is gone. So this looks soon after a waiter has come or
//! the lock has changed hands, and then less and less often, down to about four times a second.
//! The pauses are random, so that processes that wait for the same lock do not look at the same
//! time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::server::Server;
use super::{errors, names};
use crate::deadline::Deadline;
use crate::engine::time::{Backoff, Time};
use crate::store::{Failure, Store, Waited};
use crate::stores::since;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause during `ALERT` after the lock was seen to change hands: a process that takes
/// the lock over and over [lets others in](super::fairness) for little longer than that.
const ALERT_PAUSE: Duration = Duration::from_millis(16);
const ALERT: Duration = Duration::from_secs(1);

/// What was seen of a lock that is waited for.
pub(crate) struct Seen {
    backoff: Backoff,
    /// The value of the last holder that was seen.
    holder: Option<Vec<u8>>,
    /// When the lock was last seen to have changed hands.
    changed: Option<Instant>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST_PAUSE, LAST_PAUSE),
            holder: None,
            changed: None,
        }
    }
}

impl Seen {
    pub(super) fn next_pause(&mut self, time: &Time) -> Duration {
        self.backoff.pause(time)
    }

    fn held_by(&mut self, holder: Vec<u8>, now: Instant) {
        let before = self.holder.replace(holder);
        if before.is_some() && before != self.holder {
            // The lock goes from holder to holder, so it may soon be free again.
            self.backoff = Backoff::new(FIRST_PAUSE, ALERT_PAUSE);
            self.changed = Some(now);
        }
        let alert = |changed: &mut Instant| now.saturating_duration_since(*changed) > ALERT;
        if self.changed.take_if(alert).is_some() {
            self.backoff = Backoff::new(ALERT_PAUSE, LAST_PAUSE);
        }
    }
}

pub(super) async fn look_at<S: Store<Seen = Seen>>(
    server: &Server,
    waited: &mut [Waited<S>],
    deadline: Deadline,
) -> Result<(), Failure> {
    let names = waited.iter().map(|key| names::lock(&key.key)).collect();
    let items = server.read(names, deadline).await?.into_iter();
    let items = items.filter_map(|item| Some((item.key?, item.data?)));
    let mut items: HashMap<_, _> = items.collect();
    let now = server.reach.time.now();
    for key in waited {
        let name = names::lock(&key.key);
        match items.remove(&name) {
            Some(holder) if since::holder(&holder).is_some() => seen(key, Some(holder), now),
            // The waiters get `Done` when they ask.
            Some(value) if names::done_by(&value).is_some() => key.wake_all(),
            // The value may stay there forever.
            Some(_) => key.refused = Some(errors::foreign(&server.reach.settings, &name)),
            None => seen(key, None, now),
        }
    }
    Ok(())
}

/// Notes the holder of a lock. If there is none, all waiters have cause to ask. If the holder is
/// one of the waiters, that one does not know it yet, and has cause to ask.
fn seen<S: Store<Seen = Seen>>(key: &mut Waited<S>, holder: Option<Vec<u8>>, now: Instant) {
    match holder {
        None => {
            key.wake_all();
            key.seen = Seen::default();
        }
        Some(holder) => {
            key.wake(|owner| names::held_by(&holder, &owner.to_string()).is_some());
            key.seen.held_by(holder, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::MemcachedStore;
    use super::*;
    use crate::backend::origin::Origin;
    use crate::backend::{Mode, Owner};
    use crate::store::Waiter;

    fn waited(owners: [Owner; 2]) -> Waited<MemcachedStore> {
        let waiter = |owner| Waiter::of(owner, Mode::Write, Instant::now());
        Waited {
            key: "key".into(),
            waiters: owners.map(waiter).into(),
            seen: Seen::default(),
            refused: None,
        }
    }

    fn woken(key: &Waited<MemcachedStore>) -> Vec<bool> {
        key.waiters.iter().map(|waiter| waiter.wake).collect()
    }

    /// A late command of a waiter may lock the key for that same waiter; for all others it is
    /// held.
    #[test]
    fn who_holds_the_lock_does_not_wait_for_it() {
        let owners = [Owner::unique(), Owner::unique()];
        let mut key = waited(owners);
        let held_by = |owner: Owner| Some(owner.to_string().into_bytes());
        seen(&mut key, held_by(Owner::unique()), Instant::now());
        assert_eq!(woken(&key), [false, false]);
        seen(&mut key, held_by(owners[0]), Instant::now());
        assert_eq!(woken(&key), [true, false]);
        let asks = Owner::draw(Origin::here("shop")).expect("an owner");
        let mut key = waited([asks, Owner::unique()]);
        let held = crate::stores::since::held(&asks.to_string(), Some(1));
        seen(&mut key, Some(held.into_bytes()), Instant::now());
        assert_eq!(woken(&key), [true, false]);
        seen(&mut key, None, Instant::now());
        assert_eq!(woken(&key), [true, true]);
    }

    #[tokio::test]
    async fn a_lock_that_changes_hands_is_looked_at_sooner() {
        let time = Time::of_the_machine(tokio::runtime::Handle::current());
        let now = Instant::now();
        let mut seen = Seen::default();
        let pause_after = |seen: &mut Seen, looks| {
            (0..looks)
                .map(|_| seen.next_pause(&time))
                .last()
                .expect("a look")
        };
        seen.held_by(b"1.1".to_vec(), now);
        assert!(pause_after(&mut seen, 10) > 2 * ALERT_PAUSE);
        seen.held_by(b"2.2".to_vec(), now);
        assert!(pause_after(&mut seen, 10) < 2 * ALERT_PAUSE);
        seen.held_by(b"2.2".to_vec(), now + 2 * ALERT);
        assert!(pause_after(&mut seen, 10) > 2 * ALERT_PAUSE);
    }
}
