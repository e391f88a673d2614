//! The picture of `dlock top` in `docs/cli.md`, made of what is on its screen:
//! `cargo test -p dlock-cli --test cli picture -- --ignored`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::screen::Screen;
use crate::support::process::command;
use crate::support::program::Program;
use crate::{holder, redis, with_defaults};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dlock-top.svg");

/// How large a letter is.
const WIDTH: u32 = 8;
const HEIGHT: u32 = 17;

/// One text for each stretch of cells that look the same.
fn svg(screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    let (width, height) = (place(columns, WIDTH) + 16, place(rows, HEIGHT) + 16);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<title>dlock top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1c1e26\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"13\" \
         xml:space=\"preserve\">\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let look = Look::of(screen.cell(row, column));
            let same = |column: &u16| Look::of(screen.cell(row, *column)) == look;
            let end = (column..columns).take_while(same).last().unwrap_or(column) + 1;
            let text: String = (column..end)
                .map(|column| letter(screen.cell(row, column)))
                .collect();
            look.draw(&mut svg, &text, row, column);
            column = end;
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn place(number: u16, size: u32) -> u32 {
    u32::from(number) * size
}

fn letter(cell: Option<&vt100::Cell>) -> &str {
    match cell.map(vt100::Cell::contents) {
        None | Some("") => " ",
        Some(text) => text,
    }
}

#[derive(PartialEq)]
struct Look {
    colour: &'static str,
    bold: bool,
    dim: bool,
    underlined: bool,
    inverse: bool,
}

impl Look {
    fn of(cell: Option<&vt100::Cell>) -> Self {
        let has = |of: fn(&vt100::Cell) -> bool| cell.is_some_and(of);
        Self {
            colour: match cell.map(vt100::Cell::fgcolor) {
                Some(vt100::Color::Idx(1 | 9)) => "#e95678",
                Some(vt100::Color::Idx(2 | 10)) => "#29d398",
                Some(vt100::Color::Idx(3 | 11)) => "#fab795",
                Some(vt100::Color::Idx(6 | 14)) => "#59e3e3",
                _ => "#d5d8da",
            },
            bold: has(vt100::Cell::bold),
            dim: has(vt100::Cell::dim),
            underlined: has(vt100::Cell::underline),
            inverse: has(vt100::Cell::inverse),
        }
    }

    fn draw(&self, svg: &mut String, text: &str, row: u16, column: u16) {
        let letters = u32::try_from(text.chars().count()).expect("a line");
        let (x, y, width) = (
            8 + place(column, WIDTH),
            8 + place(row, HEIGHT),
            letters * WIDTH,
        );
        let mut colour = self.colour;
        if self.inverse {
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\" fill=\"{colour}\"/>"
            );
            colour = "#1c1e26";
        }
        if text.trim().is_empty() {
            return;
        }
        let (y, text) = (y + 13, escaped(text));
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" textLength=\"{width}\" fill=\"{colour}\""
        );
        for (is_so, attribute) in [
            (self.bold, " font-weight=\"bold\""),
            (self.dim, " opacity=\"0.6\""),
            (self.underlined, " text-decoration=\"underline\""),
        ] {
            svg.push_str(if is_so { attribute } else { "" });
        }
        let _ = writeln!(svg, ">{text}</text>");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[test]
fn a_screen_is_drawn_as_it_is() {
    let mut parser = vt100::Parser::new(2, 20, 0);
    parser.process(b"a <b> & c\r\n\x1b[1;31mred\x1b[0m \x1b[7mchosen\x1b[0m");
    let svg = svg(parser.screen());
    for part in [
        ">a &lt;b&gt; &amp; c  ",
        "<text x=\"8\" y=\"38\" textLength=\"24\" fill=\"#e95678\" font-weight=\"bold\">red</text>",
        "<rect x=\"40\" y=\"25\" width=\"48\" height=\"17\" fill=\"#d5d8da\"/>",
        "fill=\"#1c1e26\">chosen</text>",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert_eq!(svg.matches("<text").count(), 3, "{svg}");
}

/// Somebody who calls himself so and takes this lock again and again.
fn busy(url: &str, label: &str, key: &str, time: &str) -> Program {
    let mut shell = command("sh");
    shell.env("DLOCK_URL", url).env("DLOCK_LABEL", label).args([
        "-c",
        "while :; do \"$0\" run \"$1\" -- sleep \"$2\"; done",
        env!("CARGO_BIN_EXE_dlock"),
        key,
        time,
    ]);
    Program::start(shell)
}

/// What is written in a picture, line by line.
fn written(svg: &str) -> Vec<String> {
    let mut lines: BTreeMap<u32, String> = BTreeMap::new();
    for text in svg.lines().filter(|line| line.starts_with("<text ")) {
        let (_, y) = text.split_once(" y=\"").expect("a place");
        let (y, _) = y.split_once('"').expect("a place");
        let (_, words) = text.split_once('>').expect("a text");
        let words = words.trim_end_matches("</text>");
        let line = lines.entry(y.parse().expect("a number")).or_default();
        *line += words;
    }
    let plain = |line: String| line.replace("&lt;", "<").replace("&gt;", ">");
    lines.into_values().map(plain).collect()
}

/// Its columns and keys are those of the screen today. If not, draw it anew.
#[tokio::test]
async fn the_picture_is_of_this_screen() {
    let server = redis().await;
    let _held = holder(&server.url(), "k").await;
    let screen = Screen::of_tool(&server.url(), &["top"], (26, 100), &[]);
    // The keys of the last line are drawn last.
    let drawn = |text: &str| text.contains("held by sh on") && text.contains("b break");
    screen.until("all of it is drawn", drawn).await;
    let now = screen.read(svg);
    let drawn = std::fs::read_to_string(FILE).expect("the picture");
    let (now, drawn) = (written(&now), written(&drawn));
    for begins in ["KEY", "q "] {
        let line = |lines: &[String]| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(begins));
            let words = line.into_iter().flat_map(|line| line.split_whitespace());
            words.map(ToOwned::to_owned).collect()
        };
        assert!(line(&now).len() > 5, "{now:#?}");
        assert_eq!(line(&now), line(&drawn), "{begins}");
    }
}

#[tokio::test]
#[ignore = "it writes docs/dlock-top.svg"]
async fn picture_of_top() {
    let server = redis().await;
    let url = server.url();
    let held = |label: &str, key: &str, options: &[&str]| {
        let arguments = [&["run"], options, &[key, "--", "sleep", "1000"]].concat();
        let mut program = with_defaults(&url, &arguments);
        program.env("DLOCK_LABEL", label);
        Program::start(program)
    };
    let _running = [
        busy(&url, "shop", "stock:42", "1"),
        busy(&url, "shop", "stock:42", "1"),
        busy(&url, "shop", "stock:42", "1"),
        busy(&url, "backoffice", "stock:42", "1"),
        busy(&url, "shop", "stock:7", "0.5"),
        busy(&url, "shop", "stock:7", "0.5"),
        held("report", "nightly", &[]),
        held("report", "nightly", &[]),
        held("billing", "account:1001", &[]),
        held("import", "api:acme", &["--permits", "3"]),
        held("import", "api:acme", &["--permits", "3"]),
        held("reader", "config", &["--read"]),
    ];
    let screen = Screen::of_tool(&url, &["top", "--interval", "500ms"], (26, 100), &[]);
    screen
        .until("there is something to see", |text| {
            let row = text
                .lines()
                .find(|line| line.starts_with("stock:42"))
                .unwrap_or_default();
            let row: Vec<_> = row.split_whitespace().collect();
            let sampled = row.iter().filter(|cell| cell.starts_with('~')).count();
            text.contains("6 locks")
                && sampled > 2
                && text.contains("\n3 ")
                && text.contains("~20s")
        })
        .await;
    let svg = screen.read(svg);
    std::fs::write(Path::new(FILE), svg).expect("a file");
}
