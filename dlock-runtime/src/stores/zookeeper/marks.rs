//! Marks of what has been done: nodes in the lock's folder, which the server removes when their
//! time is over.
//!
//! - **In the folder.** Each request lists the folder anyway, after it has made its node. So a lock
//!   without a mark costs no further question. The name of a mark sorts behind all requests, so
//!   that no recipe of Curator's waits behind it.
//! - **In one transaction** that makes the mark and deletes the holder's node, and fails if that is
//!   gone. In this order: a server takes the steps one after the other, and a request that lists
//!   the folder between them sees both nodes.
//! - **Each with a name of its own.** Now and then, the leader notes the paths of nodes whose time
//!   is over, and then deletes them (`ContainerManager`). If a new mark had got such a path
//!   meanwhile, it would be deleted too.
//! - **Its end** is by the leader's clock, which stamps the mark, and the node of each request,
//!   when they are made. The leader may remove a mark up to a minute late. So a request that finds
//!   a mark which was over when the request came deletes it, and goes on.

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
use crate::duration::milliseconds_up;
use crate::key::Shown;
use crate::store::{Applied, Failure, Freed};

pub(super) struct Mark {
    /// The owner that has done it.
    owner: String,
    /// When it ends, in milliseconds of the leader's clock. `None`: another program has made it,
    /// and it stays.
    ends: Option<i64>,
    lasts: Duration,
}

impl Mark {
    /// The content of a mark, and how long it lasts. The content says that too, since servers do
    /// not show how long a node lasts (`DataNode.copyStat` of ZooKeeper 3.8).
    fn text(owner: &str, time: Duration) -> (String, Duration) {
        let milliseconds = milliseconds_up(time);
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

    /// Whether it was over at this time of the leader's clock.
    pub(super) fn was_over_at(&self, time: i64) -> bool {
        self.ends.is_some_and(|ends| ends <= time)
    }

    /// The mark that ends last.
    pub(super) fn last(marks: Vec<Self>) -> Option<Self> {
        marks
            .into_iter()
            .max_by_key(|mark| mark.ends.unwrap_or(i64::MAX))
    }

    /// Its owner, and how much of its time is left: its end is by the leader's clock, now by this
    /// machine's.
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
    /// Whether the servers make nodes that end after a time. Asks for one in a transaction that is
    /// refused in any case, so nothing is left.
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
            // This fails, since the first version of a node is 0.
            steps.add_check_version(&path, 1)
        });
        // The server refuses such a node before it looks at anything else
        // (`PrepRequestProcessor.validateCreateRequest` of ZooKeeper 3.8).
        Ok(!matches!(asked.await?, Err((_, Error::Unimplemented))))
    }
}

impl Node {
    /// Whether the body of the lock has been done, by the marks in its folder. The folder was
    /// listed after this node was made.
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
                    // The mark has been removed since.
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(self.session.refused(path, error)),
                }
            }
        }
        if !over.is_empty() {
            // If this fails, another process removes them.
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
    /// Gives the lock back, and leaves a mark that lasts for this time.
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
            // The node has no name from here on: if the answer is lost, it has to be found again.
            let marked = node.session.transact(&node.folder, deadline, |steps| {
                steps.add_create(&mark, text.as_bytes(), &options)?;
                steps.add_delete(&path, None)
            });
            match marked.await? {
                Ok(sent_at) => {
                    node.session.prove(sent_at);
                    return Ok(Freed::Released);
                }
                // The node has gone, or the mark is there: an earlier release has marked it, whose
                // caller left before the answer.
                Err((_, Error::NoNode | Error::NodeExists)) => {}
                Err((_, error)) => {
                    // The lock is given back without the mark, which would be refused again and
                    // again.
                    node.name = name;
                    if node.delete(request.owner, deadline).await? {
                        return Err(match error {
                            Error::Unimplemented => errors::forgets(&node.session.place),
                            error => node.session.refused(&mark, error),
                        });
                    }
                    // An earlier attempt has done so, and has told why.
                }
            }
        }
        Ok(Freed::of(self.is_marked(request, deadline).await?))
    }

    /// Whether the request's own mark is there: a command that was not answered may have made it.
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

    /// Removes the marks of a lock. `forgotten` is set if there was one, even if the next one
    /// cannot be removed.
    pub(super) async fn forget_marks(
        &self,
        key: &str,
        deadline: Deadline,
        forgotten: &mut bool,
    ) -> Result<(), Failure> {
        let session = self.session(deadline).await?;
        let folder = self.folder(key);
        let listed = session.list(&folder, true, deadline).await;
        let (names, _) = listed.map_err(|failure| failure.with(Applied::No))?;
        for path in mark_paths(&folder, &names) {
            let deleted = session.ask(&path, deadline, |client| client.delete(&path, None));
            *forgotten |= deleted.await?.0.is_some();
        }
        Ok(())
    }
}

/// The paths of the marks in a folder.
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
