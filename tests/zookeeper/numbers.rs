//! The numbers that a folder gives its nodes come to an end. Behind it they
//! repeat, and go on below zero, so nobody may hold a lock by one.

use std::sync::Arc;

use dlock::{LockError, LockManager};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::harness::config;
use crate::support::critical::Section;
use crate::support::locks::{self, had, held, is_unavailable, queued, says, served, wants};
use crate::support::wait::{HANG, eventually, until, within};
use crate::support::zookeeper::{Setup, ZooKeeperServer, make, nodes};

/// The numbers that are left to services in Java: from here on, dlock takes no
/// lock.
pub(crate) const FIRST_REFUSED: i32 = i32::MAX - (1 << 24);

const FOLDER: &str = "/dlock/key";

/// A server with a folder that is about to give this number.
pub(crate) async fn aged(next: i32) -> ZooKeeperServer {
    let mut server = Setup::default().start().await;
    make(&server.client().await, FOLDER).await;
    server.age(FOLDER, next).await;
    server
}

async fn connect(server: &ZooKeeperServer) -> LockManager {
    let port = server.port();
    let url = format!("zookeeper://127.0.0.1:{port}?session_timeout=40s");
    // Waits for a server that starts again.
    locks::connect(config(&url).request_timeout(HANG)).await
}

pub(crate) fn is_refused<T>(answer: Result<T, LockError>) {
    says(&is_unavailable(answer), &[FOLDER, "delete"]);
}

/// What the server does, on which the rest stands.
#[tokio::test]
async fn the_server_repeats_the_last_number_and_goes_below_zero() {
    let server = aged(i32::MAX - 1).await;
    let client = server.client().await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let path = format!("{FOLDER}/lock-");
    let number = async || {
        let made = client.create(&path, b"", &options).await;
        made.expect("a node").1.to_string()
    };
    assert_eq!(number().await, "2147483646");
    assert_eq!(number().await, "2147483647");
    // While one creation is not done yet, the next goes below zero; as soon as
    // it is, the last number comes again.
    let mut both = client.new_multi_writer();
    for start in ["first-lock-", "second-lock-"] {
        let path = format!("{FOLDER}/{start}");
        both.add_create(&path, b"", &options).expect("a creation");
    }
    both.commit().await.expect("two nodes");
    let mut names = nodes(&client, FOLDER).await;
    names.sort();
    let numbers = "first-lock-2147483647 lock-2147483646 lock-2147483647 \
                   second-lock--2147483648";
    assert_eq!(names.join(" "), numbers);
}

/// Many sections of several processes, from shortly before the end to beyond
/// it. Those that are let in are alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_shares_a_lock_at_the_end_of_the_numbers() {
    const PROCESSES: usize = 6;
    const SECTIONS: usize = 20;
    for (start, let_in) in [(i32::MAX - 30, 0), (FIRST_REFUSED - 30, 30)] {
        let server = aged(start).await;
        let section = Arc::new(Section::default());
        let mut processes = JoinSet::new();
        for _ in 0..PROCESSES {
            let (manager, section) = (connect(&server).await, Arc::clone(&section));
            processes.spawn(async move {
                for _ in 0..SECTIONS {
                    let ended = manager.lock("key").run(section.visit()).await;
                    if ended.is_err() {
                        is_refused(ended);
                    }
                }
            });
        }
        within(HANG, processes.join_all()).await;
        let most = let_in.min(1);
        assert_eq!((section.entries(), section.most()), (let_in, most));
        assert_eq!(nodes(&server.client().await, FOLDER).await, [""; 0]);
    }
}

/// Whoever has a number has a place, and keeps it. Whoever comes after the end
/// is refused at once, however it asks, and leaves nothing behind.
#[tokio::test]
async fn who_queues_before_the_end_is_served_in_order() {
    let server = aged(FIRST_REFUSED - 4).await;
    let (holder, late) = (connect(&server).await, connect(&server).await);
    let guard = held(holder.lock("key")).await;
    let mut waiting = Vec::new();
    for read in [false, true, true] {
        let manager = connect(&server).await;
        let request = wants(manager.lock("key"), read);
        waiting.push(tokio::spawn(request.acquire()));
        queued(&holder, "key", waiting.len()).await;
    }
    let queue = nodes(&server.client().await, FOLDER).await;
    is_refused(late.lock("key").try_acquire().await);
    is_refused(within(HANG, late.lock("key").acquire()).await);
    is_refused(within(HANG, late.lock("key").read().acquire()).await);
    assert_eq!(nodes(&server.client().await, FOLDER).await, queue);

    let mut waiting = waiting.into_iter();
    let mut next = async || served(waiting.next().expect("another")).await;
    let mut token = guard.token();
    guard.release().await.expect("the release");
    let writer = next().await;
    assert!(writer.token() > token);
    queued(&holder, "key", 2).await;
    token = writer.token();
    writer.release().await.expect("the release");
    // Two readers, together.
    let readers = [next().await, next().await];
    for reader in readers {
        assert!(reader.token() > token);
        reader.release().await.expect("the release");
    }
    is_refused(late.lock("key").try_acquire().await);
    assert_eq!(nodes(&server.client().await, FOLDER).await, [""; 0]);
}

/// Asking for a lock whose folder has come to its end does not use up the
/// numbers that are left.
#[tokio::test]
async fn asking_at_the_end_uses_up_no_numbers() {
    let server = aged(FIRST_REFUSED).await;
    let manager = connect(&server).await;
    is_refused(manager.lock("key").try_acquire().await);
    // Those of who has set the server up may be among them at first.
    eventually("asking does nothing in the server", async || {
        let before = server.transactions();
        for _ in 0..10 {
            is_refused(manager.lock("key").try_acquire().await);
            is_refused(within(HANG, manager.lock("key").acquire()).await);
        }
        (server.transactions() == before).then_some(())
    })
    .await;
}

/// The remedy that the error names; processes that were refused notice it.
#[tokio::test]
async fn a_deleted_folder_begins_again() {
    let server = aged(FIRST_REFUSED - 1).await;
    let manager = connect(&server).await;
    let guard = held(manager.lock("key")).await;
    let last = guard.token();
    guard.release().await.expect("the release");
    is_refused(manager.lock("key").try_acquire().await);
    let client = server.client().await;
    client.delete(FOLDER, None).await.expect("an empty folder");
    let guard = held(manager.lock("key")).await;
    assert!(guard.token() > last);
    let names = nodes(&client, FOLDER).await;
    assert!(names[0].ends_with("-lock-0000000001"), "{names:?}");
}

/// Folders that dlock has made are deleted by the server, once nobody is in
/// them.
#[tokio::test]
async fn a_folder_of_our_own_begins_again_by_itself() {
    let mut server = Setup::default().start().await;
    let manager = connect(&server).await;
    had(&manager, "key").await;
    server.age(FOLDER, FIRST_REFUSED).await;
    is_refused(manager.lock("key").try_acquire().await);
    server.restart_tidy().await;
    eventually("the folder is made again", async || {
        let ran = manager.lock("key").run(async {}).await;
        if ran.is_err() {
            is_refused(ran);
            return None;
        }
        Some(())
    })
    .await;
}

/// A service in Java takes a number below zero for the first of all, and goes
/// in. So whoever waits here lets it out first.
#[tokio::test]
async fn a_node_below_zero_is_waited_for() {
    let server = Setup::default().start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let java = server.client().await;
    let name = "_c_0f9d2c7e-58e1-4c9f-9d0a-6f1f6a3b9c11-lock--2147483648";
    make_ephemeral(&java, &format!("{FOLDER}/{name}")).await;
    guard.release().await.expect("the release");
    let watches = async || server.number("zk_watch_count");
    // Its own, of the node that is now before it.
    until("it waits again", watches, |&count| count == Some(1)).await;
    assert_eq!(nodes(&java, FOLDER).await.len(), 2);
    assert!(!waiting.is_finished(), "two are inside");
    let left = java.delete(&format!("{FOLDER}/{name}"), None).await;
    left.expect("its node");
    served(waiting).await.release().await.expect("the release");
}

async fn make_ephemeral(client: &Client, path: &str) {
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.expect("a node");
}
