//! What is said when a manager connects.

use dlock::Config;
use dlock::backend::memory::Memory;

use crate::collector::collector;
use crate::support::locks::connect;

#[tokio::test(start_paused = true)]
async fn whoever_connects_says_how_its_locks_are_signed() {
    collector();
    let store = Memory::new();
    let config = Config::with_backend(store.clone()).label("init-of-orders");
    let manager = connect(config).await;
    let lines = collector().of_no_section("dlock");
    let lines = lines.into_iter().filter(|line| line.level() == "INFO");
    let mut own = lines.filter(|line| line.field("holder").contains("init-of-orders"));
    let (Some(line), None) = (own.next(), own.next()) else {
        panic!("one line of this manager");
    };
    assert_eq!(line.field("store"), "memory");
    assert_eq!(line.field("tokens"), "Strict");

    // So they are found again in the store.
    let guard = manager.lock("init/orders").acquire().await.expect("free");
    let lock = manager.inspect("init/orders").await.expect("an answer");
    let owner = &lock.expect("held").holders[0].owner;
    let process = std::process::id().to_string();
    for part in ["init-of-orders", &process] {
        assert!(owner.contains(part), "{part}: {owner}");
        assert!(line.field("holder").contains(part), "{line:?}");
    }
    guard.release().await.expect("held");
}
