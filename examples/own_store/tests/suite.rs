//! The directory runs the same suite as every other store, with contenders in
//! processes of their own that are killed and paused.

use std::path::PathBuf;
use std::time::Duration;

use dlock::Config;
use dlock::store::Deadline;
use dlock_conformance::support::dir::TempDir;
use dlock_conformance::{ShownTokens, Since, Store, async_trait, conformance, contenders};
use own_store::files;

/// A directory of the test's own.
struct OwnStore {
    dir: TempDir,
}

impl OwnStore {
    fn locks(&self) -> PathBuf {
        self.dir.path().join("locks")
    }

    fn at(dir: TempDir) -> Self {
        let store = Self { dir };
        std::fs::create_dir(store.locks()).expect("a new directory");
        store
    }
}

#[async_trait(?Send)]
impl Store for OwnStore {
    async fn start() -> Self {
        Self::at(TempDir::default())
    }

    async fn start_durable() -> Self {
        Self::at(TempDir::default())
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn url(&self) -> String {
        self.locks().display().to_string()
    }

    fn config_at(url: &str) -> Config {
        Config::with_backend(own_store::directory(url))
    }

    fn shows_since(&self) -> Since {
        Since::OfNobody
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfNone
    }

    fn lets_waiters_out(&self) -> bool {
        false
    }

    fn lifts_tokens(&self) -> bool {
        false
    }

    /// It has neither permits nor `once`, no network that could fail, nobody who counts what it is
    /// asked, and no server to restart.
    fn leaves_out() -> &'static [&'static str] {
        &["permits", "once", "late_commands", "cost", "restart"]
    }

    /// Paused in the middle of a change, it keeps the file to itself.
    async fn is_stuck(&self) -> bool {
        let deadline = Deadline::after(Duration::from_millis(300));
        files::change(&self.locks(), "counter", deadline, |_, _| ()).is_err()
    }

    fn config(&self) -> Config {
        let directory = own_store::directory(self.locks());
        Config::with_backend(directory.request_timeout(self.request_timeout()))
    }

    async fn take_away(&self, key: &str) {
        let deadline = Deadline::after(Duration::from_secs(10));
        let holder = files::change(&self.locks(), key, deadline, |lock, _| lock.holder.take());
        assert!(holder.expect("the file").is_some(), "nobody held `{key}`");
    }

    /// The directory is elsewhere for a while.
    async fn set_outage(&self, outage: bool) {
        let away = self.dir.path().join("away");
        let (from, to) = match outage {
            true => (self.locks(), away),
            false => (away, self.locks()),
        };
        if from.exists() {
            std::fs::rename(from, to).expect("the test's own directory");
        }
    }
}

conformance!(crate::OwnStore);
contenders!(crate::OwnStore);
