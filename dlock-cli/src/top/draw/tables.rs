//! The table of keys, and that of templates.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::palette::Palette;
use crate::show;
use crate::top::figure::{self, Figure};
use crate::top::metrics::counters::{Bound, Times};
use crate::top::model::Model;
use crate::top::rows::{KeyRow, Sort, TemplateRow};
use crate::top::table;

/// From this width on, there is room for the column with the holder.
const WIDE: u16 = 100;

struct Column<R> {
    head: &'static str,
    /// The first column has the width that the others leave.
    width: Constraint,
    /// Numbers are aligned to the right.
    is_number: bool,
    sort: Option<Sort>,
    text: fn(&R) -> String,
}

const fn text<R>(
    head: &'static str,
    width: Constraint,
    sort: Option<Sort>,
    text: fn(&R) -> String,
) -> Column<R> {
    Column {
        head,
        width,
        is_number: false,
        sort,
        text,
    }
}

const fn number<R>(
    head: &'static str,
    width: u16,
    sort: Option<Sort>,
    text: fn(&R) -> String,
) -> Column<R> {
    Column {
        head,
        width: Constraint::Length(width),
        is_number: true,
        sort,
        text,
    }
}

const REST: Constraint = Constraint::Fill(1);
const HOLDER: &str = "HOLDER";

const KEYS: [Column<KeyRow>; 10] = [
    text("KEY", REST, Some(Sort::Name), |row| {
        show::printable(&row.key)
    }),
    text(HOLDER, Constraint::Length(14), None, |row| {
        row.holder.clone()
    }),
    text("MODE", Constraint::Length(8), None, |row| row.mode.clone()),
    number("AGE", 6, Some(Sort::Age), |row| figure::time(row.age)),
    number("LEFT", 6, Some(Sort::Left), |row| show::time(row.left)),
    number("WAITERS", 7, Some(Sort::Waiters), |row| {
        show::waiters(row.waiters)
    }),
    number("GRANTS/S", 8, Some(Sort::Grants), |row| {
        figure::rate(row.grants)
    }),
    number("WAIT", 6, Some(Sort::Wait), |row| figure::time(row.wait)),
    number("HOLD", 6, Some(Sort::Hold), |row| figure::time(row.hold)),
    number("LOST", 5, Some(Sort::Lost), |row| figure::count(row.lost)),
];

const TEMPLATES: [Column<TemplateRow>; 9] = [
    text("TEMPLATE", REST, Some(Sort::Name), |row| {
        show::printable(&row.template)
    }),
    number("HELD", 5, None, |row| row.counted.held.to_string()),
    number("WAITING", 7, Some(Sort::Waiters), |row| {
        row.counted.waiting.to_string()
    }),
    number("GRANTS/S", 8, Some(Sort::Grants), |row| {
        figure::rate(row.counted.grants.map(Figure::counted))
    }),
    number("WAIT", 6, Some(Sort::Wait), |row| mean(row.counted.wait)),
    number("P99", 7, None, |row| p99(row.counted.wait)),
    number("HOLD", 6, Some(Sort::Hold), |row| mean(row.counted.hold)),
    number("P99", 7, None, |row| p99(row.counted.hold)),
    number("LOST", 5, Some(Sort::Lost), |row| {
        figure::count(row.counted.lost)
    }),
];

pub(super) fn draw_keys(
    model: &Model,
    palette: &Palette,
    state: &mut TableState,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let is_shown = |column: &&Column<KeyRow>| column.head != HOLDER || area.width >= WIDE;
    let columns: Vec<_> = KEYS.iter().filter(is_shown).collect();
    let style = |row: &KeyRow| match () {
        () if model.outage.is_some() => palette.old,
        () if row.mode == "free" => palette.free,
        () if row.waiters > Some(0) => palette.busy,
        () => Style::new(),
    };
    draw(&model.keys, &columns, style, palette, state, frame, area);
}

pub(super) fn draw_templates(
    model: &Model,
    palette: &Palette,
    state: &mut TableState,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let columns: Vec<_> = TEMPLATES.iter().collect();
    let style = |row: &TemplateRow| match row.counted.lost {
        Some(1..) => palette.busy,
        _ => Style::new(),
    };
    draw(
        &model.templates,
        &columns,
        style,
        palette,
        state,
        frame,
        area,
    );
}

fn draw<R: crate::top::rows::Row>(
    table: &table::Table<R>,
    columns: &[&Column<R>],
    style: impl Fn(&R) -> Style,
    palette: &Palette,
    state: &mut TableState,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let head = columns.iter().map(|column| {
        let is_sorted = column.sort == Some(table.sort);
        let style = if is_sorted {
            palette.sorted
        } else {
            palette.head
        };
        cell(column, column.head.to_owned()).style(style)
    });
    let rows = table.rows().iter().map(|row| {
        let cells = columns
            .iter()
            .map(|column| cell(column, (column.text)(row)));
        Row::new(cells).style(style(row))
    });
    let widths = columns.iter().map(|column| column.width);
    let drawn = Table::new(rows, widths)
        .header(Row::new(head))
        .column_spacing(1)
        .row_highlight_style(palette.chosen);
    state.select(table.place());
    frame.render_stateful_widget(drawn, area, state);
}

fn cell<R>(column: &Column<R>, text: String) -> Cell<'static> {
    let text = Line::from(text);
    Cell::from(match column.is_number {
        true => text.right_aligned(),
        false => text,
    })
}

fn mean(times: Times) -> String {
    figure::time(times.mean.map(Figure::counted))
}

fn p99(times: Times) -> String {
    let bound = |sign: &str, bound: Duration| format!("{sign}{}", figure::short(bound));
    match times.p99 {
        None => show::nothing(),
        Some(Bound::AtMost(time)) => bound("≤", time),
        Some(Bound::MoreThan(time)) => bound(">", time),
    }
}
