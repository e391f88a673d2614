//! Folders that have come to the end of their numbers.
//!
//! A request finds out by the number of its own node, which it takes back. Were
//! each to try, they would use up the numbers that are left, and the folder
//! would never be empty, so that nobody could delete it. So the process keeps
//! such folders in mind, and looks before it makes the next node in one.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::errors::Failed;
use super::names::Sequence;
use super::session::Session;
use crate::deadline::Deadline;

/// Each has had two thousand million nodes, so they are few.
#[derive(Default)]
pub(super) struct UsedUp(Mutex<HashSet<String>>);

impl UsedUp {
    pub(super) fn keep_in_mind(&self, folder: &str) {
        self.folders().insert(folder.to_owned());
    }

    /// Fails if the folder had come to its end, and still has. (A server that is
    /// behind the others may say so for a moment after it was deleted.)
    pub(super) async fn check(
        &self,
        session: &Session,
        folder: &str,
        deadline: Deadline,
    ) -> Result<(), Failed> {
        if !self.folders().contains(folder) {
            return Ok(());
        }
        session.connected(deadline).await?;
        let looked_at = session.client.check_stat(folder);
        let stat = session.answer(deadline, looked_at).await?;
        let next = stat.map(|stat| next_number(stat.cversion, stat.num_children));
        if next.is_some_and(Sequence::is_at_the_end) {
            return Err(Failed::UsedUp);
        }
        self.folders().remove(folder);
        Ok(())
    }

    fn folders(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of the next node in a folder. The server counts what is created,
/// and shows it as what was created and deleted: twice the number, less the
/// nodes that are there (`DataNode.copyStat` of ZooKeeper 3.8).
fn next_number(cversion: i32, children: i32) -> Sequence {
    // Twice a number of 31 bits needs the sign's.
    let twice = cversion.wrapping_add(children).cast_unsigned();
    Sequence(i64::from(twice / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_what_the_folder_has_counted() {
        for (created, there) in [(0, 0), (1, 1), (7, 3), (i32::MAX - 1, 2), (i32::MAX, 5)] {
            let shown = created.wrapping_mul(2).wrapping_sub(there);
            assert_eq!(next_number(shown, there), Sequence(created.into()));
        }
    }
}
