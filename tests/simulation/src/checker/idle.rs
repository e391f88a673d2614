//! A lock that nobody has is not waited for, and nobody keeps one that he does not use.
//!
//! Both are looked at again and again. Where nothing has been wrong the bounds are some
//! round trips. After something was, there is time to find out, but less than a long ttl:
//! what is given back by nobody shows, though it would run out in the end.

use std::sync::Arc;
use std::time::Duration;

use super::order::{REGARDLESS, grant_of};
use crate::history::{Call, History, Key, State, name};
use crate::network::Holder;
use crate::world::{At, ProcessId};

const LOOK: Duration = Duration::from_millis(40);

/// While nothing has been wrong, what is granted is used or given back within this time.
const AT_ONCE: Duration = Duration::from_millis(120);
/// And from then on.
const IN_THE_END: Duration = Duration::from_millis(2_500);
/// A lock that nobody gives back is looked at so often by who waits.
const LOOKED_AT: Duration = Duration::from_millis(1_200);
/// How long it takes to recover from something that lasted not at all, and how much
/// longer for each time that it lasted.
const RECOVERS: Duration = Duration::from_secs(3);

/// What was seen at the last look, and since when.
#[derive(Default)]
pub(crate) struct Seen {
    held: Vec<(Key, u64, At)>,
    free: Vec<(Key, At)>,
}

impl History {
    /// Looks until the run has ended.
    pub(crate) fn watch(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.world.at(self.world.now() + LOOK, move || {
            this.look();
            this.watch();
        });
    }

    fn look(&self) {
        let now = self.world.now();
        let mut wrong = Vec::new();
        let mut seen = Seen::default();
        {
            let state = self.state();
            for key in 0..self.promises.keys {
                let Some(holders) = self.store.holders(&name(key)) else {
                    continue;
                };
                if holders.is_empty() {
                    let before = state.seen.free.iter().find(|(known, _)| *known == key);
                    let since = before.map_or(now, |(_, since)| *since);
                    seen.free.push((key, since));
                    // It may have been had between two looks.
                    let since = since.max(self.store.freed(&name(key)).unwrap_or_default());
                    let found = self.is_left_free(&state, key, since, now);
                    wrong.extend(found.map(|found| (key, since, found)));
                }
                for holder in holders {
                    let first = grant_of(holder.token);
                    let mut before = state.seen.held.iter();
                    let before = before.find(|(known, token, _)| (*known, *token) == (key, first));
                    let since = before.map_or(now, |(.., since)| *since);
                    seen.held.push((key, first, since));
                    let found = self.is_kept(&state, key, &holder, since, now);
                    let found = found.filter(|_| !self.broke_promise_to(key, holder.token));
                    wrong.extend(found.map(|found| (key, since, found)));
                }
            }
        }
        self.state().seen = seen;
        for (key, since, wrong) in wrong {
            if self.state().told.insert((key, since)) {
                self.violation(wrong);
            }
        }
    }

    /// Whether somebody waits for a lock that nobody has.
    fn is_left_free(&self, state: &State, key: Key, since: At, now: At) -> Option<String> {
        let waits = |call: &&Call| call.entered.is_none() && call.keys == [key] && !call.tries();
        // A lease that ends under its body, which goes on, is given back by nobody.
        let goes_on = || {
            let mut calls = state.calls.iter();
            calls.any(|call| {
                let is_over = call.ended.is_some_and(|ended| ended + AT_ONCE < now);
                call.how == REGARDLESS && call.entered.is_some() && call.keys == [key] && !is_over
            })
        };
        let too_long = |call: &Call, since: At| {
            let most = match goes_on() {
                true => self.promises.wakes.max(LOOKED_AT),
                false => self.promises.wakes,
            };
            // Its process may have the lock still, as far as that knows.
            let forgotten = self.store.thinks_it_has(&name(key), call.process);
            let idle = since.max(call.began).max(forgotten);
            state.has_no_excuse(call.process, idle, now, (most, self.promises.wakes_late))
        };
        let mut open = state.open.iter().map(|number| &state.calls[*number]);
        let found = open.find(|call| {
            waits(call)
                && too_long(call, since)
                && too_long(call, self.last_gave_up(state, key, since))
        })?;
        Some(format!(
            "key {key} is free since {since:?}, and {found:?} waits"
        ))
    }

    /// When the last of those that waited when the lock became free gave up. Where the first in the
    /// queue has to ask, it may not have looked before that, and the next one has its own look.
    fn last_gave_up(&self, state: &State, key: Key, since: At) -> At {
        if !self.promises.fair || self.promises.hands_on {
            return since;
        }
        let waited = |call: &&Call| call.entered.is_none() && call.began < since;
        let calls = state.calls.iter().filter(waited);
        let of_it = calls.filter(|call| call.keys.contains(&key));
        let ended = of_it.filter_map(|call| call.ended).max();
        ended.unwrap_or_default().max(since)
    }

    /// Until when a body of this process had it by a number from before its server broke a
    /// promise: its owner may have been granted the lock once more since.
    fn used_by_another_number(&self, state: &State, key: Key, process: ProcessId, now: At) -> At {
        let bodies = state.bodies.iter();
        let of_it = bodies.filter(|body| state.calls[body.call].process == process);
        let used = of_it.filter_map(|body| {
            let mut keys = body.keys.iter();
            let broken = |&&(known, token): &&_| known == key && self.broke_promise_to(key, token);
            let (_, token) = keys.find(broken)?;
            match body.ended {
                Some(_) => Some(state.grants.get(&(key, grant_of(*token)))?.kept_until),
                None => Some(now),
            }
        });
        used.max().unwrap_or_default()
    }

    /// Whether somebody keeps a lock that he does not use.
    fn is_kept(
        &self,
        state: &State,
        key: Key,
        holder: &Holder,
        since: At,
        now: At,
    ) -> Option<String> {
        let process = holder.process?;
        let grant = state.grants.get(&(key, grant_of(holder.token)));
        let grant = grant.copied().unwrap_or_default();
        let of_several = |call: &Call| {
            call.process == process && call.keys.len() > 1 && call.keys.contains(&key)
        };
        let collects = || {
            let mut open = state.open.iter().map(|number| &state.calls[*number]);
            open.any(|call| call.entered.is_none() && of_several(call))
        };
        // What was late comes to nobody then, and stays for its ttl.
        let came_after_all = || {
            let ended = state.shut_down.get(&process);
            ended.is_some_and(|ended| since >= *ended)
        };
        if grant.inside > 0 || state.ended.contains(&process) || came_after_all() || collects() {
            return None;
        }
        let collected = state.collected.get(&(process, key)).copied();
        let used = since
            .max(grant.kept_until)
            .max(collected.unwrap_or_default());
        let too_long = |used| state.has_no_excuse(process, used, now, (AT_ONCE, IN_THE_END));
        let kept =
            too_long(used) && too_long(self.used_by_another_number(state, key, process, now));
        kept.then(|| {
            format!(
                "key {key}: {process:?} has it by {} since {since:?}, and has not used it since {used:?}",
                holder.token
            )
        })
    }
}

impl State {
    /// Whether nothing has been wrong for this process for so long after this that there
    /// is no excuse any more. Who waits may wait for one who has been disturbed.
    fn has_no_excuse(&self, process: ProcessId, since: At, now: At, bounds: (At, At)) -> bool {
        let (bound, in_the_end) = bounds;
        if self.troubles.is_empty() {
            return now >= since + bound;
        }
        let troubles = self.troubles.iter();
        let of_it = troubles.filter(|trouble| trouble.process.is_none_or(|known| known == process));
        let recovered =
            of_it.map(|trouble| trouble.to + RECOVERS + (trouble.to - trouble.from) / 2);
        let since = recovered.max().unwrap_or_default().max(since);
        now >= since + in_the_end.max(bound)
    }
}
