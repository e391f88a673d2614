//! What all nodes together have promised, and who of them has forgotten it.
//!
//! A lease counts on the votes of a majority. It may be overlapped only if what nodes
//! have forgotten, by a crash without their last writes or by a clock that was set
//! ahead, has shortened the time for which a majority has its votes. What a minority
//! forgets beyond that is no excuse; nor is what a node forgets that stays away until
//! the votes would have run out.
//!
//! Its token may be repeated only where the counter of a node went back below it, or
//! where a node forgot the vote before it had been raised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock::backend::Owner;
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::RanOut;
use crate::world::At;

pub(super) struct Ledger(Mutex<Votes>);

struct Votes {
    nodes: usize,
    owners: BTreeMap<Owner, Voted>,
    /// For whom these numbers were drawn, by a key and the first of them: at several
    /// nodes it may have been for several.
    drawn: BTreeMap<(Arc<str>, u64), BTreeSet<Owner>>,
    /// How far each node has ever counted.
    counted: Vec<u64>,
    /// Numbers that a node has forgotten.
    forgotten: BTreeSet<(Arc<str>, u64)>,
    ran_out: Vec<RanOut>,
}

/// What an owner has, by node.
#[derive(Clone)]
struct Voted {
    votes: Vec<Option<Vote>>,
    /// It may be overlapped.
    broken: bool,
    /// How far a node had counted when it forgot a vote.
    counted: Option<u64>,
}

#[derive(Clone, Copy)]
struct Vote {
    /// Until when it lasts as its owner knows it.
    promised: At,
    /// Until when it lasts, or nobody else can have it.
    lasts: At,
}

/// A node, after it has forgotten something.
pub(super) struct Forgot<F> {
    pub(super) node: usize,
    pub(super) at: At,
    /// Until when an owner has its vote now.
    pub(super) lasts: F,
    /// The last number that it had drawn, and the one from which it goes on.
    pub(super) counted: u64,
    pub(super) goes_on: u64,
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Votes {
            nodes,
            owners: BTreeMap::new(),
            drawn: BTreeMap::new(),
            counted: vec![0; nodes],
            forgotten: BTreeSet::new(),
            ran_out: Vec::new(),
        })))
    }

    /// A node has voted, and has drawn numbers up to `last`.
    pub(super) fn voted(&self, node: usize, key: &Arc<str>, owner: Owner, until: At, last: u64) {
        {
            let mut votes = self.votes();
            let drawn = votes.drawn.entry((Arc::clone(key), first(last)));
            drawn.or_default().insert(owner);
        }
        self.counts(node, last);
        self.extended(node, owner, until);
    }

    /// A node has counted so far.
    pub(super) fn counts(&self, node: usize, last: u64) {
        let counted = &mut self.votes().counted[node];
        *counted = last.max(*counted);
    }

    /// A node goes on from this number, which may be below those that it had counted.
    pub(super) fn goes_on(&self, node: usize, last: u64) {
        let mut votes = self.votes();
        let range = first(last) + 1..=first(votes.counted[node]);
        let lost = votes
            .drawn
            .keys()
            .filter(|(_, first)| range.contains(first));
        let lost: Vec<_> = lost.cloned().collect();
        votes.forgotten.extend(lost);
    }

    pub(super) fn extended(&self, node: usize, owner: Owner, until: At) {
        let mut votes = self.votes();
        let nodes = votes.nodes;
        let voted = votes.owners.entry(owner).or_insert_with(|| Voted {
            votes: vec![None; nodes],
            broken: false,
            counted: None,
        });
        voted.votes[node] = Some(Vote {
            promised: until,
            lasts: until,
        });
        voted.judge();
    }

    pub(super) fn given_back(&self, node: usize, owner: Owner) {
        if let Some(voted) = self.votes().owners.get_mut(&owner) {
            voted.votes[node] = None;
        }
    }

    pub(super) fn forgot(&self, forgot: &Forgot<impl Fn(Owner) -> At>) {
        let mut votes = self.votes();
        for (&owner, voted) in &mut votes.owners {
            let Some(vote) = &mut voted.votes[forgot.node] else {
                continue;
            };
            // What had run out is not forgotten.
            let lasts = (forgot.lasts)(owner);
            if vote.lasts > forgot.at && lasts < vote.lasts {
                vote.lasts = lasts;
                let counted = voted.counted.unwrap_or(forgot.counted);
                voted.counted = Some(counted.min(forgot.counted));
                voted.judge();
            }
        }
        drop(votes);
        self.goes_on(forgot.node, forgot.goes_on);
    }

    pub(super) fn runs_out(&self, ran_out: RanOut) {
        self.votes().ran_out.push(ran_out);
    }

    pub(super) fn ran_out(&self) -> Vec<RanOut> {
        self.votes().ran_out.clone()
    }

    pub(super) fn is_broken(&self, key: &str, token: u64) -> bool {
        let votes = self.votes();
        votes.drew(key, token).any(|voted| voted.broken)
    }

    pub(super) fn is_forgotten(&self, key: &str, token: u64) -> bool {
        let votes = self.votes();
        let number = first(token);
        let unraised = |voted: &Voted| voted.counted.is_some_and(|last| first(last) < number);
        votes.forgotten.contains(&(Arc::from(key), number)) || votes.drew(key, token).any(unraised)
    }

    /// Whether a node has drawn this number with a vote.
    pub(super) fn was_drawn(&self, key: &str, token: u64) -> bool {
        let drawn = (Arc::from(key), first(token));
        self.votes().drawn.contains_key(&drawn)
    }

    fn votes(&self) -> MutexGuard<'_, Votes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Votes {
    fn drew(&self, key: &str, token: u64) -> impl Iterator<Item = &Voted> {
        let drawn = self.drawn.get(&(Arc::from(key), first(token)));
        let owners = drawn.into_iter().flatten();
        owners.filter_map(|owner| self.owners.get(owner))
    }
}

impl Voted {
    fn judge(&mut self) {
        self.broken |= self.by_majority(|vote| vote.lasts) < self.by_majority(|vote| vote.promised);
    }

    /// Until then, a majority of all nodes.
    fn by_majority(&self, of: impl Fn(&Vote) -> At) -> At {
        let ends = self
            .votes
            .iter()
            .map(|vote| vote.as_ref().map_or(At::ZERO, &of));
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        ends[self.votes.len() / 2]
    }
}

/// The first of the numbers that this one is of.
fn first(number: u64) -> u64 {
    number - number % TOKENS_PER_GRANT
}
