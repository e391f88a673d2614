//! Looks at all locks that this process waits for: which waiters are next, and which have lost
//! their places. With a beat, it also shows others that the process is alive.
//!
//! One script looks at every lock: the cost is that of a process, and does not grow with its
//! waiters. Who is next in a queue looks more often than the others, where no message tells it that
//! the lock is free.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::database::{Database, Pace, Row};
use super::tables::Tables;
use super::work::Args;
use crate::backend::{Mode, Owner};
use crate::deadline::Deadline;
use crate::store::{Failure, Store, Time, Waited};
use crate::stores::stored_owner::StoredOwner;

/// The pause is this part of the time that has been waited since something happened.
const PART: u32 = 6;

/// If one of the key's waiters is next, the pause is this part of the time for which that has been
/// so.
const PART_OF_NEXT: u32 = 16;

/// What is remembered of a key from one look to the next.
#[derive(Default)]
pub(crate) struct Seen {
    /// When one of its waiters last asked, or was woken to ask. `None`: just now.
    calm_since: Option<Instant>,
    /// When it was first seen that nobody is ahead of one of its waiters.
    next_since: Option<Instant>,
}

impl Seen {
    pub(super) fn pause(&self, pace: Pace, time: &Time) -> Duration {
        let (since, part) = match self.next_since {
            Some(since) => (Some(since), PART_OF_NEXT),
            None => (self.calm_since, PART),
        };
        let calm = since.map(|since| time.now().saturating_duration_since(since));
        let pause = calm.unwrap_or_default() / part;
        time.jitter(pause.clamp(pace.shortest, pace.longest))
    }
}

/// The columns: owner, key, and the standing of this owner.
const COLUMNS: usize = 3;

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueuePosition {
    Behind,
    /// Nobody is ahead, but the lock is held.
    Next,
    Asks,
}

impl QueuePosition {
    fn of(row: &Row) -> Self {
        match row.int(2) {
            1 => Self::Asks,
            2 => Self::Next,
            _ => Self::Behind,
        }
    }
}

pub(super) async fn look_at<D: Database, S: Store<Seen = Seen>>(
    tables: &Arc<Tables<D>>,
    waited: &mut [Waited<S>],
    beat: bool,
    deadline: Deadline,
) -> Result<(), Failure> {
    let script = if beat { "beat" } else { "look" };
    let mut waiters = waited.iter().flat_map(|key| &key.waiters);
    let permits = waiters.find(|waiter| matches!(waiter.mode, Mode::Permits(_)));
    let args = Args {
        mode: permits.map_or(Mode::Write, |waiter| waiter.mode),
        ..Args::default()
    };
    let answer = tables.run(script, args, COLUMNS, deadline).await?;
    let mut places: HashMap<(Owner, &str), QueuePosition> = HashMap::new();
    for row in &answer.rows {
        if let Some(owner) = owner_of(row) {
            let place = places.entry((owner, row.text(1)));
            let standing = place.or_insert(QueuePosition::Behind);
            *standing = QueuePosition::of(row).max(*standing);
        }
    }
    for key in &mut *waited {
        let (mut calm_since, mut is_next) = (None, false);
        for waiter in &mut key.waiters {
            let standing = places.get(&(waiter.owner, &*key.key));
            waiter.wake = match standing {
                Some(standing) => *standing == QueuePosition::Asks,
                // A beat shows all places, so this one was lost.
                None => beat,
            };
            is_next |= standing == Some(&QueuePosition::Next);
            let since = if waiter.wake {
                answer.sent_at
            } else {
                waiter.since
            };
            calm_since = calm_since.max(Some(since));
        }
        let next_since = key.seen.next_since.unwrap_or(answer.sent_at);
        key.seen = Seen {
            calm_since,
            next_since: is_next.then_some(next_since),
        };
    }
    #[cfg(feature = "sqlite")]
    {
        let next = waited.iter().filter_map(|key| key.seen.next_since);
        tables.changes.expect(next.max());
    }
    if beat {
        let places = answer.rows.iter().filter(|row| {
            let owner = owner_of(row);
            owner.is_none_or(|owner| !tables.events.knows(owner, row.text(1)))
        });
        let unknown: HashSet<_> = places
            .map(|row| (row.text(0).to_owned(), row.text(1).to_owned()))
            .collect();
        give_up(tables, unknown);
    }
    Ok(())
}

fn owner_of(place: &Row) -> Option<Owner> {
    Some(StoredOwner::read(place.text(0))?.owner)
}

/// Removes the places of waiters that have gone. In an outage they could not do so themselves, and
/// nobody else removes the places of a process that is alive.
///
/// A new waiter of this process is never among them: it is known before it asks for a place. A
/// waiter of a copy of this process (a machine that was restored from a snapshot) may be, and may
/// have been granted the lock since. It loses its place at most, and asks for another one.
fn give_up<D: Database>(tables: &Arc<Tables<D>>, places: HashSet<(String, String)>) {
    if places.is_empty() {
        return;
    }
    let this = Arc::clone(tables);
    tables.time.spawn(async move {
        for (owner, key) in places {
            let args = Args {
                owner,
                ..Args::of_key(&key)
            };
            if !this.give_up(args).await {
                // The next beat shows them again.
                return;
            }
        }
    });
}
