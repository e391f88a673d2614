//! The table.

use std::fmt::Display;

use crate::spread::Spread;

/// One line: a work, what it took each contestant, and the bound.
#[derive(Debug)]
pub(crate) struct Row {
    work: String,
    dlock: String,
    bare: String,
    rslock: String,
    beside: String,
    bound: String,
    met: Option<bool>,
}

impl Row {
    pub(crate) fn new(work: impl Into<String>, dlock: impl Display) -> Self {
        Self {
            work: work.into(),
            dlock: dlock.to_string(),
            bare: String::new(),
            rslock: String::new(),
            beside: String::new(),
            bound: String::new(),
            met: None,
        }
    }

    pub(crate) fn bare(mut self, bare: impl Display) -> Self {
        self.bare = bare.to_string();
        self
    }

    pub(crate) fn rslock(mut self, rslock: impl Display) -> Self {
        self.rslock = rslock.to_string();
        self
    }

    /// How fast dlock was beside the bare pair.
    pub(crate) fn beside(mut self, ratio: &Spread) -> Self {
        self.beside = ratio.to_string();
        self
    }

    /// What the design asks for, and whether that is so.
    pub(crate) fn bound(mut self, bound: impl Display, met: bool) -> Self {
        self.bound = bound.to_string();
        self.met = Some(met);
        self
    }

    fn cells(&self) -> [&str; 7] {
        let met = match self.met {
            None => "",
            Some(true) => "met",
            Some(false) => "**missed**",
        };
        [
            &self.work,
            &self.dlock,
            &self.bare,
            &self.rslock,
            &self.beside,
            &self.bound,
            met,
        ]
    }
}

const HEAD: [&str; 7] = [
    "work",
    "dlock",
    "bare pair",
    "rslock",
    "dlock ÷ bare (quartiles)",
    "bound",
    "",
];

/// Prints the table in Markdown.
pub(crate) fn print(rows: &[Row]) {
    let lines: Vec<[&str; 7]> = std::iter::once(HEAD)
        .chain(rows.iter().map(Row::cells))
        .collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|cells| cells[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    for (number, cells) in lines.iter().enumerate() {
        let padded = cells.iter().zip(widths);
        let padded: Vec<_> = padded
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("| {} |", padded.join(" | "));
        if number == 0 {
            let rules = widths.map(|width| "-".repeat(width + 2));
            println!("|{}|", rules.join("|"));
        }
    }
}
