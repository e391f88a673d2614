//! The locks that this process holds.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::leases::Tenancy;
use super::places::Name;
use crate::backend::Owner;
use crate::backend::losses::Losses;
use crate::in_flight::InFlight;

/// A lock that is held.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) name: Arc<Name>,
    pub(super) create_revision: i64,
    pub(super) ttl: Duration,
    /// The lease that it was first attached to, under which it is deleted.
    pub(super) tenancy: Arc<Tenancy>,
    /// It has been attached to a lease of its own, which ends by itself.
    pub(super) moved: bool,
    /// A request may yet be done that makes the key anew, under the first lease.
    pub(super) ghost: bool,
    /// When it is given back unless it is renewed: the lease itself goes on for
    /// others.
    pub(super) ends: Instant,
}

pub(super) struct Held {
    table: Mutex<Table>,
    /// Told when a place may end sooner than all before.
    sooner: Notify,
    losses: Losses,
    returns: InFlight,
}

#[derive(Default)]
struct Table {
    places: HashMap<Owner, Place>,
    by_end: BTreeSet<(Instant, Owner)>,
}

impl Held {
    /// What goes back is counted by `returns`.
    pub(super) fn new(returns: InFlight) -> Self {
        Self {
            table: Mutex::default(),
            sooner: Notify::new(),
            losses: Losses::default(),
            returns,
        }
    }

    pub(super) fn insert(&self, owner: Owner, place: Place) {
        let first = self.table().insert(owner, place);
        if first {
            self.sooner.notify_one();
        }
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Place> {
        self.table().places.get(&owner).cloned()
    }

    pub(super) fn holds(&self, owner: Owner) -> bool {
        self.table().places.contains_key(&owner)
    }

    pub(super) fn remove(&self, owner: Owner) -> Option<Place> {
        self.table().remove(owner)
    }

    /// The key is not there any more.
    pub(super) fn deleted(&self, owner: Owner) {
        if let Some(place) = self.remove(owner)
            && place.ghost
        {
            self.owe(place);
        }
    }

    /// Changes a place if it is still held.
    pub(super) fn update(&self, owner: Owner, change: impl FnOnce(&mut Place)) {
        let first = {
            // Under one lock: nobody sees it gone meanwhile.
            let mut table = self.table();
            let Some(mut place) = table.remove(owner) else {
                return;
            };
            change(&mut place);
            table.insert(owner, place)
        };
        if first {
            self.sooner.notify_one();
        }
    }

    /// Gives a place back without waiting for it.
    pub(super) fn give_back(&self, owner: Owner) {
        if let Some(place) = self.remove(owner) {
            self.owe(place);
        }
    }

    fn owe(&self, place: Place) {
        let (lease, counted) = (place.tenancy.lease(), self.returns.count());
        lease.give_back(place.name, place.ghost, counted);
    }

    /// A lease has ended, and all that was held under it.
    pub(super) fn lost_with(&self, lease: i64) {
        let lost: Vec<Owner> = {
            let mut table = self.table();
            let under = |place: &Place| !place.moved && place.tenancy.lease().id() == lease;
            let places = table.places.iter();
            let lost: Vec<_> = places
                .filter(|(_, place)| under(place))
                .map(|(owner, _)| *owner)
                .collect();
            for &owner in &lost {
                table.remove(owner);
            }
            lost
        };
        if !lost.is_empty() {
            self.losses.tell(lost);
        }
    }

    /// The next locks that have ended with their lease.
    pub(super) async fn next_losses(&self) -> Vec<Owner> {
        self.losses.next().await
    }

    /// Gives back what its holder did not renew.
    pub(super) async fn see_to_ends(&self) {
        loop {
            let next = self.table().by_end.first().copied();
            match next {
                Some((end, owner)) if end <= Instant::now() => self.give_back(owner),
                Some((end, _)) => tokio::select! {
                    () = sleep_until(end) => {}
                    () = self.sooner.notified() => {}
                },
                None => self.sooner.notified().await,
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whether it ends before all others.
    fn insert(&mut self, owner: Owner, place: Place) -> bool {
        self.remove(owner);
        let end = (place.ends, owner);
        self.by_end.insert(end);
        self.places.insert(owner, place);
        self.by_end.first() == Some(&end)
    }

    fn remove(&mut self, owner: Owner) -> Option<Place> {
        let place = self.places.remove(&owner)?;
        self.by_end.remove(&(place.ends, owner));
        Some(place)
    }
}
