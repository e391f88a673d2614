//! A directory that goes away with its value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty directory, removed with all it holds on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

/// In the system's place for such.
impl Default for TempDir {
    fn default() -> Self {
        Self::within(&std::env::temp_dir())
    }
}

impl TempDir {
    /// In memory, where the system has a place for that: a disk that others are
    /// busy with may take longer for one write than a test's lease lasts.
    #[allow(dead_code, reason = "not every test has a file that is written to")]
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            Self::within(memory)
        } else {
            Self::default()
        }
    }

    fn within(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "dlock-test-{}-{number}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let path = parent.join(name);
        std::fs::create_dir(&path)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A leftover in the system's temporary directory is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
