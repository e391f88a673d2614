//! The look at all locks that this process waits for: whose turn it is, and who
//! has lost its place. With it the process shows that it is alive.
//!
//! All of it is by process, not by waiter: one script looks at every lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::database::{Database, Pace, Row};
use super::tables::Tables;
use super::work::Args;
use crate::backend::{Mode, Owner};
use crate::deadline::Deadline;
use crate::store::{Failure, Store, Time, Waited};
use crate::stores::asker::Asker;

/// Part of the time that has been waited already.
const PART: u32 = 6;

/// What is remembered of a key from look to look.
#[derive(Default)]
pub(crate) struct Seen {
    /// Since when nobody who waits for it has asked; `None`: just now.
    calm_since: Option<Instant>,
}

impl Seen {
    pub(super) fn pause(&self, pace: Pace, time: &Time) -> Duration {
        let calm = self
            .calm_since
            .map(|since| time.now().saturating_duration_since(since));
        let pause = calm.unwrap_or_default() / PART;
        time.jitter(pause.clamp(pace.shortest, pace.longest))
    }
}

/// Owner, key, and 1 if the lock is free for it.
const COLUMNS: usize = 3;

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
    let mut places: HashMap<(Owner, &str), bool> = HashMap::new();
    for row in &answer.rows {
        if let Some(owner) = owner_of(row) {
            *places.entry((owner, row.text(1))).or_default() |= row.int(2) == 1;
        }
    }
    for key in waited {
        let mut calm_since = None;
        for waiter in &mut key.waiters {
            waiter.wake = match places.get(&(waiter.owner, &*key.key)) {
                Some(is_free) => *is_free,
                // A beat shows all places: this one was lost.
                None => beat,
            };
            let since = if waiter.wake {
                answer.sent_at
            } else {
                waiter.since
            };
            calm_since = calm_since.max(Some(since));
        }
        key.seen.calm_since = calm_since;
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
    Some(Asker::read(place.text(0))?.owner)
}

/// Leaves the queues for those who have left: they could not do it themselves,
/// in an outage, and as long as this process lives nobody else does.
///
/// Nobody of this process who has just come is among them: whoever was not known
/// at a beat had come before it, as it had a place; so it had ended too. Those of
/// a clone of this process may be, and may have been granted the lock since: they
/// lose their place at most, and ask for another one.
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
                // They show at the next beat.
                return;
            }
        }
    });
}
