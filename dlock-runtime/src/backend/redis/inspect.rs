//! Looking at locks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::call::Call;
use super::commands;
use super::connections::Lane;
use super::core::Core;
use super::server_connections::Side;
use super::shared::{Servers, Shared};
use super::values::LockValue;
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};

impl Core {
    pub(super) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        match self.look_at(key).await? {
            Seen::Lock(lock) => Ok(Some(lock)),
            Seen::Free => Ok(None),
            Seen::Foreign => Err(self.call(key)?.foreign(key).await),
        }
    }

    async fn look_at(&self, key: &str) -> Result<Seen, BackendError> {
        let space = self.shared.space();
        let mut call = self.call(key)?;
        let answer = call
            .ask(key, |form| commands::inspect(space, form, key))
            .await?;
        Ok(read(key, answer.value))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        // A scan may show a key twice, and so may two nodes when its slot moves.
        let mut seen = HashSet::new();
        let mut locks = Vec::new();
        for lane in self.lanes()? {
            self.list_of(lane, prefix, &mut seen, &mut locks).await?;
        }
        Ok(locks)
    }

    /// To every server that has locks.
    fn lanes(&self) -> Result<Vec<Arc<Lane>>, BackendError> {
        match &self.shared.servers {
            Servers::One(one)
            | Servers::Voter {
                connections: one, ..
            } => Ok(vec![one.of(Side::Caller)?]),
            Servers::Cluster { topology, .. } => topology
                .masters()
                .iter()
                .map(|node| node.one.of(Side::Caller))
                .collect(),
        }
    }

    async fn list_of(
        &self,
        lane: Arc<Lane>,
        prefix: &str,
        seen: &mut HashSet<String>,
        locks: &mut Vec<LockInfo>,
    ) -> Result<(), BackendError> {
        let Shared { connector, .. } = &*self.shared;
        let space = self.shared.space();
        let pattern = space.locks_with(prefix);
        let mut cursor = 0;
        loop {
            // However many keys there are, each step has the time of a call.
            let mut call = Call::new(connector, Arc::clone(&lane));
            let answer = call
                .ask(prefix, |_| commands::scan(cursor, &pattern))
                .await?;
            let (next, names): (u64, Vec<String>) =
                redis::from_redis_value(answer.value).map_err(|_| call.nonsense())?;
            let keys: Vec<_> = names
                .iter()
                .filter_map(|name| space.key_of(name))
                .filter(|key| key.starts_with(prefix) && seen.insert((*key).to_owned()))
                .collect();
            // Together, as the connection is busy with the first of them.
            let looks = keys.iter().map(|key| self.look_at(key));
            for look in join_all(looks).await {
                // What is not a lock is not listed.
                if let Seen::Lock(lock) = look? {
                    locks.push(lock);
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}

enum Seen {
    Lock(LockInfo),
    Free,
    Foreign,
}

/// Reads the answer of `inspect.lua`.
fn read(key: &str, answer: Value) -> Seen {
    let Value::Array(answer) = answer else {
        return Seen::Free;
    };
    let mut parts = answer.into_iter();
    let (Some(Value::BulkString(value)), Some(Value::Int(expires)), Some(Value::Int(waiters))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Seen::Foreign;
    };
    let Some(LockValue { mode, owner, .. }) = LockValue::parse(&value) else {
        return Seen::Foreign;
    };
    let holders = match mode {
        Mode::Write => vec![HolderInfo::new(owner.to_string(), whole(expires))],
        Mode::Read => {
            let mut readers = Vec::new();
            while let (Some(Value::BulkString(reader)), Some(Value::Int(expires))) =
                (parts.next(), parts.next())
            {
                let reader = String::from_utf8_lossy(&reader).into_owned();
                readers.push(HolderInfo::new(reader, whole(expires)));
            }
            if readers.is_empty() {
                return Seen::Free;
            }
            readers
        }
    };
    let waiters = usize::try_from(waiters).unwrap_or(0);
    Seen::Lock(LockInfo::new(key.to_owned(), mode, holders, waiters))
}

fn whole(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
