//! After all has ended nothing is left: not at the servers, and not in the runtime.
//! And what was held is given back at once.

use std::sync::Arc;
use std::time::Duration;

use crate::history::{History, name};
use crate::network::{LATEST, RanOut};
use crate::world::Process;

pub(crate) fn nothing_is_left(history: &History, processes: &[Arc<Process>]) {
    history.marks_are_right();
    for left in history.store.left() {
        history.violation(format!("left at the server: {left}"));
    }
    for ran_out in history.store.ran_out() {
        if !is_excused(history, &ran_out) {
            history.violation(format!("nobody gave it back: {ran_out}"));
        }
    }
    for process in processes {
        let world = process.world();
        let tasks = [process.caller, process.manager].map(|executor| world.tasks(executor));
        if tasks != [0, 0] {
            history.violation(format!("left in {:?}: {tasks:?} tasks", process.id));
        }
    }
}

/// A process that has shut down has given back what it held: nothing has to run out. What a command
/// does that comes late is given back in the background.
pub(crate) fn nothing_is_held(history: &History) {
    let now = history.world.now();
    for key in 0..history.promises.keys {
        for holder in history.store.holders(&name(key)).unwrap_or_default() {
            let is_over = |of| {
                let state = history.state();
                let mut troubles = state.troubles_of(of, now, now, LATEST);
                state.shut_down.contains_key(&of)
                    && !troubles.any(|trouble| trouble.fault.makes_late())
            };
            if holder.process.is_some_and(is_over) {
                history.violation(format!("key {key}: {holder:?} is held after the shutdown"));
            }
        }
    }
}

/// Whether something was wrong where it ran out, with its process or on the way between
/// them, so that it could not be given back in time.
fn is_excused(history: &History, ran_out: &RanOut) -> bool {
    /// What was on its way has come, and is given back for the last time, at the latest.
    const SHOWS: Duration = Duration::from_secs(6);
    let RanOut {
        process,
        server,
        since,
        at,
        ..
    } = *ran_out;
    let state = history.state();
    let mut troubles = state.troubles_of(process, since, at, SHOWS);
    troubles.any(|trouble| trouble.server.is_none_or(|known| known == server))
}
