//! Notices that somebody has written to a file of locks, so that who is next in a queue need not
//! wait for its next look.
//!
//! The kernel reports each write to the file's log (inotify(7)). The report is a hint, and does not
//! say which lock has changed. It is missing on some file systems, and may come before others can
//! see the commit. So the looks go on as without it.

#[cfg(not(target_os = "linux"))]
use self::elsewhere::Watch;
#[cfg(target_os = "linux")]
use self::linux::Watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine::time::Time;
use crate::sync::Mutex;

/// In this period so many looks at most are caused by changes: the file may have other tables,
/// which somebody writes to all the time.
const PERIOD: Duration = Duration::from_millis(4);
const LOOKS: u32 = 8;

/// Changes of one file.
pub(super) struct Changes {
    /// The file of the database, where it is one.
    file: Option<PathBuf>,
    watch: Mutex<Option<Arc<Watch>>>,
    /// Whether a waiter of this process is next. Nobody else has cause to look.
    is_next: AtomicBool,
    looks: Mutex<Looks>,
}

/// The looks that were caused by changes in the current period.
#[derive(Default)]
struct Looks {
    period_end: Option<Instant>,
    count: u32,
}

impl Changes {
    pub(super) fn of(file: Option<PathBuf>) -> Self {
        Self {
            file,
            watch: Mutex::default(),
            is_next: AtomicBool::new(false),
            looks: Mutex::default(),
        }
    }

    /// Records whether a waiter of this process is next in its queue.
    pub(super) fn expect(&self, is_next: bool) {
        self.is_next.store(is_next, Ordering::Relaxed);
    }

    /// Waits until the file has changed while a waiter is next. Never ends where changes are not
    /// reported.
    pub(super) async fn next(&self, time: &Time) {
        if !self.is_next.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        if let Some(end) = self.pause(time.now()) {
            // What changes meanwhile stays unread.
            time.sleep_until(Some(end)).await;
        }
        let Some(watch) = self.watch() else {
            return std::future::pending().await;
        };
        if watch.changed().await.is_err() {
            // The file was removed with its last connection. The next one makes another.
            *self.watch.lock() = None;
        }
        self.looks.lock().count += 1;
    }

    fn watch(&self) -> Option<Arc<Watch>> {
        let mut watch = self.watch.lock();
        if watch.is_none() {
            let file = self.file.as_ref()?;
            *watch = log_of(file)
                .and_then(|log| Watch::of(&log))
                .ok()
                .map(Arc::new);
        }
        watch.clone()
    }

    /// Until when to wait if there were too many looks. Begins a period if the last one is over.
    fn pause(&self, now: Instant) -> Option<Instant> {
        let mut looks = self.looks.lock();
        match looks.period_end {
            Some(end) if now < end => (looks.count >= LOOKS).then_some(end),
            _ => {
                *looks = Looks {
                    period_end: Some(now + PERIOD),
                    count: 0,
                };
                None
            }
        }
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
    use std::pin::pin;

    use futures_util::poll;
    use tokio::runtime::Handle;

    use super::*;

    /// Longer than anything here takes.
    const HANG: Duration = Duration::from_secs(60);

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
            file.changes.expect(true);
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

        async fn changes(&self) {
            let changed = self.changes.next(&self.time);
            tokio::time::timeout(HANG, changed)
                .await
                .expect("it was written");
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
        for _ in 0..3 {
            {
                let mut changed = pin!(file.changes.next(&file.time));
                assert!(poll!(&mut changed).is_pending(), "nobody has written");
                file.write();
                tokio::time::timeout(HANG, changed)
                    .await
                    .expect("it was written");
            }
            file.write();
            file.changes().await;
        }
    }

    #[tokio::test]
    async fn who_is_not_next_has_no_cause_to_look() {
        let file = File::new();
        assert!(poll!(pin!(file.changes.next(&file.time))).is_pending());
        file.changes.expect(false);
        file.write();
        assert!(poll!(pin!(file.changes.next(&file.time))).is_pending());
        file.changes.expect(true);
        file.changes().await;
    }

    /// The last connection removes it, and the next one makes another.
    #[tokio::test]
    async fn another_log_is_watched_too() {
        let file = File::new();
        assert!(poll!(pin!(file.changes.next(&file.time))).is_pending());
        fs::remove_file(file.log()).expect("it is there");
        file.changes().await;
        assert!(
            poll!(pin!(file.changes.next(&file.time))).is_pending(),
            "no log"
        );
        file.write();
        assert!(poll!(pin!(file.changes.next(&file.time))).is_pending());
        file.write();
        file.changes().await;
    }

    #[tokio::test]
    async fn who_writes_all_the_time_causes_no_more_looks_than_that() {
        let file = File::new();
        let now = file.time.now();
        assert_eq!(file.changes.pause(now), None);
        for _ in 0..LOOKS {
            assert_eq!(file.changes.pause(now), None);
            file.changes.looks.lock().count += 1;
        }
        let end = now + PERIOD;
        assert_eq!(file.changes.pause(now), Some(end));
        assert_eq!(file.changes.pause(end), None);
    }

    #[tokio::test]
    async fn a_database_without_a_file_does_not_change() {
        let changes = Changes::of(None);
        changes.expect(true);
        let time = Time::of_the_machine(Handle::current());
        assert!(poll!(pin!(changes.next(&time))).is_pending());
    }
}
