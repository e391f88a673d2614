//! What was run, and what was found.

use std::collections::{BTreeMap, BTreeSet};

use crate::faults::Fault;
use crate::history::Counts;
use crate::run::Outcome;
use crate::stores::Kind;

/// In so many seeds every kind of store has met every fault.
const ENOUGH: u64 = 1_000;

#[derive(Default)]
pub(crate) struct Summary {
    seeds: u64,
    kinds: BTreeSet<Kind>,
    steps: u64,
    counts: Counts,
    faults: BTreeMap<(Fault, Kind), u64>,
    failed: Vec<Outcome>,
}

impl Summary {
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.kinds.extend(outcome.kind);
        self.steps += outcome.steps;
        self.counts += outcome.counts;
        for fault in outcome
            .kind
            .iter()
            .flat_map(|kind| outcome.faults.iter().map(|fault| (*fault, *kind)))
        {
            *self.faults.entry(fault).or_default() += 1;
        }
        if let Some(first) = outcome.violations.first() {
            println!("seed {}: {first}", outcome.seed);
            self.failed.push(outcome);
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
            permits,
            once,
            marks,
            forgotten,
            told_done,
            failed,
        } = self.counts;
        println!("{} seeds, {} steps", self.seeds, self.steps);
        println!(
            "{sections} calls: {had} were in their section ({}%), {dropped} were dropped on the way; \
             {reentered} entered once more",
            100 * had / sections.max(1)
        );
        println!("{writes} guarded writes, and {refused_writes} refused for their token");
        println!("{permits} came in by a permit");
        println!(
            "{once} were done that were to be done once, and {failed} failed; {marks} marks, of \
             which {told_done} calls were told, and {forgotten} were forgotten"
        );
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
                if met == 0 && fault.befalls(kind) && self.kinds.contains(&kind) {
                    unmet.push(format!("{} on {}", fault.name(), kind.name()));
                }
            }
            println!();
        }
        if !unmet.is_empty() {
            println!("\nnone had {}", unmet.join(", "));
        }
        // Of all that they can do.
        let does = [
            ("permits", permits),
            ("once", once),
            ("marks", marks),
            ("forget", forgotten),
        ];
        let can = self
            .kinds
            .iter()
            .any(|kind| *kind == Kind::Queue || *kind == Kind::Sessions);
        let undone = does.iter().filter(|(_, times)| can && *times == 0);
        let undone: Vec<_> = undone.map(|(what, _)| *what).collect();
        if !undone.is_empty() {
            println!("\nno call had {}", undone.join(", "));
        }
        let most_succeed = 2 * had > sections;
        if !most_succeed {
            println!("\nmost calls were not in their section");
        }
        // Of fewer it may be chance.
        let all_met = (unmet.is_empty() && undone.is_empty()) || self.seeds < ENOUGH;
        println!("\n{} seeds with violations", self.failed.len());
        for failed in self.failed.iter().take(20) {
            let seed = failed.seed;
            let store = failed.kind.map(|kind| format!(" --store {}", kind.name()));
            println!(
                "\nseed {seed}: cargo run --release -p dlock-simulation -- --seed {seed}{} --trace",
                store.unwrap_or_default()
            );
            failed
                .violations
                .iter()
                .for_each(|violation| println!("  {violation}"));
        }
        self.failed.is_empty() && most_succeed && all_met
    }
}
