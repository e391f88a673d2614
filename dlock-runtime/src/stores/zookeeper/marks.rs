//! What was done, and is remembered: a node in the lock's folder, which the server removes
//! when its time is over.
//!
//! - **Where.** The folder is listed behind each request's node anyway, so a mark costs
//!   nobody a question more who finds none. Its name sorts behind all requests: no recipe of
//!   Curator's waits behind it.
//! - **One step.** A transaction makes the mark and deletes the holder's node, which it so
//!   finds there. In this order: a server does the steps one after the other, and who lists
//!   the folder between them sees both.
//! - **Each has a name of its own.** The leader removes what has ended now and then
//!   (`ContainerManager`), by a path that it has noted some time before. A mark that had
//!   come under the same path meanwhile would be removed too.
//! - **Its end** is by the leader's clock, which says when the mark was made and when the
//!   node of the one who asks. A leader comes round to a mark up to a minute late; so who
//!   finds one that was over when it asked removes it, and goes on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client::{CreateMode, Error, Stat};

use super::ensemble::Ensemble;
use super::errors;
use super::names;
use super::nodes::Node;
use super::session::{AT_ONCE, Session};
use super::settings::Settings;
use crate::backend::{HolderInfo, Request};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::{Applied, Failure, Freed};

/// A mark, as it stands in the folder.
pub(super) struct Mark {
    /// Who has done it.
    owner: String,
    /// In milliseconds of the leader's clock. `None`: somebody else has made it, and it stays.
    ends: Option<i64>,
    lasts: Duration,
}

impl Mark {
    /// What a mark says of itself: servers do not show how long a node lasts.
    fn text(owner: &str, time: Duration) -> (String, Duration) {
        let milliseconds = time.as_nanos().div_ceil(1_000_000);
        let milliseconds = u64::try_from(milliseconds).unwrap_or(u64::MAX);
        let text = format!("{milliseconds} {owner}");
        (text, Duration::from_millis(milliseconds))
    }

    pub(super) fn read(data: &[u8], stat: &Stat) -> Self {
        let text = String::from_utf8_lossy(data);
        let said = text.split_once(' ').and_then(|(lasts, owner)| {
            let lasts = lasts.parse().ok()?;
            Some((Duration::from_millis(lasts), owner))
        });
        let (lasts, owner) = said.unwrap_or((Duration::MAX, &text));
        let milliseconds = i64::try_from(lasts.as_millis()).ok();
        Self {
            owner: Shown(owner).to_string(),
            ends: milliseconds.and_then(|lasts| stat.mtime.checked_add(lasts)),
            lasts,
        }
    }

    /// Whether it was over when the leader's clock showed that.
    pub(super) fn was_over_at(&self, time: i64) -> bool {
        self.ends.is_some_and(|ends| ends <= time)
    }

    /// The one that ends last.
    pub(super) fn last(marks: Vec<Self>) -> Option<Self> {
        marks
            .into_iter()
            .max_by_key(|mark| mark.ends.unwrap_or(i64::MAX))
    }

    /// What is left of it is by this machine's clock, beside the leader's.
    pub(super) fn shown(self) -> HolderInfo {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let left = self.ends.map(|ends| {
            let ends = Duration::from_millis(ends.try_into().unwrap_or_default());
            ends.saturating_sub(now.unwrap_or_default()).min(self.lasts)
        });
        HolderInfo::new(self.owner, left)
    }
}

impl Session {
    /// Whether the servers make nodes that end after a time. It is asked for one in a
    /// transaction that is refused whatever they say: nothing is left.
    pub(super) async fn can_remember(
        &self,
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let path = names::join(&settings.root, names::MARK);
        let options = CreateMode::Persistent.with_acls(settings.acls());
        let options = options.with_ttl(Duration::from_secs(1));
        let asked = self.transact(&path, deadline, |steps| {
            steps.add_create(&path, b"", &options)?;
            // Its first version is 0.
            steps.add_check_version(&path, 1)
        });
        // What else is refused comes after that was looked at
        // (`PrepRequestProcessor.validateCreateRequest` of ZooKeeper 3.8).
        Ok(!matches!(asked.await?, Err((_, Error::Unimplemented))))
    }
}

impl Node {
    /// Whether what the lock is for has been done, as its folder says, which was listed
    /// behind this self.
    pub(super) async fn is_done(
        &self,
        listed: &[String],
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let paths = mark_paths(&self.folder, listed);
        let mut over = Vec::new();
        for paths in paths.chunks(AT_ONCE) {
            let found = self.session.read(&self.folder, paths, deadline).await?;
            for (path, found) in paths.iter().zip(found) {
                match found {
                    Ok((data, stat)) if Mark::read(&data, &stat).was_over_at(self.ctime) => {
                        over.push(path);
                    }
                    Ok(_) => return Ok(true),
                    // It has been removed since.
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(self.session.refused(path, error)),
                }
            }
        }
        if !over.is_empty() {
            // If it fails, somebody else removes them too, or will.
            let remove = self.session.transact(&self.folder, deadline, |steps| {
                let mut over = over.iter().take(AT_ONCE);
                over.try_for_each(|path| steps.add_delete(path, None))
            });
            let _ = remove.await;
        }
        Ok(false)
    }
}

impl Ensemble {
    /// Gives the lock back, and leaves a mark that lasts for so long.
    pub(super) async fn mark(
        &self,
        request: &Request,
        node: &mut Node,
        time: Duration,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let mark = names::join(&node.folder, &names::mark(request.owner));
        if node.find(request.owner, deadline).await? {
            let (name, path) = (std::mem::take(&mut node.name), node.folder.clone());
            let path = names::join(&path, &name);
            let (text, time) = Mark::text(&request.owner.to_string(), time);
            let options = CreateMode::Persistent.with_acls(self.settings.acls());
            let options = options.with_ttl(time);
            // From here on, the node has to be found again.
            let marked = node.session.transact(&node.folder, deadline, |steps| {
                steps.add_create(&mark, text.as_bytes(), &options)?;
                steps.add_delete(&path, None)
            });
            match marked.await? {
                Ok(sent_at) => {
                    node.session.prove(sent_at);
                    return Ok(Freed::Released);
                }
                Err((_, Error::NoNode)) => {}
                Err((_, error)) => {
                    // The lock is given back all the same: it would be refused for ever.
                    node.name = name;
                    node.delete(request.owner, deadline).await?;
                    return Err(match error {
                        Error::Unimplemented => errors::forgets(&node.session.place),
                        error => node.session.refused(&mark, error),
                    });
                }
            }
        }
        Ok(match self.is_marked(request, deadline).await? {
            true => Freed::Released,
            false => Freed::NotHeld,
        })
    }

    /// Whether its own mark is there: a command that was not answered may have made it.
    pub(super) async fn is_marked(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let session = self.session(deadline).await?;
        let folder = self.folder(&request.key);
        let (names, _) = session.list(&folder, true, deadline).await?;
        Ok(names.contains(&names::mark(request.owner)))
    }

    /// Whether there was a mark to forget, is in `forgotten`: also of an attempt that fails
    /// behind the first.
    pub(super) async fn forget_marks(
        &self,
        key: &str,
        deadline: Deadline,
        forgotten: &mut bool,
    ) -> Result<(), Failure> {
        let session = self.session(deadline).await?;
        let folder = self.folder(key);
        let listed = session.list(&folder, true, deadline).await;
        let (names, _) = listed.map_err(|failure| Failure {
            applied: Applied::No,
            ..failure
        })?;
        for path in mark_paths(&folder, &names) {
            let deleted = session.ask(&path, deadline, |client| client.delete(&path, None));
            *forgotten |= deleted.await?.0.is_some();
        }
        Ok(())
    }
}

/// Where the marks are that a folder has.
pub(super) fn mark_paths(folder: &str, names: &[String]) -> Vec<String> {
    let marks = names.iter().filter(|name| name.starts_with(names::MARK));
    marks.map(|name| names::join(folder, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_at(mtime: i64) -> Stat {
        Stat {
            czxid: 1,
            mzxid: 1,
            pzxid: 1,
            ctime: mtime,
            mtime,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    #[test]
    fn a_mark_ends_when_it_says() {
        let (text, lasts) = Mark::text("owner@host 7 shop", Duration::from_micros(1_999_001));
        assert_eq!(
            lasts,
            Duration::from_secs(2),
            "never less than was asked for"
        );
        let mark = Mark::read(text.as_bytes(), &made_at(5_000));
        assert_eq!(mark.owner, "owner@host 7 shop");
        assert!(!mark.was_over_at(6_999) && mark.was_over_at(7_000));
        let left = mark.shown().expires_in;
        assert_eq!(left, Some(Duration::ZERO), "it was long ago");
    }

    #[test]
    fn what_somebody_else_has_marked_stays_marked() {
        for data in [
            &b""[..],
            b"by hand",
            b"\xff 7",
            b"18446744073709551615 x",
            b"-1 x",
        ] {
            let mark = Mark::read(data, &made_at(5_000));
            assert!(!mark.was_over_at(i64::MAX), "{data:?}");
            assert_eq!(mark.shown().expires_in, None);
        }
    }
}
