//! The same figures as a picture.

use std::fmt::Write as _;

use crate::line::{Line, Unit};
use crate::site::Table;

const WIDTH: f64 = 910.0;
/// Where bars begin, and the longest ends; behind it is room for a figure.
const LEFT: f64 = 240.0;
const RIGHT: f64 = 680.0;
const TITLE: f64 = 46.0;
const BAR: f64 = 22.0;
const GAP: f64 = 26.0;

/// Readable on a light page and on a dark one, whichever the reader has.
const STYLE: &str = "<style>
.page { fill: #ffffff } .grid { stroke: #e2e5e9 } .dlock { fill: #2563eb } .peer { fill: #9aa4b2 }
text { fill: #1f2328; font: 13px system-ui, sans-serif } .title { font-weight: 600; font-size: 15px }
.faint { fill: #59636e; font-size: 12px } .ours { font-weight: 600 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .grid { stroke: #2a313c } .dlock { fill: #58a6ff } .peer { fill: #6e7885 }
text { fill: #e6edf3 } .faint { fill: #9198a1 }
}
</style>";

/// One contestant in one work.
struct Bar {
    label: String,
    is_dlock: bool,
    /// The figures that the bar shows: a rate, or a short time and a long one.
    ends: Vec<f64>,
    text: String,
}

/// What the lines of a work are drawn as.
struct Panel {
    title: String,
    /// What its figures are.
    figures: String,
    unit: Unit,
    bars: Vec<Bar>,
}

/// An SVG with a part for each work.
pub(crate) fn draw(tables: &[Table]) -> String {
    let panels = panels(tables);
    let height = |panel: &Panel| TITLE + BAR * panel.bars.len() as f64 + GAP;
    let all = GAP + panels.iter().map(height).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {all}\" role=\"img\" \
         aria-label=\"dlock beside the locks of other languages\">\n{STYLE}\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{all}\"/>\n"
    );
    let mut top = GAP;
    for panel in &panels {
        panel.draw(&mut svg, top);
        top += height(panel);
    }
    svg + "</svg>\n"
}

/// The works in the order in which they come, each with the contestants of all stores.
fn panels(tables: &[Table]) -> Vec<Panel> {
    let mut works: Vec<&str> = Vec::new();
    for line in tables.iter().flat_map(|table| &table.lines) {
        if !works.contains(&line.work) {
            works.push(line.work);
        }
    }
    works.into_iter().map(|work| panel(tables, work)).collect()
}

fn panel(tables: &[Table], work: &str) -> Panel {
    let mut panel = Panel {
        title: work.to_owned(),
        figures: String::new(),
        unit: Unit::Rate,
        bars: Vec::new(),
    };
    for table in tables {
        let of_work = table.lines.iter().filter(|line| line.work == work);
        // How much of the time the lock is in use is said, and not drawn.
        let (said, drawn): (Vec<&Line>, Vec<&Line>) =
            of_work.partition(|line| line.unit == Unit::Part);
        let Some(first) = drawn.first() else {
            continue;
        };
        let figures: Vec<_> = drawn.iter().chain(&said).map(|line| line.figure).collect();
        let read = match first.unit {
            Unit::Time => "a bar from p50 to p99; further left is better",
            Unit::Rate | Unit::Part => "longer is better",
        };
        panel.figures = format!("{} ({read})", figures.join(" · "));
        panel.unit = first.unit;
        for (contestant, (name, version)) in table.columns.iter().enumerate() {
            let shown = |line: &&Line| line.unit.show(line.median(contestant));
            let text: Vec<_> = drawn.iter().chain(&said).map(shown).collect();
            panel.bars.push(Bar {
                label: match contestant {
                    0 => format!("{name} {version}, {}", table.store),
                    _ => format!("{name} {version}"),
                },
                is_dlock: contestant == 0,
                ends: drawn.iter().map(|line| line.median(contestant)).collect(),
                text: text.join(" · "),
            });
        }
    }
    panel
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) {
        let Self { title, figures, .. } = self;
        let (title_at, figures_at) = (top + 14.0, top + 32.0);
        push(
            svg,
            format_args!("<text class=\"title\" x=\"16\" y=\"{title_at:.0}\">{title}</text>"),
        );
        push(
            svg,
            format_args!("<text class=\"faint\" x=\"16\" y=\"{figures_at:.0}\">{figures}</text>"),
        );
        let (least, most) = self.decades();
        let bottom = top + TITLE + BAR * self.bars.len() as f64;
        // Each line is ten times the one to its left.
        for power in least..=most {
            let value = 10_f64.powi(power);
            let (x, label) = (place(value, least, most), self.unit.show(value));
            let (from, below) = (top + TITLE - 2.0, bottom + 12.0);
            push(
                svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{from:.0}\" x2=\"{x:.1}\" y2=\"{bottom:.0}\"/>\
                 <text class=\"faint\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{below:.0}\">{label}</text>"
                ),
            );
        }
        for (number, bar) in self.bars.iter().enumerate() {
            bar.draw(svg, top + TITLE + BAR * number as f64, least, most);
        }
    }

    /// Powers of ten that have all figures between them.
    fn decades(&self) -> (i32, i32) {
        let ends = self.bars.iter().flat_map(|bar| bar.ends.iter().copied());
        let powers = ends.filter(|end| *end > 0.0).map(f64::log10);
        let (least, most) = powers.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), power| (least.min(power), most.max(power)),
        );
        if least > most {
            return (0, 1);
        }
        let least = least.floor() as i32;
        (least, (most.ceil() as i32).max(least + 1))
    }
}

impl Bar {
    /// A rate is a bar from the left; of two times it goes from the one to the other.
    fn draw(&self, svg: &mut String, top: f64, least: i32, most: i32) {
        let (baseline, label) = (top + 14.0, &self.label);
        let (class, ours) = if self.is_dlock {
            ("dlock", " class=\"ours\"")
        } else {
            ("peer", "")
        };
        let label_end = LEFT - 8.0;
        push(
            svg,
            format_args!(
                "<text{ours} text-anchor=\"end\" x=\"{label_end}\" y=\"{baseline:.0}\">{label}</text>"
            ),
        );
        let places: Vec<f64> = self
            .ends
            .iter()
            .filter(|end| **end > 0.0)
            .map(|end| place(*end, least, most))
            .collect();
        let to = places.iter().copied().fold(LEFT, f64::max);
        let from = if self.ends.len() > 1 {
            places.iter().copied().fold(to, f64::min)
        } else {
            LEFT
        };
        let (bar_top, length, behind) = (top + 3.0, (to - from).max(3.0), to + 8.0);
        push(
            svg,
            format_args!(
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{bar_top:.0}\" width=\"{length:.1}\" height=\"14\" rx=\"3\"/>\
             <text{ours} x=\"{behind:.1}\" y=\"{baseline:.0}\">{}</text>",
                self.text
            ),
        );
    }
}

/// From the left, by the logarithm.
fn place(value: f64, least: i32, most: i32) -> f64 {
    let part = (value.log10() - f64::from(least)) / f64::from(most - least);
    LEFT + (RIGHT - LEFT) * part
}

fn push(svg: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(svg, "{element}").expect("a string takes everything");
}
