//! Reading the holders and waiters of a lock.

use std::time::Duration;

use redis::Value;

use super::field::is_field;
use crate::backend::{HolderInfo, LockInfo, Mode, WaiterInfo};

/// Reads the answer of `inspect.lua`: a lock, or none. `Err`: it belongs neither to Redisson nor
/// to dlock.
pub(in super::super) fn read(key: &str, answer: Value) -> Result<Option<LockInfo>, ()> {
    type Answer = Option<(i64, usize, String, Vec<(String, i64)>, Vec<String>)>;
    let answer = redis::from_redis_value::<Answer>(answer);
    let Some((ms, waiters, mode, holders, places)) = answer.map_err(|_| ())? else {
        return Ok(None);
    };
    let mode = match &*mode {
        "" | "write" => Mode::Write,
        "read" => Mode::Read,
        _ => return Err(()),
    };
    if ms == -1
        || holders
            .iter()
            .any(|(field, ms)| *ms == -1 || !is_field(field))
    {
        return Err(());
    }
    let holders = holders.into_iter().map(|(field, ms)| {
        let expires_in = u64::try_from(ms).ok().map(Duration::from_millis);
        HolderInfo::new(field, expires_in)
    });
    let holders: Vec<_> = holders.collect();
    // Without holders, the lease of the last one has just ended.
    let is_held = !holders.is_empty();
    let places = places.into_iter();
    let queue = places.map(|owner| WaiterInfo::new(owner, Mode::Write));
    let lock = || LockInfo::new(key.to_owned(), mode, holders, waiters).with_queue(queue.collect());
    Ok(is_held.then(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn answer(ms: i64, mode: &str, holders: &[(&str, i64)]) -> Value {
        let holders = holders.iter();
        let holders = holders.flat_map(|(field, ms)| [text(field), Value::Int(*ms)]);
        let holders = Value::Array(holders.collect());
        let places = Value::Array(vec![text("a:3"), text("b:4")]);
        Value::Array(vec![
            Value::Int(ms),
            Value::Int(2),
            text(mode),
            holders,
            places,
        ])
    }

    #[test]
    fn holders_of_either_kind_are_shown() {
        let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:31";
        let lock = read("a", answer(500, "", &[(java, 500)])).expect("a lock");
        let lock = lock.expect("held");
        assert_eq!((lock.mode, lock.waiters), (Mode::Write, Some(2)));
        let queue: Vec<_> = lock.queue.iter().map(|waiter| &*waiter.owner).collect();
        assert_eq!(queue, ["a:3", "b:4"]);
        assert_eq!(lock.holders[0].owner, java);
        assert_eq!(lock.holders[0].expires_in, Some(Duration::from_millis(500)));
        let lock = read("a", answer(500, "read", &[(java, 5), ("a:2", 6)]));
        let lock = lock.expect("a lock").expect("held");
        assert_eq!((lock.mode, lock.holders.len()), (Mode::Read, 2));
        assert!(matches!(read("a", Value::Nil), Ok(None)));
        assert!(matches!(read("a", answer(500, "read", &[])), Ok(None)));
    }

    #[test]
    fn what_is_no_lock_is_none() {
        for answer in [
            answer(-1, "", &[]),
            answer(500, "", &[("name", 500)]),
            answer(500, "", &[("a:1", -1)]),
            answer(500, "other", &[("a:1", 500)]),
            text("a"),
        ] {
            assert!(read("a", answer.clone()).is_err(), "{answer:?}");
        }
    }
}
