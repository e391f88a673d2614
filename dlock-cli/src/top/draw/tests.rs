use dlock::backend::{Mode, WaiterInfo};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::top::metrics::rates::Services;
use crate::top::model::tests::{lock, look, model};

fn drawn(model: &Model, size: (u16, u16), palette: Palette) -> Terminal<TestBackend> {
    let backend = TestBackend::new(size.0, size.1);
    let mut terminal = Terminal::new(backend).expect("a terminal");
    let mut drawing = Drawing::new(palette);
    let draw = |frame: &mut Frame<'_>| drawing.draw(model, frame);
    terminal.draw(draw).expect("a picture");
    terminal
}

fn lines(model: &Model, size: (u16, u16)) -> Vec<String> {
    let terminal = drawn(model, size, Palette::plain());
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(size.0));
    let line = |row: &[ratatui::buffer::Cell]| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    };
    rows.map(line).collect()
}

fn with_queue(waiters: usize) -> Model {
    let mut model = model(&["nightly", "stock:42"]);
    let waiter = |number| {
        let owner = format!("00000000000000aa.{number}@web-{number},77,shop,1700000000000");
        WaiterInfo::new(owner, Mode::Write)
    };
    let queue = (0..waiters).map(waiter).collect();
    let lock = lock("stock:42", waiters).with_queue(queue);
    model.chosen = Some(("stock:42".to_owned(), Some(lock)));
    model
}

/// Whether the text shows the age of a lock that is held for 125 seconds. A slow machine may show
/// some seconds more, because the age is measured by the real clock.
fn tells_age(text: &str, before: &str, behind: &str) -> bool {
    let mut ages = 125..140;
    ages.any(|age| text.contains(&format!("{before}~{}m{}s{behind}", age / 60, age % 60)))
}

/// A store without a queue does not know the number of waiters, which does not mean that there are
/// none.
#[test]
fn waiters_that_nobody_knows_are_not_none() {
    let mut lock = lock("stock:42", 0);
    lock.waiters = None;
    let services = Services::new(std::iter::empty());
    let model = Model::new(Duration::from_secs(2), services, look(vec![lock]));
    let lines = lines(&model, (80, 24));
    assert!(lines[0].contains("1 locks, - waiting"), "{lines:#?}");
    let row: Vec<_> = lines[4].split_whitespace().collect();
    assert_eq!(row[4], "-", "{lines:#?}");
}

#[test]
fn all_is_on_the_smallest_screen_that_is_promised() {
    let lines = lines(&with_queue(3), (80, 24));
    assert!(
        lines[0].starts_with("dlock top  store: 2 locks, 1 waiting"),
        "{lines:#?}"
    );
    let head: Vec<_> = lines[3].split_whitespace().collect();
    assert_eq!(
        head,
        [
            "KEY", "MODE", "AGE", "LEFT", "WAITERS", "GRANTS/S", "WAIT", "HOLD", "LOST"
        ]
    );
    let row: Vec<_> = lines[4].split_whitespace().collect();
    assert_eq!(
        row,
        ["stock:42", "write", "~2m5s", "29s", "1", "-", "-", "-", "-"]
    );
    let text = lines.join("\n");
    assert!(
        tells_age(&text, "held by shop on web-3, pid 4211, for ", ", 29s left"),
        "{text}"
    );
    for part in ["PLACE", "web-0", "web-1", "web-2"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        lines[23].starts_with("q quit  ? help  / filter"),
        "{lines:#?}"
    );
}

#[test]
fn a_queue_that_is_too_long_is_cut() {
    let text = lines(&with_queue(100), (80, 24)).join("\n");
    assert!(text.contains("web-0") && !text.contains("web-50"), "{text}");
    assert!(text.contains("more"), "{text}");
}

#[test]
fn a_wide_screen_has_the_holders() {
    let lines = lines(&with_queue(3), (120, 40));
    assert!(lines[3].contains("HOLDER"), "{lines:#?}");
    assert!(lines[4].contains("shop"), "{lines:#?}");
}

#[test]
fn a_screen_that_is_too_small_says_so() {
    for size in [(69, 24), (80, 14), (20, 3), (1, 1)] {
        let text = lines(&with_queue(3), size).join(" ");
        let told = size == (1, 1) || text.contains("dlock top needs");
        assert!(told, "{size:?}: {text}");
    }
    assert!(lines(&with_queue(3), (70, 15))[0].starts_with("dlock top"));
}

#[test]
fn an_outage_is_told_and_the_rest_stays() {
    let mut model = with_queue(1);
    model.failed(Instant::now(), "it is\ndown".to_owned());
    let lines = lines(&model, (80, 24));
    // This time is measured by the real clock too.
    let told = |seconds: u32| lines[2].starts_with(&format!("store: no answer for {seconds}"));
    assert!((0..15).any(told), "{lines:#?}");
    assert!(lines[4].starts_with("stock:42"), "{lines:#?}");
}

#[test]
fn a_service_that_is_silent_is_told() {
    let mut model = with_queue(1);
    let numbers = lines(&model, (80, 24));
    assert_eq!(numbers[1], "services: no numbers yet");
    model.scraped(0, Instant::now(), Err("refused".to_owned()));
    let lines = lines(&model, (80, 24));
    assert_eq!(
        lines[2],
        "1 of 1 services: no numbers from web-1:9000: refused"
    );
}

#[test]
fn every_part_of_the_help_is_on_the_smallest_screen() {
    let mut model = with_queue(1);
    model.prompt = Prompt::Help;
    let text = lines(&model, (80, 24)).join("\n");
    for line in HELP.lines() {
        assert!(text.contains(line.trim_end()), "{line}: {text}");
    }
}

#[test]
fn what_others_wrote_does_not_steer_the_terminal() {
    let text = lines(&model(&["a\u{1b}[31m\nb"]), (80, 24)).join("\n");
    assert!(text.contains("a\\u{1b}[31m\\nb"), "{text}");
}

#[test]
fn without_colours_there_is_none() {
    for (palette, any) in [(Palette::plain(), false), (Palette::coloured(), true)] {
        let terminal = drawn(&with_queue(1), (80, 24), palette);
        let cells = terminal.backend().buffer().content().iter();
        let mut coloured = cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(coloured.next().is_some(), any);
    }
}

#[test]
fn what_is_to_be_broken_is_told_before() {
    let mut model = with_queue(1);
    model.press(crossterm::event::KeyCode::Char('b').into());
    let text = lines(&model, (70, 15)).join("\n");
    assert!(
        tells_age(&text, "It is held by shop on web-3 (pid 4211), for ", "."),
        "{text}"
    );
    assert!(text.contains("Break it? y"), "{text}");
}

/// As long as nobody makes it anew after a change.
#[test]
fn the_picture_in_the_documentation_has_the_columns_of_today() {
    let picture = include_str!("../../../../docs/dlock-top.svg");
    let drawn = lines(&with_queue(3), (100, 26));
    for first in ["KEY ", "PLACE "] {
        let heads = drawn.iter().find(|line| line.starts_with(first));
        let heads: Vec<_> = heads.expect("a table").split_whitespace().collect();
        let texts = picture.lines().filter(|line| line.contains("#59e3e3"));
        let texts = texts.filter_map(|line| line.split('>').nth(1)?.strip_suffix("</text"));
        let texts: Vec<_> = texts.flat_map(str::split_whitespace).collect();
        let is_there = texts.windows(heads.len()).any(|some| some == heads);
        assert!(is_there, "{heads:?} not in {texts:?}");
    }
}
