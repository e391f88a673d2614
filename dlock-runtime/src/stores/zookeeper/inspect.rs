//! Looking at locks.

use futures_util::future::try_join_all;

use super::ensemble::Ensemble;
use super::errors::Failed;
use super::names;
use super::queue::holders;
use crate::backend::{HolderInfo, LockInfo};
use crate::deadline::Deadline;

/// How many folders are looked at in one go.
const AT_ONCE: usize = 200;

/// A list on its way.
#[derive(Default)]
pub(super) struct Listing {
    /// The locks that are not looked at yet, once they are known.
    keys: Option<Vec<String>>,
    locks: Vec<LockInfo>,
}

impl Ensemble {
    /// What is known of a lock; as it is now, if `synced`.
    pub(super) async fn info(
        &self,
        key: &str,
        synced: bool,
        deadline: Deadline,
    ) -> Result<Option<LockInfo>, Failed> {
        let (session, folder) = (self.session(deadline).await?, self.folder(key));
        let listed = self.list(&session, &folder, synced, deadline).await?;
        Ok(info(key, &listed.names))
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
            let (session, root) = (self.session(deadline).await?, &self.settings.root);
            let listed = self.list(&session, root, true, deadline).await?;
            let keys = listed.names.iter().filter_map(|name| names::key(name));
            listing.keys = Some(keys.filter(|key| key.starts_with(prefix)).collect());
            return Ok(None);
        };
        if keys.is_empty() {
            return Ok(Some(std::mem::take(&mut listing.locks)));
        }
        let rest = keys.len().saturating_sub(AT_ONCE);
        let next = keys[rest..].iter();
        let infos = try_join_all(next.map(|key| self.info(key, false, deadline))).await?;
        listing.locks.extend(infos.into_iter().flatten());
        keys.truncate(rest);
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
