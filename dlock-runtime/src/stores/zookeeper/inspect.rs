//! What the nodes show about locks.

use std::time::SystemTime;

use futures_util::future::try_join_all;
use zookeeper_client::{Error, Stat};

use super::ensemble::Ensemble;
use super::floor;
use super::marks::{Mark, mark_paths};
use super::names;
use super::queue::holders;
use super::session::{AT_ONCE, Session};
use crate::backend::{HolderInfo, Listed, LockInfo, Mode, SHOWN_WAITERS, WaiterInfo};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::Failure;
use crate::stores::since;
use crate::token::{FencingToken, of_transaction};

/// A list of locks, as far as it was read.
pub(super) struct Listing {
    /// The keys whose folders exist, and have not been looked at yet.
    keys: Vec<String>,
    /// The first keys whose folders are not empty.
    taken: Vec<String>,
    /// How many more such keys there are.
    others: usize,
    locks: Vec<LockInfo>,
}

impl Ensemble {
    /// Takes one more step of a list. `None` if it was not the last. The first step lists the
    /// folders, the next ones find out which of them are not empty, and the others look at these
    /// locks, a number of them at a time. A free lock keeps its folder for a while, or for good.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        most: usize,
        deadline: Deadline,
        listing: &mut Option<Listing>,
    ) -> Result<Option<Listed>, Failure> {
        let session = self.session(deadline).await?;
        let root = &self.settings.root;
        let Some(listing) = listing else {
            let (names, _) = session.list(root, true, deadline).await?;
            let keys = names.iter().filter_map(|name| names::key(name));
            let mut keys: Vec<String> = keys.filter(|key| key.starts_with(prefix)).collect();
            // The first keys are at the end, where they are taken from.
            keys.sort_unstable_by(|one, other| other.cmp(one));
            *listing = Some(Listing {
                keys,
                taken: Vec::new(),
                others: 0,
                locks: Vec::new(),
            });
            return Ok(None);
        };
        let rest = listing.keys.len().saturating_sub(AT_ONCE);
        if let some @ [_, ..] = &listing.keys[rest..] {
            let folders: Vec<_> = some.iter().map(|key| self.folder(key)).collect();
            let found = session.read(root, &folders, deadline).await?;
            let some = listing.keys.drain(rest..).zip(found).rev();
            let is_taken = |(_, found): &(String, Result<(Vec<u8>, Stat), Error>)| match found {
                Ok((_, stat)) => stat.num_children > 0,
                Err(Error::NoNode) => false,
                // The look at this lock will report why it cannot be read.
                Err(_) => true,
            };
            for (key, _) in some.filter(is_taken) {
                match listing.taken.len() < most {
                    true => listing.taken.push(key),
                    false => listing.others += 1,
                }
            }
            return Ok(None);
        }
        if listing.taken.is_empty() {
            let locks = std::mem::take(&mut listing.locks);
            return Ok(Some(Listed::with_others(locks, listing.others)));
        }
        let rest = listing.taken.len().saturating_sub(AT_ONCE);
        let infos = listing.taken[rest..].iter();
        let infos = infos.map(|key| self.info(&session, key, false, deadline));
        let infos = try_join_all(infos).await?;
        listing.locks.extend(infos.into_iter().flatten());
        listing.taken.truncate(rest);
        Ok(None)
    }

    /// What is known of a lock. With `synced`, it is as the lock is now.
    pub(super) async fn info(
        &self,
        session: &Session,
        key: &str,
        synced: bool,
        deadline: Deadline,
    ) -> Result<Option<LockInfo>, Failure> {
        let folder = self.folder(key);
        let (found, _) = session.children(&folder, synced, deadline).await?;
        let Some((names, of_folder)) = found else {
            return Ok(None);
        };
        let (holders, waiters) = holders(&names);
        let marks = mark_paths(&folder, &names);
        let mode = Mode::shown(holders.iter().map(|member| member.mode));
        if mode.is_none() && marks.is_empty() {
            return Ok(None);
        }
        let shown = match synced {
            true => SHOWN_WAITERS.min(waiters.len()),
            false => 0,
        };
        // Not all of very many readers are shown: the server refuses a question that is too long.
        let of_holders = holders.len().min(SHOWN_WAITERS);
        let members = holders[..of_holders].iter().chain(&waiters[..shown]);
        let paths = members.map(|member| names::join(&folder, &member.name));
        let mut paths: Vec<_> = paths.collect();
        let asking = paths.len();
        // All marks are read. Of very many, all but a few are over, and it may be any of them that
        // is not.
        paths.extend(marks);
        let floor = self.floor();
        paths.push(floor.clone());
        let mut found = Vec::new();
        for paths in paths.chunks(AT_ONCE) {
            found.extend(session.read(&folder, paths, deadline).await?);
        }
        // A floor that is no number counts as 0; a request for the lock reports it. A holder from
        // before the floor was raised has a lower token than is shown.
        let kept = found.pop().and_then(Result::ok);
        let kept = kept.and_then(|(data, _)| floor::read(&session.place, &floor, &data).ok());
        let floor = kept.unwrap_or(0);
        let marks = found.split_off(asking).into_iter().flatten();
        let marks = marks.map(|(data, stat)| Mark::read(&data, &stat));
        // A mark that was over when the first holder came is in nobody's way.
        let came_at = found.first().and_then(|first| first.as_ref().ok());
        let came_at = came_at.map_or(i64::MIN, |(_, stat)| stat.ctime);
        let marks = marks.filter(|mark| !mark.was_over_at(came_at)).collect();
        // If nodes of requests are there too, these are about to be told.
        if let Some(mark) = Mark::last(marks) {
            return Ok(Some(LockInfo::of_done(key.to_owned(), mark.shown())));
        }
        let Some(mode) = mode else {
            return Ok(None);
        };
        // `None` for nodes that have gone meanwhile.
        let askers: Vec<_> = found
            .into_iter()
            .map(|found| {
                let (data, stat) = found.ok()?;
                Some((String::from_utf8_lossy(&data).into_owned(), stat))
            })
            .collect();
        let stored = |index: usize| askers.get(index).and_then(Option::as_ref);
        let holders = holders.iter().enumerate().map(|(index, member)| {
            let (said, stat) = match stored(index).filter(|_| index < of_holders) {
                Some((said, stat)) => (&**said, Some(stat)),
                None => ("", None),
            };
            let token = stat.and_then(|stat| of_transaction(stat.czxid, floor));
            // The name of another program's node may be any text.
            let since = since::holder(said.as_bytes()).and_then(|(_, since)| since);
            let holder = HolderInfo::new(Shown(&member.name).to_string(), None)
                .of_process(said)
                .token(token.filter(|token| *token > 0).map(FencingToken::from));
            match since {
                Some(since) => holder.since_by_holder(since::time(since)),
                None => holder.since(stat.and_then(|stat| came_as_holder(stat, &of_folder))),
            }
        });
        let queue = waiters[..shown].iter().enumerate().map(|(index, member)| {
            let name = Shown(&member.name).to_string();
            let said = stored(of_holders + index).map_or("", |(said, _)| said);
            WaiterInfo::new(name, member.mode).of_process(said)
        });
        let lock = LockInfo::new(key.to_owned(), mode, holders.collect(), waiters.len());
        Ok(Some(lock.with_queue(queue.collect())))
    }
}

/// When the node of a holder was made, by the leader's clock, if it has held the lock from then on.
/// This is known if nothing has come into the folder or left it since: nobody was ahead of the
/// node who is gone now.
fn came_as_holder(node: &Stat, folder: &Stat) -> Option<SystemTime> {
    let is_last_change = node.czxid == folder.pzxid;
    let made_at = u64::try_from(node.ctime).ok();
    made_at.filter(|_| is_last_change).and_then(since::time)
}
