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
use dlock_conformance::support::wait::{HANG, until};
use fastrand::Rng;
use tokio::time::{Instant, sleep};

use crate::call::{Call, Outcome};
use crate::fault::Fault;
use crate::moment::Moment;
use crate::order;
use crate::plan::{Plan, Step};
use crate::support::machine::{self, Machine};
use crate::topology::{Inflicted, SHORT_TTL, ServerFault, Setting, Topology, clock_step};
use crate::worker::{Orders, REQUEST_TIMEOUT, stubborn};

/// No history is shorter, nor has fewer faults.
pub(crate) const LEAST: Duration = Duration::from_secs(20);
pub(crate) const FAULTS: usize = 10;

const WORKERS: usize = 4;

/// So many locks, each with something that it protects.
const LOCKS: usize = 2;

/// What is on its way to a server when it falls silent, or from it, has arrived by then.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// What one history came to.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) calls: BTreeMap<Outcome, usize>,
    pub(crate) faults: BTreeMap<Fault, usize>,
    /// What the store's page allows while the store may have forgotten a grant, or ended
    /// leases early.
    pub(crate) excused: usize,
    /// From the first fault to the last.
    pub(crate) lasted: Duration,
    pub(crate) setting: Setting,
}

struct Worker {
    name: String,
    program: Program,
    /// Where it runs, if that can be spoiled.
    machine: Option<Machine>,
    killed: bool,
}

struct History {
    topology: Box<dyn Topology>,
    setting: Setting,
    resources: Vec<Resource>,
    tokens: bool,
    workers: Vec<Worker>,
    /// Where the file appears that ends the workers.
    dir: TempDir,
    /// What workers are told to draw from.
    draws: Rng,
    /// From when to when nobody could be answered.
    dark: Vec<(Moment, Moment)>,
    /// From when to when the store may have forgotten what it had granted.
    forgotten: Vec<(Moment, Moment)>,
    /// A line for each fault.
    inflicted: String,
    faults: BTreeMap<Fault, usize>,
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
    let tokens = judge.capabilities().tokens > TokenTier::None;
    let mut history = History {
        topology,
        setting,
        resources: (0..LOCKS).map(|_| Resource::start()).collect(),
        tokens,
        workers: Vec::new(),
        dir: TempDir::default(),
        draws,
        dark: Vec::new(),
        forgotten: Vec::new(),
        faults: BTreeMap::new(),
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
        history.fault(step).await;
        let (from, to) = (from.as_secs_f64(), history.begun.elapsed().as_secs_f64());
        let line = format!("{from:.3} to {to:.3}: {fault}\n");
        history.inflicted.push_str(&line);
        sleep(calm).await;
    }
    let lasted = begun.elapsed();
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
    fn add_worker(&mut self) {
        let name = format!("w{}", self.workers.len());
        for resource in &self.resources {
            // What these do after a loss is no fault of their worker's.
            resource.suspended(&stubborn(&name));
        }
        let orders = Orders {
            name: name.clone(),
            url: self.topology.url(),
            ttl: self.setting.ttl(),
            resources: self.resources.iter().map(Resource::address).collect(),
            tokens: self.tokens,
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

    /// How often each lock did its work so far.
    fn values(&self) -> Vec<u64> {
        self.resources.iter().map(Resource::value).collect()
    }

    /// Waits until every lock is had again.
    async fn goes_on(&self) {
        let before = self.values();
        let more = |now: &Vec<u64>| now.iter().zip(&before).all(|(now, before)| now > before);
        until("every lock is had again", async || self.values(), more).await;
    }

    async fn fault(&mut self, step: Step) {
        let Step {
            fault,
            lasting,
            mut draws,
            ..
        } = step;
        *self.faults.entry(fault).or_default() += 1;
        match fault {
            Fault::WorkerKilled => {
                let victim = self.living_worker(&mut draws);
                self.suspend(victim);
                let victim = &mut self.workers[victim];
                victim.program.process.kill();
                machine::forget_clock(victim.program.process.id());
                victim.killed = true;
                self.add_worker();
            }
            Fault::WorkerPaused => self.pause_a_worker(lasting, &mut draws).await,
            Fault::WorkerClock => {
                let victim = self.living_worker(&mut draws);
                let machine = self.workers[victim].machine.as_ref();
                let machine = machine.expect("a machine that can be spoiled");
                match draws.bool() {
                    true => machine.clock_ahead(clock_step(&mut draws)),
                    false => machine.clock_back(clock_step(&mut draws)),
                }
                sleep(lasting).await;
            }
            Fault::WorkerDisk => {
                let workers = self.workers.iter().filter(|worker| !worker.killed);
                let workers: Vec<_> = workers.map(|w| w.program.process.id()).collect();
                let bytes = self.topology.disk_of_workers(&mut draws);
                for worker in &workers {
                    machine::fill_disk(*worker, bytes);
                }
                sleep(lasting).await;
                for worker in &workers {
                    machine::empty_disk(*worker);
                }
            }
            Fault::Network(fault) => {
                let proxies = self.topology.proxies();
                let hit: Vec<_> = match draws.bool() {
                    true => proxies.iter().collect(),
                    false => {
                        let count = draws.usize(1..=proxies.len());
                        draws.choose_multiple(proxies, count)
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
            Fault::Server(fault) => self.inflict(fault, lasting, &mut draws).await,
        }
    }

    async fn inflict(&mut self, fault: ServerFault, lasting: Duration, draws: &mut Rng) {
        let may_forget = self.topology.may_forget(fault);
        let ends_leases = self.topology.ends_leases(fault) && !self.setting.lasting;
        for resource in &self.resources {
            if may_forget {
                resource.doubts(true);
            }
            resource.ends_leases(ends_leases);
        }
        let begun = Moment::now();
        let Inflicted { dark } = self.topology.inflict(fault, lasting, draws).await;
        self.dark.extend(dark);
        if may_forget || ends_leases {
            // Whoever held a lock before has lost it by then.
            sleep(SHORT_TTL + REQUEST_TIMEOUT).await;
        }
        for resource in &self.resources {
            if may_forget {
                resource.doubts(false);
            }
            resource.ends_leases(false);
        }
        if may_forget {
            self.forgotten.push((begun, Moment::now()));
        }
    }

    fn living_worker(&self, draws: &mut Rng) -> usize {
        let workers = self.workers.iter().enumerate();
        let living: Vec<_> = workers.filter(|(_, worker)| !worker.killed).collect();
        living[draws.usize(..living.len())].0
    }

    fn suspend(&self, worker: usize) {
        for resource in &self.resources {
            resource.suspended(&self.workers[worker].name);
        }
    }

    /// Shorter than its ttl, or longer.
    async fn pause_a_worker(&mut self, lasting: Duration, draws: &mut Rng) {
        let victim = self.living_worker(draws);
        let lasting = match draws.bool() {
            true => lasting,
            false => SHORT_TTL + lasting,
        };
        let process = &self.workers[victim].program.process;
        process.pause();
        while self.topology.is_stuck().await {
            // On a busy machine it takes a while until it gets to the end of its write.
            process.resume();
            until(
                "it goes on",
                async || self.topology.is_stuck().await,
                |stuck| !stuck,
            )
            .await;
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
                self.judge_call(name, call, told);
            }
        }
        for (name, told) in &calls {
            for key in 0..LOCKS {
                // A process that has seen a token gets a newer one, whatever was forgotten.
                let of_it = told.iter().filter(|call| call.key == key);
                if let Some((older, newer)) = order::violation(of_it, &[]) {
                    panic!("{name} had seen a newer token: {older}, and then {newer}");
                }
            }
        }
        for key in 0..LOCKS {
            let all = calls.iter().flat_map(|(_, told)| told);
            let of_it = all.filter(|call| call.key == key);
            if let Some((older, newer)) = order::violation(of_it, &self.forgotten) {
                panic!("a later grant has no newer token: {older}, and then {newer}");
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
            faults: std::mem::take(&mut self.faults),
            excused,
            setting: self.setting,
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
        let in_the_dark = |(begun, ended): &&(Moment, Moment)| {
            begun < from && from.since(*begun) > ON_ITS_WAY && to < ended
        };
        if *outcome != Outcome::Busy {
            return;
        }
        if let Some((begun, ended)) = self.dark.iter().find(in_the_dark) {
            // Another task of the same process may hold it, which needs no store.
            let held_at_home = told.iter().any(|other| {
                other.key == call.key
                    && other.had_the_lock()
                    && other.from < *to
                    && *from < other.to
            });
            let meanwhile = told
                .iter()
                .filter(|other| other.key == call.key && other.from < *ended && *begun < other.to);
            let meanwhile = || meanwhile.map(|other| format!("\n  {other}"));
            assert!(
                held_at_home,
                "{name} was told of no outage: {call}; nobody could be asked from {begun} to \
                 {ended}, with {}",
                meanwhile().collect::<String>()
            );
        }
    }
}
