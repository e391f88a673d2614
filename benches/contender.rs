//! One of several processes that want the same lock.
//!
//!     contender <contestant> <tasks> <body in µs>
//!
//! The server's URL is in `DLOCK_URL`. It connects, prints `ready`, and reads a
//! line with two moments, start and end, in nanoseconds of the machine's
//! monotonic clock, which all processes share. Between them each task runs one
//! section after the other. In the end it prints a line for each section: when
//! the lock was asked for, when the body began, and when it ended.

use std::io::{BufWriter, Write};
use std::time::Duration;

use dlock_benches::{Bare, Dlock, Locker, Rslock};
use nix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

const KEY: &str = "contended";

struct Work {
    tasks: usize,
    body: Duration,
}

struct Section {
    asked: u64,
    begun: u64,
    ended: u64,
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("three arguments");
    let (contestant, tasks, body) = (next(), next(), next());
    let work = Work {
        tasks: tasks.parse().expect("a number of tasks"),
        body: Duration::from_micros(body.parse().expect("a number of microseconds")),
    };
    match contestant.as_str() {
        Dlock::NAME => contend::<Dlock>(work).await,
        Bare::NAME => contend::<Bare>(work).await,
        Rslock::NAME => contend::<Rslock>(work).await,
        other => panic!("there is no contestant {other:?}"),
    }
}

async fn contend<L: Locker>(work: Work) {
    let url = std::env::var("DLOCK_URL").expect("the server in DLOCK_URL");
    let locker = L::connect(&url).await;
    // Connects whoever does that only when first used.
    locker.section("warm-up", async {}).await;
    println!("ready");

    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let mut moments = line.split_whitespace().map(|moment| moment.parse::<u64>());
    let mut moment = || moments.next().expect("two moments").expect("a number");
    let (start, end) = (moment(), moment());
    tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;

    let mut tasks = JoinSet::new();
    for _ in 0..work.tasks {
        let locker = locker.clone();
        tasks.spawn(async move {
            let mut sections = Vec::new();
            let mut asked = now();
            while asked < end {
                let body = async {
                    let begun = now();
                    if !work.body.is_zero() {
                        tokio::time::sleep(work.body).await;
                    }
                    (begun, now())
                };
                let (begun, ended) = locker.section(KEY, body).await;
                sections.push(Section {
                    asked,
                    begun,
                    ended,
                });
                asked = now();
            }
            sections
        });
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    for section in tasks.join_all().await.into_iter().flatten() {
        let Section {
            asked,
            begun,
            ended,
        } = section;
        writeln!(out, "{asked} {begun} {ended}").expect("a reader");
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock");
    u64::try_from(Duration::from(now).as_nanos()).expect("centuries from now")
}
