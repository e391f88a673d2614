//! What the processes of a run do: annotated functions over a manager, whose bodies
//! write to what their locks guard.

mod body;
mod calls;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock::{LockError, LockManager};

pub(crate) use self::body::{Body, Ends, NotDone};
use crate::checker::Resource;
use crate::history::{History, Key, name};
use crate::stores::Stores;
use crate::world::{At, Process, ProcessId, World};

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) processes: u32,
    pub(crate) workers: u32,
    pub(crate) keys: Key,
    /// Of most calls.
    pub(crate) ttl: Duration,
    pub(crate) handoff: u32,
    /// Most of those who ask for a permit name this number.
    pub(crate) permits: u32,
    /// Workers go on until then at least, and until they have made so many calls.
    pub(crate) until: At,
    pub(crate) calls: u32,
}

/// When nothing is wrong, and everybody wants each lock for a moment, it is had within this
/// time.
const SERVED: Duration = Duration::from_secs(3);

/// What is remembered as done is looked at again after this.
const DONE_STILL: Duration = Duration::from_millis(50);

/// What is not given back shows under the long ones, and runs out under the short ones.
const TTLS: [Duration; 6] = [
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_secs(8),
    Duration::from_secs(8),
    Duration::from_secs(30),
];
const HANDOFFS: [u32; 5] = [0, 1, 2, 3, 32];

impl Size {
    pub(crate) fn draw(world: &World, until: At) -> Self {
        let processes = world.draw(|chance| chance.u32(3..=4));
        let workers = world.draw(|chance| chance.u32(2..=4));
        Self {
            processes,
            workers,
            keys: world.draw(|chance| chance.u8(2..=4)),
            ttl: TTLS[world.draw(|chance| chance.usize(..TTLS.len()))],
            handoff: HANDOFFS[world.draw(|chance| chance.usize(..HANDOFFS.len()))],
            permits: world.draw(|chance| chance.u32(1..=4)),
            until,
            calls: 240 / (processes * workers),
        }
    }
}

/// The processes of a run.
pub(crate) struct Program {
    pub(crate) size: Size,
    pub(crate) history: Arc<History>,
    pub(crate) stores: Stores,
    resource: Arc<Resource>,
    state: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    started: u32,
    processes: Vec<Member>,
    /// All that there ever were.
    past: Vec<Arc<Process>>,
}

/// One of the processes, and the one that has taken its place since.
struct Member {
    process: Arc<Process>,
    manager: Option<LockManager>,
    /// Of its workers, how many have ended.
    ended: u32,
}

impl Program {
    pub(crate) fn new(size: Size, history: &Arc<History>, stores: Stores) -> Arc<Self> {
        Arc::new(Self {
            size,
            history: Arc::clone(history),
            stores,
            resource: Resource::new(history),
            state: Mutex::default(),
        })
    }

    /// Starts all processes.
    pub(crate) fn begin(self: &Arc<Self>) {
        for place in 0..self.size.processes {
            let process = self.next_process();
            self.state().processes.push(Member {
                process: Arc::clone(&process),
                manager: None,
                ended: 0,
            });
            self.start(place as usize, process);
        }
    }

    fn next_process(&self) -> Arc<Process> {
        let id = {
            let mut state = self.state();
            state.started += 1;
            ProcessId(state.started)
        };
        let process = Process::start(id, &self.history.world);
        self.state().past.push(Arc::clone(&process));
        process
    }

    fn start(self: &Arc<Self>, place: usize, process: Arc<Process>) {
        let program = Arc::clone(self);
        let of = Arc::clone(&process);
        process.spawn(async move {
            let manager = loop {
                let config = program.stores.config(&of);
                let Size { ttl, handoff, .. } = program.size;
                match LockManager::connect(config.ttl(ttl).handoff(handoff)).await {
                    Ok(manager) => break manager,
                    Err(_) => of.sleep(Duration::from_millis(200)).await,
                }
            };
            program.state().processes[place].manager = Some(manager.clone());
            for number in 0..program.size.workers {
                let worker = worker::Worker {
                    program: Arc::clone(&program),
                    process: Arc::clone(&of),
                    manager: manager.clone(),
                    place,
                    number,
                };
                of.spawn(worker.work());
            }
        });
    }

    pub(crate) fn process(&self, place: usize) -> Arc<Process> {
        Arc::clone(&self.state().processes[place].process)
    }

    /// Ends a process, and starts another in its place after this time.
    pub(crate) fn kill(self: &Arc<Self>, place: usize, down: Duration) {
        let (process, manager) = {
            let mut state = self.state();
            let member = &mut state.processes[place];
            (Arc::clone(&member.process), member.manager.take())
        };
        if process.is_dead() {
            // Its successor is on its way.
            return;
        }
        self.history.killed(process.id);
        process.kill();
        process.within(|| drop(manager));
        let program = Arc::clone(self);
        let world = Arc::clone(&self.history.world);
        world.at(world.now() + down, move || {
            let next = program.next_process();
            {
                let mut state = program.state();
                let member = &mut state.processes[place];
                member.process = Arc::clone(&next);
                member.ended = 0;
            }
            program.start(place, next);
        });
    }

    fn worker_ended(&self, place: usize) {
        self.state().processes[place].ended += 1;
    }

    pub(crate) fn is_done(&self) -> bool {
        let state = self.state();
        state
            .processes
            .iter()
            .all(|member| member.ended == self.size.workers)
    }

    /// When all faults are over: every lock can be had by everybody, in time.
    pub(crate) fn take_all(self: &Arc<Self>) {
        let recovered = self.history.state().recovered(self.size.ttl);
        let within = SERVED + recovered.saturating_sub(self.history.world.now());
        for (place, process, manager) in self.managers() {
            let (program, process_too) = (Arc::clone(self), Arc::clone(&process));
            self.state().processes[place].ended = 0;
            process.spawn(async move {
                for key in 0..program.size.keys {
                    let had = loop {
                        match manager.lock(name(key)).acquire_within(within).await {
                            // It is over in time.
                            Err(LockError::Done { .. }) => process_too.sleep(DONE_STILL).await,
                            had => break had,
                        }
                    };
                    let released = match had {
                        Ok(guard) => guard.release().await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = released {
                        program.history.violation(format!(
                            "key {key} could not be had after all faults: {error:?}"
                        ));
                    }
                }
                drop(manager);
                program.state().processes[place].ended = program.size.workers;
            });
        }
    }

    /// Ends the managers.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        for (place, process, manager) in self.managers() {
            let (program, id) = (Arc::clone(self), process.id);
            self.state().processes[place].ended = 0;
            process.spawn(async move {
                manager.shutdown().await;
                program.history.has_shut_down(id);
                drop(manager);
                let last = program.state().processes[place].manager.take();
                drop(last);
                program.state().processes[place].ended = program.size.workers;
            });
        }
    }

    fn managers(&self) -> Vec<(usize, Arc<Process>, LockManager)> {
        let state = self.state();
        let members = state.processes.iter().enumerate();
        let managers = members.filter_map(|(place, member)| {
            Some((place, Arc::clone(&member.process), member.manager.clone()?))
        });
        managers.collect()
    }

    /// All processes that there ever were.
    pub(crate) fn all_processes(&self) -> Vec<Arc<Process>> {
        self.state().past.clone()
    }

    /// Ends all there is, so that nothing is left of the run.
    pub(crate) fn end(&self) {
        let members = std::mem::take(&mut self.state().processes);
        for member in members {
            member.process.kill();
            member.process.within(|| drop(member.manager));
        }
    }

    fn state(&self) -> MutexGuard<'_, Running> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
