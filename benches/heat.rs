//! What became of several processes that contended for one lock.

use crate::program::Section;
use crate::spread::Spread;

/// What happened while it counted, in the order of the sections.
#[derive(Debug)]
pub(crate) struct Heat {
    sections: Vec<Section>,
    processes: usize,
    length: f64,
}

impl Heat {
    /// Of all sections, those count that began between these moments.
    pub(crate) fn new(mut sections: Vec<Section>, processes: usize, from: f64, end: f64) -> Self {
        sections.sort_by(|one, other| one.begun.total_cmp(&other.begun));
        for pair in sections.windows(2) {
            let both = pair[0].ended - pair[1].begun;
            assert!(both <= 0.0, "two bodies overlap for {both} ns: {pair:?}");
        }
        sections.retain(|section| (from..end).contains(&section.begun));
        Self {
            sections,
            processes,
            length: end - from,
        }
    }

    /// Sections a second.
    #[allow(dead_code, reason = "the bodies' share of the time tells the same")]
    pub(crate) fn rate(&self) -> f64 {
        self.sections.len() as f64 * 1e9 / self.length
    }

    /// The part of the time in which a body ran.
    pub(crate) fn in_use(&self) -> f64 {
        let bodies = self.sections.iter();
        let used: f64 = bodies.map(|section| section.ended - section.begun).sum();
        used / self.length
    }

    /// From asking for the lock to the begin of the body.
    pub(crate) fn waits(&self) -> Spread {
        let sections = self.sections.iter();
        Spread::new(sections.map(|section| section.begun - section.asked))
    }

    /// How many sections each process had.
    #[allow(dead_code, reason = "the table of Redis has a row of it")]
    pub(crate) fn shares(&self) -> Spread {
        let count = |process| {
            let its = self.sections.iter().filter(|of| of.process == process);
            its.count() as f64
        };
        Spread::new((0..self.processes).map(count))
    }

    /// How long a process that waited had to wait once another had ended a
    /// body: from the first such end to the begin of its own.
    pub(crate) fn hand_overs(&self) -> Spread {
        let waited = self.sections.iter().enumerate().filter_map(|(index, own)| {
            let before = self.sections[..index].iter().rev();
            let since = before.take_while(|other| other.ended >= own.asked);
            let of_others = since.filter(|other| other.process != own.process);
            of_others.last().map(|first| own.begun - first.ended)
        });
        Spread::new(waited)
    }
}
