//! Tests of what exists once in a process, such as the manager that `dlock::init` installs. Each
//! runs in its own process.

use std::process::Command;

use tokio::runtime::Runtime;

use super::log::Log;
use super::runtimes::current_thread;
use super::wait::HANG;

const ALONE: &str = "DLOCK_TEST_ALONE";

/// Runs `body` in a new process of this test binary, in which only the test
/// called `name` (with its modules) runs, and fails as it fails.
///
/// `environment` is set for that process.
pub fn alone(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|running| running == name) {
        return body();
    }
    let test_binary = std::env::current_exe().expect("the path of this test binary");
    // A test that hangs also fails in the parent, and the child is killed.
    let limit = (2 * HANG).as_secs().to_string();
    let output = Command::new("timeout")
        .args(["--signal=KILL", &limit])
        .arg(test_binary)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env_remove("DLOCK_URL")
        .env(ALONE, name)
        .envs(environment.iter().copied())
        .output()
        .expect("a process for the test");
    let printed = String::from_utf8_lossy(&output.stdout);
    // Its summary is removed, since tools that add up summaries must not count it.
    let shown: Vec<_> = printed
        .lines()
        .filter(|line| !line.contains("test result"))
        .collect();
    let (shown, errors) = (shown.join("\n"), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{name}, alone: {}\n{errors}\n{shown}",
        output.status
    );
    // A misspelt name runs no test at all, which must not pass.
    assert!(
        printed.contains("1 passed"),
        "no test is called {name}:\n{printed}"
    );
}

/// Like [`alone`], for an async test on one thread.
pub fn alone_on_one_thread(name: &str, environment: &[(&str, &str)], test: impl AsyncFnOnce()) {
    alone(name, environment, || current_thread().block_on(test()));
}

/// Like [`alone`], for an async test that reads everything that is logged.
pub fn alone_with_its_log(name: &str, test: impl AsyncFnOnce(Log)) {
    alone(name, &[], || {
        let log = Log::capture();
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(test(log));
    });
}
