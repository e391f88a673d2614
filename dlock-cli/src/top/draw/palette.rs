//! How things are told apart: by colour, unless `NO_COLOR` is set.

use ratatui::style::{Color, Modifier, Style};

#[derive(Debug, Default)]
pub(crate) struct Palette {
    pub(super) title: Style,
    pub(super) head: Style,
    /// The column that the table is sorted by.
    pub(super) sorted: Style,
    pub(super) chosen: Style,
    /// A key that somebody waits for, or a template with losses.
    pub(super) busy: Style,
    /// A key that nobody holds.
    pub(super) free: Style,
    /// What may have changed since it was read.
    pub(super) old: Style,
    pub(super) alarm: Style,
    pub(super) key: Style,
}

impl Palette {
    /// See <https://no-color.org>.
    pub(crate) fn from_env() -> Self {
        match std::env::var_os("NO_COLOR") {
            Some(value) if !value.is_empty() => Self::plain(),
            _ => Self::coloured(),
        }
    }

    /// Only bold, dim, underlined and reversed text, which are no colours.
    pub(super) fn plain() -> Self {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let dim = Style::new().add_modifier(Modifier::DIM);
        Self {
            title: bold,
            head: bold,
            sorted: bold.add_modifier(Modifier::UNDERLINED),
            chosen: Style::new().add_modifier(Modifier::REVERSED),
            busy: Style::new(),
            free: dim,
            old: dim,
            alarm: bold,
            key: bold,
        }
    }

    pub(super) fn coloured() -> Self {
        let plain = Self::plain();
        Self {
            head: plain.head.fg(Color::Cyan),
            sorted: plain.sorted.fg(Color::Cyan),
            busy: plain.busy.fg(Color::Yellow),
            alarm: plain.alarm.fg(Color::Red),
            key: plain.key.fg(Color::Green),
            ..plain
        }
    }
}
