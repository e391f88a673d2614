//! What SQLite's errors mean, and what to do about them.

use crate::stores::sql::database::{Meaning, RetryPolicy};

/// By the primary code, which is the low byte of the code: <https://www.sqlite.org/rescode.html>
pub(super) fn meaning(error: &sqlx::Error) -> Option<Meaning> {
    // An error of the driver, such as the end of its thread, has no code of SQLite's.
    let sqlx::Error::Database(error) = error else {
        return None;
    };
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    let stop = |advice| Meaning::unavailable(RetryPolicy::Stop, advice);
    Some(match code.map(|code| code & 0xff) {
        // Busy, locked, a race for the WAL, or a schema that has changed.
        Some(5 | 6 | 15 | 17) => Meaning::unavailable(
            RetryPolicy::Again,
            "another process keeps it locked; look for one that is stopped in the middle of a \
             write, or that uses the file for more than locks",
        ),
        Some(13) => stop("make room on its disk"),
        // No permission, read-only, or not authorized.
        Some(3 | 8 | 23) => Meaning {
            denied: true,
            ..stop("this process may not write to it; make the file and its directory writable")
        },
        // It cannot be opened.
        Some(14) => Meaning::config(
            "its directory must be there, and this process must be allowed to write in it",
        ),
        // The operating system has failed to read or write it.
        Some(10) => stop("look at the disk that it is on"),
        // Corrupt, or not a database.
        Some(11 | 26) => Meaning::config(
            "it is no SQLite database, or a damaged one; name another file, or remove it while \
             no process uses it",
        ),
        // SQLite does not understand a statement, because a table or column is missing.
        Some(1) => Meaning::config(
            "its tables are not those that this version of dlock makes; remove the tables whose \
             names begin with `dlock_` while no process uses them",
        ),
        _ => stop("https://www.sqlite.org/rescode.html says what the code means"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement may have been committed before the driver's thread has ended.
    #[test]
    fn an_error_of_the_driver_is_none_of_sqlite() {
        for error in [sqlx::Error::WorkerCrashed, sqlx::Error::PoolClosed] {
            assert!(meaning(&error).is_none(), "{error}");
        }
    }
}
