//! What a seed decides: which fault comes when, and how long it lasts.

use std::time::Duration;

use fastrand::Rng;

use crate::fault::Fault;

const SHORTEST: Duration = Duration::from_millis(100);

/// One fault.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) fault: Fault,
    pub(crate) lasting: Duration,
    /// What is left to be drawn: who is hit, and how hard.
    pub(crate) draws: Rng,
    /// Nothing happens for so long after it.
    pub(crate) calm: Duration,
}

/// Faults without end: each of them once, in some order, and so on. How many of them
/// there is time for is not of the plan.
#[derive(Debug)]
pub(crate) struct Plan {
    all: Vec<Fault>,
    next: Vec<Fault>,
    longest: Duration,
    draws: Rng,
}

impl Plan {
    pub(crate) fn new(all: Vec<Fault>, longest: Duration, draws: Rng) -> Self {
        Self {
            all,
            next: Vec::new(),
            longest,
            draws,
        }
    }

    pub(crate) fn step(&mut self) -> Step {
        if self.next.is_empty() {
            self.next.clone_from(&self.all);
            self.draws.shuffle(&mut self.next);
        }
        Step {
            fault: self.next.pop().expect("a fault"),
            lasting: SHORTEST + (self.longest - SHORTEST).mul_f64(self.draws.f64()),
            draws: self.draws.fork(),
            calm: Duration::from_millis(self.draws.u64(200..800)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastrand::Rng;

    use super::{Fault, Plan};

    /// The first steps of a seed's plan, in full.
    fn plan(seed: u64) -> String {
        let all = vec![Fault::WorkerKilled, Fault::WorkerPaused, Fault::WorkerClock];
        let mut plan = Plan::new(all, Duration::from_secs(2), Rng::with_seed(seed));
        let steps = (0..20).map(|_| format!("{:?}\n", plan.step()));
        steps.collect()
    }

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn no_fault_comes_twice_before_all_have_come() {
        let steps = plan(7);
        for three in steps.lines().take(18).collect::<Vec<_>>().chunks(3) {
            for fault in ["WorkerKilled", "WorkerPaused", "WorkerClock"] {
                assert_eq!(three.iter().filter(|step| step.contains(fault)).count(), 1);
            }
        }
    }
}
