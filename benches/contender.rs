//! One of several processes that make sections when they are told to, as `program.rs`
//! says.
//!
//!     contender --lock <contestant> --server <URL>

use std::io::{BufWriter, Write};
use std::time::Duration;

use dlock_benches::{Bare, Dlock, Locker, Rslock};
use nix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

struct Section {
    asked: u64,
    begun: u64,
    ended: u64,
}

#[tokio::main]
async fn main() {
    let (lock, server) = (argument("--lock"), argument("--server"));
    match lock.as_str() {
        Dlock::NAME => serve::<Dlock>(&server).await,
        Bare::NAME => serve::<Bare>(&server).await,
        Rslock::NAME => serve::<Rslock>(&server).await,
        other => panic!("there is no contestant {other:?}"),
    }
}

fn argument(name: &str) -> String {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let value = arguments.nth(1);
    value.unwrap_or_else(|| panic!("{name} is missing"))
}

async fn serve<L: Locker>(server: &str) {
    let locker = L::connect(server).await;
    // Connects whoever does that only when first used.
    locker.section("warm-up", async {}).await;
    // That of dlock is that of the whole workspace.
    println!("ready {}", env!("CARGO_PKG_VERSION"));
    for order in std::io::stdin().lines() {
        let order = order.expect("a line");
        let mut words = order.split(' ');
        let (what, name) = (words.next(), words.next().expect("a key"));
        let mut number = || -> u64 {
            let word = words.next().expect("another number");
            word.parse().expect("a number")
        };
        let tasks = number();
        match what {
            Some("rate") => {
                let (keys, length) = (number(), Duration::from_micros(number()));
                let end = now() + length.as_nanos() as u64;
                let key = |task| format!("{name}:{}", task % keys);
                let mut sections = run(&locker, tasks, key, Duration::ZERO, end).await;
                sections.retain(|section| section.ended <= end);
                println!("{}", sections.len() as f64 / length.as_secs_f64());
            }
            Some("contend") => {
                let (body, start, end) = (Duration::from_micros(number()), number(), number());
                tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
                let sections = run(&locker, tasks, |_| name.to_owned(), body, end).await;
                show(&sections);
            }
            other => panic!("not understood: {other:?}"),
        }
    }
}

/// Lets each task run one section after the other. One that waits at the end has one
/// more.
async fn run<L: Locker>(
    locker: &L,
    tasks: u64,
    key: impl Fn(u64) -> String,
    body: Duration,
    end: u64,
) -> Vec<Section> {
    let running: JoinSet<_> = (0..tasks)
        .map(|task| {
            let (locker, key) = (locker.clone(), key(task));
            async move {
                let mut sections = Vec::new();
                let mut asked = now();
                while asked < end {
                    let inside = async {
                        let begun = now();
                        if !body.is_zero() {
                            sleep(body).await;
                        }
                        (begun, now())
                    };
                    let (begun, ended) = locker.section(&key, inside).await;
                    sections.push(Section {
                        asked,
                        begun,
                        ended,
                    });
                    asked = now();
                }
                sections
            }
        })
        .collect();
    running.join_all().await.into_iter().flatten().collect()
}

/// Sleeps as closely as Go does. Tokio's own timer counts whole milliseconds, and
/// 2 ms are 3.
async fn sleep(length: Duration) {
    let asleep = tokio::task::spawn_blocking(move || std::thread::sleep(length));
    asleep.await.expect("a thread that wakes up");
}

fn show(sections: &[Section]) {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for section in sections {
        let Section {
            asked,
            begun,
            ended,
        } = section;
        writeln!(out, "{asked} {begun} {ended}").expect("a reader");
    }
    writeln!(out, "end").expect("a reader");
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock");
    u64::try_from(Duration::from(now).as_nanos()).expect("centuries from now")
}
