//! What SQLite's errors mean, and what to do about them.

use crate::stores::sql::errors::{Meaning, RetryPolicy};

// https://www.sqlite.org/rescode.html: the low byte is the primary code.
const ERROR: u32 = 1;
const PERM: u32 = 3;
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const READONLY: u32 = 8;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const PROTOCOL: u32 = 15;
const SCHEMA: u32 = 17;
const AUTH: u32 = 23;
const NOTADB: u32 = 26;

pub(super) fn meaning(error: &sqlx::Error) -> Option<Meaning> {
    let code = match error {
        sqlx::Error::Database(error) => error.code().and_then(|code| code.parse::<u32>().ok()),
        _ => None,
    };
    let stop = |advice| Meaning::unavailable(RetryPolicy::Stop, advice);
    Some(match code.map(|code| code & 0xff) {
        Some(BUSY | LOCKED | PROTOCOL | SCHEMA) => Meaning::unavailable(
            RetryPolicy::Again,
            "another process keeps it locked; look for one that is stopped in the middle of a \
             write, or that uses the file for more than locks",
        ),
        Some(FULL) => stop("make room on its disk"),
        Some(READONLY | PERM | AUTH) => {
            stop("this process may not write to it; make the file and its directory writable")
        }
        Some(CANTOPEN) => Meaning::config(
            "its directory must be there, and this process must be allowed to write in it",
        ),
        Some(IOERR) => stop("look at the disk that it is on"),
        Some(NOTADB | CORRUPT) => Meaning::config(
            "it is no SQLite database, or a damaged one; name another file, or remove it while \
             no process uses it",
        ),
        // A statement that SQLite does not understand, as there is no such table
        // or column.
        Some(ERROR) => Meaning::config(
            "its tables are not those that this version of dlock makes; remove the tables whose \
             names begin with `dlock_` while no process uses them",
        ),
        _ => stop("see docs/stores/sql.md"),
    })
}
