//! One lock, one file, changed by one process at a time.
//!
//! Beside the file of a lock is one that is never replaced, `….lock`: who changes
//! the lock holds it by `flock`, which the kernel takes back from a process that
//! dies. What is written goes to a new file, to the disk, and then under the old
//! name: a crash at any moment leaves the old state or the new one. A file stays
//! when its lock is free, for the next token.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock::store::Deadline;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::clock;
use crate::lock::{Lock, NotALock};

/// A file's name has at most 255 bytes, and a byte of a key takes up to three.
pub(crate) const MAX_KEY_BYTES: usize = 80;

const GUARD: &str = ".lock";
const NEW: &str = ".new";

/// A change takes about as long as the disk.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);

/// Changes a lock. Waits for its turn until the deadline: then `TimedOut`.
///
/// # Errors
///
/// What the file system says; `InvalidData` for a file that is no lock.
pub fn change<T>(
    directory: &Path,
    key: &str,
    deadline: Deadline,
    with: impl FnOnce(&mut Lock, u64) -> T,
) -> io::Result<T> {
    let path = directory.join(file_name(key));
    let _guard = guard(&path, deadline)?;
    let before = read(&path)?;
    let mut lock = before.clone();
    let now = clock::now();
    lock.forget_the_past(now);
    let answer = with(&mut lock, now);
    if lock != before {
        write(&path, directory, &lock)?;
    }
    Ok(answer)
}

/// Looks at a lock, as it is or was just now.
///
/// # Errors
///
/// As of [`change`].
pub(crate) fn look(directory: &Path, key: &str) -> io::Result<(Lock, u64)> {
    let mut lock = read(&directory.join(file_name(key)))?;
    let now = clock::now();
    lock.forget_the_past(now);
    Ok((lock, now))
}

/// The keys of all files.
pub(crate) fn keys(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names
        .iter()
        .filter_map(|name| key_of(name.to_str()?))
        .collect())
}

/// Keeps others from a lock until it is dropped.
fn guard(path: &Path, deadline: Deadline) -> io::Result<File> {
    let guard = File::options()
        .create(true)
        .append(true)
        .open(with_ending(path, GUARD))?;
    loop {
        match flock(&guard, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(guard),
            Err(Errno::WOULDBLOCK) if deadline.has_passed() => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_ATTEMPTS),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(path: &Path) -> io::Result<Lock> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Nobody has had this lock yet; or the whole directory has gone.
            path.parent()
                .map_or(Ok(()), |directory| fs::metadata(directory).map(drop))?;
            return Ok(Lock::default());
        }
        Err(error) => return Err(error),
    };
    let lock = text.split_once('\n').and_then(|(boot, lock)| {
        let lock = lock.parse().ok()?;
        Some((boot, lock))
    });
    let Some((boot, lock)) = lock else {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{NotALock:?}"),
        ));
    };
    if boot == clock::boot()? {
        return Ok(lock);
    }
    Ok(Lock {
        token: lock.token,
        ..Lock::default()
    })
}

fn write(path: &Path, directory: &Path, lock: &Lock) -> io::Result<()> {
    let new = with_ending(path, NEW);
    let mut file = File::create(&new)?;
    write!(file, "{}\n{lock}", clock::boot()?)?;
    file.sync_all()?;
    fs::rename(new, path)?;
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
