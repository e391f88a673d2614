//! What a history suffers: one fault after the other, never two at a time.

use std::time::Duration;

use dlock_conformance::support::wait::until;
use fastrand::Rng;
use tokio::time::sleep;

use crate::fault::{Fault, NetworkFault};
use crate::history::History;
use crate::judge::Trouble;
use crate::moment::Moment;
use crate::plan::Step;
use crate::still::Still;
use crate::support::machine;
use crate::topology::{Inflicted, SHORT_TTL, ServerFault, clock_step};
use crate::worker::REQUEST_TIMEOUT;

impl History {
    pub(crate) async fn suffers(&mut self, step: Step) {
        let Step {
            fault,
            lasting,
            mut draws,
            ..
        } = step;
        *self.faults.entry(fault).or_default() += 1;
        let still = Still::here().so_far();
        let late = still - std::mem::replace(&mut self.still, still);
        match fault {
            Fault::WorkerKilled => {
                let victim = self.living_worker(&mut draws);
                let begun = Moment::now();
                self.stops(victim, late);
                let worker = &mut self.workers[victim];
                worker.program.process.kill();
                machine::forget_clock(worker.program.process.id());
                worker.killed = true;
                let name = worker.name.clone();
                self.known.killed.insert(name, Moment::now());
                self.troubled(begun, Some(victim));
                self.add_worker();
            }
            Fault::WorkerPaused => self.pause_a_worker(lasting, late, &mut draws).await,
            // It excuses no error: nothing of dlock in a process goes by that clock.
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
                let begun = Moment::now();
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
                self.troubled(begun, None);
            }
            Fault::Network(fault) => self.disturb_network(fault, lasting, &mut draws).await,
            Fault::Server(fault) => self.inflict(fault, lasting, &mut draws).await,
        }
    }

    /// A fault ends that has met this worker, or the store.
    fn troubled(&mut self, from: Moment, worker: Option<usize>) {
        let worker = worker.map(|worker| self.workers[worker].name.clone());
        let to = Moment::now();
        self.known.troubles.push(Trouble { from, to, worker });
    }

    async fn disturb_network(&mut self, fault: NetworkFault, lasting: Duration, draws: &mut Rng) {
        let may_forget = self.topology.network_may_forget();
        if may_forget {
            self.resources.iter().for_each(|resource| resource.doubts());
        }
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
        let dark = fault.is_dark() && hit.len() == proxies.len();
        let dark = dark.then(|| (begun, Moment::now()));
        hit.iter().for_each(|proxy| fault.ends(proxy));
        self.known.dark.extend(dark);
        self.topology.settles().await;
        self.troubled(begun, None);
        if may_forget {
            self.knows(begun).await;
        }
    }

    async fn inflict(&mut self, fault: ServerFault, lasting: Duration, draws: &mut Rng) {
        let may_forget = self.topology.may_forget(fault);
        let ends_leases = self.topology.ends_leases(fault) && !self.setting.lasting;
        for resource in &self.resources {
            if may_forget {
                resource.doubts();
            }
            resource.ends_leases(ends_leases);
        }
        let begun = Moment::now();
        let Inflicted { dark, moved } = self.topology.inflict(fault, lasting, draws).await;
        self.known.dark.extend(dark);
        self.moved += moved;
        self.troubled(begun, None);
        if may_forget {
            self.knows(begun).await;
        } else if ends_leases {
            sleep(SHORT_TTL + REQUEST_TIMEOUT).await;
        }
        for resource in &self.resources {
            resource.ends_leases(false);
        }
    }

    /// When it is over what a fault may have made the store forget, it is known whether it has.
    async fn knows(&mut self, begun: Moment) {
        // Whoever held a lock before has lost it by then.
        sleep(SHORT_TTL + REQUEST_TIMEOUT).await;
        let forgot = self.topology.has_forgotten().await;
        for resource in &self.resources {
            resource.knows(forgot);
        }
        if forgot {
            self.forgotten.push((begun, Moment::now()));
        }
    }

    fn living_worker(&self, draws: &mut Rng) -> usize {
        let workers = self.workers.iter().enumerate();
        let living: Vec<_> = workers.filter(|(_, worker)| !worker.killed).collect();
        living[draws.usize(..living.len())].0
    }

    /// It does nothing any more. Renewed at each third of their ttl, its leases last for a while;
    /// less, if the machine stood still since the last fault and renewals came late.
    fn stops(&self, worker: usize, late: Duration) {
        let leases_last = self.topology.longest_lease(self.setting).mul_f64(0.4);
        for resource in &self.resources {
            let leases_last = leases_last.saturating_sub(2 * late);
            resource.stopped(&self.workers[worker].name, leases_last);
        }
    }

    /// Shorter than its ttl, or longer.
    async fn pause_a_worker(&mut self, lasting: Duration, late: Duration, draws: &mut Rng) {
        let victim = self.living_worker(draws);
        let lasting = match draws.bool() {
            true => lasting,
            false => SHORT_TTL + lasting,
        };
        let begun = Moment::now();
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
        self.stops(victim, late);
        sleep(lasting).await;
        for resource in &self.resources {
            resource.resumed(&self.workers[victim].name);
        }
        self.workers[victim].program.process.resume();
        self.troubled(begun, Some(victim));
    }
}
