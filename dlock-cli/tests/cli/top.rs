//! `dlock top`, by its keys and its screen.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;

use crate::screen::{IMPATIENT, Screen};
use crate::support::dir::TempDir;
use crate::support::program::Program;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::until;
use crate::{code, dlock, holder, printed, ran, redis, sqlite, stderr};

const SIZE: (u16, u16) = (24, 80);
const FAST: [&str; 3] = ["top", "--interval", "200ms"];

/// The keys in the table, in its order.
fn keys(screen: &str) -> Vec<String> {
    let rows = screen.lines().skip_while(|line| !line.starts_with("KEY "));
    let rows = rows
        .skip(1)
        .take_while(|line| !line.starts_with('─') && !line.contains("──"));
    let keys = rows.filter_map(|row| row.split_whitespace().next());
    keys.map(ToOwned::to_owned).collect()
}

/// The key whose queue is shown.
fn chosen(screen: &str) -> String {
    let title = screen
        .lines()
        .find(|line| line.contains("───"))
        .unwrap_or_default();
    title.trim_matches('─').to_owned()
}

async fn serves(url: &str) {
    let _held = (
        holder(url, "stock:1").await,
        holder(url, "stock:2").await,
        holder(url, "other").await,
    );
    let waiter = Program::start(dlock(url, &["wait", "stock:2"]));
    let pid = waiter.process.id().to_string();
    let mut screen = Screen::of_tool(url, &FAST, SIZE, &[]);
    let waits = |text: &str| {
        keys(text) == ["stock:2", "other", "stock:1"] && text.contains("3 locks, 1 waiting")
    };
    screen.until("the hottest is first", waits).await;
    let queue = |text: &str| {
        chosen(text) == "stock:2"
            && text
                .lines()
                .any(|line| line.starts_with("1 ") && line.contains(&pid))
            && text.contains("held by sh on ")
    };
    screen.until("its queue is shown", queue).await;

    for (typed, expected) in [
        ("j", "other"),
        ("\u{1b}[B", "stock:1"),
        ("k", "other"),
        ("\u{1b}[A", "stock:2"),
        ("G", "stock:1"),
    ] {
        screen.types(typed);
        screen
            .until("another is chosen", |text| chosen(text) == expected)
            .await;
    }
    screen.types("S");
    let sorted = ["other", "stock:1", "stock:2"];
    screen
        .until("by name", |text| {
            keys(text) == sorted && text.contains("sort: name")
        })
        .await;
    screen.types("r");
    let sorted = ["stock:2", "stock:1", "other"];
    screen
        .until("the other way round", |text| keys(text) == sorted)
        .await;
    screen.types("/oth");
    screen
        .until("filtered", |text| {
            keys(text) == ["other"] && text.contains("/oth_")
        })
        .await;
    screen.types("\r");
    screen.shows("filter: oth").await;
    screen.types("\u{1b}");
    screen
        .until("all again", |text| keys(text).len() == 3)
        .await;
    screen.types("?");
    screen.shows("choose a key").await;
    screen.types("x");
    screen
        .until("all again", |text| keys(text).len() == 3)
        .await;

    waiter.process.terminate();
    screen
        .until("it has left", |text| text.contains("3 locks, 0 waiting"))
        .await;
    screen.types("q");
    assert_eq!(screen.ends(), Some(0));
    screen.until_restored().await;
}

#[tokio::test]
async fn locks_are_shown_live() {
    serves(&redis().await.url()).await;
}

#[tokio::test]
async fn locks_of_a_database_are_shown_live() {
    let dir = TempDir::default();
    serves(&sqlite(&dir)).await;
}

/// What a store does not know is a sample, and marked.
#[tokio::test]
async fn grants_are_sampled() {
    let server = redis().await;
    let url = server.url();
    let screen = Screen::of_tool(&url, &FAST, SIZE, &[]);
    screen.shows("nothing is held").await;
    let held = holder(&url, "k").await;
    let row = |text: &str| {
        let mut lines = text.lines();
        let line = lines
            .find(|line| line.starts_with("k "))
            .unwrap_or_default();
        line.split_whitespace()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
    };
    // All of it at once, as the row is drawn in parts. There is no hold yet: it is still held.
    let granted = |text: &str| {
        let row = row(text);
        row.len() == 9
            && (&*row[1], &*row[4], &*row[7], &*row[8]) == ("write", "0", "-", "-")
            && row[5].starts_with('~')
            && row[5] != "~0"
            && row[6].starts_with('~')
    };
    screen.until("a grant is seen", granted).await;
    held.process.terminate();
    let free = |text: &str| {
        let row = row(text);
        row.get(1).is_some_and(|mode| mode == "free")
            && row.get(7).is_some_and(|hold| hold.starts_with('~'))
    };
    screen.until("it is free", free).await;
    screen.shows("nobody holds it").await;
}

/// A lock is broken after a question, and the next who waits has it.
async fn breaks(url: &str) {
    let first = holder(url, "k").await;
    let arguments = ["run", "k", "--", "sh", "-c", "echo pid $$; sleep 1000"];
    let next = Program::start(dlock(url, &arguments));
    let pid = next.process.id().to_string();
    let screen = Screen::of_tool(url, &FAST, SIZE, &[]);
    let waits = |text: &str| {
        text.lines()
            .any(|line| line.starts_with("1 ") && line.contains(&pid))
    };
    screen.until("the next waits", waits).await;
    screen.types("b");
    let had = first.process.id().to_string();
    let whose = format!("(pid {had})");
    let asks = |text: &str| text.contains("Break it?") && text.contains(&whose);
    screen.until("it is asked", asks).await;
    screen.types("n");
    let whose = format!("pid {had}, for");
    let has_it = |text: &str| text.contains("nothing was broken") && text.contains(&whose);
    screen.until("nothing was broken", has_it).await;
    screen.types("by");
    screen.shows("k: broken; ").await;
    screen.shows(&format!("pid {pid}, for")).await;
    printed(&next, "pid ").await;
}

#[tokio::test]
async fn a_lock_is_broken() {
    breaks(&redis().await.url()).await;
    let dir = TempDir::default();
    breaks(&sqlite(&dir)).await;
}

#[tokio::test]
async fn the_screen_may_change_its_size() {
    let server = redis().await;
    let url = server.url();
    let _held = holder(&url, "k").await;
    let screen = Screen::of_tool(&url, &FAST, SIZE, &[]);
    screen.until("a key", |text| keys(text) == ["k"]).await;
    screen.resize(10, 60);
    screen
        .shows("dlock top needs 70 × 15; this is 60 × 10")
        .await;
    screen.resize(40, 120);
    screen
        .until("more room", |text| {
            keys(text) == ["k"] && text.contains("HOLDER") && text.lines().count() == 40
        })
        .await;
    screen.resize(15, 70);
    screen
        .until("less room", |text| {
            keys(text) == ["k"] && !text.contains("HOLDER")
        })
        .await;
}

#[tokio::test]
async fn colours_are_off_when_nobody_wants_them() {
    let server = redis().await;
    let url = server.url();
    let _held = holder(&url, "k").await;
    for (set, coloured) in [
        (&[][..], true),
        (&[("NO_COLOR", "1")], false),
        (&[("NO_COLOR", "")], true),
    ] {
        let screen = Screen::of_tool(&url, &FAST, SIZE, set);
        screen.until("a key", |text| keys(text) == ["k"]).await;
        let any = screen.read(|screen| {
            let places = (0..SIZE.0).flat_map(|row| (0..SIZE.1).map(move |column| (row, column)));
            let mut cells = places.filter_map(|(row, column)| screen.cell(row, column));
            cells.any(|cell| cell.fgcolor() != vt100::Color::Default)
        });
        assert_eq!(any, coloured, "{set:?}");
        // What is bold stays so, whatever the terminal is told of colours.
        let head = |screen: &vt100::Screen| screen.cell(3, 0).is_some_and(vt100::Cell::bold);
        assert!(screen.read(head), "{set:?}");
    }
}

#[tokio::test]
async fn an_outage_is_told_and_it_goes_on() {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let held = holder(&server.url(), "k").await;
    let url = server.url_through(proxy.port());
    let screen = Screen::of_tool(&url, &FAST, SIZE, &IMPATIENT);
    screen.until("a key", |text| keys(text) == ["k"]).await;
    proxy.stall(true);
    proxy.cut();
    let told = |text: &str| {
        text.contains("store: no answer for ")
            && text.contains(" old: redis at 127.0.0.1:")
            && keys(text) == ["k"]
    };
    screen.until("the outage is told", told).await;
    // Keys are for it meanwhile too.
    screen.types("?");
    screen.shows("choose a key").await;
    screen.types("?");
    screen.until("old data", |text| keys(text) == ["k"]).await;
    proxy.stall(false);
    drop(held);
    let _next = holder(&server.url(), "next").await;
    let goes_on =
        |text: &str| keys(text).contains(&"next".to_owned()) && !text.contains("no answer");
    screen.until("it goes on", goes_on).await;
}

#[tokio::test]
async fn a_signal_ends_it_and_the_terminal_is_as_before() {
    let server = redis().await;
    for (signal, expected) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let mut screen = Screen::of_tool(&server.url(), &FAST, SIZE, &[]);
        screen.shows("nothing is held").await;
        assert!(!screen.is_restored());
        screen.send(signal);
        assert_eq!(screen.ends(), Some(expected));
        screen.until_restored().await;
    }
    let mut screen = Screen::of_tool(&server.url(), &FAST, SIZE, &[]);
    screen.shows("nothing is held").await;
    screen.types("\u{3}");
    assert_eq!(screen.ends(), Some(130));
    screen.until_restored().await;
}

#[tokio::test]
async fn it_stops_and_goes_on() {
    let server = redis().await;
    let shell = ["--norc", "--noprofile", "-i"];
    let screen = Screen::of("bash", &server.url(), &shell, SIZE, &[]);
    screen.shows("prompt> ").await;
    screen.types("$dlock top\n");
    screen.shows("nothing is held").await;
    for round in 0..2 {
        screen.types("\u{1a}");
        let stopped =
            |text: &str| text.matches("Stopped").count() == round + 1 && text.ends_with("prompt>");
        screen
            .until("it is stopped", |text| stopped(text.trim_end()))
            .await;
        let here = format!("here {}", 42 + round);
        screen.types(&format!("echo here $((42 + {round}))\n"));
        screen.shows(&here).await;
        assert!(!screen.read(|screen| screen.alternate_screen()));
        screen.types("fg\n");
        screen.shows("nothing is held").await;
        assert!(screen.read(|screen| screen.alternate_screen()));
    }
    screen.types("q");
    // Until it has ended, the tool may read what is typed.
    let shell =
        |text: &str| !text.contains("nothing is held") && text.trim_end().ends_with("prompt>");
    screen.until("the shell", shell).await;
    screen.types("echo code $?\n");
    screen.shows("code 0").await;
}

/// A service that has counted more each time.
fn exporter() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}/metrics", listener.local_addr().expect("a port"));
    let asked = Arc::new(AtomicU32::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let asked = asked.fetch_add(1, Ordering::SeqCst);
            let text = exported(asked * 10);
            let length = text.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
            );
            let _ = stream.write_all((head + &text).as_bytes());
        }
    });
    url
}

/// As `metrics-exporter-prometheus` writes it.
fn exported(granted: u32) -> String {
    let waited = f64::from(granted) * 0.002;
    let lost = granted / 10;
    let mut text =
        String::from("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 3\n\n");
    for template in ["nightly", "stock:<sku>"] {
        let labels = format!("template=\"{template}\",store=\"redis\"");
        text += &format!(
            "# TYPE dlock_acquisitions_total counter\n\
             dlock_acquisitions_total{{{labels},mode=\"write\",outcome=\"granted\"}} {granted}\n\
             dlock_losses_total{{{labels},reason=\"expired\"}} {lost}\n\
             dlock_held{{{labels}}} 7\ndlock_waiting{{{labels}}} 5\n\
             dlock_wait_seconds_bucket{{{labels},le=\"0.01\"}} {granted}\n\
             dlock_wait_seconds_bucket{{{labels},le=\"+Inf\"}} {granted}\n\
             dlock_wait_seconds_sum{{{labels}}} {waited}\n\
             dlock_wait_seconds_count{{{labels}}} {granted}\n\n"
        );
    }
    text
}

#[tokio::test]
async fn what_services_count_is_shown() {
    let server = redis().await;
    let url = server.url();
    let _held = (holder(&url, "nightly").await, holder(&url, "stock:7").await);
    let metrics = exporter();
    let arguments = [&FAST[..], &["--metrics", &metrics, "http://127.0.0.1:1"]].concat();
    let screen = Screen::of_tool(&url, &arguments, SIZE, &[]);
    let row = |text: &str, name: &str| {
        let mut lines = text.lines();
        let line = lines
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.split_whitespace()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
    };
    // The template of one key tells of that key, without a mark.
    let counted = |text: &str| {
        let (one, other) = (row(text, "nightly "), row(text, "stock:7 "));
        one.len() == 9
            && one[5].parse::<f64>().is_ok_and(|rate| rate > 0.0)
            && one[6] == "2ms"
            && one[8].parse::<u32>().is_ok_and(|lost| lost > 0)
            && other.get(8).is_some_and(|lost| lost == "-")
            && text.contains("2 services: 14 held, 10 waiting")
            && text.contains("1 of 2 services: no numbers from 127.0.0.1:1")
    };
    screen.until("its numbers", counted).await;
    screen.types("/stock:7\r");
    screen.shows("all of stock:<sku>: ").await;
    screen.types("\t");
    let of_template = |text: &str| {
        let row = row(text, "stock:<sku> ");
        text.contains("TEMPLATE")
            && row.len() > 5
            && (&*row[1], &*row[2], &*row[4], &*row[5]) == ("7", "5", "2ms", "≤10ms")
    };
    screen.until("its template", of_template).await;
}

#[tokio::test]
async fn it_is_for_terminals() {
    let server = redis().await;
    let piped = ran(dlock(&server.url(), &["top"])).await;
    assert_eq!(code(&piped), 64);
    assert!(stderr(&piped).contains("ls --watch"), "{}", stderr(&piped));
    for wrong in [
        &["top", "--metrics", "https://h"][..],
        &["top", "--interval", "1ms"],
    ] {
        let run = ran(dlock(&server.url(), wrong)).await;
        assert_eq!(code(&run), 64, "{}", stderr(&run));
    }
    let mut down = Screen::of_tool("redis://127.0.0.1:1", &FAST, SIZE, &[]);
    assert_eq!(down.ends(), Some(69));
}

/// How many commands the server has run so far whose names begin so.
async fn calls(server: &RedisServer, begins: &str) -> u64 {
    let all: String = server.command(&["INFO", "commandstats"]).await;
    let lines = all.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let (calls, _) = rest.split_once(',')?;
        let counts = command.starts_with(begins);
        counts.then(|| calls.parse::<u64>().expect("a number"))
    });
    lines.sum()
}

/// However many locks there are, it asks about so many.
#[tokio::test]
async fn a_look_costs_no_more_than_it_may() {
    let server = redis().await;
    let url = server.url();
    let names: Vec<_> = (0..300).map(|number| format!("k{number:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let command = ["--", "sh", "-c", "echo pid $$; sleep 1000"];
    let hold = [&["run", "--ttl", "10m"], &names[..], &command].concat();
    let held = Program::start(dlock(&url, &hold));
    printed(&held, "pid ").await;

    let scripts = async || calls(&server, "eval").await;
    let before = scripts().await;
    let limited = [&FAST[..], &["--limit", "5"]].concat();
    let mut screen = Screen::of_tool(&url, &limited, SIZE, &[]);
    let first_five =
        |text: &str| text.contains("the first 5 of 300 locks") && keys(text) == names[..5];
    screen.until("five of them", first_five).await;
    let scans = async || calls(&server, "scan").await;
    let first = scans().await;
    until("it looks again", scans, |now| *now >= first + 5).await;
    screen.types("q");
    assert_eq!(screen.ends(), Some(0));
    // A look is a SCAN and a script for each of the five; now and then there is one for the
    // chosen key. To ask about all would be hundreds.
    let (scans, scripts) = (scans().await, scripts().await - before);
    assert!(scripts >= 5 * first, "{scripts} scripts");
    assert!(
        scripts < 20 * scans + 50,
        "{scripts} scripts for {scans} SCAN"
    );
}
