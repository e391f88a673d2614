//! No more have a lock than its permits allow for.
//!
//! Each caller goes by its own number: when it was let in, fewer than that had the lock.
//! Who was let in before it, and does anything after it has come in, had the lock when it
//! was let in. There may be no more of these in all than one less than the number, however
//! long the one that was let in has been gone: that needs no exemption for bodies
//! that stood still. Readers count as one each.

use std::collections::BTreeMap;

use dlock::backend::Mode;

use super::order::grant_of;
use crate::history::{History, Key, State};

/// A body that came in by a permit, and who was in before it.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    body: usize,
    most: u32,
    /// By their grants: who is handed a permit has that of the one before.
    before: BTreeMap<u64, usize>,
}

/// By the key and the token.
pub(crate) type Permits = BTreeMap<(Key, u64), Permit>;

impl State {
    /// A body begins.
    pub(super) fn is_let_in(&mut self, body: usize) {
        let Mode::Permits(most) = self.bodies[body].mode else {
            return;
        };
        self.counts.permits += 1;
        for &(key, token) in &self.bodies[body].keys {
            let permit = Permit {
                body,
                most,
                before: BTreeMap::new(),
            };
            self.permits.insert((key, token), permit);
        }
    }
}

impl History {
    /// A body does something. Beside whom was it let in?
    pub(super) fn is_beside(&self, body: usize) {
        let mut wrong = Vec::new();
        {
            let mut state = self.state();
            let State {
                bodies, permits, ..
            } = &mut *state;
            let this = &bodies[body];
            if !this.mode.is_shared() {
                return;
            }
            for &(key, token) in &this.keys {
                for (&(_, later), permit) in permits.range_mut((key, token + 1)..(key, u64::MAX)) {
                    let grant = grant_of(token);
                    if grant == grant_of(later) {
                        continue;
                    }
                    let is_new = permit.before.insert(grant, body).is_none();
                    if is_new && permit.before.len() >= permit.most as usize {
                        wrong.push((key, token, later, permit.clone()));
                    }
                }
            }
        }
        for (key, token, later, permit) in wrong {
            let broken = |number| self.broke_promise_to(key, number);
            // A grant from before a promise was broken may have ended in the store.
            let inside = permit.before.keys().filter(|grant| !broken(**grant));
            if broken(token) || broken(later) || inside.count() < permit.most as usize {
                continue;
            }
            let (entered, before) = {
                let state = self.state();
                let before = permit
                    .before
                    .values()
                    .map(|body| state.bodies[*body].clone());
                (
                    state.bodies[permit.body].clone(),
                    before.collect::<Vec<_>>(),
                )
            };
            self.violation(format!("key {key}: {entered:?} came in beside {before:?}"));
        }
    }
}
