//! The chosen lock: who holds it, and its queue.

use dlock::backend::{HolderInfo, LockInfo};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, Wrap};

use super::palette::Palette;
use crate::show;
use crate::top::figure::{self, Figure};
use crate::top::model::{Lease, Model};

/// How many holders have a line. The queue needs room too.
const HOLDERS: usize = 2;

pub(super) fn draw(model: &Model, palette: &Palette, frame: &mut Frame<'_>, area: Rect) {
    let Some(key) = model.chosen_key() else {
        let text = match model.keys.filter.is_empty() {
            true => "nothing is held",
            false => "no key has this text",
        };
        return frame.render_widget(
            Paragraph::new(text).block(block(String::new(), palette)),
            area,
        );
    };
    let block = block(show::printable(key), palette);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let lock = model.chosen_lock();
    let mut lines: Vec<Line<'_>> = match lock {
        Some(lock) => of_holders(lock).map(Line::from).collect(),
        None => vec![Line::from("nobody holds it")],
    };
    lines.extend(of_template(model).map(Line::from));
    let style = match model.outage.is_some() {
        true => palette.old,
        false => ratatui::style::Style::new(),
    };
    let height = u16::try_from(lines.len())
        .unwrap_or(u16::MAX)
        .min(inside.height);
    let (above, below) = (
        Rect { height, ..inside },
        Rect {
            y: inside.y + height,
            height: inside.height - height,
            ..inside
        },
    );
    frame.render_widget(Paragraph::new(lines).style(style), above);
    if let Some(lock) = lock.filter(|lock| !lock.queue.is_empty()) {
        frame.render_widget(queue(lock, palette, below.height).style(style), below);
    }
}

/// Says what it means to break this lease.
pub(super) fn ask(lease: &Lease, palette: &Palette, frame: &mut Frame<'_>, area: Rect) {
    let lines = vec![
        Line::from(format!("It is held by {}, for {}.", lease.who, lease.age)),
        Line::from(
            "What it does goes on beside the next holder until it is told, at its next renewal.",
        ),
    ];
    let text = Paragraph::new(lines).wrap(Wrap { trim: true });
    let block = block(show::printable(&lease.key), palette);
    frame.render_widget(text.block(block), area);
}

fn block(title: String, palette: &Palette) -> Block<'static> {
    let title = Line::styled(title, palette.title);
    Block::new().borders(Borders::TOP).title(title)
}

fn of_holders(lock: &LockInfo) -> impl Iterator<Item = String> {
    let word = match lock.done {
        Some(_) => "done by",
        None => "held by",
    };
    let line = move |holder: &HolderInfo| {
        let [host, pid] = show::place(holder.process.as_ref());
        let (age, left) = (show::age(holder), show::time(holder.expires_in));
        let name = show::name(holder);
        format!("{word} {name} on {host}, pid {pid}, for {age}, {left} left")
    };
    let more = show::holders(lock).count().saturating_sub(HOLDERS);
    let more = (more > 0).then(|| format!("… and {more} more"));
    show::holders(lock).take(HOLDERS).map(line).chain(more)
}

/// What is counted of all keys of the template of the chosen key.
fn of_template(model: &Model) -> Option<String> {
    let row = model.chosen_template()?;
    let counted = &row.counted;
    let time = |time| figure::time(Option::map(time, Figure::counted));
    Some(format!(
        "all of {}: {} grants/s, wait {}, hold {}, {} lost",
        show::printable(&row.template),
        figure::rate(counted.grants.map(Figure::counted)),
        time(counted.wait.mean),
        time(counted.hold.mean),
        figure::count(counted.lost),
    ))
}

/// The first waiters of the queue, as many as there is room for.
fn queue(lock: &LockInfo, palette: &Palette, height: u16) -> Table<'static> {
    // Without the last column, the owner: it serves to find the waiter in the store.
    let columns = show::WAITER.len() - 1;
    let room = usize::from(height.saturating_sub(1));
    let shown = match lock.queue.len() > room {
        true => room.saturating_sub(1),
        false => room,
    };
    let waiters = show::of_waiters(lock).take(shown);
    let rows = waiters.map(|waiter| Row::new(waiter.into_iter().take(columns)));
    let more = lock
        .waiters
        .unwrap_or(0)
        .max(lock.queue.len())
        .saturating_sub(shown);
    let more = (more > 0).then(|| Row::new(["…".to_owned(), format!("{more} more")]));
    let head = Row::new(show::WAITER.into_iter().take(columns)).style(palette.head);
    let widths = [
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    Table::new(rows.chain(more), widths).header(head)
}
