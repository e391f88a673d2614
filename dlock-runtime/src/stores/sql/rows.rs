//! What a script answers with.

use std::time::Instant;

/// The rows that have as many columns as were asked for: other statements of the
/// script answer too.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the script was sent.
    pub(super) sent_at: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Row(pub(super) Vec<String>);

impl Row {
    /// The number in a column that is one.
    pub(super) fn int(&self, column: usize) -> i64 {
        self.text(column).parse().unwrap_or(0)
    }

    pub(super) fn text(&self, column: usize) -> &str {
        self.0.get(column).map_or("", String::as_str)
    }
}
