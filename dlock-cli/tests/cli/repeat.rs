//! `dlock ls --watch`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::screen::{IMPATIENT, Screen};
use crate::support::dir::TempDir;
use crate::support::process::Process;
use crate::support::program::Program;
use crate::support::proxy::Proxy;
use crate::support::wait::until;
use crate::{code, dlock, holder, ran, redis, sqlite, stderr, with_defaults};

async fn lists_into_a_pipe(url: &str) {
    let held = holder(url, "first").await;
    let list = Program::start(dlock(url, &["ls", "--watch", "200ms"]));
    let json = Program::start(dlock(url, &["ls", "-o", "json", "--watch", "200ms"]));
    let printed = async || list.printed();
    let tables = |text: &String, key: &str| {
        let tables = text.split("\n\n").filter(|table| table.starts_with("KEY"));
        tables
            .filter(|table| table.contains(&format!("\n{key} ")))
            .count()
    };
    until("two tables", printed, |text| tables(text, "first") > 1).await;
    let second = holder(url, "second").await;
    until("a table with both", printed, |text| {
        tables(text, "second") > 1
    })
    .await;
    let arrays = async || json.printed();
    let text = until("arrays of both", arrays, |text| {
        text.lines()
            .last()
            .is_some_and(|line| line.contains("second"))
    })
    .await;
    for line in text.lines() {
        assert!(line.starts_with("[{\"") && line.ends_with("}]"), "{line}");
    }
    drop((held, second));
}

#[tokio::test]
async fn a_list_goes_on_into_a_pipe() {
    let server = redis().await;
    lists_into_a_pipe(&server.url()).await;
    let dir = TempDir::default();
    lists_into_a_pipe(&sqlite(&dir)).await;
}

/// Without a word, as other programs end.
#[tokio::test]
async fn a_pipe_that_breaks_ends_it() {
    let server = redis().await;
    for form in ["table", "json"] {
        let mut tool = dlock(&server.url(), &["ls", "-o", form, "--watch", "200ms"]);
        tool.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(tool).expect("the tool");
        let (printed, errors) = process.pipes();
        let mut line = String::new();
        let mut printed = BufReader::new(printed.expect("a pipe"));
        printed.read_line(&mut line).expect("a line");
        drop(printed);
        let status = process.end().await;
        let told = std::io::read_to_string(errors.expect("a pipe")).expect("text");
        assert_eq!((status.code(), &*told), (Some(141), ""), "{form}");
    }
}

#[tokio::test]
async fn a_list_outlives_an_outage() {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let held = holder(&server.url(), "k").await;
    let watch = ["ls", "--watch", "200ms"];
    let mut tool = dlock(&url, &watch);
    tool.envs(IMPATIENT);
    let list = Program::start(tool);
    let screen = Screen::of_tool(&url, &watch, (10, 60), &IMPATIENT);
    let tables = async || list.printed().matches("\nk ").count();
    until("a table", tables, |tables| *tables > 0).await;
    screen.shows("\nk ").await;
    proxy.stall(true);
    proxy.cut();
    until(
        "the outage is told",
        async || list.errors(),
        |told| !told.is_empty(),
    )
    .await;
    let old = |text: &str| text.contains("old") && text.contains("\nk ");
    screen.until("old data", old).await;
    proxy.stall(false);
    until(
        "its end is told",
        async || list.errors(),
        |told| told.contains("the store answers again"),
    )
    .await;
    // A busy machine may add an outage: each is told once, and so is its end.
    let told = list.errors();
    for (number, line) in told.lines().enumerate() {
        let is_end = line.contains("the store answers again");
        assert_eq!(is_end, number % 2 == 1, "{told}");
    }
    let before = tables().await;
    until("it goes on", tables, |now| *now > before).await;
    screen
        .until("it goes on", |text| {
            text.contains("every") && text.contains("\nk ")
        })
        .await;
    drop(held);
    screen
        .until("it is free", |text| !text.contains("\nk "))
        .await;
}

#[tokio::test]
async fn a_list_is_drawn_over_itself() {
    let server = redis().await;
    let url = server.url();
    let mut held = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        held.push(holder(&url, key).await);
    }
    let screen = Screen::of_tool(&url, &["ls", "--watch=200ms"], (8, 40), &[]);
    // It may be looked at while it is drawn.
    let cut = |text: &str| {
        text.starts_with("every 200ms")
            && text.contains("\nKEY")
            && text.contains("\nc ")
            && text.contains("more lines")
            && !text.contains("\nd ")
    };
    screen.until("the first of them", cut).await;
    for program in &mut held[2..] {
        program.process.terminate();
        program.end().await;
    }
    let two = |text: &str| !text.contains("more lines") && text.lines().count() == 5;
    screen.until("fewer", two).await;
    let mut screen = screen;
    screen.types("\u{3}");
    assert_eq!(screen.ends(), Some(130), "a signal ended it");
    screen.until_restored().await;
}

#[tokio::test]
async fn a_mistake_is_told_at_once() {
    let none = ran(with_defaults("redis://127.0.0.1:1", &["ls", "--watch"])).await;
    assert_eq!(code(&none), 69, "{}", stderr(&none));
    for wrong in [&["ls", "--watch", "stock:"][..], &["ls", "--watch", "10ms"]] {
        let run = ran(dlock("redis://127.0.0.1:1", wrong)).await;
        assert_eq!(code(&run), 64, "{}", stderr(&run));
    }
}
