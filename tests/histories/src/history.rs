//! One history: workers on a store, faults one after the other, and what is to be said
//! of it in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock::backend::TokenTier;
use dlock::{Config, LockManager};
use dlock_conformance::support::dir::TempDir;
use dlock_conformance::support::locks::{connect, had, nothing_left};
use dlock_conformance::support::program::Program;
use dlock_conformance::support::resource::Resource;
use dlock_conformance::support::wait::{HANG, until};
use fastrand::Rng;
use tokio::time::{Instant, sleep};

use crate::call::{Call, Outcome};
use crate::fault::Fault;
use crate::moment::Moment;
use crate::topology::{self, Inflicted, Topology};
use crate::worker::{Orders, REQUEST_TIMEOUT, stubborn};

/// No history is shorter, nor has fewer faults.
const LEAST: Duration = Duration::from_secs(20);
const FAULTS: usize = 10;

const WORKERS: usize = 4;

/// So many locks, each with something that it protects.
const LOCKS: usize = 2;

/// What one history came to.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) calls: BTreeMap<Outcome, usize>,
    pub(crate) faults: BTreeMap<Fault, usize>,
    /// What the store's page allows while the store may have forgotten a grant.
    pub(crate) excused: usize,
}

struct Worker {
    name: String,
    program: Program,
    killed: bool,
}

struct History {
    topology: Box<dyn Topology>,
    resources: Vec<Resource>,
    tokens: bool,
    workers: Vec<Worker>,
    /// Where the file appears that ends the workers.
    dir: TempDir,
    draws: Rng,
    /// From when to when nobody could be answered.
    dark: Vec<(Moment, Moment)>,
    faults: BTreeMap<Fault, usize>,
}

/// Runs the history of this seed. Panics at what must not be.
pub(crate) async fn run(store: &str, seed: u64) -> Outcomes {
    let mut draws = Rng::with_seed(seed);
    let topology = topology::start(store, &mut draws).await;
    let judge = judge(&*topology).await;
    let tokens = judge.capabilities().tokens > TokenTier::None;
    let mut history = History {
        topology,
        resources: (0..LOCKS).map(|_| Resource::start()).collect(),
        tokens,
        workers: Vec::new(),
        dir: TempDir::default(),
        draws,
        dark: Vec::new(),
        faults: BTreeMap::new(),
    };
    for _ in 0..WORKERS {
        history.add_worker();
    }
    history.goes_on().await;
    let begun = Instant::now();
    while begun.elapsed() < LEAST || history.faults.values().sum::<usize>() < FAULTS {
        history.fault().await;
        let calm = history.draws.u64(200..800);
        sleep(Duration::from_millis(calm)).await;
    }
    // After the last fault every lock can be had.
    history.goes_on().await;
    history.ends(&judge).await
}

/// Another process, past the network's faults.
async fn judge(topology: &dyn Topology) -> LockManager {
    let config = Config::from_url(&topology.url_past_proxies()).expect("a valid URL");
    connect(config.ttl(topology.ttl())).await
}

impl History {
    fn add_worker(&mut self) {
        let name = format!("w{}", self.workers.len());
        for resource in &self.resources {
            // What these do after a loss is no fault of their worker's.
            resource.suspended(&stubborn(&name));
        }
        let orders = Orders {
            name: name.clone(),
            url: self.topology.url(),
            ttl: self.topology.ttl(),
            resources: self.resources.iter().map(Resource::address).collect(),
            tokens: self.tokens,
            stop: self.dir.path().join("stop"),
            seed: self.draws.u64(..),
        };
        self.workers.push(Worker {
            name,
            program: orders.start(),
            killed: false,
        });
    }

    /// How often each lock did its work so far.
    fn values(&self) -> Vec<u64> {
        let values = self.resources.iter();
        values.map(|resource| resource.history().value()).collect()
    }

    /// Waits until every lock is had again.
    async fn goes_on(&self) {
        let before = self.values();
        let more = |now: &Vec<u64>| now.iter().zip(&before).all(|(now, before)| now > before);
        until("every lock is had again", async || self.values(), more).await;
    }

    async fn fault(&mut self) {
        let all = Fault::all(&*self.topology);
        let fault = all[self.draws.usize(..all.len())];
        *self.faults.entry(fault).or_default() += 1;
        let lasting = Duration::from_millis(self.draws.u64(100..2_500));
        match fault {
            Fault::WorkerKilled => {
                let victim = self.living_worker();
                self.suspend(victim);
                let victim = &mut self.workers[victim];
                victim.program.process.kill();
                victim.killed = true;
                self.add_worker();
            }
            Fault::WorkerPaused => self.pause_a_worker(lasting).await,
            Fault::Network(fault) => {
                let proxies = self.topology.proxies();
                let all = self.draws.bool();
                let hit: Vec<_> = match all {
                    true => proxies.iter().collect(),
                    false => {
                        let count = self.draws.usize(1..=proxies.len());
                        self.draws.choose_multiple(proxies, count)
                    }
                };
                let begun = Moment::now();
                hit.iter().for_each(|proxy| fault.begins(proxy));
                sleep(lasting).await;
                if fault.is_dark() && hit.len() == proxies.len() {
                    self.dark.push((begun, Moment::now()));
                }
                hit.iter().for_each(|proxy| fault.ends(proxy));
            }
            Fault::Server(fault) => {
                let may_forget = self.topology.may_forget(fault);
                for resource in self.resources.iter().filter(|_| may_forget) {
                    resource.doubts(true);
                }
                let Inflicted { dark } =
                    self.topology.inflict(fault, lasting, &mut self.draws).await;
                self.dark.extend(dark);
                if may_forget {
                    // Whoever held a lock before has lost it by then.
                    sleep(self.topology.ttl() + REQUEST_TIMEOUT).await;
                }
                for resource in self.resources.iter().filter(|_| may_forget) {
                    resource.doubts(false);
                }
            }
        }
    }

    fn living_worker(&mut self) -> usize {
        let workers = self.workers.iter().enumerate();
        let living: Vec<_> = workers.filter(|(_, worker)| !worker.killed).collect();
        living[self.draws.usize(..living.len())].0
    }

    fn suspend(&self, worker: usize) {
        for resource in &self.resources {
            resource.suspended(&self.workers[worker].name);
        }
    }

    /// Shorter than its ttl, or longer.
    async fn pause_a_worker(&mut self, lasting: Duration) {
        let victim = self.living_worker();
        let lasting = match self.draws.bool() {
            true => lasting,
            false => self.topology.ttl() + lasting,
        };
        let process = &self.workers[victim].program.process;
        process.pause();
        while self.topology.is_stuck().await {
            process.resume();
            tokio::task::yield_now().await;
            process.pause();
        }
        self.suspend(victim);
        sleep(lasting).await;
        for resource in &self.resources {
            resource.resumed(&self.workers[victim].name);
        }
        process.resume();
    }

    /// Stops the workers, and judges what there was.
    async fn ends(mut self, judge: &LockManager) -> Outcomes {
        std::fs::write(self.dir.path().join("stop"), "").expect("a file of our own");
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            let output = worker.program.end().await;
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} failed: {errors}", worker.name);
        }
        let mut calls = Vec::new();
        for worker in &self.workers {
            let printed = worker.program.printed();
            let told: Vec<_> = printed.lines().filter_map(Call::parse).collect();
            calls.push((worker.name.as_str(), told));
        }
        for (name, told) in &calls {
            for call in told {
                self.judge_call(name, call, told);
            }
        }
        let mut excused = 0;
        for (number, resource) in self.resources.iter().enumerate() {
            had(judge, format!("counter:{number}")).await;
            let history = resource.history();
            history.check();
            excused += history.excused();
        }
        nothing_left(judge).await;
        let mut outcomes = Outcomes {
            faults: self.faults,
            excused,
            ..Outcomes::default()
        };
        for call in calls.into_iter().flat_map(|(_, told)| told) {
            *outcomes.calls.entry(call.outcome).or_default() += 1;
        }
        outcomes
    }

    /// Fails if it must not have ended like that.
    fn judge_call(&self, name: &str, call: &Call, told: &[Call]) {
        let Call {
            from, to, outcome, ..
        } = call;
        assert!(to.since(*from) < HANG, "{name} was kept too long: {call}");
        if let Outcome::Other(error) = outcome {
            panic!("{name} was told {error:?}: {call}");
        }
        let in_the_dark = |(begun, ended): &&(Moment, Moment)| begun < from && to < ended;
        if *outcome == Outcome::Busy && self.dark.iter().any(|dark| in_the_dark(&dark)) {
            // Another task of the same process may hold it, which needs no store.
            let held_at_home = told.iter().any(|other| {
                other.key == call.key
                    && other.had_the_lock()
                    && other.from < *to
                    && *from < other.to
            });
            assert!(held_at_home, "{name} was told of no outage: {call}");
        }
    }
}
