//! One history: workers on a store, faults one after the other, and what is to be said
//! of it in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock::backend::TokenTier;
use dlock::{Config, LockManager};
use dlock_conformance::support::dir::TempDir;
use dlock_conformance::support::locks::{had, impatient, nothing_left};
use dlock_conformance::support::program::Program;
use dlock_conformance::support::resource::Resource;
use dlock_conformance::support::wait::until;
use fastrand::Rng;
use tokio::time::{Instant, sleep};

use crate::call::{Call, Outcome};
use crate::fault::Fault;
use crate::judge::Judge;
use crate::moment::Moment;
use crate::order;
use crate::plan::Plan;
use crate::still::Still;
use crate::support::machine::{self, Machine};
use crate::topology::{Setting, Topology};
use crate::worker::Orders;

/// No history is shorter, nor has fewer faults.
pub(crate) const LEAST: Duration = Duration::from_secs(20);
pub(crate) const FAULTS: usize = 10;

/// So many different ones, and one of them is no fault of a process.
const KINDS: usize = 3;

const WORKERS: usize = 4;

/// So many exclusive locks, each with something that it protects. Where there are permits, there is
/// one more that several may have.
pub(crate) const LOCKS: usize = 2;

/// What one history came to.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) calls: BTreeMap<Outcome, usize>,
    pub(crate) faults: BTreeMap<Fault, usize>,
    /// What the store's page allows while the store may have forgotten a grant, or ended
    /// leases early.
    pub(crate) excused: usize,
    /// How many keys of locks have moved with slots.
    pub(crate) moved: usize,
    /// How many calls were done that no fault met, and how many had an error.
    pub(crate) served: [usize; 2],
    /// The most readers that had a lock together, or bodies with permits.
    pub(crate) readers: usize,
    /// From the first fault to the last.
    pub(crate) lasted: Duration,
    pub(crate) setting: Setting,
}

pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Where it runs, if that can be spoiled.
    pub(crate) machine: Option<Machine>,
    pub(crate) killed: bool,
}

pub(crate) struct History {
    pub(crate) topology: Box<dyn Topology>,
    pub(crate) setting: Setting,
    pub(crate) resources: Vec<Resource>,
    tokens: bool,
    reads: bool,
    pub(crate) workers: Vec<Worker>,
    /// Where the file appears that ends the workers.
    dir: TempDir,
    /// What workers are told to draw from.
    draws: Rng,
    /// What the calls are judged by.
    pub(crate) known: Judge,
    /// From when to when the store may have forgotten what it had granted.
    pub(crate) forgotten: Vec<(Moment, Moment)>,
    /// A line for each fault.
    inflicted: String,
    pub(crate) faults: BTreeMap<Fault, usize>,
    pub(crate) moved: usize,
    /// How long this process had stood still when the last fault began.
    pub(crate) still: Duration,
    begun: Instant,
}

/// What was done to it, if it fails.
impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}; faults:\n{}", self.setting, self.inflicted);
            for worker in &self.workers {
                let (name, printed) = (&worker.name, worker.program.printed());
                let last: Vec<_> = printed.lines().rev().take(5).collect();
                eprintln!(
                    "{name}, from the last: {last:#?}{}",
                    worker.program.errors()
                );
            }
        }
    }
}

/// Runs the history of which the rest is to be drawn. Panics at what must not be.
pub(crate) async fn run(topology: Box<dyn Topology>, setting: Setting, mut draws: Rng) -> Outcomes {
    let all = Fault::all(&*topology, &setting);
    let mut plan = Plan::new(all, setting.longest_fault(), draws.fork());
    let judge = judge(&*topology, setting).await;
    let can = judge.capabilities();
    let known = Judge {
        is_readable: topology.is_readable_in_the_dark(),
        ..Judge::default()
    };
    let mut history = History {
        topology,
        setting,
        resources: (0..LOCKS + usize::from(can.permits))
            .map(|_| Resource::start())
            .collect(),
        tokens: can.tokens > TokenTier::None,
        reads: can.read_write,
        workers: Vec::new(),
        dir: TempDir::default(),
        draws,
        known,
        forgotten: Vec::new(),
        faults: BTreeMap::new(),
        moved: 0,
        still: Still::here().so_far(),
        inflicted: String::new(),
        begun: Instant::now(),
    };
    for _ in 0..WORKERS {
        history.add_worker();
    }
    history.goes_on().await;
    let begun = Instant::now();
    while begun.elapsed() < LEAST || history.faults.values().sum::<usize>() < FAULTS {
        let step = plan.step();
        let (fault, calm, from) = (step.fault, step.calm, history.begun.elapsed());
        history.suffers(step).await;
        let (from, to) = (from.as_secs_f64(), history.begun.elapsed().as_secs_f64());
        let line = format!("{from:.3} to {to:.3}: {fault}\n");
        history.inflicted.push_str(&line);
        sleep(calm).await;
    }
    let lasted = begun.elapsed();
    let of_processes = |fault: &Fault| {
        matches!(
            fault,
            Fault::WorkerKilled | Fault::WorkerPaused | Fault::WorkerClock
        )
    };
    let kinds = history.faults.keys();
    assert!(
        kinds.len() >= KINDS && !history.faults.keys().all(of_processes),
        "too few kinds of faults"
    );
    // After the last fault every lock can be had.
    history.goes_on().await;
    Outcomes {
        lasted,
        ..history.ends(&judge).await
    }
}

/// Another process, past the network's faults.
async fn judge(topology: &dyn Topology, setting: Setting) -> LockManager {
    let config = Config::from_url(&topology.url_past_proxies()).expect("a valid URL");
    let config = config.ttl(setting.ttl());
    // Servers that have just started may take their time on a busy machine.
    impatient(|| config.clone()).await
}

impl History {
    pub(crate) fn add_worker(&mut self) {
        let name = format!("w{}", self.workers.len());
        let orders = Orders {
            name: name.clone(),
            url: self.topology.url(),
            ttl: self.setting.ttl(),
            resources: self.resources.iter().map(Resource::address).collect(),
            tokens: self.tokens,
            reads: self.reads,
            permits: self.resources.len() > LOCKS,
            stop: self.dir.path().join("stop"),
            seed: self.draws.u64(..),
        };
        let machine = match self.topology.machine_of_workers() {
            Some(machine) => Some(machine.clone()),
            None => self.setting.machine(),
        };
        self.workers.push(Worker {
            name,
            program: orders.start(machine.as_ref()),
            machine,
            killed: false,
        });
    }

    /// How often each lock was had so far, and counters were written.
    fn values(&self) -> Vec<u64> {
        let counters = self.resources[..LOCKS].iter().map(Resource::value);
        let shared = self.resources[LOCKS..].iter().map(Resource::entries);
        counters.chain(shared).collect()
    }

    /// Waits until every lock is had again.
    async fn goes_on(&self) {
        let before = self.values();
        let more = |now: &Vec<u64>| now.iter().zip(&before).all(|(now, before)| now > before);
        until("every lock is had again", async || self.values(), more).await;
    }

    /// Stops the workers, and judges what there was.
    async fn ends(&mut self, judge: &LockManager) -> Outcomes {
        std::fs::write(self.dir.path().join("stop"), "").expect("a file of our own");
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            let output = worker.program.end().await;
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} failed: {errors}", worker.name);
            machine::forget_clock(worker.program.process.id());
        }
        let mut calls = Vec::new();
        for worker in &self.workers {
            let printed = worker.program.printed();
            let told: Vec<_> = printed.lines().filter_map(Call::parse).collect();
            calls.push((worker.name.as_str(), told));
        }
        for (name, told) in &calls {
            for call in told {
                if let Some(wrong) = self.known.violation(name, call, told) {
                    panic!("{wrong}");
                }
            }
        }
        let served = self.known.served(&calls);
        let served = served.unwrap_or_else(|wrong| panic!("{wrong}"));
        for (name, told) in &calls {
            for key in 0..self.resources.len() {
                // A process that has seen a token gets a newer one, whatever was forgotten.
                let of_it = told.iter().filter(|call| call.key == key);
                if let Some((older, newer)) = order::violation(of_it, &[]) {
                    panic!("{name} had seen a newer token: {older}, and then {newer}");
                }
            }
        }
        for key in 0..self.resources.len() {
            let all = calls.iter().flat_map(|(_, told)| told);
            let of_it = all.filter(|call| call.key == key);
            if let Some((older, newer)) = order::violation(of_it, &self.forgotten) {
                panic!("a later grant has no newer token: {older}, and then {newer}");
            }
        }
        let (mut excused, mut readers) = (0, 0);
        for (number, resource) in self.resources.iter().enumerate() {
            had(judge, format!("counter:{number}")).await;
            let history = resource.history();
            history.check();
            excused += history.excused();
            readers = readers.max(history.most_readers());
        }
        nothing_left(judge).await;
        let mut outcomes = Outcomes {
            faults: std::mem::take(&mut self.faults),
            excused,
            moved: self.moved,
            served,
            readers,
            setting: self.setting,
            ..Outcomes::default()
        };
        for call in calls.into_iter().flat_map(|(_, told)| told) {
            *outcomes.calls.entry(call.outcome).or_default() += 1;
        }
        outcomes
    }
}
