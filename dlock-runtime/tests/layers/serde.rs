//! What can be sent elsewhere comes back as it was.

use std::time::Duration;

use dlock_runtime::backend::{HolderInfo, LockInfo, Mode, ProcessInfo, WaiterInfo};
use dlock_runtime::{Config, FencingToken, LockManager};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn there_and_back<T: Serialize + DeserializeOwned>(value: &T) -> (String, T) {
    let text = serde_json::to_string(value).expect("it can be written");
    let back = serde_json::from_str(&text).expect("it can be read");
    (text, back)
}

#[test]
fn a_token_is_a_number() {
    for number in [0, 64, u64::MAX] {
        let token = FencingToken::from(number);
        assert_eq!(there_and_back(&token), (number.to_string(), token));
    }
}

#[test]
fn a_mode_is_a_word() {
    for (mode, text) in [
        (Mode::Read, "\"read\""),
        (Mode::Write, "\"write\""),
        (Mode::Permits(3), "{\"permits\":3}"),
    ] {
        assert_eq!(there_and_back(&mode), (text.to_owned(), mode));
    }
}

#[tokio::test]
async fn what_is_known_of_a_lock_comes_back_whole() {
    let manager = LockManager::connect(Config::default())
        .await
        .expect("memory");
    let guard = manager.lock("press").acquire().await.expect("free");
    let shown = manager.inspect("press").await.expect("an answer");
    let shown = shown.expect("it is held");
    assert!(shown.holders[0].process.is_some(), "{shown:?}");
    assert_eq!(shown.holders[0].token, Some(guard.token()));
    let (_, back) = there_and_back(&shown);
    assert_eq!(format!("{back:?}"), format!("{shown:?}"));
}

#[test]
fn so_does_what_another_store_makes() {
    let asked_at = std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_123);
    let process = ProcessInfo::new("web-3", 4711, "orders", asked_at);
    let holder = HolderInfo::new("me".to_owned(), Some(Duration::from_secs(3)))
        .since(Some(asked_at))
        .process(Some(process.clone()));
    let waiter = WaiterInfo::new("you".to_owned(), Mode::Read).process(Some(process));
    let info = LockInfo::new("key".to_owned(), Mode::Permits(2), vec![holder.clone()], 1)
        .with_queue(vec![waiter]);
    for info in [info, LockInfo::of_done("key".to_owned(), holder)] {
        let (_, back) = there_and_back(&info);
        assert_eq!(format!("{back:?}"), format!("{info:?}"));
    }
}

/// What was added since is not there.
#[test]
fn what_an_older_version_wrote_is_read() {
    let text = r#"{"key":"press","mode":"write","holders":[{"owner":"me"}]}"#;
    let lock: LockInfo = serde_json::from_str(text).expect("it can be read");
    let (holder, queue) = (&lock.holders[0], &lock.queue);
    assert_eq!((&*lock.key, &*holder.owner), ("press", "me"));
    assert!(queue.is_empty() && lock.stored_as.is_empty() && lock.done.is_none());
    assert!(lock.waiters.is_none() && holder.since.is_none() && !holder.since_by_holder);
}
