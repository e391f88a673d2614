//! Executors: each polls its tasks, in any order, but not while it stands still.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake};

use dlock_runtime::simulation;

use super::Process;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExecutorId(usize);

/// Woken, on their way to be polled.
type Woken = Arc<Mutex<Vec<Arc<Task>>>>;

#[derive(Default)]
pub(super) struct Executors {
    all: Vec<Executor>,
    woken: Woken,
    ready: Vec<Arc<Task>>,
    number: u64,
}

#[derive(Default)]
struct Executor {
    /// How often it was stalled, and has not gone on.
    stalls: u32,
    dead: bool,
    tasks: BTreeMap<u64, Arc<Task>>,
    /// Could be polled, but for the stall.
    waiting: Vec<Arc<Task>>,
}

pub(super) struct Task {
    number: u64,
    pub(super) executor: ExecutorId,
    process: Arc<Process>,
    work: Mutex<Option<Work>>,
    is_woken: AtomicBool,
    woken: Woken,
}

impl Executors {
    pub(super) fn add(&mut self) -> ExecutorId {
        self.all.push(Executor::default());
        ExecutorId(self.all.len() - 1)
    }

    /// What was not taken on is returned.
    pub(super) fn spawn(
        &mut self,
        on: ExecutorId,
        process: &Arc<Process>,
        work: Work,
    ) -> Option<Work> {
        let executor = &mut self.all[on.0];
        if executor.dead {
            return Some(work);
        }
        self.number += 1;
        let task = Arc::new(Task {
            number: self.number,
            executor: on,
            process: Arc::clone(process),
            work: Mutex::new(Some(work)),
            is_woken: AtomicBool::new(true),
            woken: Arc::clone(&self.woken),
        });
        executor.tasks.insert(self.number, Arc::clone(&task));
        self.ready.push(task);
        None
    }

    pub(super) fn stall(&mut self, executor: ExecutorId) {
        self.all[executor.0].stalls += 1;
    }

    pub(super) fn go_on(&mut self, executor: ExecutorId) {
        let executor = &mut self.all[executor.0];
        executor.stalls = executor.stalls.saturating_sub(1);
        if executor.stalls == 0 {
            self.ready.append(&mut executor.waiting);
        }
    }

    pub(super) fn kill(&mut self, executor: ExecutorId) -> Vec<Arc<Task>> {
        let executor = &mut self.all[executor.0];
        executor.dead = true;
        executor.waiting.clear();
        std::mem::take(&mut executor.tasks).into_values().collect()
    }

    pub(super) fn tasks(&self, executor: ExecutorId) -> usize {
        self.all[executor.0].tasks.len()
    }

    pub(super) fn ended(&mut self, task: &Task) {
        self.all[task.executor.0].tasks.remove(&task.number);
    }

    /// One of those that can run.
    pub(super) fn choose(&mut self, draw: impl Fn(usize) -> usize) -> Option<Arc<Task>> {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.append(&mut woken);
        drop(woken);
        while !self.ready.is_empty() {
            let task = self.ready.swap_remove(draw(self.ready.len()));
            let executor = &mut self.all[task.executor.0];
            if executor.dead {
                continue;
            }
            if executor.stalls > 0 {
                executor.waiting.push(task);
                continue;
            }
            return Some(task);
        }
        None
    }
}

impl Task {
    /// Whether it has ended.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> bool {
        self.is_woken.store(false, Ordering::Relaxed);
        // Out of its place: it may be killed by what it does.
        let Some(mut work) = self.take() else {
            return true;
        };
        let process = self.process.as_simulated();
        simulation::enter(&process, || {
            if work.as_mut().poll(context).is_pending() && !self.process.is_dead() {
                *self.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
                return false;
            }
            drop(work);
            true
        })
    }

    /// Drops its work, as a part of its process.
    pub(super) fn end(&self) {
        let work = self.take();
        simulation::enter(&self.process.as_simulated(), || drop(work));
    }

    fn take(&self) -> Option<Work> {
        self.work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Relaxed) {
            let woken = Arc::clone(&self.woken);
            woken
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self);
        }
    }
}
