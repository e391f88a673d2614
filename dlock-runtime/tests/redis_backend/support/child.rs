//! A process of its own: this test binary once more, for one of its tests.

use std::process::{Child, Command, Stdio};

const URL: &str = "DLOCK_TEST_CHILD_URL";

pub(crate) struct Process(Child);

/// Runs a test in another process. It finds the URL in [`url`].
pub(crate) fn spawn(test: &str, url: &str) -> Process {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture"])
        .env(URL, url)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child process");
    Process(child)
}

/// The server to work on, in a process that [`spawn`] has started.
pub(crate) fn url() -> Option<String> {
    std::env::var(URL).ok()
}

impl Process {
    /// `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
