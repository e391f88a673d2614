//! Contenders in separate processes: the test binary runs itself again, with only the test that
//! plays the role named in its environment.

use std::process::Stdio;

use super::process::{Process, command};

const ROLE: &str = "DLOCK_TEST_ROLE";
const SETTING: &str = "DLOCK_TEST_SETTING_";

/// The test of each binary that plays the roles. In a normal run it does nothing.
const STAGE: &str = "plays_a_role";

/// Starts a process that plays `role` with these settings.
pub fn start(role: &str, settings: &[(&str, &str)]) -> Process {
    let settings = settings.iter();
    let mut command = command(std::env::current_exe().expect("the path of this test binary"));
    command
        .args([STAGE, "--exact", "--nocapture", "--quiet"])
        .env(ROLE, role)
        .envs(settings.map(|(name, value)| (format!("{SETTING}{name}"), value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Process::spawn(command).expect("a process for the worker")
}

/// The role that this process plays, if it is a worker.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A setting that the test gave to this worker.
pub fn setting(name: &str) -> String {
    known(name).unwrap_or_else(|| panic!("the worker needs the setting {name}"))
}

/// A setting that the test may have given to this worker.
pub fn known(name: &str) -> Option<String> {
    std::env::var(format!("{SETTING}{name}")).ok()
}
