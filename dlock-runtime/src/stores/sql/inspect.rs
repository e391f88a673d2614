//! Reads what the scripts show of locks.

use std::time::{Duration, UNIX_EPOCH};

use super::database::Row;
use crate::backend::{HolderInfo, LockInfo, Mode, WaiterInfo};
use crate::stores::stored_owner::StoredOwner;
use crate::token::FencingToken;

/// The columns: key, mode, owner, ms until the lease ends or what was done is forgotten, when the
/// owner got it, number of waiters, the token of its grant or 0.
pub(super) const COLUMNS: usize = 7;

/// The columns of a waiter: owner, mode.
pub(super) const PLACE_COLUMNS: usize = 2;

/// The rows of one lock follow each other.
pub(super) fn read(rows: &[Row]) -> Vec<LockInfo> {
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in rows {
        let left = u64::try_from(row.int(3)).ok().map(Duration::from_millis);
        // An owner that dlock has not written is shown as it is.
        let stored = StoredOwner::read(row.text(2)).filter(|_| row.text(1) == "r");
        let mode = match row.text(1) {
            "r" => stored.map_or(Mode::Read, |stored| stored.mode),
            _ => Mode::Write,
        };
        let holder = HolderInfo::new(row.text(2).to_owned(), left);
        // The previous version does not write this column, so it may have the time of an earlier
        // owner. Owners of that version name no process.
        let is_signed = holder.process.is_some() && row.text(1) != "d";
        let since = u64::try_from(row.int(4)).ok().filter(|_| is_signed);
        let since = since.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        let token = u64::try_from(row.int(6)).ok().filter(|token| *token > 0);
        let holder = holder.since(since).token(token.map(FencingToken::from));
        if row.text(1) == "d" {
            locks.push(LockInfo::of_done(row.text(0).to_owned(), holder));
            continue;
        }
        match locks.last_mut().filter(|lock| lock.key == row.text(0)) {
            Some(lock) => {
                lock.mode = Mode::shown([lock.mode, mode]).unwrap_or(mode);
                lock.holders.push(holder);
            }
            None => {
                let waiters = usize::try_from(row.int(5)).unwrap_or(0);
                let key = row.text(0).to_owned();
                locks.push(LockInfo::new(key, mode, vec![holder], waiters));
            }
        }
    }
    locks
}

pub(super) fn queue(rows: &[Row]) -> Vec<WaiterInfo> {
    let places = rows.iter().map(|row| {
        let owner = row.text(0);
        let mode = match row.text(1) {
            "w" => Mode::Write,
            _ => StoredOwner::read(owner).map_or(Mode::Read, |stored| stored.mode),
        };
        WaiterInfo::new(owner.to_owned(), mode)
    });
    places.collect()
}
