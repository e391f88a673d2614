//! Two bodies of one key do not overlap.
//!
//! Who entered later had the lock granted later. So once it has entered, nobody who
//! entered before it and excludes it may do anything any more. A body that stood
//! still beyond its lease is dropped before it does, whenever that is. Nothing is
//! exempt but leases that a server has forgotten, or cut short by a step of its clock.

use std::time::Duration;

use dlock::backend::Mode;

use super::order::grant_of;
use super::tokens;
use crate::history::{Entered, History, Key, name};
use crate::world::ProcessId;

/// A lease that is to be kept is so for a little longer, by the slowest clock.
const MIN_HOLD: Duration = Duration::from_millis(310);

impl History {
    /// A body begins, which holds these keys with these tokens.
    pub(crate) fn enters(
        &self,
        call: usize,
        process: ProcessId,
        keys: Vec<(Key, u64)>,
        mode: Mode,
    ) -> usize {
        let at = self.world.now();
        self.world
            .log(|| format!("{process:?} enters {keys:?}, call {call}, {mode:?}"));
        // A lease that was forgotten excludes nobody.
        let excludes: Vec<_> = keys
            .iter()
            .filter(|&&(key, token)| !self.may_be_overlapped(key, token))
            .map(|&(key, _)| key)
            .collect();
        for &(key, token) in &keys {
            if !self.store.was_granted(&name(key), grant_of(token)) {
                self.violation(format!("key {key}: token {token} is of no grant"));
            }
            self.is_in_order(call, key, token, mode);
            self.runs_once_more(call, key, token);
        }
        let mut wrong = Vec::new();
        let body = {
            let mut state = self.state();
            for &(key, token) in &keys {
                wrong.extend(tokens::rises(&state, key, token, mode));
            }
            let body = state.bodies.len();
            for key in excludes {
                state.last.entry(key).or_default()[usize::from(mode.is_shared())] = Some(body);
            }
            state.keeps_its_place(call);
            state.calls[call].entered.get_or_insert(at);
            for &(key, token) in &keys {
                let grant = state.grants.entry((key, grant_of(token))).or_default();
                grant.inside += 1;
                grant.since.get_or_insert(at);
            }
            state.counts.had += 1;
            state.bodies.push(Entered {
                call,
                keys,
                mode,
                ended: None,
            });
            state.is_let_in(body);
            body
        };
        for (key, token, before, what) in wrong {
            // One that may be overlapped may also come in late.
            let exempt = self.broke_promise_to(key, token)
                || self.forgot_number(key, token)
                || self.forgot_number(key, before);
            if !exempt {
                self.violation(what);
            }
        }
        body
    }

    /// A body does something.
    pub(crate) fn acts(&self, body: usize) {
        self.is_beside(body);
        let found = {
            let state = self.state();
            let this = &state.bodies[body];
            let later = this.keys.iter().find_map(|&(key, token)| {
                let last = state.last.get(&key)?;
                let excludes = match this.mode.is_shared() {
                    true => &last[..1],
                    false => &last[..],
                };
                let other = excludes
                    .iter()
                    .flatten()
                    .copied()
                    .find(|other| *other > body)?;
                Some((key, token, other))
            });
            later.map(|(key, token, other)| (this.clone(), key, token, state.bodies[other].clone()))
        };
        if let Some((this, key, token, other)) = found
            && !self.may_be_overlapped(key, token)
        {
            self.violation(format!("key {key}: {this:?} goes on beside {other:?}"));
        }
    }

    /// A body does something although it has been told that its lock is not held.
    pub(crate) fn acts_unheld(&self, body: usize) {
        let this = self.state().bodies[body].clone();
        self.violation(format!("{this:?} goes on after it has lost its lock"));
    }

    pub(crate) fn leaves(&self, body: usize) {
        let at = self.world.now();
        self.world.log(|| format!("body {body} ends"));
        let mut state = self.state();
        state.bodies[body].ended = Some(at);
        let Entered { call, keys, .. } = state.bodies[body].clone();
        state.calls[call].body_ended = Some(at);
        let kept_until = match state.calls[call].how {
            "keeps" => at.max(state.calls[call].entered.unwrap_or_default() + MIN_HOLD),
            _ => at,
        };
        for (key, token) in keys {
            let grant = state.grants.entry((key, grant_of(token))).or_default();
            grant.inside = grant.inside.saturating_sub(1);
            grant.kept_until = grant.kept_until.max(kept_until);
        }
        state.is_served(call, at, kept_until);
    }
}
