//! Draws the screen.

mod lock;
mod palette;
mod tables;

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, TableState, Wrap};

pub(super) use self::palette::Palette;
use super::figure;
use super::model::{Model, Prompt, View};
use crate::show;

/// The smallest screen that has room for everything.
const LEAST: (u16, u16) = (70, 15);

/// What is kept from one drawing to the next: the colours, and how far the tables are scrolled.
#[derive(Debug)]
pub(super) struct Drawing {
    palette: Palette,
    keys: TableState,
    templates: TableState,
}

impl Drawing {
    pub(super) fn new(palette: Palette) -> Self {
        Self {
            palette,
            keys: TableState::new(),
            templates: TableState::new(),
        }
    }

    pub(super) fn draw(&mut self, model: &Model, frame: &mut Frame<'_>) {
        let area = frame.area();
        if area.width < LEAST.0 || area.height < LEAST.1 {
            return too_small(frame);
        }
        let [head, table, lock, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Fill(3),
            Constraint::Fill(2),
            Constraint::Length(1),
        ])
        .areas(area);
        let lines = [
            self.of_store(model),
            of_services(model),
            self.trouble(model),
        ];
        frame.render_widget(Paragraph::new(lines.to_vec()), head);
        frame.render_widget(self.footer(model), foot);
        if model.prompt == Prompt::Help {
            let both = table.union(lock);
            return frame.render_widget(Paragraph::new(HELP), both);
        }
        match model.view {
            View::Keys => {
                tables::draw_keys(model, &self.palette, &mut self.keys, frame, table);
                match &model.prompt {
                    Prompt::Break(lease) => lock::ask(lease, &self.palette, frame, lock),
                    _ => lock::draw(model, &self.palette, frame, lock),
                }
            }
            View::Templates => {
                let both = table.union(lock);
                tables::draw_templates(model, &self.palette, &mut self.templates, frame, both);
            }
        }
    }

    fn of_store(&self, model: &Model) -> Line<'static> {
        let locks = &model.look.locks;
        let count = match model.look.others {
            0 => locks.len().to_string(),
            others => format!("the first {} of {}", locks.len(), locks.len() + others),
        };
        let waiting = show::waiters(locks.iter().map(|lock| lock.waiters).sum());
        let grants = model.samples.grants(model.look.at);
        Line::from(vec![
            Span::styled("dlock top  ", self.palette.title),
            Span::raw(format!(
                "store: {count} locks, {waiting} waiting, {} grants/s; every {}",
                figure::rate(grants),
                figure::short(model.interval),
            )),
        ])
    }

    /// What became of the last command. Without one, what is wrong: first the store, then the
    /// services.
    fn trouble(&self, model: &Model) -> Line<'static> {
        if let Some(notice) = &model.notice {
            return Line::styled(show::printable(notice), self.palette.title);
        }
        if let Some(outage) = &model.outage {
            let now = Instant::now();
            let old = now.saturating_duration_since(model.look.at);
            let down = now.saturating_duration_since(outage.since);
            let text = format!(
                "store: no answer for {}; this is {} old: {}",
                figure::short(whole(down)),
                figure::short(whole(old)),
                show::printable(&outage.error)
            );
            return Line::styled(text, self.palette.alarm);
        }
        if let Some((name, error)) = model.services.silent().next() {
            let silent = model.services.silent().count();
            let text = format!(
                "{silent} of {} services: no numbers from {name}: {}",
                model.services.len(),
                show::printable(error)
            );
            return Line::styled(text, self.palette.alarm);
        }
        Line::default()
    }

    fn footer(&self, model: &Model) -> Line<'static> {
        let (filter, sort, reversed) = match model.view {
            View::Keys => (&model.keys.filter, model.keys.sort, model.keys.reversed),
            View::Templates => {
                let table = &model.templates;
                (&table.filter, table.sort, table.reversed)
            }
        };
        let filter = show::printable(filter);
        if model.prompt == Prompt::Filter {
            let text = format!("/{filter}_  Enter keeps it, Esc drops it");
            return Line::styled(text, self.palette.key);
        }
        if let Prompt::Break(_) = model.prompt {
            let text = "Break it? y breaks it, any other key does not";
            return Line::styled(text, self.palette.alarm);
        }
        let order = format!(
            "sort: {}{}",
            sort.word(),
            if reversed { ", reversed" } else { "" }
        );
        let filter = match &*filter {
            "" => "filter".to_owned(),
            filter => format!("filter: {filter}"),
        };
        let mut keys = vec![
            ("q", "quit"),
            ("?", "help"),
            ("/", &*filter),
            ("s", &*order),
        ];
        if model.view == View::Keys {
            keys.push(("b", "break"));
        }
        if model.services.len() > 0 {
            keys.push(match model.view {
                View::Keys => ("Tab", "templates"),
                View::Templates => ("Tab", "keys"),
            });
        }
        let spans = keys.into_iter().flat_map(|(key, what)| {
            [
                Span::styled(key.to_owned(), self.palette.key),
                Span::raw(format!(" {what}  ")),
            ]
        });
        Line::from_iter(spans)
    }
}

/// Cuts the fraction of a second, which would change at each drawing.
fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

fn of_services(model: &Model) -> Line<'static> {
    let services = model.services.len();
    let Some(counted) = model.services.total() else {
        let text = match services {
            0 => "~ is a sample, from look to look; what services count is had with --metrics",
            _ => "services: no numbers yet",
        };
        return Line::raw(text);
    };
    let grants = counted.grants.map(figure::Figure::counted);
    let times = |times: Option<Duration>| times.map_or_else(show::nothing, figure::short);
    Line::raw(format!(
        "{services} {}: {} held, {} waiting, {} grants/s, wait {}, hold {}, {} lost",
        if services == 1 { "service" } else { "services" },
        counted.held,
        counted.waiting,
        figure::rate(grants),
        times(counted.wait.mean),
        times(counted.hold.mean),
        figure::count(counted.lost),
    ))
}

fn too_small(frame: &mut Frame<'_>) {
    let area: Rect = frame.area();
    let text = format!(
        "dlock top needs {} × {}; this is {} × {}",
        LEAST.0, LEAST.1, area.width, area.height
    );
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
}

const HELP: &str = "\
  ↑ ↓ j k       choose a key; PgUp PgDn, Home g, End G
  s S           sort by the next column, by the one before; r reverses
  /             only names with this text; Esc drops the filter
  Tab           keys, or templates as services count them (--metrics)
  b             break the lock of the chosen key, after a question
  ^L  ^Z  q ^C  draw again, stop (`fg` goes on), quit

  ~             a sample from look to look, over the last minute: a grant that
                comes and goes between two looks is not in it
  -             nobody has told
  free          held a moment ago, and not any more
  WAIT HOLD     the mean of the last minute; P99: 99 of 100 were not longer
  LOST          since this began; only services know

  A key has the numbers of its template where that makes no other key.";

#[cfg(test)]
mod tests;
