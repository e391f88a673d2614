//! How servers are started, tried with one that says what a test wants.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::advance;

use crate::ended::{Ended, attempted};
use crate::support::polls::poll_once;
use crate::support::process::command;
use crate::support::server::{Kind, Server};

/// Of a server that does nothing. Its answers are made up.
#[derive(Debug)]
struct MadeUp<A> {
    port: u16,
    program: &'static str,
    /// What it says when it is asked, in the life of this number.
    answer: A,
    /// Where it ran, in which lives.
    dirs: RefCell<Vec<PathBuf>>,
}

impl<A: AsyncFn(usize) -> Result<(), String>> MadeUp<A> {
    fn new(program: &'static str, answer: A) -> Self {
        Self {
            port: 0,
            program,
            answer,
            dirs: RefCell::default(),
        }
    }
}

impl<A: AsyncFn(usize) -> Result<(), String>> Kind for MadeUp<A> {
    const NAME: &'static str = "a server of ours";
    const PACKAGE: &'static str = "none";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port += 1;
    }

    fn command(&self, dir: &Path) -> Command {
        self.dirs.borrow_mut().push(dir.to_owned());
        let mut shell = command("sh");
        shell.args(["-c", self.program]);
        shell
    }

    async fn answers(&self, _: u32, _: &Path) -> Result<(), String> {
        let lives = self.dirs.borrow().len();
        (self.answer)(lives).await
    }
}

const RUNS: &str = "echo begins; exec sleep 600";

fn silent<T>() -> Result<T, String> {
    Err("nothing".to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_serve_is_started_anew() {
    let from_the_third_on = async |life| if life == 3 { Ok(()) } else { silent() };
    let server = Server::of(MadeUp::new(RUNS, from_the_third_on)).await;
    let dirs = server.dirs.borrow();
    assert_eq!((server.port(), dirs.len()), (3, 3), "other ports each time");
    assert_eq!(server.dir(), dirs[2]);
    assert!(!dirs[0].exists() && !dirs[1].exists(), "an empty folder");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_not_waited_for() {
    let first = std::cell::Cell::new(true);
    let answer = async |_| match first.replace(false) {
        true => std::future::pending().await,
        false => Ok(()),
    };
    let server = Server::of(MadeUp::new(RUNS, answer)).await;
    assert_eq!(server.port(), 1, "it was asked again");
}

#[tokio::test(start_paused = true)]
async fn what_a_machine_stands_still_does_not_count() {
    let looks = std::cell::Cell::new(3);
    let answer = async |_| {
        poll_once(&mut Box::pin(advance(Duration::from_secs(600)))).await;
        looks.set(looks.get() - 1);
        if looks.get() == 0 { Ok(()) } else { silent() }
    };
    let server = Server::of(MadeUp::new(RUNS, answer)).await;
    assert_eq!(server.port(), 1, "its first start");
}

#[test]
fn a_server_that_never_serves_is_no_violation() {
    for (program, answers) in [(RUNS, false), ("exit 7", false)] {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime
            .enable_all()
            .start_paused(true)
            .build()
            .expect("one");
        let never = async |_| if answers { Ok(()) } else { silent() };
        let start = || runtime.block_on(Server::of(MadeUp::new(program, never)));
        let why = attempted(start).map(drop).expect_err("a panic");
        assert_eq!(why, "a server of ours did not start in 3 attempts");
        let ended = Ended::DidNotStart(why);
        let told = ended.failure("redis", 7).expect("a failure");
        assert!(
            told.starts_with("\ndid not start, seed 7: cargo run "),
            "{told}"
        );
        assert_eq!([0, 1].map(|code| ended.code_after(code)), [3, 1]);
        let failed = Ended::Failed("two bodies".to_owned());
        let told = failed.failure("redis", 7).expect("a failure");
        assert!(told.starts_with("\nseed 7: cargo run "), "{told}");
        assert!(
            told.ends_with(" --store redis --seed 7\n  two bodies\n"),
            "{told}"
        );
        assert_eq!([0, 3].map(|code| failed.code_after(code)), [1, 1]);
    }
}
