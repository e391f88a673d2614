//! A directory that is removed with its value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::statvfs::statvfs;

/// A new, empty directory, which is removed with its contents on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

/// In memory, if there is enough room: on a busy disk, one write may take longer than a test's
/// lease lasts.
impl Default for TempDir {
    fn default() -> Self {
        let memory = Path::new("/dev/shm");
        // A container usually has 64 MiB there. The files of a few databases need more.
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

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A directory that cannot be removed must not fail the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
