//! One lock, one file, changed by one process at a time.
//!
//! Beside the file of a lock is one that is never replaced, `….lock`: who changes
//! the lock holds it by `flock`, which the kernel takes back from a process that
//! dies. What is written goes to a new file, to the disk, and then under the old
//! name: a crash at any moment leaves the old state or the new one. A file stays
//! when its lock is free, for the next token.
//!
//! The first line of a file names the machine and its start. Another machine has another clock,
//! so it refuses the file; after a restart, nobody holds the lock any more.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock::store::Deadline;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::clock;
use crate::lock::Lock;

/// A file's name has at most 255 bytes, and a byte of a key takes up to three.
pub(crate) const MAX_KEY_BYTES: usize = 80;

const GUARD: &str = ".lock";
const NEW: &str = ".new";
const CHECK: &str = ".check";

/// A change takes about as long as the disk.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);

/// Why a file could not be read or changed.
#[derive(Debug)]
pub struct Error {
    /// Which file.
    pub path: PathBuf,
    /// What the file system says; `InvalidData` for a file that is no lock.
    pub cause: io::Error,
    /// The change had been made before: it may last, or be gone after a crash of the machine.
    pub was_made: bool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path.display(), self.cause)
    }
}

/// Names the file of an error before anything was changed.
fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error {
        path: path.to_owned(),
        cause,
        was_made: false,
    }
}

/// Changes a lock. Waits for its turn until the deadline: then `TimedOut`.
///
/// # Errors
///
/// The file could not be read or changed.
pub fn change<T>(
    directory: &Path,
    key: &str,
    deadline: Deadline,
    with: impl FnOnce(&mut Lock, u64) -> T,
) -> Result<T, Error> {
    let path = directory.join(file_name(key));
    let _guard = guard(&path, deadline)?;
    let before = read(&path)?;
    let mut lock = before.clone();
    let now = clock::now();
    lock.forget_the_past(now);
    let answer = with(&mut lock, now);
    if lock != before {
        write(&path, &lock)?;
        let synced = sync(directory);
        #[cfg(test)]
        let synced = synced.and_then(|()| fault::after_rename(&path));
        synced.map_err(|error| Error {
            was_made: true,
            ..at(directory)(error)
        })?;
    }
    Ok(answer)
}

/// Looks at a lock, as it is or was just now.
///
/// # Errors
///
/// As of [`change`].
pub(crate) fn look(directory: &Path, key: &str) -> Result<(Lock, u64), Error> {
    let mut lock = read(&directory.join(file_name(key)))?;
    let now = clock::now();
    lock.forget_the_past(now);
    Ok((lock, now))
}

/// Whether locks can be kept in the directory: makes a file there and removes it.
pub(crate) fn check(directory: &Path) -> Result<(), Error> {
    let path = directory.join(CHECK);
    File::create(&path).map_err(at(&path))?;
    match fs::remove_file(&path) {
        // Another process checks the directory just now.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(at(&path)),
    }
}

/// The keys of all files.
pub(crate) fn keys(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(directory).map_err(at(directory))?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    let names = names
        .collect::<io::Result<Vec<_>>>()
        .map_err(at(directory))?;
    Ok(names
        .iter()
        .filter_map(|name| key_of(name.to_str()?))
        .collect())
}

/// Keeps others from a lock until it is dropped.
fn guard(path: &Path, deadline: Deadline) -> Result<File, Error> {
    let path = with_ending(path, GUARD);
    let guard = File::options().create(true).append(true).open(&path);
    let guard = guard.map_err(at(&path))?;
    loop {
        match flock(&guard, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(guard),
            Err(Errno::WOULDBLOCK) if deadline.has_passed() => {
                return Err(at(&path)(ErrorKind::TimedOut.into()));
            }
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_ATTEMPTS),
            Err(Errno::INTR) => {}
            Err(error) => return Err(at(&path)(error.into())),
        }
    }
}

fn read(path: &Path) -> Result<Lock, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Nobody has had this lock yet; or the whole directory has gone.
            if let Some(directory) = path.parent() {
                fs::metadata(directory).map_err(at(directory))?;
            }
            return Ok(Lock::default());
        }
        Err(error) => return Err(at(path)(error)),
    };
    let refused = |why| at(path)(io::Error::new(ErrorKind::InvalidData, why));
    let lock = text.split_once('\n').and_then(|(start, lock)| {
        let (machine, boot) = start.split_once(' ')?;
        Some((machine, boot, lock.parse().ok()?))
    });
    let (machine, boot, lock): (_, _, Lock) = lock
        .ok_or_else(|| refused("it is no lock; give locks a directory of their own".to_owned()))?;
    if machine != clock::machine().map_err(at(path))? {
        return Err(refused(format!(
            "it was written by another machine ({machine}), which has another clock; a directory \
             of locks is for one machine. If this is the same one with a new name, remove the file \
             while nobody uses the lock: its tokens then start again"
        )));
    }
    if boot == clock::boot().map_err(at(path))? {
        return Ok(lock);
    }
    Ok(Lock {
        token: lock.token,
        ..Lock::default()
    })
}

/// Under the file's name is the old state until the last step, and then the new one.
fn write(path: &Path, lock: &Lock) -> Result<(), Error> {
    let new = with_ending(path, NEW);
    let written = || {
        let (machine, boot) = (clock::machine()?, clock::boot()?);
        let mut file = File::create(&new)?;
        write!(file, "{machine} {boot}\n{lock}")?;
        file.sync_all()
    };
    written().map_err(at(&new))?;
    fs::rename(new, path).map_err(at(path))
}

/// After this, a crash of the machine does not undo what was written.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Letters, digits, `-` and `_` stand for themselves; no ending can be taken for a
/// part of a key.
fn file_name(key: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    key.bytes().map(encode).collect()
}

fn key_of(name: &str) -> Option<String> {
    let mut pieces = name.split('%');
    let mut key = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (byte, rest) = piece.split_at_checked(2)?;
        key.push(u8::from_str_radix(byte, 16).ok()?);
        key.extend_from_slice(rest.as_bytes());
    }
    let key = String::from_utf8(key).ok()?;
    (file_name(&key) == name).then_some(key)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Errors that a test wants.
#[cfg(test)]
pub(crate) mod fault {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    static AFTER_RENAME: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    /// The next change of this file fails when it has been made.
    pub(crate) fn is_next_after_rename(file: PathBuf) {
        AFTER_RENAME.lock().unwrap().push(file);
    }

    pub(super) fn after_rename(file: &Path) -> io::Result<()> {
        let mut failing = AFTER_RENAME.lock().unwrap();
        match failing.iter().position(|failing| failing == file) {
            Some(index) => {
                failing.swap_remove(index);
                Err(io::Error::other("as the test wants it"))
            }
            None => Ok(()),
        }
    }
}
