//! Looking at locks.

use zookeeper_client::{Error, MultiReadResult};

use super::core::Core;
use super::errors::Failed;
use super::names;
use super::queue::holders;
use super::session::Session;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, HolderInfo, LockInfo};

/// How many folders one question is about.
const AT_ONCE: usize = 200;

impl Core {
    pub(super) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let folder = self.folder(key);
        let names = self.children(&folder, self.deadline()).await?;
        Ok(names.and_then(|names| info(key, &names)))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let deadline = self.deadline();
        let root = &self.settings.root;
        let Some(names) = self.children(root, deadline).await? else {
            return Ok(Vec::new());
        };
        let keys = names.iter().filter_map(|name| names::key(name));
        let keys: Vec<_> = keys.filter(|key| key.starts_with(prefix)).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(AT_ONCE) {
            locks.extend(self.infos(keys, deadline).await?);
        }
        Ok(locks)
    }

    /// The nodes of a folder, `None` if there is no folder.
    async fn children(
        &self,
        folder: &str,
        deadline: Deadline,
    ) -> Result<Option<Vec<String>>, BackendError> {
        loop {
            let session = self.session(deadline).await?;
            match self.children_now(&session, folder, deadline).await {
                Ok(names) => return Ok(names),
                Err(failed) => self.ask_again(failed, folder, deadline)?,
            }
        }
    }

    async fn children_now(
        &self,
        session: &Session,
        folder: &str,
        deadline: Deadline,
    ) -> Result<Option<Vec<String>>, Failed> {
        session.connected(deadline).await?;
        // As they are now, and not as they were when this server last heard of
        // the others.
        let synced = session.client.sync(&self.settings.root);
        let listed = session.client.list_children(folder);
        let answers = futures_util::future::join(synced, listed);
        let (synced, listed) = session.bound(deadline, answers).await?;
        synced.map_err(|error| session.failed(error))?;
        match listed {
            Ok(names) => Ok(Some(names)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(session.failed(error)),
        }
    }

    async fn infos(
        &self,
        keys: &[String],
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, BackendError> {
        loop {
            let session = self.session(deadline).await?;
            match self.infos_now(&session, keys, deadline).await {
                Ok(locks) => return Ok(locks),
                Err(failed) => self.ask_again(failed, &self.settings.root, deadline)?,
            }
        }
    }

    async fn infos_now(
        &self,
        session: &Session,
        keys: &[String],
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failed> {
        session.connected(deadline).await?;
        let answer = {
            let mut question = session.client.new_multi_reader();
            for key in keys {
                question
                    .add_get_children(&self.folder(key))
                    .map_err(|error| session.failed(error))?;
            }
            question.commit()
        };
        let answers = session.answer(deadline, answer).await?;
        let locks = keys
            .iter()
            .zip(answers)
            .filter_map(|(key, answer)| match answer {
                MultiReadResult::Children { children } => info(key, &children),
                _ => None,
            });
        Ok(locks.collect())
    }

    fn ask_again(
        &self,
        failed: Failed,
        folder: &str,
        deadline: Deadline,
    ) -> Result<(), BackendError> {
        match failed {
            Failed::Lost | Failed::Over if !deadline.has_passed() => Ok(()),
            failed => Err(self.error(failed, folder)),
        }
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
