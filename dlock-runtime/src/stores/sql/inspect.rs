//! Looking at locks.

use std::time::Duration;

use super::database::Row;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::stores::asker::Asker;

/// Key, mode, owner, ms until the lease ends or what was done is forgotten, number of
/// waiters.
pub(super) const COLUMNS: usize = 5;

/// The rows of one lock stand beside each other.
pub(super) fn read(rows: &[Row]) -> Vec<LockInfo> {
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in rows {
        let left = u64::try_from(row.int(3)).ok().map(Duration::from_millis);
        // What somebody else wrote is shown as it is.
        let asker = Asker::read(row.text(2)).filter(|_| row.text(1) == "r");
        let owner = asker.map_or_else(|| row.text(2).to_owned(), |asker| asker.owner.to_string());
        let mode = match row.text(1) {
            "r" => asker.map_or(Mode::Read, |asker| asker.mode),
            _ => Mode::Write,
        };
        let holder = HolderInfo::new(owner, left);
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
                let waiters = usize::try_from(row.int(4)).unwrap_or(0);
                let key = row.text(0).to_owned();
                locks.push(LockInfo::new(key, mode, vec![holder], waiters));
            }
        }
    }
    locks
}
