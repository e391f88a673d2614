//! A directory that goes away with its value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::statvfs::statvfs;

/// A new, empty directory, removed with all it holds on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

/// In memory, where there is room for it: a disk that others are busy with may
/// take longer for one write than a test's lease lasts.
impl Default for TempDir {
    fn default() -> Self {
        let memory = Path::new("/dev/shm");
        // A container has 64 MiB there, as a rule. The files of a few databases
        // need more.
        let enough = statvfs(memory)
            .is_ok_and(|memory| memory.blocks_available() * memory.fragment_size() >= 4 << 30);
        if enough {
            Self::within(memory)
        } else {
            Self::within(&std::env::temp_dir())
        }
    }
}

impl TempDir {
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
        // A leftover is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
