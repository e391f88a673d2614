//! After all has ended nothing is left: not at the servers, and not in the runtime.

use std::sync::Arc;

use crate::history::History;
use crate::world::Process;

pub(crate) fn nothing_is_left(history: &History, processes: &[Arc<Process>]) {
    for server in &history.servers {
        for left in server.left() {
            history.violation(format!("left at the server: {left}"));
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
