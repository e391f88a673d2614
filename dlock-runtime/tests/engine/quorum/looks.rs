//! What the voters agree on.

use std::ops::Range;

use super::*;
use crate::backend::{Listed, LockInfo};
use crate::limits::DEFAULT_REQUEST_TIMEOUT;

/// Each of the voters shows the locks that it has: by key, a holder and the voters that have it.
fn show(sims: &[Arc<Sim>], holders: &[(&str, &str, Range<usize>)]) {
    for (voter, sim) in sims.iter().enumerate() {
        let mut shown: Vec<LockInfo> = Vec::new();
        for (key, owner, _) in holders.iter().filter(|holder| holder.2.contains(&voter)) {
            let holder = HolderInfo::new(String::from(*owner), None);
            match shown.iter_mut().find(|lock| lock.key == *key) {
                Some(lock) => lock.holders.push(holder),
                None => {
                    let key = String::from(*key);
                    shown.push(LockInfo::new(key, Mode::Read, vec![holder], Some(voter)));
                }
            }
        }
        sim.state().shows = Some(shown);
    }
}

/// The keys and their holders.
fn read(locks: &[LockInfo]) -> Vec<(&str, Vec<&str>)> {
    let holders = |lock: &'_ LockInfo| lock.holders.len();
    assert!(locks.iter().all(|lock| holders(lock) > 0));
    let read = locks.iter().map(|lock| {
        let owners = lock.holders.iter().map(|holder| &*holder.owner);
        (&*lock.key, owners.collect())
    });
    read.collect()
}

async fn list_some(engine: &Several, most: usize) -> Listed {
    let listing = engine.list_some("", most);
    let listed = timeout(Duration::from_secs(60), listing).await;
    listed.expect("in time").expect("an answer")
}

/// A voter that is silent may have it too. What a lost election has left at a few is no lock.
#[test]
fn what_a_majority_may_have_is_a_lock() {
    paused(|| async {
        for silent in 0..=VOTERS - MAJORITY {
            for has in 0..=VOTERS - silent {
                let said = format!("{has} have it, {silent} are silent");
                let (sims, engine) = scene().await;
                show(&sims, &[("key", "one", 0..has)]);
                are_gone(&sims[VOTERS - silent..], true);
                let lock = engine.inspect("key").await.expect("an answer");
                assert_eq!(lock.is_some(), has + silent >= MAJORITY, "{said}");
                let most = lock.map(|lock| (lock.holders.len(), lock.waiters));
                assert!(most.is_none_or(|most| most == (1, Some(has - 1))), "{said}");
            }
        }
    });
}

#[test]
fn an_inspection_says_where_all_voters_keep_the_lock() {
    paused(|| async {
        let (sims, engine) = scene().await;
        show(&sims, &[("key", "one", 0..VOTERS)]);
        for (sim, stored) in sims.iter().zip(["b", "a", "b", "c", "a"]) {
            sim.state().stored_as = vec![String::from(stored)];
        }
        let lock = engine.inspect("key").await.expect("an answer");
        assert_eq!(lock.expect("it is held").stored_as, ["a", "b", "c"]);
    });
}

#[test]
fn a_list_has_each_lock_once_with_all_its_holders() {
    paused(|| async {
        let (sims, engine) = scene().await;
        show(
            &sims,
            &[
                ("a", "minority", 0..2),
                ("b", "one", 0..3),
                ("b", "three", 3..5),
                ("b", "two", 1..5),
                ("c", "one", 0..5),
                ("other", "one", 0..5),
            ],
        );
        let start = Instant::now();
        let all = engine.list("").await.expect("an answer");
        took_at_most(start, ROUND_TRIP + MOMENT, "");
        let (b, c) = (("b", vec!["one", "two"]), ("c", vec!["one"]));
        assert_eq!(read(&all), [b, c, ("other", vec!["one"])]);
        let some = engine.list("o").await.expect("an answer");
        assert_eq!(read(&some), [("other", vec!["one"])]);
    });
}

/// Keys that only a few voters have are not among the first.
#[test]
fn the_first_locks_are_those_of_a_majority() {
    paused(|| async {
        let held = [
            ("a", "one", 0..2),
            ("b", "one", 0..3),
            ("c", "one", 0..5),
            ("d", "one", 1..5),
        ];
        let (sims, engine) = scene().await;
        show(&sims, &held);
        let listed = list_some(&engine, 2).await;
        let (b, c) = (("b", vec!["one"]), ("c", vec!["one"]));
        assert_eq!(read(&listed.locks), [b, c]);
        assert_eq!(listed.others, 1);
        // It may have the first too.
        sims[4].set_gone(true);
        let listed = list_some(&engine, 1).await;
        assert_eq!(read(&listed.locks), [("a", vec!["one"])]);
        assert_eq!(listed.others, 3);
        are_gone(&sims[2..], true);
        let said = is_unavailable(engine.list_some("", 1).await);
        assert!(said.contains("2 of 5 nodes answered and 3 must"), "{said}");
    });
}

/// It is looked at in several steps, none of which takes long.
#[test]
fn a_long_list_is_whole() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let keys: Vec<String> = (0..1_001).map(|number| format!("{number:04}")).collect();
        let locks = keys.iter().map(|key| (&**key, "one", 0..MAJORITY));
        show(&sims, &locks.collect::<Vec<_>>());
        let listed = list_some(&engine, 2_000).await;
        assert_eq!(listed.others, 0);
        let listed: Vec<_> = listed.locks.into_iter().map(|lock| lock.key).collect();
        assert_eq!(listed, keys);
        assert_eq!(count(&sims, "look"), 3 * VOTERS, "the keys, and two steps");
    });
}

/// The steps of the voters are slow, and not one of them is silent.
#[test]
fn a_list_may_take_longer_than_an_answer() {
    paused(|| async {
        let (_sims, engine) = scene().await;
        let start = Instant::now();
        let all = engine.list("").await.expect("an answer");
        assert!(all.is_empty(), "{all:?}");
        let listed = list_some(&engine, 3).await;
        assert!(listed.locks.is_empty(), "{:?}", listed.locks);
        assert!(start.elapsed() > 2 * DEFAULT_REQUEST_TIMEOUT);
    });
}
