//! Notices that somebody has written to a file of locks, so that whoever is next in a queue looks
//! at once.
//!
//! The kernel reports each write to the file's log (inotify(7)). The report is a hint, and does not
//! say which lock has changed. It is missing on some file systems, and may come before others can
//! see the commit. So the regular looks go on as without it.

#[cfg(not(target_os = "linux"))]
use self::elsewhere::Watch;
#[cfg(target_os = "linux")]
use self::linux::Watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::time::Time;
use crate::sync::Mutex;

/// So long after a look that a report has caused there is another: the report is sent when the
/// log is written to, and others see the commit a moment later.
const SEEN_AFTER: Duration = Duration::from_millis(1);

/// After these two looks, reports cause none for so many times as long as a look takes: others may
/// write to the file all the time.
const REST: u32 = 4;

/// They also cause none for this part of the time for which the waiter has been next.
const PART_OF_NEXT: u32 = 64;

/// How long until it is tried again to watch a file that could not be watched.
const UNWATCHED: Duration = Duration::from_secs(1);

/// Changes of one file.
pub(super) struct Changes {
    /// The file of the database, where it is one.
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watch: Option<Arc<Watch>>,
    /// No new watch is tried before.
    unwatched_until: Option<Instant>,
    /// Since when a waiter of this process is next. Nobody else has cause to look.
    next_since: Option<Instant>,
    phase: Phase,
}

/// What a change leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    /// A look.
    #[default]
    Ready,
    /// Nothing, since there is a look for the change before.
    Looks,
    /// Nothing, since there will be another look then.
    LooksAgain(Instant),
    /// Nothing, since there is this other look, which began then.
    Confirms(Instant),
    /// Nothing until `end`, which is `least` for a waiter that is next only since then.
    Rests { least: Instant, end: Instant },
}

impl Changes {
    pub(super) fn of(file: Option<PathBuf>) -> Self {
        Self {
            file,
            state: Mutex::default(),
        }
    }

    /// Records since when a waiter of this process is next in its queue.
    pub(super) fn expect(&self, next_since: Option<Instant>) {
        let mut state = self.state.lock();
        if let Phase::Rests { least, .. } = state.phase
            && next_since > state.next_since
        {
            // How long it was to rest depended on the waiter that was next before.
            state.phase = Phase::Rests { least, end: least };
        }
        state.next_since = next_since;
    }

    /// Waits until there is cause to look: the file has changed while a waiter is next. Called again
    /// when the look has ended. Never ends where changes are not reported.
    pub(super) async fn next(&self, time: &Time) {
        let begun = self.begin(time.now());
        match begun {
            None => return std::future::pending().await,
            Some(Phase::LooksAgain(at)) => {
                time.sleep_until(Some(at)).await;
                self.state.lock().phase = Phase::Confirms(time.now());
                return;
            }
            // What changes meanwhile stays unread.
            Some(Phase::Rests { end, .. }) => time.sleep_until(Some(end)).await,
            Some(_) => {}
        }
        let Some(watch) = self.watch(time.now()) else {
            return std::future::pending().await;
        };
        let changed = watch.changed().await;
        let mut state = self.state.lock();
        if changed.is_err() {
            // Usually the last connection has removed the log, and the next one makes another.
            state.watch = None;
        }
        state.phase = Phase::Looks;
    }

    /// The look that was caused before has ended. `None`: nobody is next.
    fn begin(&self, now: Instant) -> Option<Phase> {
        let mut state = self.state.lock();
        let since = state.next_since?;
        let took = |began| now.saturating_duration_since(began);
        state.phase = match state.phase {
            Phase::Looks => Phase::LooksAgain(now + SEEN_AFTER),
            Phase::Confirms(began) => {
                let least = now + took(began) * REST;
                let end = least.max(now + took(since) / PART_OF_NEXT);
                Phase::Rests { least, end }
            }
            Phase::Rests { end, .. } if end <= now => Phase::Ready,
            phase => phase,
        };
        Some(state.phase)
    }

    fn watch(&self, now: Instant) -> Option<Arc<Watch>> {
        let mut state = self.state.lock();
        if state.watch.is_none() {
            if state.unwatched_until.is_some_and(|end| now < end) {
                return None;
            }
            let file = self.file.as_ref()?;
            let watch = log_of(file).and_then(|log| Watch::of(&log));
            state.watch = watch.ok().map(Arc::new);
            state.unwatched_until = state.watch.is_none().then(|| now + UNWATCHED);
        }
        state.watch.clone()
    }
}

/// The file to which each commit is appended (<https://www.sqlite.org/wal.html>). It lies beside
/// the file itself, whatever links lead there.
fn log_of(file: &Path) -> io::Result<PathBuf> {
    let mut log = file.canonicalize()?.into_os_string();
    log.push("-wal");
    Ok(log.into())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::future::poll_fn;
    use std::io;
    use std::path::Path;
    use std::task::{Context, Poll};

    use futures_util::StreamExt as _;
    use inotify::{EventMask, EventStream, Inotify, WatchMask};

    use crate::sync::Mutex;

    /// Has room for the reports on one file, which have no name in them.
    const ROOM: usize = 256;

    pub(super) struct Watch(Mutex<EventStream<[u8; ROOM]>>);

    impl Watch {
        pub(super) fn of(log: &Path) -> io::Result<Self> {
            let reports = Inotify::init()?;
            reports.watches().add(log, WatchMask::MODIFY)?;
            let reports = reports.into_event_stream([0; ROOM])?;
            Ok(Self(Mutex::new(reports)))
        }

        /// Waits until something was written. An error: the file is gone.
        pub(super) async fn changed(&self) -> io::Result<()> {
            poll_fn(|context| self.poll_changed(context)).await
        }

        /// Reads all reports that there are.
        fn poll_changed(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut reports = self.0.lock();
            let mut any = false;
            while let Poll::Ready(report) = reports.poll_next_unpin(context) {
                let report = report.transpose()?;
                if report.is_none_or(|report| report.mask.contains(EventMask::IGNORED)) {
                    return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
                }
                any = true;
            }
            match any {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;
    use std::path::Path;

    /// Nothing is reported.
    pub(super) enum Watch {}

    impl Watch {
        pub(super) fn of(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) async fn changed(&self) -> io::Result<()> {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

    use tokio::runtime::Handle;
    use tokio::time::timeout;

    use super::*;

    /// Longer than anything here takes.
    const HANG: Duration = Duration::from_secs(60);

    const A_WHILE: Duration = Duration::from_millis(100);

    struct File {
        folder: PathBuf,
        changes: Changes,
        time: Time,
    }

    impl File {
        fn new() -> Self {
            let name = format!("dlock-changes-{}", crate::backend::Owner::unique());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(folder.join("links")).expect("room for it");
            let link = folder.join("links").join("locks.db");
            let file = Self {
                changes: Changes::of(Some(link.clone())),
                time: Time::of_the_machine(Handle::current()),
                folder,
            };
            fs::write(file.folder.join("locks.db"), "").expect("a file");
            std::os::unix::fs::symlink("../locks.db", link).expect("a link");
            file.write();
            file.expect(true);
            file
        }

        fn log(&self) -> PathBuf {
            self.folder.join("locks.db-wal")
        }

        /// Makes the log if it is not there.
        fn write(&self) {
            use std::io::Write as _;
            let log = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.log());
            log.expect("a log")
                .write_all(b"commit")
                .expect("room for it");
        }

        fn expect(&self, is_next: bool) {
            self.changes.expect(is_next.then(|| self.time.now()));
        }

        /// Has it rest for so long at least, and at most.
        fn rests(&self, least: Duration, most: Duration) {
            let now = self.time.now();
            self.changes.state.lock().phase = Phase::Rests {
                least: now + least,
                end: now + most,
            };
        }

        /// Waits for a change.
        async fn changes(&self) {
            let changed = self.changes.next(&self.time);
            timeout(HANG, changed).await.expect("it was written");
        }

        /// Waits for the look that follows one for a change.
        async fn confirms(&self) {
            let before = self.changes.state.lock().phase;
            assert_eq!(before, Phase::Looks);
            self.changes().await;
            let after = self.changes.state.lock().phase;
            assert!(matches!(after, Phase::Confirms(_)), "{after:?}");
        }

        /// Whether a change is reported in a while in which the kernel surely reports one.
        async fn is_quiet(&self) -> bool {
            let changed = self.changes.next(&self.time);
            timeout(A_WHILE, changed).await.is_err()
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[tokio::test]
    async fn each_write_is_noticed_also_between_two_waits() {
        let file = File::new();
        assert!(
            file.is_quiet().await,
            "nobody has written since it is watched"
        );
        for _ in 0..3 {
            file.write();
            file.changes().await;
            file.write();
            file.confirms().await;
            file.changes().await;
            file.confirms().await;
            assert!(file.is_quiet().await, "all was noticed");
        }
    }

    #[tokio::test]
    async fn who_is_not_next_has_no_cause_to_look() {
        let file = File::new();
        assert!(file.is_quiet().await);
        file.expect(false);
        file.write();
        assert!(file.is_quiet().await, "nobody is next");
        file.expect(true);
        file.changes().await;
    }

    /// The last connection removes it, and the next one makes another.
    #[tokio::test]
    async fn another_log_is_watched_too() {
        let file = File::new();
        assert!(file.is_quiet().await);
        fs::remove_file(file.log()).expect("it is there");
        file.changes().await;
        file.confirms().await;
        assert!(file.is_quiet().await, "there is no log");
        file.write();
        tokio::time::sleep(UNWATCHED).await;
        assert!(
            file.is_quiet().await,
            "nobody has written since it is watched"
        );
        file.write();
        file.changes().await;
    }

    /// Two looks for a change, and a rest.
    #[tokio::test]
    async fn who_writes_all_the_time_does_not_cause_looks_all_the_time() {
        let file = File::new();
        assert!(file.is_quiet().await);
        let ago = |time| {
            file.time
                .now()
                .checked_sub(time)
                .expect("the clock goes as far back")
        };
        // So it rests for a minute, and then for four. (It would see the write after a rest that
        // is shorter than a standstill of this machine.)
        file.changes.expect(Some(ago(PART_OF_NEXT * HANG)));
        file.write();
        file.changes().await;
        file.confirms().await;
        file.write();
        assert!(file.is_quiet().await, "it rests");
        file.expect(true);
        file.changes.state.lock().phase = Phase::Confirms(ago(HANG));
        assert!(file.is_quiet().await, "the look took long");
        file.rests(Duration::ZERO, Duration::ZERO);
        file.changes().await;
    }

    /// The one before was next for so long that reports were to cause no look for minutes.
    #[tokio::test]
    async fn who_is_next_does_not_rest_for_the_one_before() {
        let file = File::new();
        assert!(file.is_quiet().await);
        let since = file.changes.state.lock().next_since;
        file.rests(Duration::ZERO, 10 * HANG);
        file.changes.expect(since);
        file.write();
        assert!(file.is_quiet().await, "it is the same waiter");
        file.expect(true);
        file.changes().await;
        // But the looks themselves must not take up all the time.
        file.rests(10 * HANG, 20 * HANG);
        file.expect(true);
        file.write();
        assert!(file.is_quiet().await, "the look took long");
    }

    #[tokio::test]
    async fn a_database_without_a_file_does_not_change() {
        let changes = Changes::of(None);
        let time = Time::of_the_machine(Handle::current());
        changes.expect(Some(time.now()));
        assert!(timeout(A_WHILE, changes.next(&time)).await.is_err());
    }
}
