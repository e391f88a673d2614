//! What a script answers with.

use std::time::Instant;

/// The rows that have the columns which were asked for: other statements of the
/// script answer too.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the script was sent.
    pub(super) sent_at: Instant,
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// A text.
    Text,
    /// A number.
    Int,
}

/// One column of a row.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A text.
    Text(String),
    /// A number.
    Int(i64),
}

#[derive(Clone, Debug)]
pub(super) struct Row(pub(super) Vec<Cell>);

impl Row {
    /// The number in a column that is one.
    pub(super) fn int(&self, column: usize) -> i64 {
        match self.0.get(column) {
            Some(Cell::Int(number)) => *number,
            _ => 0,
        }
    }

    /// The text in a column that is one.
    pub(super) fn text(&self, column: usize) -> &str {
        match self.0.get(column) {
            Some(Cell::Text(text)) => text,
            _ => "",
        }
    }
}
