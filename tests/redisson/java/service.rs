//! A service in Java.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use crate::support::process::command;
use crate::support::program::Program;
use crate::support::wait::eventually;

/// The last before 3.22, which brought channels that belong to slots, and a new one.
pub(crate) const VERSIONS: [&str; 2] = ["3.21.3", "4.7.0"];

/// How long a lock of Java's lasts whose service has died. Redisson renews every third of
/// it.
pub(crate) const WATCH_DOG: Duration = Duration::from_secs(3);

/// How long a place in the queue of a fair lock lasts, on all sides. Longer than a service
/// is paused: in 3.21.3, who loses its place hears nothing, and waits for ever.
pub(crate) const FAIR_WAIT: Duration = Duration::from_secs(12);

/// Our programs in Java.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redisson/java");

pub(crate) struct Service {
    pub(crate) program: Program,
    orders: ChildStdin,
    heard: usize,
}

impl Service {
    /// Connects to the servers on these ports, which are what `kind` says.
    pub(crate) async fn start(version: &str, kind: &str, ports: &[u16]) -> Self {
        Self::start_with_names(version, kind, ports, "").await
    }

    /// The same, with a `NameMapper` that puts this in front of each name.
    pub(crate) async fn start_with_names(
        version: &str,
        kind: &str,
        ports: &[u16],
        prefix: &str,
    ) -> Self {
        let addresses = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
        let mut java = command("java");
        java.args(["-XX:TieredStopAtLevel=1", "-cp", &class_path(version)])
            .args(["Contender", kind])
            .args([WATCH_DOG, FAIR_WAIT].map(|time| time.as_millis().to_string()))
            .arg(prefix)
            .args(addresses);
        let mut program = Program::start_with(java, Stdio::piped());
        let mut service = Self {
            orders: program.process.input().expect("a pipe"),
            program,
            heard: 0,
        };
        assert_eq!(service.answer().await, "connected");
        service
    }

    /// Says what it is to do, and waits for its first answer.
    pub(crate) async fn told(&mut self, order: &str) -> String {
        self.order(order);
        self.answer().await
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("a service that listens");
    }

    pub(crate) async fn answer(&mut self) -> String {
        let next = async || {
            let printed = self.program.printed();
            if let Some(line) = printed.lines().nth(self.heard) {
                return Some(line.to_owned());
            }
            let errors = self.program.errors();
            assert!(!self.program.is_silent(), "Java has ended: {errors}");
            None
        };
        let answer = eventually("Redisson answers", next).await;
        self.heard += 1;
        answer
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.program.printed().lines().count() > self.heard
    }
}

/// What the classes of this version say to a server, see `Scripts.java`.
pub(crate) fn scripts(version: &str) -> String {
    let jar = jars(version).join(format!("redisson-{version}.jar"));
    let mut java = Command::new("java");
    java.args(["-cp", &class_path(version), "Scripts"]).arg(jar);
    done(java)
}

/// Our programs, and the jars.
fn class_path(version: &str) -> String {
    static COMPILED: [LazyLock<String>; 2] = [
        LazyLock::new(|| compile(VERSIONS[0])),
        LazyLock::new(|| compile(VERSIONS[1])),
    ];
    let index = VERSIONS.iter().position(|&known| known == version);
    COMPILED[index.expect("one of the versions")].clone()
}

/// Once for all services, as it takes longer than to start one.
fn compile(version: &str) -> String {
    let jars = jars(version).join("*");
    let classes = format!("{}/redisson-{version}", env!("CARGO_TARGET_TMPDIR"));
    let mut compiler = Command::new("javac");
    compiler.args(["-nowarn", "-d", &classes, "-cp"]).arg(&jars);
    compiler.args(["Contender", "Scripts"].map(|name| format!("{PROGRAMS}/{name}.java")));
    done(compiler);
    format!("{classes}:{}", jars.display())
}

/// What a program prints that ends well.
fn done(mut program: Command) -> String {
    let ran = program.output();
    let ran = ran.expect("Java with its compiler (apt-get install default-jdk-headless)");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program:?}: {said}");
    String::from_utf8(ran.stdout).expect("text")
}

/// Where `./tests/run.sh --all` puts the jars: beside what was built.
fn jars(version: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the path of this test binary");
    let target = program.ancestors().nth(3).expect("target/debug/deps/…");
    let jars = target.join("redisson").join(version);
    let redisson = jars.join(format!("redisson-{version}.jar"));
    assert!(
        redisson.is_file(),
        "{} is missing: ./tests/redisson/java/install.sh gets Redisson and what it needs from \
         Maven Central, and ./tests/run.sh --all does so too (apt-get install maven \
         default-jdk-headless)",
        redisson.display()
    );
    jars
}
