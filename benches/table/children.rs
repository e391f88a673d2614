//! Several processes that contend for one lock.

use std::time::Duration;

use tokio::process::Command;

use crate::Bench;
use crate::crowd::{self, Work};
use crate::heat::Heat;

const KEY: &str = "contended";

/// Who contends: so many tasks in each of so many processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) contestant: &'static str,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    pub(crate) body: Duration,
}

impl Crowd {
    /// Lets them contend for a while.
    pub(crate) async fn contend(self, bench: &Bench) -> Heat {
        let command = || Command::new(env!("CARGO_BIN_EXE_contender"));
        let (url, contestant) = (bench.url(), self.contestant);
        let mut crowd = crowd::Crowd::start(self.processes, command, contestant, &url).await;
        let work = Work {
            tasks: self.tasks,
            body: self.body,
            warm_up: bench.effort.warm_up,
            heat: bench.effort.heat,
        };
        let heat = crowd.contend(KEY, work).await;
        crowd.end().await;
        heat
    }
}
