//! A table of rows that are sorted, filtered and chosen.

use crossterm::event::KeyCode;

use super::rows::{self, Row, Sort};

/// The rows of one of the views.
#[derive(Debug)]
pub(super) struct Table<R> {
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    /// The rows that the filter lets through, in their order.
    rows: Vec<R>,
    rest: Vec<R>,
    /// The name of the row that the user has chosen. It stays chosen wherever it moves.
    chosen: Option<String>,
    /// The place of that row. If the row goes away, the one that is now at this place is chosen.
    at: usize,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self {
            filter: String::new(),
            sort: Sort::default(),
            reversed: false,
            rows: Vec::new(),
            rest: Vec::new(),
            chosen: None,
            at: 0,
        }
    }
}

/// How many rows a page is.
const PAGE: usize = 10;

impl<R: Row> Table<R> {
    pub(super) fn set(&mut self, rows: Vec<R>) {
        let filter = &self.filter;
        let passes = |row: &R| row.name().contains(filter);
        (self.rows, self.rest) = rows.into_iter().partition(passes);
        self.arrange();
    }

    pub(super) fn rows(&self) -> &[R] {
        &self.rows
    }

    /// All rows, also those that the filter hides.
    pub(super) fn all(&self) -> impl Iterator<Item = &R> {
        self.rows.iter().chain(&self.rest)
    }

    /// The place of the chosen row.
    pub(super) fn place(&self) -> Option<usize> {
        (!self.rows.is_empty()).then_some(self.at)
    }

    pub(super) fn chosen(&self) -> Option<&R> {
        self.rows.get(self.at)
    }

    /// Handles a key of the keyboard. `sorts` are the orders that this table can have.
    pub(super) fn press(&mut self, key: KeyCode, sorts: &[Sort]) {
        let end = self.rows.len().saturating_sub(1);
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.choose(self.at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(end.min(self.at + 1)),
            KeyCode::PageUp => self.choose(self.at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.choose(end.min(self.at + PAGE)),
            KeyCode::Home | KeyCode::Char('g') => self.choose(0),
            KeyCode::End | KeyCode::Char('G') => self.choose(end),
            KeyCode::Char('s') => self.sort_by_next(sorts.iter()),
            KeyCode::Char('S') => self.sort_by_next(sorts.iter().rev()),
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Esc => self.change_filter(String::clear),
            _ => {}
        }
    }

    pub(super) fn change_filter(&mut self, change: impl FnOnce(&mut String)) {
        change(&mut self.filter);
        let mut rows = std::mem::take(&mut self.rows);
        rows.append(&mut self.rest);
        self.set(rows);
    }

    fn sort_by_next<'a>(&mut self, sorts: impl Iterator<Item = &'a Sort> + Clone) {
        let mut from_here = sorts.clone().skip_while(|sort| **sort != self.sort);
        let next = from_here.nth(1).or_else(|| sorts.clone().next());
        self.sort = next.copied().unwrap_or_default();
        self.arrange();
    }

    fn choose(&mut self, at: usize) {
        self.at = at;
        self.chosen = self.rows.get(at).map(|row| row.name().to_owned());
    }

    fn arrange(&mut self) {
        rows::arrange(&mut self.rows, self.sort, self.reversed);
        let Some(chosen) = &self.chosen else {
            // Until the user chooses a row, it is always the first.
            self.at = 0;
            return;
        };
        let place = self.rows.iter().position(|row| row.name() == chosen);
        let end = self.rows.len().saturating_sub(1);
        self.choose(place.unwrap_or(self.at.min(end)));
    }
}
