//! Looking at locks.

use std::collections::HashSet;
use std::time::Duration;

use redis::Value;

use super::commands;
use super::core::Core;
use super::names::{LockValue, key_of, locks_with};
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};

impl Core {
    pub(super) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let mut call = self.call()?;
        let answer = call.ask(key, |form| commands::inspect(form, key)).await?;
        match read(key, answer.value) {
            Seen::Lock(lock) => Ok(Some(lock)),
            Seen::Free => Ok(None),
            Seen::Foreign => Err(call.foreign(key).await),
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let pattern = locks_with(prefix);
        let mut locks = Vec::new();
        // A scan may show a key twice.
        let mut seen = HashSet::new();
        let mut cursor = 0;
        loop {
            // However many keys there are, each step has the time of a call.
            let mut call = self.call()?;
            let answer = call
                .ask(prefix, |_| commands::scan(cursor, &pattern))
                .await?;
            let (next, names): (u64, Vec<String>) =
                redis::from_redis_value(answer.value).map_err(|_| call.nonsense())?;
            let keys: Vec<_> = names
                .iter()
                .filter_map(|name| key_of(name))
                .filter(|key| seen.insert((*key).to_owned()))
                .collect();
            let answers = call
                .ask_all(
                    keys.len(),
                    |index| keys[index],
                    |index, form| commands::inspect(form, keys[index]),
                    None,
                )
                .await;
            for (key, answer) in keys.iter().zip(answers) {
                // What is not a lock is not listed.
                if let Seen::Lock(lock) = read(key, answer?.value) {
                    locks.push(lock);
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(locks);
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
