//! Looking at locks.

use zookeeper_client::{Error, MultiReadResult, MultiReader};

use super::ensemble::Ensemble;
use super::errors::Failed;
use super::names;
use super::queue::holders;
use crate::backend::{HolderInfo, LockInfo};
use crate::deadline::Deadline;

/// How many nodes or folders one question is about: it must stay well below the
/// megabyte that the server takes (`jute.maxbuffer`).
pub(super) const AT_ONCE: usize = 200;

/// A list on its way.
#[derive(Default)]
pub(super) struct Listing {
    /// The locks that are not looked at yet, once they are known.
    keys: Option<Vec<String>>,
    locks: Vec<LockInfo>,
}

impl Ensemble {
    pub(super) async fn info(
        &self,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<LockInfo>, Failed> {
        let session = self.session(deadline).await?;
        let folder = self.folder(key);
        let listed = self.list(&session, &folder, true, deadline).await?;
        Ok(info(key, &listed.names))
    }

    /// Reads many nodes with one question.
    pub(super) async fn read<'p>(
        &self,
        paths: impl Iterator<Item = &'p str>,
        how: fn(&mut MultiReader<'_>, &str) -> Result<(), Error>,
        deadline: Deadline,
    ) -> Result<Vec<MultiReadResult>, Failed> {
        let session = self.session(deadline).await?;
        session.connected(deadline).await?;
        let answers = {
            let mut question = session.client.new_multi_reader();
            for path in paths {
                how(&mut question, path).map_err(|error| session.failed(error))?;
            }
            question.commit()
        };
        session.answer(deadline, answers).await
    }

    /// The folders of the locks, or a look at some of them; `None` until there is no
    /// more to do.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        deadline: Deadline,
        listing: &mut Listing,
    ) -> Result<Option<Vec<LockInfo>>, Failed> {
        let Some(keys) = &mut listing.keys else {
            let session = self.session(deadline).await?;
            let root = &self.settings.root;
            let listed = self.list(&session, root, true, deadline).await?;
            let keys = listed.names.iter().filter_map(|name| names::key(name));
            listing.keys = Some(keys.filter(|key| key.starts_with(prefix)).collect());
            return Ok(None);
        };
        if keys.is_empty() {
            return Ok(Some(std::mem::take(&mut listing.locks)));
        }
        let next = &keys[keys.len().saturating_sub(AT_ONCE)..];
        let folders: Vec<_> = next.iter().map(|key| self.folder(key)).collect();
        let folders = folders.iter().map(String::as_str);
        let answers = self
            .read(
                folders,
                |question, folder| question.add_get_children(folder),
                deadline,
            )
            .await?;
        let infos = next.iter().zip(answers);
        let infos = infos.filter_map(|(key, answer)| match answer {
            MultiReadResult::Children { children } => info(key, &children),
            _ => None,
        });
        listing.locks.extend(infos);
        keys.truncate(keys.len().saturating_sub(AT_ONCE));
        Ok(None)
    }
}

fn info(key: &str, names: &[String]) -> Option<LockInfo> {
    let (holders, waiters) = holders(names);
    let mode = holders.first()?.mode;
    let holders = holders
        .into_iter()
        .map(|member| HolderInfo::new(member.name, None));
    Some(LockInfo::new(
        key.to_owned(),
        mode,
        holders.collect(),
        waiters.len(),
    ))
}
