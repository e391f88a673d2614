//! What was run, and what was found.

use std::collections::BTreeMap;

use crate::faults::Fault;
use crate::history::Counts;
use crate::run::Outcome;
use crate::stores::Kind;

#[derive(Default)]
pub(crate) struct Summary {
    seeds: u64,
    steps: u64,
    counts: Counts,
    faults: BTreeMap<(Fault, Kind), u64>,
    failed: Vec<(u64, Vec<String>)>,
}

impl Summary {
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.steps += outcome.steps;
        self.counts += outcome.counts;
        for fault in outcome.faults {
            *self.faults.entry((fault, outcome.kind)).or_default() += 1;
        }
        if !outcome.violations.is_empty() {
            println!("seed {}: {}", outcome.seed, outcome.violations[0]);
            self.failed.push((outcome.seed, outcome.violations));
        }
    }

    /// Prints it. Whether nothing was found.
    pub(crate) fn show(&self) -> bool {
        let Counts {
            sections,
            had,
            dropped,
            reentered,
            writes,
            refused_writes,
        } = self.counts;
        println!("{} seeds, {} steps", self.seeds, self.steps);
        println!(
            "{sections} calls: {had} were in their section ({}%), {dropped} were dropped on the way; \
             {reentered} entered once more",
            100 * had / sections.max(1)
        );
        println!("{writes} guarded writes, and {refused_writes} refused for their token");
        print!("\n{:<32}", "faults");
        Kind::ALL
            .iter()
            .for_each(|kind| print!("{:>10}", kind.name()));
        println!();
        let mut unmet = Vec::new();
        for fault in Fault::ALL {
            print!("{:<32}", fault.name());
            for kind in Kind::ALL {
                let met = self.faults.get(&(fault, kind)).copied().unwrap_or_default();
                match fault.befalls(kind) {
                    true => print!("{met:>10}"),
                    false => print!("{:>10}", "-"),
                }
                if met == 0 && fault.befalls(kind) {
                    unmet.push(format!("{} on {}", fault.name(), kind.name()));
                }
            }
            println!();
        }
        if !unmet.is_empty() {
            println!("\nToo few seeds: none had {}", unmet.join(", "));
        }
        println!("\n{} seeds with violations", self.failed.len());
        for (seed, violations) in self.failed.iter().take(20) {
            println!(
                "\nseed {seed}: cargo run --release -p dlock-simulation -- --seed {seed} --trace"
            );
            violations
                .iter()
                .for_each(|violation| println!("  {violation}"));
        }
        self.failed.is_empty()
    }
}
