//! Several processes that want the same lock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::heat::Heat;
use crate::program::{Contention, Program};

/// From the order to contend to the start: by then all have read it.
const HEAD_START: f64 = 1e7;

/// The same program, in several processes.
#[derive(Debug)]
pub(crate) struct Crowd(Vec<Program>);

/// What each of them does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) tasks: usize,
    pub(crate) body: Duration,
    /// For so long they contend before it counts, and then for so long.
    pub(crate) warm_up: Duration,
    pub(crate) heat: Duration,
}

impl Crowd {
    pub(crate) async fn start(
        processes: usize,
        command: impl Fn() -> Command,
        lock: &str,
        server: &str,
    ) -> Self {
        let starting: JoinSet<_> = (0..processes)
            .map(|_| {
                let (command, lock, server) = (command(), lock.to_owned(), server.to_owned());
                async move { Program::start(command, &lock, &server).await }
            })
            .collect();
        Self(starting.join_all().await)
    }

    /// Each process runs empty sections on keys of its own for a while, so that what is
    /// compiled as it runs has been compiled.
    #[allow(dead_code, reason = "the table of Redis has only programs of Rust")]
    pub(crate) async fn practise(&mut self, prefix: &str, tasks: usize, length: Duration) {
        let practising: JoinSet<_> = std::mem::take(&mut self.0)
            .into_iter()
            .enumerate()
            .map(|(process, mut program)| {
                let prefix = format!("{prefix}:{process}");
                async move {
                    program.rate(&prefix, tasks, tasks, length).await;
                    program
                }
            })
            .collect();
        self.0 = practising.join_all().await;
    }

    /// Lets them contend for a while.
    ///
    /// # Panics
    ///
    /// If two were inside at the same time.
    pub(crate) async fn contend(&mut self, key: &str, work: Work) -> Heat {
        let start = now() + HEAD_START;
        let from = start + work.warm_up.as_nanos() as f64;
        let end = from + work.heat.as_nanos() as f64;
        for program in &mut self.0 {
            let contention = Contention {
                key,
                tasks: work.tasks,
                body: work.body,
                start,
                end,
            };
            program.contend(contention).await;
        }
        let mut sections = Vec::new();
        for (process, program) in self.0.iter_mut().enumerate() {
            sections.extend(program.sections(process).await);
        }
        Heat::new(sections, self.0.len(), from, end)
    }

    /// Lets them end.
    pub(crate) async fn end(self) {
        for program in self.0 {
            let status = program.end().await;
            assert!(status.success(), "a contender failed: {status}");
        }
    }
}

fn now() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock");
    Duration::from(now).as_nanos() as f64
}
