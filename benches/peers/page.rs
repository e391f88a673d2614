//! The tables in Markdown.

use crate::line::Line;
use crate::site::Table;

/// Prints a table for each store, and then the rows in which a peer is ahead.
pub(crate) fn print(tables: &[Table]) {
    for table in tables.iter().filter(|table| !table.lines.is_empty()) {
        let names = table.columns.iter();
        let names = names.map(|(name, version)| format!("{name} {version}"));
        row([table.store.clone()].into_iter().chain(names));
        row((0..=table.columns.len()).map(|_| "---".to_owned()));
        for line in &table.lines {
            let what = format!("{}: {}", line.work, line.figure);
            let cells = (0..table.columns.len()).map(|contestant| cell(line, contestant));
            row([what].into_iter().chain(cells));
        }
        println!();
    }
    println!("Where a peer is ahead:");
    println!();
    for table in tables {
        for line in &table.lines {
            for peer in (1..table.columns.len()).filter(|&peer| line.is_ahead(peer)) {
                let ((name, _), ratio) = (&table.columns[peer], line.ratio(peer));
                println!("- {}: {}: {name}, {ratio}", line.work, line.figure);
            }
        }
    }
}

/// The figure, and how dlock's is to a peer's.
fn cell(line: &Line, contestant: usize) -> String {
    let figure = line.unit.show(line.median(contestant));
    match line.shown_ratio(contestant) {
        Some(ratio) if contestant > 0 => {
            if line.is_ahead(contestant) {
                format!("{figure}; **{ratio}**")
            } else {
                format!("{figure}; {ratio}")
            }
        }
        _ => figure,
    }
}

fn row(cells: impl Iterator<Item = String>) {
    let cells: Vec<_> = cells.collect();
    println!("| {} |", cells.join(" | "));
}
